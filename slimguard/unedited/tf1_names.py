"""The names of TensorFlow 1, and of the numpy of its time, for scripts that run on TensorFlow 2.

After `install`, ``import tensorflow as tf`` in a script and its own modules gives a namespace with
the names of TensorFlow 1.15: ``tf.placeholder``, ``tf.app``, ``tf.contrib.slim``. Libraries still
get the installed TensorFlow, unchanged: the replaced ``builtins.__import__`` looks at the module
that imports, and nothing is put into ``sys.modules``.

If the script is a module of an installed package, all modules of the package are its own.

``np.int`` and the other names that numpy has dropped since 1.19 work again, in the script and in
the libraries that it uses. Names that the installed numpy has are not changed.
"""

import builtins
import functools
import importlib
import importlib.util
import os
import sys
import types
import warnings
from typing import Any, Dict, List, Optional, Tuple

from slimguard import compat
from slimguard.unedited.tf1_table import (
    MODULES_BEHIND_FUNCTIONS,
    TABLE,
    can_be_imported,
    explain,
)

# These libraries get the installed TensorFlow, wherever they are installed.
_LIBRARIES = frozenset(['keras', 'slimguard', 'tensorboard', 'tensorflow', 'tf_keras', 'tf_slim'])

_builtin_import = builtins.__import__


def is_native() -> bool:
    """Whether the installed TensorFlow is 1.x, which has all names. Imports it."""
    return importlib.import_module('tensorflow').__version__.startswith('1.')


def install() -> None:
    """Gives the script the names of TensorFlow 1, and turns the behaviour of version 2 off.

    Puts numpy's old names back, too. Call it before TensorFlow is imported. Does nothing on
    TensorFlow 1.x.
    """
    # Then tf.keras, tf.layers and tf.nn.rnn_cell come from Keras 2, as in TensorFlow 1.
    if importlib.util.find_spec('tf_keras') is not None:
        os.environ.setdefault('TF_USE_LEGACY_KERAS', '1')
    if is_native():
        return
    compat.revive()
    importlib.import_module('tensorflow').compat.v1.disable_v2_behavior()
    builtins.__import__ = _import
    numpy = importlib.import_module('numpy')
    _numpys.update(numpys_old_names())
    for name, meant in _numpys.items():
        setattr(numpy, name, meant)


def uninstall() -> None:
    """Removes the names again. The behaviour of version 2 cannot be turned on again."""
    global _scripts_file
    _scripts_file = ''
    if builtins.__import__ is _import:
        builtins.__import__ = _builtin_import
    numpy = importlib.import_module('numpy')
    for name, meant in _numpys.items():
        if vars(numpy).get(name) is meant:  # the script has not set it since
            delattr(numpy, name)
    _numpys.clear()


def let_flags_be_redefined() -> None:
    """Lets scripts define flags that absl now defines itself, such as ``log_dir``.

    absl's flags, which replaced TensorFlow 1's, cannot be defined twice. Call this once TensorFlow
    is imported.
    """
    from absl import flags

    for module, defined in flags.FLAGS.flags_by_module_dict().items():
        if module.partition('.')[0] == 'absl':
            for flag in defined:
                flag.allow_override = True


class _Namespace(types.ModuleType):
    """A package of TensorFlow 1, put together from the modules that hold its names today.

    If no module has them, it is a placeholder: it can be imported, and raises AttributeError when
    it is used. A placeholder may also stand for a function, or for a class that a script calls,
    derives from, or passes to `isinstance`.
    """

    def __init__(self, name: str):
        super().__init__(name.replace('tf', 'tensorflow', 1))
        self._slimguard_name = name

    def __getattr__(self, name: str) -> Any:
        if name == '__all__':
            return [name for name in dir(self) if hasattr(self, name)]
        return _find(self._slimguard_name, name)

    def __dir__(self) -> List[str]:
        rows = (row.rpartition('.') for row in TABLE)
        names = {name for package, _, name in rows if package == self._slimguard_name}
        for place in _places(self._slimguard_name):
            names.update(dir(place))
        return sorted(name for name in names if not name.startswith('_'))

    def _raise(self, *args, **kwargs) -> Any:
        raise AttributeError(explain(self._slimguard_name))

    __call__ = __mro_entries__ = __instancecheck__ = _raise


@functools.lru_cache(maxsize=None)
def namespace(name: str = 'tf') -> types.ModuleType:
    """A package of TensorFlow 1 for a script to import, such as ``tf`` or ``tf.contrib.slim``."""
    return _Namespace(name)


def _find(package: str, name: str) -> Any:
    """The object that a name in a package of TensorFlow 1 stands for.

    Raises:
      AttributeError: if it is missing; the message names it, and what replaced it.
    """
    full_name = package + '.' + name
    home = TABLE.get(full_name)
    if isinstance(home, tuple):
        if not home or _places(full_name):
            return namespace(full_name)
    elif home is not None:
        return _resolve(home)
    for place in _places(package):
        try:
            return _attribute(place, name)
        except AttributeError:
            pass
    if package == 'tf.contrib' and can_be_imported(full_name):
        return namespace(full_name)  # TensorFlow 1 imported it as well
    raise AttributeError(explain(full_name))


@functools.lru_cache(maxsize=None)
def _places(package: str) -> Tuple[Any, ...]:
    """The modules in which this TensorFlow has the names of a package of TensorFlow 1."""
    places = []
    for home in TABLE.get(package, ()):
        try:
            places.append(_resolve(home))
        except AttributeError:
            pass
    return tuple(places)


def _resolve(home: str) -> Any:
    """The object that an entry in the right column of the table stands for.

    Raises:
      AttributeError: if this TensorFlow does not have it.
      ImportError: if tf-slim is not installed; says what to install.
    """
    if home.partition('.')[0] != 'tf':
        compat.import_slim()
        module, _, name = home.partition(':')
        value = importlib.import_module(module)
        return getattr(value, name) if name else value
    value = importlib.import_module('tensorflow')
    for name in home.split('.')[1:]:
        value = _attribute(value, name)
    return value


def _attribute(value: Any, name: str) -> Any:
    """An attribute, or a module of a package that is not imported yet.

    Raises:
      AttributeError: if there is neither.
    """
    try:
        return getattr(value, name)
    except AttributeError:
        if isinstance(value, _Namespace) or not hasattr(value, '__path__') or name[:2] == '__':
            raise
    full_name = value.__name__ + '.' + name
    if importlib.util.find_spec(full_name) is None:
        raise AttributeError('module %r has no attribute %r' % (value.__name__, name))
    return importlib.import_module(full_name)


def _import(name, globals=None, locals=None, fromlist=(), level=0):
    """Replaces the builtin `__import__`: decides which TensorFlow the importer gets."""
    is_tensorflow = not level and name.partition('.')[0] == 'tensorflow'
    if not is_tensorflow or not _is_for_us(globals or {}):
        return _builtin_import(name, globals, locals, fromlist, level)
    full_name = name.replace('tensorflow', 'tf', 1)
    module = _import_path(full_name)
    if not fromlist:
        return namespace()
    placeholders = {}
    for wanted in fromlist:
        if wanted == '*':
            continue
        try:
            # Like an import, this also loads the module of that name.
            _attribute(module, wanted)
        except AttributeError as error:
            if not can_be_imported(full_name + '.' + wanted):
                raise ImportError(_why(full_name + '.' + wanted, error), name=name) from None
            placeholders[wanted] = namespace(full_name + '.' + wanted)
    return _with(placeholders, module) if placeholders else module


def _import_path(full_name: str) -> Any:
    """The module that a path such as ``tf.contrib.slim`` stands for in an import.

    Raises:
      ModuleNotFoundError: if there is no such module; the message says what replaced it.
    """
    if full_name in MODULES_BEHIND_FUNCTIONS:
        return _resolve(MODULES_BEHIND_FUNCTIONS[full_name])
    parent, _, name = full_name.rpartition('.')
    if not parent:
        return namespace()
    package = _import_path(parent)
    try:
        return _attribute(package, name)
    except AttributeError as error:
        # Leave a library's module as it is.
        if can_be_imported(full_name) and isinstance(package, _Namespace):
            # Like an import, this makes the module an attribute of its package.
            vars(package)[name] = namespace(full_name)
            return vars(package)[name]
        path = full_name.replace('tf', 'tensorflow', 1)
        raise ModuleNotFoundError(_why(full_name, error), name=path) from None


def _why(full_name: str, error: AttributeError) -> str:
    """Why a name is missing: below tf.contrib our own explanation, else the library's error."""
    return explain(full_name) if full_name.startswith('tf.contrib.') else str(error)


def _with(placeholders: Dict[str, types.ModuleType], module: Any) -> types.ModuleType:
    """A stand-in for a module in one ``from module import ...``; the module itself is unchanged."""
    holder = types.ModuleType(module.__name__)
    vars(holder).update(placeholders, __getattr__=functools.partial(getattr, module))
    return holder


def _is_for_us(importer: Dict[str, Any]) -> bool:
    """Whether the importing module, given by its globals, gets the names of TensorFlow 1."""
    name = importer.get('__name__', '')
    if name == '__main__':
        return True
    if name.partition('.')[0] in _LIBRARIES:
        return False
    installed_as = _installed_as(importer.get('__file__'))
    return installed_as is None or installed_as == _installed_as(_file_of_the_script())


def _file_of_the_script() -> Optional[str]:
    return _scripts_file or getattr(sys.modules.get('__main__'), '__file__', None)


# The file of the package that `run -m` runs: Python imports it before it sets ``__main__``'s file.
_scripts_file = ''


def note_module(name: str) -> None:
    """Notes which module will be the script; call it before any part of that is imported."""
    global _scripts_file
    try:
        spec = importlib.util.find_spec(name.partition('.')[0])
    except ValueError:  # the module has no `__spec__`
        spec = None
    _scripts_file = '' if spec is None else spec.origin or ''


def _installed_as(file: Optional[str]) -> Optional[str]:
    """The installed package or module to which a file belongs; None if it is not installed."""
    folders = (os.path.abspath(file) if file else '').split(os.sep)
    for number, folder in enumerate(folders[:-1]):
        if folder in ('site-packages', 'dist-packages'):
            return os.sep.join(folders[: number + 2])
    return None


# Old names of objects that numpy still has under a new name.
RENAMED = (
    'Inf=inf Infinity=inf PINF=inf infty=inf NAN=nan NaN=nan bool8=bool_ complex_=complex128 '
    'float_=float64 string_=bytes_ unicode_=str_ alltrue=all sometrue=any product=prod '
    'cumproduct=cumprod mat=asmatrix round_=round row_stack=vstack trapz=trapezoid'
).split()
# Names of Python's own types.
_BUILTINS = 'bool complex float int object str'.split()

_numpys: Dict[str, Any] = {}  # what was put back, by name


def asscalar(a: Any) -> Any:
    """The same as numpy's former `numpy.asscalar`."""
    return a.item()


def numpys_old_names() -> Dict[str, Any]:
    """The old names that the installed numpy does not have, and their values."""
    numpy: Any = importlib.import_module('numpy')
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # numpy warns of names that it will reuse
        meant: Dict[str, Any] = {name: getattr(builtins, name) for name in _BUILTINS}
        meant.update(long=int, unicode=str, NINF=-numpy.inf, asscalar=asscalar)
        for old, new in (pair.split('=') for pair in RENAMED):
            meant[old] = getattr(numpy, new, None)
        return {name: it for name, it in meant.items() if not hasattr(numpy, name)}

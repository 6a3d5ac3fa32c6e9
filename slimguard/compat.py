"""Which TensorFlow, which tf-slim; puts back the names that tf-slim needs and TensorFlow dropped.

tf-slim reaches into ``tensorflow.python``, and TensorFlow 2.13 and later have moved what it reaches
for. `revive` puts those names back where the installed tf-slim looks for them, and only those: what
is there stays as it is, and where nothing is missing nothing is done. ``import slimguard`` sees to
it that this happens before tf-slim is first imported.

Example::

    import slimguard                  # does not import TensorFlow
    import tf_slim as slim            # works on TensorFlow 1.15 and on the newest
    print(slimguard.compat.report())  # versions, repairs and what is missing, for a bug report
"""

import ast
import functools
import importlib
import importlib.util
import os
import platform
import re
import sys
import types
from typing import Any, FrozenSet, Iterable, List, NamedTuple, Optional, Set, Tuple, Union


class _Row(NamedTuple):
    """A name that some tf-slim uses and some TensorFlow lacks."""

    module: str  # where tf-slim looks for it
    name: str
    home: Union[str, Tuple[str, ...]]  # TensorFlow's public name; or Keras modules, first come

    @property
    def full_name(self) -> str:
        return self.module + '.' + self.name


# The v1 layers belong to Keras 2: the package tf-keras, and up to TensorFlow 2.15 also keras.
_NORMALIZATION = (
    'tf_keras.src.legacy_tf_layers.normalization',
    'keras.src.legacy_tf_layers.normalization',
)
_LAYERS = (
    'tf_keras.api._v1.keras.__internal__.legacy.layers',
    'keras.api._v1.keras.__internal__.legacy.layers',
)

# The public name in the last column is what the internal one in the first two stands for.
_TABLE = (
    # tf-slim 1.0 and 1.1 look in the places of TensorFlow 1.15; 2.13 and later have moved out.
    _Row('tensorflow.python.framework.ops', 'IndexedSlices', 'tf.IndexedSlices'),
    _Row('tensorflow.python.framework.ops', 'Tensor', 'tf.Tensor'),
    _Row('tensorflow.python.layers.normalization', 'BatchNormalization', _NORMALIZATION),
    _Row('tensorflow.python.layers.normalization', 'batch_normalization', _NORMALIZATION),
    _Row('tensorflow.python.ops.array_ops', 'stack', 'tf.stack'),
    _Row('tensorflow.python.ops.array_ops', 'unstack', 'tf.unstack'),
    _Row('tensorflow.python.ops.control_flow_ops', 'Assert', 'tf.compat.v1.Assert'),
    _Row('tensorflow.python.ops.control_flow_ops', 'case', 'tf.compat.v1.case'),
    _Row('tensorflow.python.ops.control_flow_ops', 'cond', 'tf.compat.v1.cond'),
    _Row('tensorflow.python.ops.control_flow_ops', 'while_loop', 'tf.compat.v1.while_loop'),
    _Row(
        'tensorflow.python.ops.variable_scope',
        'disable_resource_variables',
        'tf.compat.v1.disable_resource_variables',
    ),
    _Row(
        'tensorflow.python.ops.variable_scope',
        'enable_resource_variables',
        'tf.compat.v1.enable_resource_variables',
    ),
    _Row(
        'tensorflow.python.ops.variable_scope',
        'resource_variables_enabled',
        'tf.compat.v1.resource_variables_enabled',
    ),
    _Row('tensorflow.python.ops.variable_scope', 'variable', 'tf.compat.v1.Variable'),
    _Row('tensorflow.python.ops.variables', 'VariableV1', 'tf.compat.v1.Variable'),
    # tf-slim 1.2 looks in the places of the newest TensorFlow, which older ones do not have yet.
    _Row(
        'tensorflow.python.checkpoint.checkpoint_management',
        'latest_checkpoint',
        'tf.train.latest_checkpoint',
    ),
    _Row('tensorflow.python.framework.tensor', 'Tensor', 'tf.Tensor'),
    _Row('tensorflow.python.ops.array_ops_stack', 'stack', 'tf.stack'),
    _Row('tensorflow.python.ops.array_ops_stack', 'unstack', 'tf.unstack'),
    _Row('tensorflow.python.ops.cond', 'cond', 'tf.compat.v1.cond'),
    _Row('tensorflow.python.ops.control_flow_assert', 'Assert', 'tf.compat.v1.Assert'),
    _Row('tensorflow.python.ops.control_flow_case', 'case', 'tf.compat.v1.case'),
    _Row(
        'tensorflow.python.ops.resource_variables_toggle',
        'disable_resource_variables',
        'tf.compat.v1.disable_resource_variables',
    ),
    _Row(
        'tensorflow.python.ops.resource_variables_toggle',
        'enable_resource_variables',
        'tf.compat.v1.enable_resource_variables',
    ),
    _Row(
        'tensorflow.python.ops.resource_variables_toggle',
        'resource_variables_enabled',
        'tf.compat.v1.resource_variables_enabled',
    ),
    _Row('tensorflow.python.ops.variable_v1', 'VariableV1', 'tf.compat.v1.Variable'),
    _Row('tensorflow.python.ops.while_loop', 'while_loop', 'tf.compat.v1.while_loop'),
    # TensorFlow 2.16 and later look for tf.compat.v1.layers in Keras 3, which has none.
    _Row('tensorflow.compat.v1', 'layers', _LAYERS),
)

_put_back_rows: List[_Row] = []


class Repair(NamedTuple):
    """A name that was put back, and the name it now stands for."""

    name: str
    source: str


class Missing(NamedTuple):
    """Something that cannot work here: its name, the reason, and what to do."""

    name: str
    why: str
    remedy: str


class Report(NamedTuple):
    """What was found; ``str()`` gives a plain text table for a bug report."""

    versions: Tuple[Tuple[str, str], ...]
    repairs: Tuple[Repair, ...]
    missing: Tuple[Missing, ...]

    def __str__(self) -> str:
        lines = _columns(self.versions)
        lines += ['', 'put back: {}'.format(len(self.repairs) or 'nothing')]
        lines += _columns(self.repairs)
        lines += ['', 'missing: {}'.format(len(self.missing) or 'nothing')]
        for name, why, remedy in self.missing:
            lines += ['  ' + name, '    why:   ' + why, '    do:    ' + remedy]
        return '\n'.join(lines)


def require_tensorflow() -> None:
    """Raises an ImportError that says what to install when there is no TensorFlow.

    Looks, but imports nothing.
    """
    if sys.modules.get('tensorflow') is None and _find_spec('tensorflow') is None:
        raise ImportError(
            'slimguard uses the TensorFlow that you have, and found none. '
            'pip install "slimguard[tf]" installs one; any other build of TensorFlow '
            "(tensorflow-cpu, tensorflow-gpu, a vendor's own) works as well."
        )


def revive() -> Tuple[Repair, ...]:
    """Puts back what the installed tf-slim uses and the installed TensorFlow lacks.

    Imports TensorFlow, but neither tf-slim nor Keras. Safe to call again: names that are there,
    TensorFlow's own or put back before, are left alone.

    Returns:
      All repairs made in this process so far.

    Raises:
      ImportError: if TensorFlow is not installed.
    """
    require_tensorflow()
    _stop_watching()
    for row in _missing_rows():
        if _put_back(row):
            _put_back_rows.append(row)
    sources = ((row.full_name, _source(row)) for row in _put_back_rows)
    return tuple(Repair(name, source) for name, source in sources if source)


def import_slim() -> types.ModuleType:
    """Imports TF-Slim: ``tf_slim`` if it is installed, else TensorFlow 1.15's ``tf.contrib.slim``.

    Raises:
      ImportError: if there is neither, or a tf-slim that cannot work with this TensorFlow; says
        what to install.
    """
    revive()
    missing = _missing_slim()
    if missing:
        raise ImportError('{}: {}. {}'.format(*missing))
    return importlib.import_module(_slim_name())


def on_slim_import() -> None:
    """Revives tf-slim now if it is imported already, else just before it first is.

    Imports nothing itself, so that ``import slimguard`` stays quick.
    """
    if 'tf_slim' in sys.modules:
        revive()
    elif not any(isinstance(finder, _SlimWatcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, _SlimWatcher())


def report() -> Report:
    """Says which versions were found, what was put back and what is missing.

    Revives tf-slim first. Reads tf-slim's sources, which takes a second.
    """
    try:
        repairs = revive()
    except ImportError as error:
        lacking = Missing('tensorflow', str(error), 'pip install "slimguard[tf]"')
        return Report(_versions(), (), (lacking,))
    slim = _missing_slim()
    missing = [slim] if slim else _missing_names() + _missing_layers()
    return Report(_versions(), repairs, tuple(missing))


class _SlimWatcher:
    """A finder for ``sys.meta_path`` that finds nothing, but revives tf-slim when asked for it.

    The finders behind it then import tf-slim as ever.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == 'tf_slim':
            revive()


def _stop_watching() -> None:
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _SlimWatcher)]


class _KerasLayers(types.ModuleType):
    """A module that Keras holds, imported when one of its names is first used.

    Takes the place of a lazy loader of TensorFlow's that points to a module which is not there.
    """

    def __init__(self, name: str, homes: Tuple[str, ...]) -> None:
        super().__init__(name)
        self._homes = homes

    def __getattr__(self, name: str) -> Any:
        if name.startswith('__'):  # inspect, doctest and warnings ask every module for these
            raise AttributeError(name)
        return getattr(_import_layers(self._homes), name)


def _import_layers(homes: Iterable[str]) -> types.ModuleType:
    cause = None
    for home in homes:
        try:
            return importlib.import_module(home)
        except ImportError as error:
            cause = cause or error
    raise ImportError(
        'tf-slim needs the v1 layers of Keras 2, for slim.batch_norm above all, and TensorFlow {} '
        'does not have them: {}'.format(_tensorflow_version(), _layers_remedy())
    ) from cause


def _layers_remedy() -> str:
    """What brings the v1 layers to this TensorFlow: its own Keras until 2.15, then tf-keras."""
    major, minor = _tensorflow_version().split('.')[:2]
    package = 'keras' if int(minor) < 16 else 'tf-keras'
    return 'pip install "{}=={}.{}.*"'.format(package, major, minor)


def _tensorflow_version() -> str:
    return importlib.import_module('tensorflow').__version__


def _missing_rows() -> List[_Row]:
    lacking = [row for row in _TABLE if _is_missing(row)]
    used = _used_rows(_slim_folders()) if lacking else ()
    return [row for row in lacking if row in used]


def _is_missing(row: _Row) -> bool:
    module = _import_or_none(row.module)
    if isinstance(row.home, str):
        return module is None or not hasattr(module, row.name)
    return module is not None and _leads_nowhere(vars(module).get(_loader_name(row, module)))


def _put_back(row: _Row) -> bool:
    """Returns whether there is something to put back."""
    if isinstance(row.home, str):
        value = _public(row.home)
        if value is None:
            return False
        setattr(_import_or_create(row.module), row.name, value)
    else:
        module = importlib.import_module(row.module)
        layers = _KerasLayers(row.full_name, row.home)
        setattr(module, _loader_name(row, module), layers)
    return True


def _source(row: _Row) -> Optional[str]:
    """Where the name comes from; None if it has to be installed first."""
    if isinstance(row.home, str):
        return row.home
    return next((home for home in row.home if _is_on_disk(home)), None)


def _public(home: str) -> Any:
    """The value of a public name of TensorFlow's, such as ``tf.compat.v1.cond``; None if gone."""
    value = importlib.import_module('tensorflow')
    for name in home.split('.')[1:]:
        value = getattr(value, name, None)
    return value


def _loader_name(row: _Row, module: types.ModuleType) -> str:
    """The global that holds TensorFlow's lazy loader for a name.

    That is the name itself, or in a module that serves its names from a loader, such as
    ``tensorflow.python.layers.normalization``, the global called as the module.
    """
    return row.name if row.name in vars(module) else row.module.rpartition('.')[2]


def _leads_nowhere(value: Any) -> bool:
    """Whether this is a lazy loader whose module is not installed; does not wake it."""
    # Internal, without a public name: only its type tells a lazy loader from what it loads.
    lazy_loader = importlib.import_module('tensorflow.python.util.lazy_loader')
    if not isinstance(value, lazy_loader.LazyLoader):
        return False
    # The loader that chooses between the packages of Keras has no name until it has chosen. Only
    # Keras 2 has what it is asked for, whichever Keras it would choose.
    target = vars(value).get('__name__')
    if target is None:
        legacy = os.environ.get('TF_USE_LEGACY_KERAS') in ('true', 'True', '1')
        target = _LAYERS[0 if legacy else 1]
    return not _is_on_disk(target)


def _is_on_disk(name: str) -> bool:
    """Whether a module's file is there; unlike ``find_spec``, imports none of its parents."""
    package, _, rest = name.partition('.')
    spec = _find_spec(package)
    places = spec.submodule_search_locations if spec else None
    paths = [os.path.join(place, *rest.split('.')) for place in places or ()]
    return any(os.path.isdir(path) or os.path.isfile(path + '.py') for path in paths)


def _import_or_none(name: str) -> Optional[types.ModuleType]:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _import_or_create(name: str) -> types.ModuleType:
    """Imports a module of TensorFlow's, and makes an empty one where TensorFlow has none."""
    module = _import_or_none(name)
    if module is None:
        parent, _, child = name.rpartition('.')
        module = sys.modules[name] = types.ModuleType(name)
        setattr(_import_or_create(parent), child, module)
    return module


def _find_spec(package: str) -> Any:
    """The spec of a top-level package; None if there is none, or something forbids its import."""
    try:
        return importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None


# What tf-slim writes: `from tensorflow.a import b as c` and `import tensorflow.a as c`, one a line.
_IMPORT = re.compile(
    r'\n(?:from (tensorflow[\w.]*) import (\w+)|import (tensorflow[\w.]*))(?: as (\w+))?'
)


@functools.lru_cache(maxsize=None)
def _used_rows(folders: Tuple[str, ...]) -> FrozenSet[_Row]:
    """The rows of the table that the tf-slim in these folders uses, its test modules included.

    Searches the text, because parsing it would add a third of a second to the import of tf-slim.
    """
    used: Set[_Row] = set()
    for path in _sources(folders):
        with open(path, encoding='utf-8') as file:
            source = file.read()
        imports = [
            (alias or name or module, package + '.' + name if package else module)
            for package, name, module, alias in _IMPORT.findall(source)
        ]
        used.update(row for row in _TABLE if row not in used and _is_used(row, source, imports))
    return frozenset(used)


def _is_used(row: _Row, source: str, imports: List[Tuple[str, str]]) -> bool:
    uses = (re.escape(alias + '.' + row.name) for alias, name in imports if name == row.module)
    return any(re.search(use + r'\b', source) for use in uses)


def _slim_folders() -> Tuple[str, ...]:
    spec = _find_spec('tf_slim')
    return tuple(spec.submodule_search_locations) if spec else ()


def _sources(folders: Iterable[str]) -> List[str]:
    return [
        os.path.join(folder, file)
        for top in folders
        for folder, _, files in os.walk(top)
        for file in files
        if file.endswith('.py')
    ]


def _slim_name() -> Optional[str]:
    """The module that is TF-Slim here."""
    if _find_spec('tf_slim'):
        return 'tf_slim'
    return 'tensorflow.contrib.slim' if _has_contrib() else None


def _missing_slim() -> Optional[Missing]:
    """Why there is no TF-Slim that works with this TensorFlow; None if there is one."""
    slim = _slim_name()
    if slim is None:
        return Missing('tf-slim', 'it is not installed', 'pip install tf-slim')
    if slim == 'tf_slim' and _is_shell_of_contrib() and not _has_contrib():
        why = 'tf-slim 1.0 is made of tf.contrib, which only TensorFlow 1 has'
        return Missing('tf-slim', why, 'pip install "tf-slim>=1.1"')
    return None


def _is_shell_of_contrib() -> bool:
    """Whether ``tf_slim`` is version 1.0, told by its imports: a copy may carry no version."""
    with open(_find_spec('tf_slim').origin, encoding='utf-8') as file:
        return 'from tensorflow.contrib' in file.read()


def _has_contrib() -> bool:
    return _tensorflow_version().startswith('1.')


def _missing_layers() -> List[Missing]:
    """The repairs that wait for a Keras to be installed."""
    names = [row.full_name for row in _put_back_rows if _source(row) is None]
    why = 'slim.batch_norm is made of the v1 layers of Keras 2, which are not installed'
    return [Missing(name, why, _layers_remedy()) for name in names]


def _missing_names() -> List[Missing]:
    """What tf-slim itself uses and nobody has: a TensorFlow newer than the table."""
    paths = [path for path in _sources(_slim_folders()) if not path.endswith('_test.py')]
    names = set().union(*(_names_used(path) for path in paths))
    names.difference_update(row.full_name for row in _put_back_rows)
    why = 'tf-slim uses it and TensorFlow {} lacks it'.format(_tensorflow_version())
    remedy = 'report it to slimguard, with this table'
    return [Missing(name, why, remedy) for name in sorted(names) if not _exists(name)]


def _names_used(path: str) -> Set[str]:
    """The full names of what a Python file takes from modules of TensorFlow."""
    with open(path, encoding='utf-8') as file:
        nodes = list(ast.walk(ast.parse(file.read())))
    imports = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            package = '{}.'.format(node.module)
            imports.update((item.asname or item.name, package + item.name) for item in node.names)
        elif isinstance(node, ast.Import):
            imports.update((item.asname or item.name, item.name) for item in node.names)
    names = set(imports.values())
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names.add('{}.{}'.format(imports.get(node.value.id), node.attr))
    return {name for name in names if name.startswith('tensorflow.') and name[-1] != '*'}


def _exists(name: str) -> bool:
    """Whether a full name is a module or a name in one."""
    parent, _, child = name.rpartition('.')
    module = _import_or_none(parent)
    # dir() first: TensorFlow logs a warning when a deprecated module is asked for a name.
    return child in dir(module) or hasattr(module, child) or _import_or_none(name) is not None


def _versions() -> Tuple[Tuple[str, str], ...]:
    # The distribution of TensorFlow goes by many names: tensorflow-cpu, tf-nightly, a vendor's.
    tensorflow = _import_or_none('tensorflow')
    versions = [
        ('Python', platform.python_version()),
        ('TensorFlow', tensorflow.__version__ if tensorflow else 'not installed'),
        ('tf-slim', _slim_version()),
    ]
    others = ('tf-keras', 'keras', 'numpy', 'protobuf', 'slimguard')
    versions += [(name, _distribution_version(name) or 'not installed') for name in others]
    return tuple(versions)


def _slim_version() -> str:
    version = _distribution_version('tf-slim')
    if version is None and _find_spec('tf_slim'):
        return 'not installed by pip'
    if version is None and _import_or_none('tensorflow.contrib.slim'):
        return 'tf.contrib.slim'
    return version or 'not installed'


def _distribution_version(name: str) -> Optional[str]:
    if sys.version_info >= (3, 8):
        from importlib import metadata

        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return None
    import pkg_resources

    try:
        return pkg_resources.get_distribution(name).version
    except pkg_resources.DistributionNotFound:
        return None


def _columns(pairs: Iterable[Tuple[str, str]]) -> List[str]:
    """Two aligned columns of text."""
    pairs = list(pairs)
    width = max((len(left) for left, _ in pairs), default=0)
    return ['  {:{}}  {}'.format(left, width, right) for left, right in pairs]

"""Puts back the names that tf-slim uses and the installed TensorFlow lacks; imports TF-Slim."""

import importlib
import importlib.util
import os
import sys
import types
from typing import Any, List, NamedTuple, Optional, Tuple, Union

# What the extra "tf" installs, for users without a checkout of slimguard.
INSTALL_TENSORFLOW = 'pip install "tensorflow>=2.12"'
if sys.version_info >= (3, 9):
    INSTALL_TENSORFLOW += ' tf-keras'
elif sys.version_info < (3, 8):
    INSTALL_TENSORFLOW = 'pip install "tensorflow==1.15.*" "protobuf<3.21" "numpy<1.19"'


class Row(NamedTuple):
    """A name that tf-slim uses and some TensorFlow lacks."""

    module: str  # where tf-slim looks for it
    name: str
    # TensorFlow's public name; or Keras modules, of which the first installed one counts.
    home: Union[str, Tuple[str, ...]]

    @property
    def full_name(self) -> str:
        return self.module + '.' + self.name


# The v1 layers belong to Keras 2: the package tf-keras, and up to TensorFlow 2.15 also keras.
_NORMALIZATION = (
    'tf_keras.src.legacy_tf_layers.normalization',
    'keras.src.legacy_tf_layers.normalization',
)


LAYERS = (
    'tf_keras.api._v1.keras.__internal__.legacy.layers',
    'keras.api._v1.keras.__internal__.legacy.layers',
)


# The module and name of an enumeration that scripts take from tf.estimator. Since tf.estimator left
# TensorFlow, in 2.16, it has no public name; this private one is there from 1.15 to 2.21.
MODE_KEYS = 'tensorflow.python.saved_model.model_utils.mode_keys:EstimatorModeKeys'


_CONTROL = 'tensorflow.python.ops.control_flow_ops'
_SCOPE = 'tensorflow.python.ops.variable_scope'

# The first two columns are the private name, the last one is the public name of the same thing.
TABLE = (
    # tf-slim 1.0 and 1.1 look where TensorFlow 1.15 has the names; 2.13 and later have moved them.
    Row('tensorflow.python.framework.ops', 'IndexedSlices', 'tf.IndexedSlices'),
    Row('tensorflow.python.framework.ops', 'Tensor', 'tf.Tensor'),
    Row('tensorflow.python.layers.normalization', 'BatchNormalization', _NORMALIZATION),
    Row('tensorflow.python.layers.normalization', 'batch_normalization', _NORMALIZATION),
    Row('tensorflow.python.ops.array_ops', 'stack', 'tf.stack'),
    Row('tensorflow.python.ops.array_ops', 'unstack', 'tf.unstack'),
    Row(_CONTROL, 'Assert', 'tf.compat.v1.Assert'),
    Row(_CONTROL, 'case', 'tf.compat.v1.case'),
    Row(_CONTROL, 'cond', 'tf.compat.v1.cond'),
    Row(_CONTROL, 'while_loop', 'tf.compat.v1.while_loop'),
    Row(_SCOPE, 'disable_resource_variables', 'tf.compat.v1.disable_resource_variables'),
    Row(_SCOPE, 'enable_resource_variables', 'tf.compat.v1.enable_resource_variables'),
    Row(_SCOPE, 'resource_variables_enabled', 'tf.compat.v1.resource_variables_enabled'),
    Row(_SCOPE, 'variable', 'tf.compat.v1.Variable'),
    Row('tensorflow.python.ops.variables', 'VariableV1', 'tf.compat.v1.Variable'),
    # TensorFlow 2.16 and later look for tf.compat.v1.layers in Keras 3, which does not have them.
    Row('tensorflow.compat.v1', 'layers', LAYERS),
)

# The rows whose names were put back in this process so far.
put_back_rows: List[Row] = []


class Repair(NamedTuple):
    """A name that was put back, and the name that it stands for now."""

    name: str
    source: str


def require_tensorflow() -> None:
    """Raises an ImportError that says what to install when there is no TensorFlow.

    Looks, but imports nothing.
    """
    if sys.modules.get('tensorflow') is None and find_spec('tensorflow') is None:
        raise ImportError(
            'no TensorFlow was found; slimguard uses the TensorFlow that you have. '
            '%s installs one; any other build of TensorFlow '
            "(tensorflow-cpu, tensorflow-gpu, a vendor's own) works as well." % INSTALL_TENSORFLOW
        )


def revive() -> Tuple[Repair, ...]:
    """Puts back the names that tf-slim uses and the installed TensorFlow lacks.

    Imports TensorFlow, but neither tf-slim nor Keras. Safe to call again: it changes no existing
    name.

    Returns:
      All repairs made in this process so far.

    Raises:
      ImportError: if TensorFlow is not installed.
    """
    require_tensorflow()
    for row in missing_rows():
        if _put_back(row):
            put_back_rows.append(row)
    sources = ((row.full_name, source_of(row)) for row in put_back_rows)
    return tuple(Repair(name, source) for name, source in sources if source)


def on_tensorflow_import() -> None:
    """Puts the names back now if TensorFlow is imported, else right after its import.

    Imports no TensorFlow itself, so that ``import slimguard`` stays quick.
    """
    if sys.modules.get('tensorflow') is not None:
        revive()
    elif not any(isinstance(finder, TensorFlowWatcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, TensorFlowWatcher())


class TensorFlowWatcher:
    """A finder for ``sys.meta_path``: calls `revive` when TensorFlow has been imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != 'tensorflow':
            return None
        # Old finders, such as one of setuptools on Python 3.7, have no find_spec.
        finds = [getattr(each, 'find_spec', None) for each in sys.meta_path if each is not self]
        specs = (find(name, path, target) for find in finds if find is not None)
        spec = next(filter(None, specs), None)
        if spec is not None and spec.loader is not None:
            _revive_after(spec.loader)
        return spec


def _revive_after(loader: Any) -> None:
    """Has TensorFlow's own loader put the names back once it has imported TensorFlow."""

    def exec_module(module: Any) -> None:
        del loader.exec_module  # uncovers the method of its class
        loader.exec_module(module)
        revive()

    loader.exec_module = exec_module


def missing_rows() -> List[Row]:
    """The rows that TensorFlow lacks."""
    return [row for row in TABLE if _is_missing(row)]


def _is_missing(row: Row) -> bool:
    module = import_or_none(row.module)
    if module is None:
        return False
    if isinstance(row.home, str):
        return not hasattr(module, row.name)
    return _leads_nowhere(vars(module).get(_loader_name(row, module)))


def _put_back(row: Row) -> bool:
    """Puts a name back; returns False if TensorFlow has nothing to put there."""
    module = importlib.import_module(row.module)
    if isinstance(row.home, str):
        value = public(row.home)
        if value is None:
            return False
        setattr(module, row.name, value)
    else:
        layers = KerasLayers(row.full_name, row.home)
        setattr(module, _loader_name(row, module), layers)
    return True


def source_of(row: Row) -> Optional[str]:
    """Where the name comes from; None if it has to be installed first."""
    if isinstance(row.home, str):
        return row.home
    return next((home for home in row.home if is_on_disk(home)), None)


def _loader_name(row: Row, module: types.ModuleType) -> str:
    """The global that holds TensorFlow's lazy loader for a name.

    The loader has the same name. Some modules, such as ``tensorflow.python.layers.normalization``,
    have one loader for all their names, which has the name of the module.
    """
    return row.name if row.name in vars(module) else row.module.rpartition('.')[2]


def _leads_nowhere(value: Any) -> bool:
    """Whether this is a lazy loader whose module is not installed; loads nothing."""
    # No public name: only the type tells a lazy loader from the module that it loads.
    lazy_loader = importlib.import_module('tensorflow.python.util.lazy_loader')
    if not isinstance(value, lazy_loader.LazyLoader):
        return False
    # The loader that chooses between the packages of Keras has no name until it has chosen. Of
    # these packages only Keras 2 has the layers.
    target = vars(value).get('__name__')
    if target is None:
        legacy = os.environ.get('TF_USE_LEGACY_KERAS') in ('true', 'True', '1')
        target = LAYERS[0 if legacy else 1]
    return not is_on_disk(target)


class KerasLayers(types.ModuleType):
    """A module of Keras that is imported when one of its names is first used.

    It replaces a lazy loader of TensorFlow's that points to a missing module.
    """

    def __init__(self, name: str, homes: Tuple[str, ...]) -> None:
        super().__init__(name)
        self._homes = homes

    def __getattr__(self, name: str) -> Any:
        if name.startswith('__'):  # inspect, doctest and warnings ask every module for these
            raise AttributeError(name)
        cause = None
        for home in self._homes:
            try:
                return getattr(importlib.import_module(home), name)
            except ImportError as error:
                cause = cause or error
        raise ImportError(
            'tf-slim needs the v1 layers of Keras 2, for slim.batch_norm above all, and TensorFlow '
            '{} does not have them: {}'.format(tensorflow_version(), layers_remedy())
        ) from cause


def layers_remedy() -> str:
    """The command that installs the v1 layers: TensorFlow's own Keras until 2.15, then tf-keras."""
    major, minor = tensorflow_version().split('.')[:2]
    package = 'keras' if int(minor) < 16 else 'tf-keras'
    return 'pip install "{}=={}.{}.*"'.format(package, major, minor)


# TF-Slim itself.


class Missing(NamedTuple):
    """Something that cannot work here: its name, the reason, and what to do."""

    name: str
    why: str
    remedy: str


NO_SLIM = Missing('tf-slim', 'it is not installed', 'pip install tf-slim')


def import_slim() -> types.ModuleType:
    """Imports TF-Slim: ``tf_slim`` if it is installed, else TensorFlow 1.15's ``tf.contrib.slim``.

    Raises:
      ImportError: if there is neither; the message says what to install.
    """
    revive()
    name = _slim_name()
    if name is None:
        raise ImportError('{}: {}. {}'.format(*NO_SLIM))
    return importlib.import_module(name)


def _slim_name() -> Optional[str]:
    """The name of the installed TF-Slim module; None if there is none."""
    if find_spec('tf_slim'):
        return 'tf_slim'
    return 'tensorflow.contrib.slim' if tensorflow_version().startswith('1.') else None


def missing_slim() -> Optional[Missing]:
    """Why there is no TF-Slim; None if there is one."""
    return NO_SLIM if _slim_name() is None else None


def marks_of(learning: types.ModuleType) -> Tuple[Any, Any]:
    """The defaults of `slim.learning` that mean "not given": for the global step, and for others.

    `_USE_GLOBAL_STEP` and `_USE_DEFAULT` of tf_slim 1.1.0 and of tf.contrib.slim in 1.15. They have
    no public names, and a call of slim's functions with all arguments needs them.
    """
    return learning._USE_GLOBAL_STEP, learning._USE_DEFAULT


# Modules and names by their full names; these functions import only what they must.


def find_spec(package: str) -> Any:
    """The spec of a top-level package; None without it, or if its import is forbidden."""
    try:
        return importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None


def is_on_disk(name: str) -> bool:
    """Whether a module's file exists; unlike ``find_spec``, imports no parent package."""
    package, _, rest = name.partition('.')
    spec = find_spec(package)
    places = spec.submodule_search_locations if spec else None
    paths = [os.path.join(place, *rest.split('.')) for place in places or ()]
    return any(os.path.isdir(path) or os.path.isfile(path + '.py') for path in paths)


def import_or_none(name: str) -> Optional[types.ModuleType]:
    """Imports a module; None if it cannot be imported."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def public(home: str) -> Any:
    """The value of TensorFlow's public name, such as ``tf.compat.v1.cond``; None if it has none."""
    value = importlib.import_module('tensorflow')
    for name in home.split('.')[1:]:
        value = getattr(value, name, None)
    return value


def tensorflow_version() -> str:
    """The version of TensorFlow; imports TensorFlow."""
    return importlib.import_module('tensorflow').__version__

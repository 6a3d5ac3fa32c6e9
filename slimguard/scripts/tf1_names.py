"""The names of TensorFlow 1 for scripts that run on TensorFlow 2.

After `install`, ``import tensorflow as tf`` in a script, and in the modules it brings along, gives
a namespace with the names of TensorFlow 1.15: ``tf.placeholder``, ``tf.app``, ``tf.contrib.slim``.
Libraries go on getting the TensorFlow that is installed, which is left as it is: it is the importer
that decides, by ``builtins.__import__``, and nothing is put into ``sys.modules``.
"""

import builtins
import functools
import importlib
import importlib.util
import os
import types
from typing import Any, Dict, List, Optional, Tuple, Union

from slimguard import compat
from slimguard.compat.table import MODE_KEYS

# Where the names of TensorFlow 1 are today. On the left "tf" is the script's TensorFlow, on the
# right the installed one. A string is the thing itself: a public name of TensorFlow's, a module, or
# a module and a name in it. A tuple lists the places in which a package finds its names and its
# modules, in order. A name without a row of its own is looked for in the places of its package.
_TABLE: Dict[str, Union[str, Tuple[str, ...]]] = {
    'tf': ('tf.compat.v1', 'tf'),
    'tf.__file__': 'tf.__file__',
    'tf.__path__': 'tf.__path__',
    'tf.compat': 'tf.compat',
    # Up to TensorFlow 2.15 it is all there; later its hooks are, at home in tf.train.
    'tf.estimator': ('tf.compat.v1.estimator', 'tf.compat.v1.train'),
    'tf.estimator.ModeKeys': MODE_KEYS,
    'tf.contrib': (),
    'tf.contrib.autograph': 'tf.compat.v1.autograph',
    'tf.contrib.data': ('tf.compat.v1.data.experimental',),
    'tf.contrib.distribute': ('tf.compat.v1.distribute',),
    'tf.contrib.framework': (
        'tf_slim.ops.arg_scope',
        'tf_slim.ops.variables',
        'tf_slim.ops.framework_ops',
        'tf_slim.layers.utils',
        'tf.compat.v1.train',
        'tf.compat.v1',
    ),
    'tf.contrib.framework.python': (),
    'tf.contrib.framework.python.framework': ('tf_slim.ops.framework_ops', 'tf.compat.v1'),
    'tf.contrib.framework.python.framework.checkpoint_utils': 'tf.compat.v1.train',
    'tf.contrib.framework.python.framework.tensor_util': (
        'tf_slim.ops.framework_ops',
        'tf.compat.v1.debugging',
        'tf.compat.v1',
    ),
    # Its arg_scope is the function, as it was, and not the module.
    'tf.contrib.framework.python.ops': ('tf_slim.ops.arg_scope', 'tf_slim.ops.variables'),
    'tf.contrib.framework.python.ops.ops': 'tf_slim.ops.framework_ops',
    'tf.contrib.framework.python.ops.variables': 'tf_slim.ops.variables',
    'tf.contrib.layers': ('tf_slim.layers',),
    'tf.contrib.layers.python': (),
    'tf.contrib.layers.python.layers': ('tf_slim.layers',),
    'tf.contrib.layers.python.ops': ('tf_slim.layers',),
    'tf.contrib.learn': (),
    'tf.contrib.learn.ModeKeys': MODE_KEYS,
    'tf.contrib.losses': ('tf_slim.losses',),
    'tf.contrib.losses.python': (),
    'tf.contrib.losses.python.losses': ('tf_slim.losses',),
    'tf.contrib.losses.python.metric_learning': ('tf_slim.losses.metric_learning',),
    'tf.contrib.losses.python.metric_learning.metric_loss_ops': 'tf_slim.losses.metric_learning',
    'tf.contrib.metrics': ('tf_slim.metrics', 'tf.compat.v1.sets'),
    'tf.contrib.metrics.confusion_matrix': 'tf.compat.v1.confusion_matrix',
    'tf.contrib.metrics.python': (),
    'tf.contrib.metrics.python.metrics': ('tf_slim.metrics',),
    'tf.contrib.metrics.python.ops': ('tf_slim.metrics',),
    'tf.contrib.metrics.python.ops.confusion_matrix_ops': 'tf.compat.v1.math',
    'tf.contrib.metrics.python.ops.set_ops': 'tf.compat.v1.sets',
    'tf.contrib.rnn': ('tf.compat.v1.nn.rnn_cell', 'tf.compat.v1.nn'),
    'tf.contrib.signal': 'tf.compat.v1.signal',
    'tf.contrib.slim': ('tf_slim',),
    'tf.contrib.slim.python': (),
    'tf.contrib.slim.python.slim': ('tf_slim',),
    'tf.contrib.tpu': ('tf.compat.v1.tpu',),
    'tf.contrib.training': ('tf_slim.training.training', 'tf_slim.training.evaluation'),
    'tf.contrib.training.python': (),
    'tf.contrib.training.python.training': ('tf_slim.training',),
    'tf.contrib.util': ('tf.compat.v1',),
    'tf.contrib.util.constant_value': 'tf.get_static_value',
}

# What took the place of a package, or of a name in one, that is gone for good.
_GONE = {
    'tf.contrib': 'of tf.contrib slimguard gives what tf-slim and TensorFlow kept',
    'tf.contrib.bayesflow': 'use the package tensorflow-probability',
    'tf.contrib.copy_graph': 'use tf.import_graph_def',
    'tf.contrib.crf': 'use tfa.text.crf_log_likelihood, in the package tensorflow-addons',
    'tf.contrib.cudnn_rnn': 'use tf.keras.layers.LSTM and GRU, which use cuDNN',
    'tf.contrib.data': 'use tf.data and tf.data.experimental',
    'tf.contrib.deprecated': 'use tf.summary.scalar, histogram, image and audio',
    'tf.contrib.distributions': 'use tfp.distributions, in the package tensorflow-probability',
    'tf.contrib.eager': 'use tf.compat.v2, which is eager by itself',
    'tf.contrib.estimator': 'tf.estimator left TensorFlow in 2.16',
    'tf.contrib.factorization': 'there is no successor',
    'tf.contrib.gan': 'use the package tensorflow-gan',
    'tf.contrib.image': 'use tfa.image, in the package tensorflow-addons',
    'tf.contrib.layers': 'for feature columns use tf.feature_column',
    'tf.contrib.learn': 'use slim.learning or tf.train.MonitoredTrainingSession; tf.estimator, '
    'which followed it, left TensorFlow in 2.16',
    'tf.contrib.legacy_seq2seq': 'use tfa.seq2seq, in the package tensorflow-addons',
    'tf.contrib.lookup': 'use tf.lookup',
    'tf.contrib.nn': 'use tf.nn',
    'tf.contrib.opt': 'use tfa.optimizers, in the package tensorflow-addons',
    'tf.contrib.quantize': 'use the package tensorflow-model-optimization',
    'tf.contrib.rnn': 'use tf.nn.rnn_cell, or tfa.rnn in the package tensorflow-addons',
    'tf.contrib.seq2seq': 'use tfa.seq2seq, in the package tensorflow-addons',
    'tf.contrib.summary': 'use tf.summary, or tf.compat.v2.summary',
    'tf.contrib.tensorboard': 'use tensorboard.plugins, in the package tensorboard',
    'tf.contrib.tensorrt': 'use tf.compat.v2.experimental.tensorrt',
    'tf.contrib.tpu': 'use tf.tpu, or tf.distribute.TPUStrategy',
    'tf.contrib.training.HParams': 'use an argparse.Namespace or a dataclass',
    'tf.contrib.training.bucket_by_sequence_length': 'use tf.data.experimental of the same name',
    'tf.contrib.training': 'use tf.data',
    'tf.estimator': 'it left TensorFlow in 2.16; use slim.learning or '
    'tf.train.MonitoredTrainingSession, or install TensorFlow 2.15',
    'tf.examples': 'the tutorials left with their MNIST reader; use tf.keras.datasets',
    'tf.models': 'the models are a repository of their own, github.com/tensorflow/models',
}

# They use TensorFlow as it is, wherever they are installed.
_LIBRARIES = frozenset(['keras', 'slimguard', 'tensorboard', 'tensorflow', 'tf_keras', 'tf_slim'])

_builtin_import = builtins.__import__


def is_native() -> bool:
    """Whether the installed TensorFlow is a 1.x, which has all names. Imports it."""
    return importlib.import_module('tensorflow').__version__.startswith('1.')


def install() -> None:
    """Gives the script the names of TensorFlow 1, and turns the behaviour of version 2 off.

    To be called before TensorFlow is imported. Does nothing on TensorFlow 1.x.
    """
    # tf.keras, tf.layers and tf.nn.rnn_cell are those of Keras 2, as they were.
    if importlib.util.find_spec('tf_keras') is not None:
        os.environ.setdefault('TF_USE_LEGACY_KERAS', '1')
    if is_native():
        return
    compat.revive()
    importlib.import_module('tensorflow').compat.v1.disable_v2_behavior()
    builtins.__import__ = _import


def let_flags_be_redefined() -> None:
    """Lets scripts define flags that absl has taken for itself, such as ``log_dir``.

    TensorFlow 1 had flags of its own; absl's, which replaced them, do not like to be defined twice.
    absl goes on with those it has. To be called once TensorFlow is imported.
    """
    from absl import app, flags, logging

    own = {}
    for module, defined in flags.FLAGS.flags_by_module_dict().items():
        if module.partition('.')[0] == 'absl':
            own.update((flag.name, flag) for flag in defined)
    for flag in own.values():
        flag.allow_override = True
    app.FLAGS = logging.FLAGS = _AbslFlags(flags.FLAGS, own)


class _AbslFlags:
    """absl's view of the flags: in it, a script's flag does not hide the one absl defined.

    absl would take the value of a script's ``verbosity`` for its own, and even set it.
    """

    _everybodys: Any
    _own: Dict[str, Any]

    def __init__(self, everybodys: Any, own: Dict[str, Any]):
        vars(self).update(_everybodys=everybodys, _own=own)

    def __getitem__(self, name: str) -> Any:
        return self._own[name] if name in self._own else self._everybodys[name]

    def __getattr__(self, name: str) -> Any:
        return self._own[name].value if name in self._own else getattr(self._everybodys, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._own:
            self._own[name].value = value
            self._own[name].using_default_value = False
        else:
            setattr(self._everybodys, name, value)

    def __call__(self, *args, **kwargs) -> Any:
        return self._everybodys(*args, **kwargs)


class _Namespace(types.ModuleType):
    """A package of TensorFlow 1, put together from the places that hold its names today."""

    def __init__(self, name: str):
        super().__init__(name.replace('tf', 'tensorflow', 1))
        self._slimguard_name = name

    def __getattr__(self, name: str) -> Any:
        if name == '__all__':
            return [name for name in dir(self) if hasattr(self, name)]
        return _find(self._slimguard_name, name)

    def __dir__(self) -> List[str]:
        rows = (row.rpartition('.') for row in _TABLE)
        names = {name for package, _, name in rows if package == self._slimguard_name}
        for place in _places(self._slimguard_name):
            names.update(dir(place))
        return sorted(name for name in names if not name.startswith('_'))


_namespaces: Dict[str, _Namespace] = {}


def namespace(name: str = 'tf') -> types.ModuleType:
    """A package of TensorFlow 1, such as ``tf`` or ``tf.contrib.slim``: what a script imports."""
    if name not in _namespaces:
        _namespaces[name] = _Namespace(name)
    return _namespaces[name]


def _find(package: str, name: str) -> Any:
    """What a name in a package of TensorFlow 1 stands for.

    Raises:
      AttributeError: names it, and what replaced it.
    """
    full_name = package + '.' + name
    home = _TABLE.get(full_name)
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
    raise AttributeError(_explain(full_name))


@functools.lru_cache(maxsize=None)
def _places(package: str) -> Tuple[Any, ...]:
    """The places of a package's names, those that this TensorFlow has."""
    places = []
    for home in _TABLE[package]:
        try:
            places.append(_resolve(home))
        except AttributeError:
            pass
    return tuple(places)


def _resolve(home: str) -> Any:
    """What an entry in the right column of the table stands for.

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
      AttributeError: if it is neither.
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


def _explain(name: str) -> str:
    ancestor = name
    while ancestor and ancestor not in _GONE:
        ancestor = ancestor.rpartition('.')[0]
    if not ancestor:
        return "module 'tensorflow' has no attribute %r" % name.partition('.')[2]
    version = importlib.import_module('tensorflow').__version__
    return 'TensorFlow %s has no %s: %s' % (version, name, _GONE[ancestor])


def _import(name, globals=None, locals=None, fromlist=(), level=0):
    """In the place of the builtin `__import__`: decides whose TensorFlow the importer gets."""
    if level or name.partition('.')[0] != 'tensorflow' or not _is_the_scripts(globals):
        return _builtin_import(name, globals, locals, fromlist, level)
    top = module = namespace()
    try:
        for part in name.split('.')[1:]:
            module = _attribute(module, part)
    except AttributeError as error:
        raise ModuleNotFoundError(str(error), name=name) from None
    for wanted in fromlist or ():
        try:
            # As an import does, this also loads the module of that name.
            _attribute(module, wanted)
        except AttributeError as error:
            if wanted != '*':
                raise ImportError(str(error), name=name) from None
    return module if fromlist else top


def _is_the_scripts(module_globals: Optional[Dict[str, Any]]) -> bool:
    """Whether a module belongs to the script, and is no installed library."""
    module_globals = module_globals or {}
    name = module_globals.get('__name__', '')
    folders = (module_globals.get('__file__') or '').split(os.sep)
    installed = 'site-packages' in folders or 'dist-packages' in folders
    return name == '__main__' or not (installed or name.partition('.')[0] in _LIBRARIES)

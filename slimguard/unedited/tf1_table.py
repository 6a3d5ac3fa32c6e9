"""Where TensorFlow 2 has the names of TensorFlow 1, and what replaced missing names."""

import importlib
from typing import Dict, Tuple, Union

from slimguard.compat.repairs import MODE_KEYS

# TensorFlow 2 has no MovingAverageOptimizer; this one is our own.
_OPTIMIZER = 'slimguard.unedited.moving_average_optimizer'

# Where the names of TensorFlow 1 are today. On the left "tf" means the script's TensorFlow, on the
# right the installed one. A string names the object: a public name of TensorFlow, a module, or a
# module and a name in it. A tuple lists the modules in which a package finds its names, in order.
# Names without a row are looked up in the modules of their package.
TABLE: Dict[str, Union[str, Tuple[str, ...]]] = {
    'tf': ('tf.compat.v1', 'tf'),
    'tf.__file__': 'tf.__file__',
    'tf.__path__': 'tf.__path__',
    'tf.compat': 'tf.compat',
    # TensorFlow has all of it up to 2.15; later versions have only its hooks, in tf.train.
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
    # Here arg_scope is the function, as in TensorFlow 1.
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
    'tf.contrib.opt': (),
    'tf.contrib.opt.MovingAverageOptimizer': _OPTIMIZER + ':MovingAverageOptimizer',
    'tf.contrib.opt.python': (),
    'tf.contrib.opt.python.training': (),
    'tf.contrib.opt.python.training.moving_average_optimizer': _OPTIMIZER,
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

# Modules that are no attribute of their package, where a function has their name.
MODULES_BEHIND_FUNCTIONS = {
    'tf.contrib.framework.python.ops.arg_scope': 'tf_slim.ops.arg_scope',
}

_ADDONS = ', in the package tensorflow-addons, whose last version is for TensorFlow 2.15'

# What replaces a package, or a name in a package, and all names below it.
GONE = {
    'tf.contrib': 'slimguard has the parts that tf-slim and TensorFlow kept, and not this one',
    'tf.contrib.crf': 'use tfa.text.crf_log_likelihood' + _ADDONS,
    'tf.contrib.cudnn_rnn': 'use tf.keras.layers.LSTM and GRU, which use cuDNN',
    'tf.contrib.data': 'use tf.data and tf.data.experimental',
    'tf.contrib.distribute': 'use tf.distribute',
    'tf.contrib.distributions': 'use tfp.distributions, in the package tensorflow-probability',
    'tf.contrib.eager': 'use tf.compat.v2, which is eager by itself',
    'tf.contrib.estimator': 'tf.estimator, which took it up, left TensorFlow in 2.16',
    'tf.contrib.gan': 'use the package tensorflow-gan',
    'tf.contrib.image': 'use tfa.image' + _ADDONS,
    'tf.contrib.keras': 'use tf.keras',
    'tf.contrib.layers': 'for feature columns use tf.feature_column, for embeddings '
    'tf.nn.safe_embedding_lookup_sparse, for the rest tf.keras.layers',
    'tf.contrib.learn': 'use slim.learning or tf.train.MonitoredTrainingSession; tf.estimator, '
    'which followed it, left TensorFlow in 2.16',
    'tf.contrib.legacy_seq2seq': 'use tfa.seq2seq' + _ADDONS,
    'tf.contrib.lookup': 'use tf.lookup',
    'tf.contrib.opt': 'use tfa.optimizers' + _ADDONS,
    'tf.contrib.quantize': 'use the package tensorflow-model-optimization',
    'tf.contrib.rnn': 'use tf.nn.rnn_cell, or tfa.rnn' + _ADDONS,
    'tf.contrib.seq2seq': 'use tfa.seq2seq' + _ADDONS,
    'tf.contrib.summary': 'use tf.summary, or tf.compat.v2.summary',
    'tf.contrib.tpu': 'use tf.tpu, or tf.compat.v2.distribute.TPUStrategy',
    'tf.contrib.training.HParams': 'use an argparse.Namespace or a dataclass',
    'tf.contrib.training.bucket_by_sequence_length': 'use tf.data.experimental of the same name',
    'tf.contrib.training.python.training.hparam': 'use an argparse.Namespace or a dataclass',
    'tf.contrib.training': 'use tf.data',
    'tf.estimator': 'it left TensorFlow in 2.16; use slim.learning or '
    'tf.train.MonitoredTrainingSession, or install TensorFlow 2.15',
    'tf.examples': 'the tutorials left with their MNIST reader; use tf.keras.datasets',
}


def explain(name: str) -> str:
    """The reason why a name of TensorFlow 1 is missing, and its replacement."""
    ancestor = name
    while ancestor and ancestor not in GONE:
        ancestor = ancestor.rpartition('.')[0]
    if not ancestor:
        return "module 'tensorflow' has no attribute %r" % name.partition('.')[2]
    remedy = GONE[ancestor]
    if name.split('.')[1] == 'contrib':
        remedy = 'tf.contrib was dropped in TensorFlow 2; ' + remedy
    version = importlib.import_module('tensorflow').__version__
    return 'TensorFlow %s has no %s: %s' % (version, name, remedy)


def can_be_imported(name: str) -> bool:
    """Whether a missing name can be imported as a placeholder.

    True below tf.contrib. In a package that the table maps to modules, true only for names that
    `GONE` explains, and for names below ``python``, where tf.contrib's packages had their files.
    """
    parts = name.split('.')
    if len(parts) < 3 or parts[1] != 'contrib' or parts[-1].startswith('_'):
        return False
    return not TABLE.get('.'.join(parts[:3])) or name in GONE or 'python' in parts[3:]

"""Where the names of TensorFlow 1 are today, in TensorFlow 2 and in tf-slim."""

from typing import Dict, Tuple, Union

from slimguard.compat.table import MODE_KEYS

# TensorFlow 2 has none; this is our own.
_OPTIMIZER = 'slimguard.unedited.moving_average_optimizer'

# Where the names of TensorFlow 1 are today. On the left "tf" is the script's TensorFlow, on the
# right the installed one. A string is the thing itself: a public name of TensorFlow's, a module, or
# a module and a name in it. A tuple lists the places in which a package finds its names and its
# modules, in order. What has no row of its own is looked for in the places of its package.
TABLE: Dict[str, Union[str, Tuple[str, ...]]] = {
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
    # Its arg_scope is the function, as it was.
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

# Modules that cannot be reached as an attribute: a function in their package has their name.
MODULES_BEHIND_FUNCTIONS = {
    'tf.contrib.framework.python.ops.arg_scope': 'tf_slim.ops.arg_scope',
}

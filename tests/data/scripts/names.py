"""Uses names of TensorFlow 1, imported in every way, and flags that absl has as well."""

import sys

import tensorflow as tf
import tensorflow.contrib.layers as layers
import tensorflow.contrib.slim as slim
import tensorflow.python.platform
from tensorflow.contrib import losses, metrics, rnn, training
from tensorflow.contrib.framework.python.framework import checkpoint_utils
from tensorflow.contrib.framework.python.ops import add_arg_scope, arg_scope, variables
from tensorflow.contrib.layers.python.layers import initializers, utils
from tensorflow.contrib.layers.python.layers import layers as layers_lib
from tensorflow.contrib.slim.nets import inception, resnet_v1, vgg
from tensorflow.contrib.slim.python.slim import learning
from tensorflow.contrib.slim.python.slim.nets import resnet_v1 as resnet
from tensorflow.contrib.training.python.training import evaluation
from tensorflow.python import tf2
from tensorflow.python.framework import ops
from tensorflow.python.ops import array_ops, control_flow_ops
from tensorflow.python.training import moving_averages

flags = tf.app.flags
flags.DEFINE_string('log_dir', 'logs', 'A flag that absl has as well.')
flags.DEFINE_boolean('alsologtostderr', False, 'Another.')
tf.flags.DEFINE_integer('batch_size', 32, 'A flag of our own.')

CALLABLE = [
    tf.Session,
    tf.placeholder,
    tf.train.MonitoredTrainingSession,
    tf.train.Supervisor,
    tf.train.batch,
    tf.train.shuffle_batch,
    tf.estimator.SessionRunHook,
    tf.estimator.NanTensorHook,
    tf.gfile.Exists,
    tf.layers.dense,
    tf.losses.get_total_loss,
    tf.metrics.accuracy,
    tf.nn.rnn_cell.BasicLSTMCell,
    tf.python_io.TFRecordWriter,
    tf.to_float,
    tf.contrib.framework.get_or_create_global_step,
    tf.contrib.framework.init_from_checkpoint,
    tf.contrib.framework.model_variable,
    tf.contrib.layers.xavier_initializer,
    tf.contrib.slim.separable_conv2d,
    tf.contrib.util.make_tensor_proto,
    tensorflow.contrib.slim.evaluation.evaluate_once,
    add_arg_scope,
    arg_scope,
    array_ops.stack,
    checkpoint_utils.list_variables,
    control_flow_ops.with_dependencies,
    evaluation.evaluate_once,
    inception.inception_v3,
    initializers.variance_scaling_initializer,
    layers.l2_regularizer,
    layers_lib.fully_connected,
    learning.create_train_op,
    losses.log_loss,
    metrics.streaming_accuracy,
    moving_averages.assign_moving_average,
    ops.get_default_graph,
    resnet.resnet_v1_50,
    resnet_v1.resnet_arg_scope,
    rnn.LSTMStateTuple,
    slim.conv2d,
    training.create_train_op,
    utils.collect_named_outputs,
    variables.get_variables_to_restore,
    vgg.vgg_a,
]


def main(argv):
    assert all(callable(value) for value in CALLABLE), CALLABLE
    assert slim.learning.train is learning.train is tf.contrib.slim.learning.train
    assert tf.estimator.ModeKeys.TRAIN == tf.contrib.learn.ModeKeys.TRAIN == 'train'
    assert not tf.executing_eagerly()
    assert not tf2.enabled()  # libraries ask this
    variable = tf.get_variable('v', [2, 3])
    assert variable.get_shape()[1].value == 3
    assert 'Ref' in type(variable).__name__
    assert tf.__version__ == sys.modules['tensorflow'].__version__
    tf.logging.set_verbosity(tf.logging.ERROR)
    print(argv[1:], tf.app.flags.FLAGS.log_dir, flags.FLAGS.batch_size)


if __name__ == '__main__':
    tf.app.run()

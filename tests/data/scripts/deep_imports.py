"""Imports from deep within tf.contrib, and much that it never uses."""

# ruff: noqa: F401, F403
import tensorflow as tf
import tensorflow.contrib.image.python.ops.image_ops as image_ops
import tensorflow.contrib.slim.python.slim.learning
import tensorflow.contrib.tpu.python.tpu.tpu_config
from tensorflow.contrib import crf, cudnn_rnn, image, learn, opt, seq2seq, slim
from tensorflow.contrib.crf import crf_decode
from tensorflow.contrib.framework.python.ops import arg_scope, variables
from tensorflow.contrib.framework.python.ops.arg_scope import add_arg_scope
from tensorflow.contrib.graph_editor import *
from tensorflow.contrib.image.python.ops import dense_image_warp
from tensorflow.contrib.layers.python.layers import layers, target_column, utils
from tensorflow.contrib.layers.python.layers.feature_column import real_valued_column
from tensorflow.contrib.losses.python.losses import loss_ops
from tensorflow.contrib.rnn.python.ops import core_rnn_cell
from tensorflow.contrib.slim.python.slim.data import dataset_data_provider, tfexample_decoder
from tensorflow.contrib.slim.python.slim.nets import resnet_utils
from tensorflow.contrib.slim.python.slim.nets.resnet_utils import conv2d_same
from tensorflow.contrib.training import HParams

conv2d_same = add_arg_scope(conv2d_same)
with arg_scope([conv2d_same], stride=2), arg_scope([layers.fully_connected], activation_fn=None):
    net = conv2d_same(tf.ones([1, 4, 4, 1]), 2, 3)
    net = layers.fully_connected(layers.flatten(net), 1, scope='predictions')
loss_ops.mean_squared_error(net, tf.zeros([1, 1]))
assert len(variables.get_model_variables('predictions')) == 2
assert utils.n_positive_integers(2, 3) == (3, 3)
assert callable(dataset_data_provider.DatasetDataProvider)
print('shape', resnet_utils.subsample(tf.ones([1, 4, 4, 1]), 2).get_shape().as_list())

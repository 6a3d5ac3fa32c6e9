"""A model in a module of its own, beside the script that imports it."""

import tensorflow as tf
from tensorflow.contrib.framework.python.ops import add_arg_scope, arg_scope

slim = tf.contrib.slim


@add_arg_scope
def block(net, depth, scope=None):
    with tf.variable_scope(scope, 'block', [net]):
        return tf.layers.dense(net, depth, activation=tf.nn.relu, name='dense')


def model(x, is_training=True):
    with arg_scope([block], depth=8):
        net = block(x, scope='block1')
        net = slim.batch_norm(net, is_training=is_training)
    return slim.linear(net, 2, scope='logits')


def losses(logits, labels):
    tf.contrib.losses.sparse_softmax_cross_entropy(logits, labels)
    return tf.contrib.losses.get_total_loss()

"""Pretrains, and fine-tunes from the checkpoint with a new last layer."""

import os

import numpy as np
import tensorflow as tf
import tensorflow.contrib.slim as slim
from tensorflow.contrib.slim.nets import resnet_utils

tf.app.flags.DEFINE_string('train_dir', '/tmp/fine_tune', 'Where to write checkpoints.')
tf.app.flags.DEFINE_string('checkpoint_exclude_scopes', 'net/logits', 'What to train anew.')
tf.app.flags.DEFINE_string('trainable_scopes', 'net/logits,net/conv2', 'What to train at all.')
tf.app.flags.DEFINE_integer('nan_image', -1, 'The image that is broken; -1 for none.')
FLAGS = tf.app.flags.FLAGS


def load_batch(batch_size, nan_image=-1):
    images = np.random.RandomState(4).rand(24, 8, 8, 3).astype(np.float32)
    labels = (images.mean(axis=(1, 2, 3)) > 0.5).astype(np.int64)
    if nan_image >= 0:
        images[nan_image, 0, 0, 0] = np.nan
    image, label = tf.train.slice_input_producer([images, labels], shuffle=False)
    return tf.train.batch([image, label], batch_size)


def network(images, num_classes, is_training=True):
    with slim.arg_scope(resnet_utils.resnet_arg_scope()):
        with slim.arg_scope([slim.batch_norm], is_training=is_training):
            with tf.variable_scope('net', 'net', [images]):
                net = resnet_utils.conv2d_same(images, 4, 3, stride=2, scope='conv1')
                net = slim.conv2d(net, 4, [3, 3], scope='conv2')
                net = tf.reduce_mean(net, [1, 2], name='pool', keep_dims=True)
                net = slim.conv2d(
                    net, num_classes, [1, 1], activation_fn=None, normalizer_fn=None, scope='logits'
                )
                return tf.squeeze(net, [1, 2])


def train_op_for(logits, labels, variables_to_train=None):
    slim.losses.softmax_cross_entropy(logits, slim.one_hot_encoding(labels, 2))
    total_loss = slim.losses.get_total_loss()
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    return slim.learning.create_train_op(
        total_loss, optimizer, variables_to_train=variables_to_train
    )


def pretrain(train_dir):
    with tf.Graph().as_default():
        tf.set_random_seed(4)
        images, labels = load_batch(8)
        train_op = train_op_for(network(images, 2), labels)
        slim.learning.train(train_op, train_dir, number_of_steps=5)
    return tf.train.latest_checkpoint(train_dir)


def get_init_fn(checkpoint_path):
    exclusions = [scope.strip() for scope in FLAGS.checkpoint_exclude_scopes.split(',')]
    variables_to_restore = slim.get_variables_to_restore(exclude=exclusions + ['global_step'])
    return slim.assign_from_checkpoint_fn(
        checkpoint_path, variables_to_restore, ignore_missing_vars=False
    )


def get_variables_to_train():
    variables = []
    for scope in FLAGS.trainable_scopes.split(','):
        variables.extend(tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, scope))
    return variables


def main(_):
    tf.logging.set_verbosity(tf.logging.INFO)
    checkpoint = pretrain(os.path.join(FLAGS.train_dir, 'pretrained'))
    with tf.Graph().as_default():
        tf.set_random_seed(4)
        images, labels = load_batch(8, FLAGS.nan_image)
        train_op = train_op_for(network(images, 2), labels, get_variables_to_train())
        loss = slim.learning.train(
            train_op,
            logdir=os.path.join(FLAGS.train_dir, 'tuned'),
            init_fn=get_init_fn(checkpoint),
            number_of_steps=10,
            save_summaries_secs=60,
        )
    print('Finished training. Last batch loss %.3f' % loss)


if __name__ == '__main__':
    tf.app.run()

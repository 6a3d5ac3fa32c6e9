"""Trains clones of a model whose train tensor is made by hand, as model_deploy does."""

import numpy as np
import tensorflow as tf
import tensorflow.contrib.slim as slim
from tensorflow.contrib.slim.python.slim.data import prefetch_queue
from tensorflow.python.ops import control_flow_ops

flags = tf.app.flags
flags.DEFINE_string('train_dir', '/tmp/clones', 'Where to write checkpoints.')
flags.DEFINE_string('master', '', 'The address of the TensorFlow master.')
flags.DEFINE_integer('num_clones', 2, 'The number of clones to deploy.')
flags.DEFINE_integer('num_steps', 20, 'The number of training steps.')
flags.DEFINE_float('moving_average_decay', 0.9, 'The decay of the moving averages.')
flags.DEFINE_integer('nan_sample', -1, 'The sample that is not a number; -1 for none.')
FLAGS = flags.FLAGS


def inputs(batch_size):
    random = np.random.RandomState(1)
    samples = random.randn(48, 6).astype(np.float32)
    targets = samples.sum(axis=1, keepdims=True)
    if FLAGS.nan_sample >= 0:
        samples[FLAGS.nan_sample] = np.nan
    sample, target = tf.train.slice_input_producer(
        [tf.constant(samples), tf.constant(targets)], shuffle=False
    )
    batch = tf.train.batch([sample, target], batch_size=batch_size, capacity=5 * batch_size)
    return prefetch_queue.prefetch_queue(batch, capacity=2 * FLAGS.num_clones)


def clone_fn(queue):
    samples, targets = queue.dequeue()
    samples.set_shape([None, 6])
    net = slim.fully_connected(samples, 8, normalizer_fn=slim.batch_norm, scope='hidden')
    predictions = slim.fully_connected(net, 1, activation_fn=None, scope='predictions')
    tf.losses.mean_squared_error(targets, predictions)


def create_clones(queue):
    scopes = []
    for i in range(FLAGS.num_clones):
        with tf.name_scope('clone_%d' % i) as scope:
            with tf.variable_scope(tf.get_variable_scope(), reuse=True if i else None):
                with tf.device('/device:CPU:0'):
                    clone_fn(queue)
        scopes.append(scope)
    return scopes


def optimize_clones(scopes, optimizer):
    losses, gradients = [], []
    for scope in scopes:
        clone_loss = tf.add_n(tf.get_collection(tf.GraphKeys.LOSSES, scope))
        clone_loss = tf.div(clone_loss, 1.0 * len(scopes), name='scaled_clone_loss')
        losses.append(clone_loss)
        gradients.append(optimizer.compute_gradients(clone_loss))
    summed = []
    for pairs in zip(*gradients):
        summed.append((tf.add_n([gradient for gradient, _ in pairs]), pairs[0][1]))
    return tf.add_n(losses, name='total_loss'), summed


def main(unused_argv):
    tf.logging.set_verbosity(tf.logging.INFO)
    with tf.Graph().as_default():
        tf.set_random_seed(1)
        global_step = slim.create_global_step()
        queue = inputs(batch_size=4)
        scopes = create_clones(queue)
        update_ops = tf.get_collection(tf.GraphKeys.UPDATE_OPS, scopes[0])
        summaries = set(tf.get_collection(tf.GraphKeys.SUMMARIES))

        learning_rate = tf.train.exponential_decay(0.05, global_step, 10, 0.9, staircase=True)
        optimizer = tf.train.MomentumOptimizer(learning_rate, momentum=0.9)
        averages = tf.train.ExponentialMovingAverage(FLAGS.moving_average_decay, global_step)
        update_ops.append(averages.apply(slim.get_model_variables()))

        total_loss, gradients = optimize_clones(scopes, optimizer)
        summaries.add(tf.summary.scalar('total_loss', total_loss))
        update_ops.append(optimizer.apply_gradients(gradients, global_step=global_step))
        update_op = tf.group(*update_ops)
        train_tensor = control_flow_ops.with_dependencies([update_op], total_loss, name='train_op')
        summary_op = tf.summary.merge(list(summaries), name='summary_op')

        slim.learning.train(
            train_tensor,
            logdir=FLAGS.train_dir,
            master=FLAGS.master,
            is_chief=True,
            summary_op=summary_op,
            number_of_steps=FLAGS.num_steps,
            log_every_n_steps=10,
            save_summaries_secs=60,
            save_interval_secs=600,
            session_config=tf.ConfigProto(allow_soft_placement=True),
            sync_optimizer=None,
        )
    print('final step', FLAGS.num_steps)


if __name__ == '__main__':
    tf.app.run()

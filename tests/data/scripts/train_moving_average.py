"""Trains with a MovingAverageOptimizer, as object detection did, and saves the averages."""

import numpy as np
import tensorflow as tf
import tensorflow.contrib.slim as slim
from tensorflow.contrib.opt.python.training import moving_average_optimizer

flags = tf.app.flags
flags.DEFINE_string('train_dir', '/tmp/averages', 'Where to write checkpoints.')
flags.DEFINE_integer('number_of_steps', 10, 'When to end.')
flags.DEFINE_integer('nan_sample', -1, 'The sample that is not a number; -1 for none.')
FLAGS = flags.FLAGS


def main(_):
    assert tf.contrib.opt.MovingAverageOptimizer is moving_average_optimizer.MovingAverageOptimizer
    sample = tf.data.Dataset.range(100).make_one_shot_iterator().get_next()
    x = tf.fill([2, 1], tf.to_float(sample) / 10)
    x = tf.where(tf.fill([2, 1], tf.equal(sample, FLAGS.nan_sample)), x * np.nan, x)
    prediction = slim.fully_connected(
        x, 1, None, weights_initializer=tf.ones_initializer(), scope='predictions'
    )
    tf.losses.mean_squared_error(tf.ones([2, 1]), prediction)
    optimizer = tf.contrib.opt.MovingAverageOptimizer(
        tf.train.MomentumOptimizer(0.1, 0.5), average_decay=0.5
    )
    train_op = slim.learning.create_train_op(tf.losses.get_total_loss(), optimizer)
    saver = optimizer.swapping_saver()
    slim.learning.train(
        train_op,
        FLAGS.train_dir,
        number_of_steps=FLAGS.number_of_steps,
        saver=saver,
        log_every_n_steps=1,
        save_summaries_secs=0,
        save_interval_secs=0,
    )
    newest = tf.train.latest_checkpoint(FLAGS.train_dir)
    with tf.Session() as session:
        saver.restore(session, newest)
        weights, average = session.run(
            ['predictions/weights:0', 'predictions/weights/ExponentialMovingAverage:0']
        )
    reader = tf.train.NewCheckpointReader(newest)
    assert reader.get_tensor('predictions/weights') == average != weights
    assert reader.get_tensor('predictions/weights/ExponentialMovingAverage') == weights
    print('weights', weights.item(), 'average', average.item())


if __name__ == '__main__':
    tf.app.run()

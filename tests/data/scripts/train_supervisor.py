"""Trains under a Supervisor, and evaluates what it saved with slim.evaluation."""

import os

import numpy as np
import tensorflow as tf
from scripts_model import losses, model

slim = tf.contrib.slim
metrics = tf.contrib.metrics

tf.flags.DEFINE_string('logdir', '/tmp/supervisor', 'Where to write checkpoints.')
tf.flags.DEFINE_integer('steps', 20, 'The number of training steps.')
tf.flags.DEFINE_integer('nan_batch', -1, 'Which batch is broken; -1 for none.')
FLAGS = tf.flags.FLAGS


def batches():
    random = np.random.RandomState(3)
    while True:
        for i in range(8):
            x = random.randn(8, 5).astype(np.float32)
            y = (x[:, 0] > 0).astype(np.int64)
            if i == FLAGS.nan_batch:
                x[0, 0] = np.nan
            yield x, y


def next_batch():
    dataset = tf.data.Dataset.from_generator(
        batches, (tf.float32, tf.int64), (tf.TensorShape([8, 5]), tf.TensorShape([8]))
    )
    return dataset.prefetch(2).make_one_shot_iterator().get_next()


def train():
    with tf.Graph().as_default():
        tf.set_random_seed(3)
        x, y = next_batch()
        total_loss = losses(model(x), y)
        global_step = tf.train.get_or_create_global_step()
        train_op = slim.learning.create_train_op(
            total_loss, tf.train.RMSPropOptimizer(0.01), global_step, check_numerics=False
        )
        tf.summary.scalar('loss', total_loss)
        sv = tf.train.Supervisor(logdir=FLAGS.logdir, save_model_secs=600, save_summaries_secs=60)
        with sv.managed_session() as sess:
            for _ in range(FLAGS.steps):
                if sv.should_stop():
                    break
                loss = sess.run(train_op)
            sv.saver.save(sess, os.path.join(FLAGS.logdir, 'model.ckpt'), global_step=global_step)
        return loss


def evaluate():
    with tf.Graph().as_default():
        x, y = next_batch()
        predictions = tf.argmax(model(x, is_training=False), 1)
        names_to_values, names_to_updates = metrics.aggregate_metric_map(
            {'accuracy': metrics.streaming_accuracy(predictions, y)}
        )
        values = slim.evaluation.evaluate_once(
            '',
            tf.train.latest_checkpoint(FLAGS.logdir),
            os.path.join(FLAGS.logdir, 'eval'),
            num_evals=4,
            eval_op=list(names_to_updates.values()),
            final_op=names_to_values,
        )
        return values['accuracy']


def main(argv=None):
    loss = train()
    print('loss %.4f' % loss)
    print('accuracy %.4f' % evaluate())


if __name__ == '__main__':
    tf.app.run()

"""A session loop of one's own: fed placeholders, a thread that fills a queue, an own saver."""

import argparse
import os
import threading

import numpy as np
import tensorflow as tf
from tensorflow.contrib import slim
from tensorflow.contrib.framework.python.ops import variables

parser = argparse.ArgumentParser()
parser.add_argument('--save_dir', default='/tmp/session')
parser.add_argument('--num_steps', type=int, default=20)
parser.add_argument('--nan_batch', type=int, default=-1, help='which batch is broken')
args = parser.parse_args()
tf.set_random_seed(2)


class Feeder(threading.Thread):
    def __init__(self, sess, coord, enqueue_op, placeholders):
        threading.Thread.__init__(self)
        self.daemon = True
        self.sess, self.coord = sess, coord
        self.enqueue_op, self.placeholders = enqueue_op, placeholders

    def run(self):
        random = np.random.RandomState(2)
        with self.coord.stop_on_exception():
            for batch in range(10**6):
                x = random.randn(16, 4)
                y = (x.sum(axis=1) > 0).astype(np.int32)
                if batch == args.nan_batch:
                    x[3] = np.nan
                if self.coord.should_stop():
                    return
                self.sess.run(self.enqueue_op, dict(zip(self.placeholders, (x, y))))


x_ph = tf.placeholder(tf.float32, [16, 4], name='x')
y_ph = tf.placeholder(tf.int32, [16], name='y')
is_training = tf.placeholder_with_default(True, [], name='is_training')
queue = tf.FIFOQueue(4, [tf.float32, tf.int32], shapes=[[16, 4], [16]])

config = tf.ConfigProto()
config.gpu_options.allow_growth = True
sess = tf.Session(config=config)
coord = tf.train.Coordinator()
feeder = Feeder(sess, coord, queue.enqueue([x_ph, y_ph]), [x_ph, y_ph])
feeder.start()

x, y = queue.dequeue()
with tf.variable_scope('net'):
    net = slim.fully_connected(x, 8, scope='fc1')
    net = slim.batch_norm(net, is_training=is_training, scope='bn1')
    logits = slim.fully_connected(net, 2, activation_fn=None, scope='fc2')
loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
global_step = variables.get_or_create_global_step()
train_op = slim.learning.create_train_op(
    loss, tf.train.AdamOptimizer(0.01), global_step=global_step, check_numerics=False
)

saver = tf.train.Saver(max_to_keep=2)
writer = tf.summary.FileWriter(args.save_dir, sess.graph)
merged = tf.summary.merge([tf.summary.scalar('loss', loss)])
sess.run(tf.global_variables_initializer())
for i in range(args.num_steps):
    loss_value, summary, step = sess.run(
        [train_op, merged, global_step], feed_dict={is_training: True}
    )
    writer.add_summary(summary, step)
    if i % 5 == 4:
        print('step %d: loss %.4f' % (step, loss_value))
        saver.save(sess, os.path.join(args.save_dir, 'model.ckpt'), global_step=global_step)
writer.close()
coord.request_stop()
sess.run(queue.close(cancel_pending_enqueues=True))
feeder.join()

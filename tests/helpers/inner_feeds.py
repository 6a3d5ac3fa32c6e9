"""Models whose runs feed a tensor within the step, so that the ops that compute it do not run."""

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1
GOOD = np.linspace(0.5, 1.5, 6).astype(np.float32).reshape([2, 3])
BAD = np.full_like(GOOD, np.nan)  # all of it: dropout may leave out any element


class Fed:
    """A model of one weight.

    Attributes:
      inner: the tensor to feed.
      train_op, loss, step: the train op, the loss and the global step.
      drawn: the random tensor that `inner` is computed from, or None.
      runs_unfed: whether a step can run without the feed.
    """

    def __init__(self, drawn_by):
        self.drawn = None
        self.runs_unfed = drawn_by in ('default', 'chance', 'trained', 'constant')
        self.inner = getattr(self, '_' + drawn_by)()
        dropped = tf.nn.dropout(self.inner, rate=0.5, seed=5)
        self.weights = tf1.get_variable('w', [3, 1], initializer=tf1.ones_initializer())
        self.loss = tf.reduce_mean(tf.square(tf.matmul(dropped, self.weights) - 1.0), name='cost')
        self.step = tf1.train.get_or_create_global_step()
        self.optimizer = tf1.train.MomentumOptimizer(0.05, 0.9)

    def minimize(self):
        return self.optimizer.minimize(self.loss, self.step, name='train')

    def _placeholder(self):
        return tf.multiply(tf1.placeholder(tf.float32, [None, 3]), 2.0, name='z')

    def _default(self):
        batches = tf.data.Dataset.range(100).map(lambda n: tf.fill([2, 3], tf.cast(n, tf.float32)))
        self.drawn = tf1.data.make_one_shot_iterator(batches).get_next()
        return tf1.placeholder_with_default(self.drawn, [None, 3], name='z')

    def _chance(self):
        self.drawn = tf.random.normal([2, 3], seed=3)
        return tf.multiply(self.drawn, 2.0, name='z')

    def _queue(self):
        queue = tf.queue.FIFOQueue(50, [tf.float32], [[2, 3]])
        return tf.multiply(queue.dequeue(), 2.0, name='z')

    def _normalized(self):
        """Input that is normalized by a moving mean, which the forward pass writes."""
        mean = tf1.get_variable('mean', [3], trainable=False, initializer=tf1.zeros_initializer())
        x = tf1.placeholder(tf.float32, [None, 3])
        with tf.control_dependencies([mean.assign_add(tf.reduce_mean(x, axis=0))]):
            return tf.multiply(x - mean.read_value(), 2.0, name='z')

    def _trained(self):
        """The output of a trained layer, whose gradient needs its own input despite the feed."""
        self.drawn = tf.random.normal([2, 3], seed=3)
        before = tf1.get_variable('before', [3, 3], initializer=tf1.ones_initializer())
        return tf.nn.relu(tf.matmul(self.drawn, before), name='z')

    def _constant(self):
        return tf.constant(GOOD, name='z')


KINDS = (
    'placeholder',
    'default',
    'chance',
    'queue',
    'normalized',
    'trained',
    'constant',
)

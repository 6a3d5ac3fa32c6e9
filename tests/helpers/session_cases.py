"""Fetches and feeds of scripts, and a plain session's answers, to compare prepared runs with."""

import collections

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1
Pair = collections.namedtuple('Pair', ['train', 'loss'])


class Fed:
    """A model that is fed, with all kinds of tensors that a script may fetch beside training."""

    def __init__(self):
        self.x = tf1.placeholder(tf.float32, [None, 3], name='x')
        self.rate = tf1.placeholder_with_default(0.1, [], name='rate')
        self.count = tf1.placeholder_with_default(1, [], name='count')
        weights = tf1.get_variable('w', [3, 1], initializer=tf1.ones_initializer())
        self.loss = tf.reduce_mean(tf.square(tf.matmul(self.x, weights) - 1.0), name='loss')
        self.step = tf1.train.get_or_create_global_step()
        descent = tf1.train.GradientDescentOptimizer(self.rate)
        self.train_op = descent.minimize(self.loss, global_step=self.step, name='train')
        with tf.control_dependencies([self.train_op]):
            self.after = tf.identity(self.loss, name='after')
        self.text = tf.strings.as_string(self.count, name='text')
        self.counted = tf.identity(self.count)


FETCHES = {
    'train op': lambda m: m.train_op,
    'a tensor that waits for it': lambda m: m.after,
    'names': lambda m: ['train', 'loss:0'],
    'a list': lambda m: [m.train_op, m.loss, m.loss],
    'a tuple': lambda m: (m.train_op, m.text),
    'a namedtuple': lambda m: Pair(m.train_op, [m.loss, m.counted]),
    'a dict': lambda m: {'train': m.train_op, 'more': (m.loss, {'n': m.counted})},
    'ordered': lambda m: collections.OrderedDict([('b', m.train_op), ('a', m.text)]),
    'a variable': lambda m: [m.train_op, m.x, m.rate],
}
X = np.linspace(-1, 1, 12).reshape([4, 3]).astype(np.float32)
FEEDS = {
    'as it is': lambda m: {m.x: X},
    'float64': lambda m: {m.x: X.astype(np.float64)},
    'big endian': lambda m: {m.x: X.astype('>f4')},
    'of integers': lambda m: {m.x: (10 * X).astype(np.int16), m.count: np.uint8(7)},
    'not contiguous': lambda m: {m.x: np.asfortranarray(X)[::2]},
    'a matrix': lambda m: {m.x: np.asmatrix(X)},
    'lists': lambda m: {m.x: X.tolist()},
    'numbers': lambda m: {m.x: X, m.rate: 0.01, m.count: 3},
    'bools': lambda m: {m.x: X, m.rate: True, m.count: True},
    'by name': lambda m: {'x:0': X},
    'scalars of numpy': lambda m: {m.x: X, m.rate: np.float64(0.3), m.count: np.int64(2)},
}


def described(values):
    """Values with all that a script may notice of them: types, dtypes, bits."""
    if isinstance(values, dict):
        return type(values), [(name, described(each)) for name, each in values.items()]
    if isinstance(values, (list, tuple)):
        return type(values), [described(each) for each in values]
    if isinstance(values, (np.ndarray, np.generic)):
        return type(values), values.dtype.str, values.shape, values.tobytes()
    return type(values), values


ERRORS = {
    'a shape that does not fit': lambda m: (m.train_op, {m.x: X.T}),
    'nothing fed': lambda m: (m.train_op, None),
    'a value that does not fit': lambda m: (m.train_op, {m.x: X, m.count: 2**40}),
    'a tensor as a value': lambda m: (m.train_op, {m.x: m.loss}),
    'rows of several lengths': lambda m: (m.train_op, {m.x: [[1.0, 2.0, 3.0], [1.0]]}),
    'what cannot be fed': lambda m: (m.train_op, {m.x: X, m.train_op: 1.0}),
    'no such tensor': lambda m: ([m.train_op, 'nowhere:0'], {m.x: X}),
    'no fetch': lambda m: ([m.train_op, None], {m.x: X}),
}

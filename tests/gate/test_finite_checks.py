"""Many values are checked, copied and put back together, and each bad one is named."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers import gate_models as models

tf1 = tf.compat.v1

NUMBER = 4
kinds = pytest.mark.parametrize('use_resource', [False, True], ids=['ref', 'resource'])


def weights(use_resource, dtype=tf.float32, start=1.0, shape=(2, 3), number=NUMBER):
    return [
        tf1.get_variable(
            'w%d' % i,
            shape,
            dtype,
            tf1.constant_initializer(start),
            use_resource=use_resource,
        )
        for i in range(number)
    ]


def hurt_gradients(variables, optimizer):
    """A train op, and a vector to feed, which has a number to add to each gradient."""
    dtype = variables[0].dtype.base_dtype
    extra = tf1.placeholder_with_default(tf.zeros([len(variables)], dtype), [len(variables)])
    corner = tf.one_hot(4, 6, dtype=dtype)
    gradients = [
        tf.ones(w.shape, dtype)
        + tf.reshape(tf.where(corner > 0, corner * extra[i], corner), [2, 3])
        for i, w in enumerate(variables)
    ]
    return optimizer.apply_gradients(list(zip(gradients, variables))), extra


@pytest.mark.parametrize(
    'dtype, use_resource', [('float32', False), ('float16', True), ('float64', False)]
)
def test_each_of_many_gradients_is_named(dtype, use_resource):
    dtype = tf.as_dtype(dtype)
    optimizer = tf1.train.MomentumOptimizer(0.0, 0.9)
    train_op, extra = hurt_gradients(weights(use_resource, dtype), optimizer)
    guarded = models.Guarded(train_op)
    for i in range(NUMBER):
        hurt = np.zeros(NUMBER)
        hurt[i] = math.nan if i % 2 else -math.inf
        guarded.assert_held({extra: hurt}, 'gradient %d' % i)
        assert guarded.finding().tensors == ('gradient of w%d' % i,)
    guarded.assert_held({extra: [math.inf, 0, 0, math.nan]}, 'two gradients')
    assert guarded.finding().tensors == ('gradient of w0', 'gradient of w3')
    # Finite gradients whose sums, and sums of squares, overflow are no incident.
    guarded.assert_written({extra: np.full(NUMBER, dtype.max / 2)})


@pytest.mark.parametrize('shape, use_resource', [([2], False), ([2, 3], True)])
def test_many_updates_are_undone_and_those_that_overflowed_are_named(shape, use_resource):
    variables = weights(use_resource, start=3e38, shape=shape)
    sizes = tf1.placeholder_with_default(tf.ones([NUMBER]), [NUMBER])
    updates = [tf1.assign_add(w, tf.fill(shape, sizes[i])) for i, w in enumerate(variables)]
    guarded = models.Guarded(tf.group(*updates))
    for i in range(60):  # often, since a read that comes too early does not fail each time
        large = np.zeros(NUMBER)
        large[i % NUMBER] = 3e38
        guarded.assert_held({sizes: large}, 'a sum beyond float32')
        assert guarded.finding().tensors == ('w%d' % (i % NUMBER),)
    assert 'once updated' in guarded.finding().reason


@kinds
def test_many_forward_writes_are_put_back(use_resource):
    averages = weights(use_resource)
    batch = tf1.placeholder_with_default(tf.zeros([2, 3]), [2, 3])
    writes = [tf1.assign(average, i + batch) for i, average in enumerate(averages)]
    w = tf1.get_variable('w', [], initializer=tf1.constant_initializer(1.0))
    with tf.control_dependencies(writes):
        loss = tf.identity(w) * 2.0
    guarded = models.Guarded(tf1.train.GradientDescentOptimizer(0.1).minimize(loss))
    guarded.assert_written({batch: np.ones([2, 3])})
    for _ in range(20):
        guarded.assert_held({batch: np.full([2, 3], math.nan)}, 'averages that are not finite')
    guarded.assert_written({batch: np.zeros([2, 3])})


SHAPES = [[5], [5], [2, 3], [5], [4097], [4097], [4097], [4097], [5]]  # four are short and alike


@pytest.mark.parametrize(
    'dtype, sums, use_resource',
    [('float32', 6, True), ('float64', 6, False), ('float16', 9, False)],
)
def test_short_vectors_of_one_length_are_summed_up_together(dtype, sums, use_resource):
    dtype = tf.as_dtype(dtype)
    extra = tf1.placeholder_with_default(tf.zeros([len(SHAPES)], dtype), [len(SHAPES)])
    pairs = []
    for i, shape in enumerate(SHAPES):
        w = tf1.get_variable('w%d' % i, shape, dtype, use_resource=use_resource)
        size = int(np.prod(shape))
        gradient = tf.one_hot(size - 1, size, dtype=dtype) * (extra[i] + 1)
        pairs.append((tf.reshape(gradient, shape), w))
    train_op = tf1.train.MomentumOptimizer(0.0, 0.9).apply_gradients(pairs)
    guarded = models.Guarded(train_op)
    (added,) = [op for op in train_op.graph.get_operations() if op.type == 'AddN']
    assert len(added.inputs) == sums
    for i in range(len(SHAPES)):
        name = 'gradient of w%d' % i
        hurt = np.zeros(len(SHAPES))
        hurt[i] = [math.nan, math.inf, -math.inf][i % 3]
        guarded.assert_held({extra: hurt}, name)
        assert guarded.finding().tensors == (name,)
    # Too large for the fast path, but no incident.
    guarded.assert_written({extra: np.full(len(SHAPES), dtype.max / 2)})
    guarded.assert_written()

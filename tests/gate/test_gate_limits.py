"""Finite numbers that turn into Inf: squares, explosions, and `max_loss`."""

import math

import numpy as np
import pytest
import tensorflow as tf

from slimguard import gate
from tests.helpers import gate_models as models

tf1 = tf.compat.v1

SQUARING = [
    'Adadelta',
    'Adagrad',
    'AdagradDA',
    'Adam',
    'CenteredRMSProp',
    'Ftrl',
    'ProximalAdagrad',
    'RMSProp',
]


@pytest.mark.full
@pytest.mark.parametrize(
    'optimizer', ['RMSProp', 'Adam', 'Adagrad', 'AdagradDA', 'Ftrl', 'GradientDescent', 'Momentum']
)
def test_gradient_too_large_to_be_squared(optimizer):
    damage = models.Damage()
    guarded = models.Guarded(models.two_weights(damage, models.OPTIMIZERS[optimizer]))
    for place in 'dense gradient', 'sparse gradient':
        models.initialize(guarded.sess)
        guarded.assert_written()
        huge = {damage.places[place]: 1e25}
        if optimizer in SQUARING:
            guarded.assert_held(huge, 'a square beyond float32, in the %s' % place)
            assert guarded.finding().tensors
            if optimizer == 'RMSProp' and place == 'dense gradient':
                assert guarded.finding().reason == 'not finite once updated: dense/RMSProp'
        else:
            guarded.assert_written(huge)
        assert not guarded.snapshot.not_finite(guarded.sess)


def deep_net(make_optimizer):
    net = tf.constant(np.linspace(-1, 1, 8).reshape(2, 4), tf.float32)
    for i in range(6):
        w = tf1.get_variable('w%d' % i, [4, 4])
        b = tf1.get_variable('b%d' % i, [4], initializer=tf1.zeros_initializer())
        net = tf.nn.relu(tf.matmul(net, w) + b)
    loss = tf.reduce_mean(tf.square(net - 1.0))
    return make_optimizer(1e6).minimize(
        loss, global_step=tf1.train.get_or_create_global_step()
    ), loss


FAST = {
    'GradientDescent': tf1.train.GradientDescentOptimizer,
    'Momentum': lambda rate: tf1.train.MomentumOptimizer(rate, 0.9),
    'Adam': tf1.train.AdamOptimizer,
    'RMSProp': tf1.train.RMSPropOptimizer,
    'CenteredRMSProp': lambda rate: tf1.train.RMSPropOptimizer(rate, centered=True),
    'Adagrad': tf1.train.AdagradOptimizer,
    'Ftrl': tf1.train.FtrlOptimizer,
}


@pytest.mark.full
@pytest.mark.parametrize(
    'optimizer, max_loss',
    [(name, 1e3 if number % 2 else None) for number, name in enumerate(FAST)],
)
def test_an_explosion_never_leaves_a_variable_that_is_not_finite(optimizer, max_loss):
    guarded = models.Guarded(deep_net(FAST[optimizer]), max_loss=max_loss)
    for step in range(100):
        guarded.step()
        assert not guarded.snapshot.not_finite(guarded.sess), 'after step %d' % step


@pytest.mark.parametrize('optimizer', ['CenteredRMSProp', 'epsilon of zero'])
def test_a_kernel_that_makes_a_nan_of_small_numbers(optimizer):
    """Rounding makes the centered variance negative; or the kernel divides zero by zero."""
    w = tf1.get_variable('w', initializer=tf.constant([1.0, 1.0]))
    gradient = tf.constant([1000.1, 0.0])
    if optimizer == 'CenteredRMSProp':
        maker = tf1.train.RMSPropOptimizer(0.1, decay=0.5, centered=True)
    else:
        maker = tf1.train.AdamOptimizer(0.1, epsilon=0.0)
    guarded = models.Guarded(maker.apply_gradients([(gradient, w)]))
    for _ in range(40):
        guarded.step()
        assert not guarded.snapshot.not_finite(guarded.sess)
    guarded.assert_held({}, 'a NaN out of the kernel')
    assert 'w' in guarded.finding().tensors


@pytest.mark.parametrize('use_resource', [False, True], ids=['ref', 'resource'])
def test_a_forward_write_that_overflows_is_undone(use_resource):
    largest = tf.constant_initializer(3e38)
    average = tf1.get_variable(
        'average', [], trainable=False, initializer=largest, use_resource=use_resource
    )
    size = tf1.placeholder_with_default(1.0, [])
    w = tf1.get_variable('w', [], initializer=tf.constant_initializer(1.0))
    with tf.control_dependencies([tf1.assign_add(average, size)]):
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(tf.identity(w) * 2.0)
    guarded = models.Guarded(train_op)
    guarded.assert_held({size: 3e38}, 'a sum beyond float32')
    assert guarded.finding().tensors == ('average',)


# max_loss


def linear(value=2.0):
    w = tf1.get_variable('w', [], initializer=tf.constant_initializer(value))
    loss = tf.identity(w, name='total')
    return tf1.train.GradientDescentOptimizer(0.5).minimize(loss), loss


def test_max_loss():
    extra = tf1.placeholder_with_default(0.0, [])
    train_op, loss = linear()
    guarded = models.Guarded((train_op, loss + extra), max_loss=4.0)
    guarded.assert_written({extra: 2.0})  # 4.0: not above
    guarded.assert_held({extra: 3.0}, 'a loss of 4.5')
    assert 'above max_loss=4: loss' in guarded.finding().reason
    guarded.assert_written({extra: 3.0, guarded.gate.limit: 10.0})
    guarded.assert_written({extra: -1e6})


@pytest.mark.full
def test_max_loss_is_compared_exactly():
    for dtype, max_loss, loss, is_written in [
        ('float16', 1e6, 60000.0, True),
        ('float16', 2049.9, 2050.0, False),  # a float16 of 2049.9 is 2050
        ('float32', 2.0**24 + 1, 2.0**24, True),
        ('float32', 2.0**24 + 1.9, 2.0**24 + 2, False),
        ('bfloat16', 257.9, 258.0, False),
        ('float64', 4.0, 4.0, True),
        ('float64', 4.0, 4.0 + 1e-15, False),
        ('float64', 4.0, -math.inf, False),
    ]:
        with tf.Graph().as_default():
            w = tf1.get_variable('w', initializer=tf.constant(loss, tf.float64))
            train_op = tf.group(tf1.assign_sub(w, 0.0))
            cast = tf.cast(tf.identity(w), dtype)
            guarded = models.Guarded((train_op, cast), max_loss=max_loss)
            assert guarded.step() == is_written, (dtype, max_loss, loss)
            guarded.close()


def test_max_loss_has_to_be_positive_and_finite_and_needs_a_loss():
    train_op, loss = linear()
    for wrong in (0, -1.0, math.nan, math.inf, True, 'x'):
        with pytest.raises(ValueError, match='max_loss must be a positive finite number or None'):
            gate.guard(train_op, loss, max_loss=wrong)
        assert gate.gate_of(train_op) is None
    with pytest.raises(ValueError, match=r'max_loss=3.0 needs a loss .* loss=total_loss'):
        gate.guard(train_op, max_loss=3.0)

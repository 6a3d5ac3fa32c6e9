"""The history in a bundle is what a hook that fetches the same tensors saw, to the last bit."""

import math

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard import compat
from slimguard.diagnosis import bundle
from tests.helpers.models import records_in, train_quietly
from tests.helpers.monitored import monitored

tf1 = tf.compat.v1
slim = compat.import_slim()

# The draw that has a NaN, and the number of draws.
BAD, DRAWS = 10, 14


def batch(draw):
    numbers = np.random.RandomState(draw).randn(4, 30)
    if draw == BAD:
        numbers[1, 2] = np.nan
    return numbers


class Net:
    """Three layers, so large that no gradients are summed together, with a decaying rate."""

    def __init__(self, dtype):
        draws = iter(range(1000))
        self.step = tf1.train.get_or_create_global_step()
        drawn = tf1.py_func(lambda: batch(next(draws)), [], tf.float64, stateful=True)
        net = tf.reshape(tf.cast(drawn, dtype), [4, 30])
        for number in range(3):
            net = slim.fully_connected(net, 30, biases_initializer=None, scope='l%d' % number)
        self.loss = tf.reduce_mean(tf.square(net - 1))
        rate = tf1.train.exponential_decay(tf.cast(0.1, dtype), self.step, 3, 0.9)
        optimizer = tf1.train.MomentumOptimizer(rate, 0.9)
        gradients = optimizer.compute_gradients(self.loss)
        self.applied = optimizer.apply_gradients(gradients, self.step)
        sums = tf.stack([tf.nn.l2_loss(gradient) for gradient, _ in gradients])
        self.fetches = [self.loss, rate, sums]

    def train_op(self):
        """An unguarded train op that returns the loss, as slim's loops want it."""
        with tf.control_dependencies([self.applied]):
            return tf.identity(self.loss)

    def guarded(self):
        return slimguard.guard(self.train_op(), loss=self.loss)


class Seen(tf1.train.SessionRunHook):
    """Fetches the tensors that a history is made of, and stops after `DRAWS` draws."""

    def __init__(self, net):
        self._fetches = net.fetches
        self.steps = []

    def before_run(self, run_context):
        return tf1.train.SessionRunArgs(self._fetches)

    def after_run(self, run_context, run_values):
        self.steps.append(run_values.results)
        if len(self.steps) == DRAWS:
            run_context.request_stop()


def in_train(dtype, logdir):
    net = Net(dtype)
    seen = Seen(net)
    train_quietly(net.guarded(), logdir, None, hooks=[seen], on_nan='skip')
    return seen.steps


def in_monitored(dtype, logdir):
    net = Net(dtype)
    seen, train_op = Seen(net), net.guarded()
    with monitored(logdir, seen, slimguard.NanLossHook(net.loss, on_nan='skip')) as session:
        while not session.should_stop():
            session.run(train_op)
    return seen.steps


def plainly(session, net, train_op):
    session.run(tf1.global_variables_initializer())
    return [session.run([train_op, *net.fetches])[1:] for _ in range(DRAWS)]


def unedited_plain(dtype, logdir):
    with slimguard.instrument(on_nan='skip', logdir=logdir), tf1.Session() as session:
        net = Net(dtype)
        return plainly(session, net, net.applied)


@pytest.mark.parametrize(
    ('loop', 'dtype'),
    [
        (in_train, tf.float32),
        (in_monitored, tf.float64),
        (unedited_plain, tf.float64),
    ],
)
def test_it_is_what_a_hook_sees_bit_by_bit(loop, dtype, tmp_path):
    seen = loop(dtype, str(tmp_path))
    assert len(seen) == DRAWS
    (record,) = records_in(tmp_path)
    history = bundle.read(record['bundle']).history
    assert history['gradients'] == [['l%d/weights' % n] for n in range(3)]
    losses, rates, sums = (np.float64(column) for column in zip(*seen[: BAD + 1]))
    assert np.isfinite(losses[:BAD]).all() and not np.isfinite(losses[BAD])
    assert len(set(rates)) == BAD + 1
    np.testing.assert_array_equal(history['loss'], losses)
    np.testing.assert_array_equal(history['learning_rate'], rates)
    np.testing.assert_array_equal(history['gradient_norms'], np.sqrt(2 * sums))
    norms = [math.sqrt(2 * row.sum()) for row in sums]
    np.testing.assert_array_equal(history['gradient_norm'], norms)
    np.testing.assert_array_equal(record['gradient_norm'], str(norms[-1]))
    assert history['step'] == list(range(BAD + 1))

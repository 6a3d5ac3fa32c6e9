"""A train op that a loop, branch or function runs: the gate is around the latter, not the op."""

import math

import pytest
import tensorflow as tf

import slimguard
from slimguard import compat

tf1 = tf.compat.v1
slim = compat.import_slim()


def in_a_loop(train):
    def body(i):
        with tf.control_dependencies([train()]):
            return i + 1

    return tf1.while_loop(lambda i: i < 3, body, [0])


def in_a_branch(train):
    def branch():
        with tf.control_dependencies([train()]):
            return tf.identity(1)

    return tf1.cond(tf1.placeholder_with_default(True, []), branch, lambda: 0)


def in_a_function(train):
    @tf.function(autograph=False)
    def call():
        with tf.control_dependencies([train()]):
            return tf.identity(1)

    return call()


class Training:
    """A weight, and what trains it."""

    def __init__(self, around=lambda train_op: train_op):
        self.x = tf1.placeholder_with_default(1.0, [])
        self.w = tf1.get_variable('w', initializer=1.0, use_resource=True)
        self._around = around

    def minimize(self):
        optimizer = tf1.train.GradientDescentOptimizer(0.1)
        return self._around(optimizer.minimize(tf.square(self.w * self.x - 3.0)))

    def weights(self, fetch):
        """The weight after a good step, a bad one and a good one."""
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            found = []
            for x in (1.0, math.nan, 1.0):
                session.run(fetch, {self.x: x})
                found.append(session.run(self.w))
        return found


PLACES = pytest.mark.parametrize('place', [in_a_loop, in_a_branch, in_a_function])


@PLACES
def test_it_is_refused_with_what_to_do_but_in_a_branch_of_ops(control_flow, place):
    training = Training(around=slimguard.guard)
    if place is in_a_branch and control_flow == 'v1':
        first, held, second = training.weights(place(training.minimize))
        assert 1.0 < first == held < second
    else:
        with pytest.raises(ValueError, match='made inside of a tf.while_loop'):
            place(training.minimize)


@PLACES
def test_what_runs_it_can_be_guarded(control_flow, place):
    training = Training()
    result = place(training.minimize)
    # The result of a loop of ops is outside of the loop, so it can be guarded itself.
    is_loop_of_ops = place is in_a_loop and control_flow == 'v1'
    train_op = slimguard.guard(result if is_loop_of_ops else tf.group(result))
    first, held, second = training.weights(train_op)
    assert 1.0 < first == held < second


@PLACES
def test_under_instrument_it_is_left_to_what_runs_it(control_flow, place, tmp_path):
    training = Training()

    def create():
        loss = tf.square(training.w * training.x - 3.0)
        optimizer = tf1.train.GradientDescentOptimizer(0.1)
        return slim.learning.create_train_op(
            loss, optimizer, global_step=None, check_numerics=False
        )

    with slimguard.instrument(on_nan='skip', logdir=tmp_path):
        first, held, second = training.weights(place(create))
    assert 1.0 < first == held < second

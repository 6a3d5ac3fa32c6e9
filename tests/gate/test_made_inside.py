"""A train op that a loop, branch or function runs: what runs it is guarded, and not the op."""

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


@pytest.mark.parametrize('place', [in_a_loop, in_a_function])
def test_it_is_refused_with_what_to_do(control_flow, place):
    with pytest.raises(ValueError, match='made inside of a tf.while_loop'):
        place(Training(around=slimguard.guard).minimize)


def test_a_branch_of_v1_control_flow_may_guard(control_flow_v1):
    training = Training(around=slimguard.guard)
    first, held, second = training.weights(in_a_branch(training.minimize))
    assert 1.0 < first == held < second


@pytest.mark.parametrize('place', [in_a_loop, in_a_branch, in_a_function])
def test_what_runs_it_can_be_guarded(control_flow, place):
    training = Training()
    first, held, second = training.weights(slimguard.guard(tf.group(place(training.minimize))))
    assert 1.0 < first == held < second


def test_the_result_of_a_loop_itself_can_be_guarded(control_flow_v1):
    # The loop runs the op that puts its result out, and the result is outside of it all the same.
    training = Training()
    first, held, second = training.weights(slimguard.guard(in_a_loop(training.minimize)))
    assert 1.0 < first == held < second


@pytest.mark.parametrize('place', [in_a_loop, in_a_branch, in_a_function])
def test_under_instrument_it_is_left_to_what_runs_it(control_flow, place, tmp_path):
    training = Training()

    def create():
        loss = tf.square(training.w * training.x - 3.0)
        return slim.learning.create_train_op(
            loss, tf1.train.GradientDescentOptimizer(0.1), global_step=None
        )

    with slimguard.instrument(on_nan='skip', logdir=tmp_path):
        first, held, second = training.weights(place(create))
    assert 1.0 < first == held < second

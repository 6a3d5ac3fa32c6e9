"""What a script draws, where only its graph has a seed, does not depend on what guards it."""

import contextlib

import pytest
import tensorflow as tf

import slimguard

tf1 = tf.compat.v1


def drawn(guard=contextlib.ExitStack):
    """What random ops draw that are built after a first step, in the graph and in a branch."""
    with guard(), tf.Graph().as_default():
        tf1.set_random_seed(1)
        x = tf1.placeholder_with_default(tf.random.normal([4, 3]), [None, 3])
        weights = tf1.get_variable('w', [3, 1])
        loss = tf.reduce_mean(tf.square(tf.matmul(x, weights) - 1.0))
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            session.run(train_op)
            late = tf1.get_variable('late', [2])
            more = tf.data.Dataset.from_tensors(0).map(lambda _: tf.random.uniform([2]))
            next_one = tf1.data.make_one_shot_iterator(more).get_next()
            given = tf.random.normal([2], seed=7)
            session.run(late.initializer)
            values = session.run([weights, late, next_one, given])
            second = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
            session.run(second)
            values.append(session.run(tf.random.normal([2])))
            return [value.tolist() for value in values]


@pytest.mark.full
def test_the_seeds_of_what_is_built_late_are_those_of_a_plain_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    expected = drawn()
    assert drawn(slimguard.instrument) == expected
    assert drawn() == expected

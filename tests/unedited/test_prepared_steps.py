"""Repeated steps run in a prepared call; a script sees no difference to `session.run`."""

import gc
import threading
import weakref

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard.compat import tf_private
from slimguard.gate import gate_of
from tests.helpers.session_cases import FEEDS, FETCHES, Fed, X

tf1 = tf.compat.v1


def train(fetches, feed):
    """Three steps."""
    with tf.Graph().as_default():
        model = Fed()
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            for _ in range(3):
                session.run(fetches(model), feed(model))


@pytest.fixture
def calls(monkeypatch):
    """A list with an item for each prepared call: how often it was called."""
    made = []
    make = tf_private.callable_of

    def counting(*args):
        call, number = make(*args), len(made)
        made.append(0)

        def count(*values):
            made[number] += 1
            return call(*values)

        return count

    monkeypatch.setattr(tf_private, 'callable_of', counting)
    return made


@pytest.mark.full
def test_each_step_is_one_prepared_call(calls):
    fetched = ['train op', 'a tensor that waits for it', 'a list', 'a dict']
    fed = ['as it is', 'float64', 'lists', 'numbers']
    with slimguard.instrument():
        for fetches, feed in zip(fetched, fed):
            train(FETCHES[fetches], FEEDS[feed])
    assert calls == [3] * 4


@pytest.mark.full
def test_a_session_that_nobody_has_any_more_is_freed_at_once(capfd):
    with slimguard.instrument(), tf.Graph().as_default():
        model = Fed()
        session = tf1.Session()
        session.run(tf1.global_variables_initializer())
        session.run(model.train_op, {model.x: X})
        gc.collect()  # `signal.getsignal` leaves a reference cycle with the frames of its callers
        there = weakref.ref(session)
        del session
        assert there() is None
    assert 'ignored' not in capfd.readouterr().err


@pytest.mark.full
def test_threads_that_fetch_different_things_get_what_they_asked_for():
    def train(number):
        fetches = [model.train_op, tf.constant(number)] if number % 2 else (model.train_op,)
        fetches = fetches if number % 2 else fetches + (texts[number],)
        for _ in range(50):
            got.append((number, session.run(fetches, {model.x: X})[1]))

    got = []
    with slimguard.instrument() as guards, tf.Graph().as_default() as graph:
        # A resource variable: threads that add to a ref variable without a lock may lose a count.
        with tf1.variable_scope('counted', use_resource=True):
            model = Fed()
        texts = [tf.constant(str(number)) for number in range(4)]
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())

            def in_graph(number):
                with graph.as_default():
                    train(number)

            threads = [threading.Thread(target=in_graph, args=[n]) for n in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert session.run(model.step) == 200
    assert len(got) == 200
    assert all(value == (n if n % 2 else str(n).encode()) for n, value in got)
    assert sum(guards.sessions.seen.train_ops.values()) == 200


@pytest.mark.full
def test_a_train_op_of_the_scripts_own_gate_is_as_quiet(tmp_path, capfd):
    """The script may fetch its gate's `written` as before; its gate prints no line of its own."""
    with slimguard.instrument('skip', logdir=tmp_path), tf.Graph().as_default():
        model = Fed()
        train_op = slimguard.guard(model.train_op, loss=model.loss)
        gate = gate_of(train_op)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            session.run(train_op, {model.x: X})
            session.run(train_op, {model.x: X * np.nan})
            _, written = session.run([train_op, gate.written], {model.x: X * np.nan})
            assert not written
            assert session.run(model.step) == 1
    assert 'this step wrote nothing' not in capfd.readouterr().err

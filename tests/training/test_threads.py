"""Threads that train in one session, and what begins before those that fill queues."""

import sys
import threading

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard import compat
from slimguard.gate.untold import Untold
from tests.helpers.models import Linear

tf1 = tf.compat.v1
slim = compat.import_slim()
THREADS, STEPS = 4, 60


@pytest.fixture
def hasty():
    """Threads that give way to each other at every chance."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize('spike', [None, True], ids=['', 'spike'])
def test_each_bad_step_of_any_thread_is_recorded_once(tmp_path, hasty, spike):
    x = tf1.placeholder(tf.float32, [])
    weight = tf1.get_variable('w', initializer=1.0)
    loss = tf.square(weight * x)
    update = tf1.train.GradientDescentOptimizer(0.01).minimize(loss)
    train_op = slimguard.guard(update, loss=loss)
    errors = []

    def train(number):
        try:
            for step in range(STEPS):
                session.run(train_op, {x: np.nan if step % 3 == number % 3 else 1.0})
        except Exception as error:
            errors.append(error)

    watched = slimguard.watch(tf1.Session(), on_nan='skip', logdir=tmp_path, spike=spike)
    with watched as session:
        session.run(tf1.global_variables_initializer())
        threads = [threading.Thread(target=train, args=(n,)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert np.isfinite(session.run(weight))
    assert len(slimguard.read_incidents(tmp_path)) == THREADS * STEPS // 3


class Asks(tf1.train.SessionRunHook):
    """A hook that takes from a queue as soon as there is a session."""

    def __init__(self, element):
        self.element = element

    def after_create_session(self, session, coord):
        session.run(self.element)


class TestQueues:
    @pytest.mark.parametrize('asks', [False, True], ids=['nobody asks', 'a hook asks'])
    def test_are_filled_once_the_supervisor_has_begun_or_a_hook_asks(
        self, tmp_path, monkeypatch, asks
    ):
        model = Linear()
        train_op = slimguard.create_train_op(model.loss, model.optimizer)
        queue = tf1.FIFOQueue(8, tf.float32, [[]])
        tf1.train.add_queue_runner(tf1.train.QueueRunner(queue, [queue.enqueue(1.0)]))
        order = []
        for name in ('start_queue_runners', 'start_standard_services'):
            self.note_calls(monkeypatch, name, order)
        hooks = [Asks(queue.dequeue())] if asks else []
        slimguard.train(train_op, str(tmp_path), number_of_steps=2, hooks=hooks)
        first = ['start_queue_runners', 'start_standard_services']
        assert order == (first if asks else first[::-1])

    @pytest.mark.parametrize('who', ['train', 'a hook', 'instrument'])
    def test_are_filled_once_the_training_is_watched(self, tmp_path, monkeypatch, who):
        """Beside threads that begin to fill queues each new kind of run takes ten times as long."""
        model = Linear()
        order = []
        watch = Untold.watch

        def noting(untold, session):
            order.extend([] if untold.watches(session) else ['watch'])
            watch(untold, session)

        monkeypatch.setattr(Untold, 'watch', noting)
        self.note_calls(monkeypatch, 'start_queue_runners', order)
        hooks = {'hooks': [slimguard.NanLossHook(model.loss)]} if who == 'a hook' else {}
        if who == 'instrument':
            with slimguard.instrument(on_nan='skip'):
                train_op = slim.learning.create_train_op(model.loss, model.optimizer)
                slim.learning.train(train_op, str(tmp_path), number_of_steps=2)
        else:
            train_op = slimguard.create_train_op(model.loss, model.optimizer)
            slimguard.train(train_op, str(tmp_path), number_of_steps=2, **hooks)
        assert order == ['watch', 'start_queue_runners']

    def note_calls(self, monkeypatch, name, order):
        original = getattr(tf1.train.Supervisor, name)

        def noting(*args, **kwargs):
            order.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(tf1.train.Supervisor, name, noting)

"""In an unedited script, too, a thread that saves and the loop that trains take turns."""

import threading

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard.checkpoints import step_turn
from slimguard.checkpoints.step_turn import turn_of

tf1 = tf.compat.v1

# The seconds after which a thread that has not gone on counts as waiting.
MOMENT = 0.5


class Script:
    """A session, and a train op that adds 1 to all variables, and calls `act` in between.

    Args:
      act: called in the midst of each step.
    """

    def __init__(self, use_resource, act):
        self.step = tf1.train.get_or_create_global_step()
        with tf1.variable_scope('', use_resource=use_resource):
            self.before = tf1.get_variable('before', initializer=0.0)
            self.after = tf1.get_variable('after', initializer=0.0)
        gradients = [tf.constant(-1.0), tf1.py_func(act, [], tf.float32, stateful=True)]
        gradients[1].set_shape([])
        optimizer = tf1.train.GradientDescentOptimizer(1.0)
        pairs = list(zip(gradients, [self.before, self.after]))
        self.train_op = optimizer.apply_gradients(pairs, self.step)
        self.saver = tf1.train.Saver(max_to_keep=100)
        # Threads of its own: a waiting step blocks one of TensorFlow's, and so may earlier tests.
        threads = tf1.ConfigProto(inter_op_parallelism_threads=4, use_per_session_threads=True)
        self.session = tf1.Session(config=threads)
        self.session.run(tf1.global_variables_initializer())

    def saving(self, folder, saved):
        """A thread that saves."""

        def save():
            saved.append(self.saver.save(self.session, str(folder / 'model.ckpt'), self.step))

        return threading.Thread(target=save, daemon=True)


def moment_in(path):
    """The step in a checkpoint; asserts that all its variables have the same."""
    reader = tf1.train.load_checkpoint(path)
    step = int(path.rpartition('-')[2])
    assert [reader.get_tensor(name) for name in ('before', 'after', 'global_step')] == [step] * 3
    return step


@pytest.fixture(autouse=True)
def instrumented():
    with slimguard.instrument(capture=False):
        yield


def test_what_only_writes_in_another_thread_waits_for_no_step():
    """An actor updates a mean, and fills the queue that the learner's step waits for."""
    means = []

    def act():
        actor = threading.Thread(target=write, daemon=True)
        actor.start()
        actor.join(30)  # half the time for which a thread that copies would wait
        assert not actor.is_alive()
        return np.float32(-1)

    def write():
        means.append(script.session.run(update))

    script = Script(True, act)
    with tf1.variable_scope('', use_resource=True):
        mean = tf1.get_variable('mean', initializer=0.0, trainable=False)
    update = mean.assign(0.5 * mean + 1.0)
    script.session.run(mean.initializer)
    for _ in range(3):
        script.session.run(script.train_op)
    assert means == [1.0, 1.5, 1.75]
    assert script.session.run([script.before, script.after]) == [3.0, 3.0]
    script.session.close()


@pytest.mark.full
def test_a_thread_that_saves_waits_for_what_only_writes_in_the_loop_as_well(tmp_path):
    saved, threads = [], []

    def midst():
        threads.append(script.saving(tmp_path, saved))
        threads[0].start()
        threads[0].join(MOMENT)
        assert saved == []
        return np.float32(0.5)

    script = Script(False, lambda: np.float32(-1))
    factor = tf1.py_func(midst, [], tf.float32, stateful=True)
    factor.set_shape([])
    script.session.run(script.train_op)
    script.session.run(script.before.assign_sub(0.5 * factor))
    threads[0].join()
    assert len(saved) == 1
    assert tf1.train.load_checkpoint(saved[0]).get_tensor('before') == 0.75
    script.session.close()


def test_a_thread_that_saves_waits_for_the_end_of_a_step(tmp_path):
    saved, threads, began = [], [], []

    def act():
        began.append(1)
        if len(began) == 3:
            threads.append(script.saving(tmp_path, saved))
            threads[0].start()
            threads[0].join(MOMENT)
            assert saved == []
        return np.float32(-1)

    script = Script(True, act)
    for _ in range(6):
        script.session.run(script.train_op)
    threads[0].join(300)
    assert [moment_in(path) for path in saved] == [3]


def test_a_step_that_waits_for_that_thread_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(step_turn, '_LONGEST_HOOK', 0.05)
    monkeypatch.setattr(step_turn, '_LONGEST_STEP', 0.2)
    saved = []

    def act():
        thread = script.saving(tmp_path, saved)
        thread.start()
        thread.join(300)
        return np.float32(-1)

    script = Script(False, act)
    script.session.run(script.train_op)
    assert len(saved) == 1


@pytest.mark.full
def test_where_several_threads_train_nobody_takes_turns(tmp_path):
    script = Script(False, lambda: np.float32(-1))
    script.session.run(script.train_op)
    assert turn_of(script.session.graph) is not None
    other = threading.Thread(target=script.session.run, args=(script.train_op,))
    other.start()
    other.join(300)
    script.session.run(script.train_op)
    assert turn_of(script.session.graph) is None
    saved = []
    thread = script.saving(tmp_path, saved)
    thread.start()
    thread.join(300)
    assert [moment_in(path) for path in saved] == [3]
    assert turn_of(script.session.graph) is None


@pytest.mark.full
def test_a_thread_that_saves_before_the_first_step_makes_a_copy(tmp_path):
    """The thread may still be writing when the first step begins."""
    script = Script(False, lambda: np.float32(-1))
    saved = []
    thread = script.saving(tmp_path, saved)
    thread.start()
    thread.join(300)
    turn = turn_of(script.session.graph)
    assert turn is not None and not turn.is_mine
    script.session.run(script.train_op)
    assert turn_of(script.session.graph) is turn and turn.is_mine
    assert [moment_in(path) for path in saved] == [0]

"""A checkpoint holds the variables as they were between two steps, and is named for that step."""

import threading
import time

import pytest
import tensorflow as tf

import slimguard
from slimguard.checkpoints import step_turn
from slimguard.graph.sessions import SessionWrapper
from tests.helpers.models import Linear, train_quietly

tf1 = tf.compat.v1

# The seconds after which a thread that has not gone on counts as waiting.
MOMENT = 0.5


def give_a_moment(thread, session):
    """Waits until a thread is about to save, and then gives it time to do so."""
    while not step_turn.turn_of(session.graph)._saver:
        time.sleep(0.002)
    thread.join(MOMENT)


class SlowDisk(SessionWrapper):
    """A session in which saves wait until `go_on` is set."""

    def __init__(self, session):
        SessionWrapper.__init__(self, session)
        self.has_begun = threading.Event()
        self.go_on = threading.Event()

    def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        if any(isinstance(value, str) for value in (feed_dict or {}).values()):  # a path
            self.has_begun.set()
            assert self.go_on.wait(300)
        return self._session.run(fetches, feed_dict, options, run_metadata)


class Twins(tf1.train.SessionRunHook):
    """Sets a variable to the global step at the end of each step; calls `act` before that.

    Attributes:
      saver: a saver of both.
      step: the number of steps that have begun, this one included.
    """

    def __init__(self, use_resource, act):
        with tf1.variable_scope('', use_resource=use_resource):
            self._twin = tf1.get_variable('twin', [3], initializer=tf1.zeros_initializer())
        self._next = tf1.placeholder(tf.float32, [3])
        self._assign = self._twin.assign(self._next)
        self._act = act
        self.step = 0
        self.saver = slimguard.FiniteSaver(max_to_keep=100)

    def after_run(self, run_context, run_values):
        self.step += 1
        self._act(self, run_context.session)
        run_context.session.run(self._assign, {self._next: [self.step] * 3})

    def start_saving(self, session, folder, step=None):
        """Saves in a thread. Returns the thread, and a list to which it adds the result."""
        step = tf1.train.get_global_step(session.graph) if step is None else step
        saved = []
        thread = threading.Thread(
            target=lambda: saved.append(self.saver.save(session, str(folder / 'beside'), step)),
            daemon=True,
        )
        thread.start()
        return thread, saved


def train(logdir, use_resource, act, number_of_steps=8, **kwargs):
    model = Linear()
    with tf1.variable_scope('', use_resource=use_resource):
        hook = Twins(use_resource, act)
    train_op = slimguard.create_train_op(model.loss, model.optimizer)
    train_quietly(train_op, logdir, number_of_steps, hooks=[hook], saver=hook.saver, **kwargs)


def moment_in(path):
    """The global step in a checkpoint; asserts that its variables and its name have the same."""
    reader = tf1.train.load_checkpoint(path)
    step = int(reader.get_tensor('global_step'))
    assert list(reader.get_tensor('twin')) == [step] * 3
    assert path.rsplit('-', 1)[1] == str(step)
    return step


@pytest.mark.parametrize('use_resource', [False, True], ids=['ref', 'resource'])
def test_a_thread_that_saves_waits_for_the_end_of_a_step_and_the_next_step_for_it(
    use_resource, tmp_path
):
    found = {}

    def act(hook, session):
        if hook.step == 3:
            found['disk'] = SlowDisk(session)
            found['thread'], found['saved'] = hook.start_saving(found['disk'], tmp_path)
            give_a_moment(found['thread'], session)
            assert not found['disk'].has_begun.is_set()
            threading.Timer(2 * MOMENT, found['disk'].go_on.set).start()
        if hook.step == 4:
            assert found['disk'].go_on.is_set()

    train(tmp_path, use_resource, act)
    found['thread'].join(300)
    assert [moment_in(path) for path in found['saved']] == [3]
    assert moment_in(tf1.train.latest_checkpoint(str(tmp_path))) == 8


def test_the_training_ends_when_what_is_being_written_is_there(tmp_path):
    class Enough(Exception):
        pass

    found = {}

    def act(hook, session):
        if hook.step == 3:
            found['disk'] = SlowDisk(session)
            found['thread'], found['saved'] = hook.start_saving(found['disk'], tmp_path)
            give_a_moment(found['thread'], session)
            threading.Timer(MOMENT, found['disk'].go_on.set).start()
            raise Enough

    with pytest.raises(Enough):
        train(tmp_path, False, act)
    found['thread'].join(300)
    assert len(found['saved']) == 1


@pytest.mark.full
def test_a_hook_may_wait_for_a_thread_that_saves(tmp_path, monkeypatch):
    monkeypatch.setattr(step_turn, '_LONGEST_HOOK', 0.01)
    saved = []

    def act(hook, session):
        if hook.step == 3:
            thread, found = hook.start_saving(session, tmp_path)
            thread.join(300)
            saved.extend(found)

    train(tmp_path, False, act)
    assert [path.rsplit('-', 1)[1] for path in saved] == ['3']


@pytest.mark.full
def test_a_save_beside_the_loop_is_looked_at_value_by_value_and_refused_by_name(tmp_path):
    """Large values that the sum of squares doubts are saved; an Inf is not."""
    with tf1.variable_scope('', use_resource=False):
        x = tf1.get_variable('x', initializer=[3e38, -3e38])
    given = tf1.placeholder(tf.float32, [2])
    assign = x.assign(given)
    saved = []

    def act(hook, session):
        if hook.step in (2, 4):
            session.run(assign, {given: [1.0, float('inf')] if hook.step == 2 else [3e38, -3e38]})
            hook.thread, found = hook.start_saving(session, tmp_path)
            saved.append((hook.saver, found))
        elif hook.step in (3, 5):
            hook.thread.join(300)

    train(tmp_path, False, act)
    (saver, refused), (_, good) = saved
    assert refused == [None] and [each.tensors for each in saver.refused] == [('x',)]
    assert moment_in(good[0]) == 4
    values = tf1.train.load_checkpoint(good[0]).get_tensor('x')
    assert list(values) == pytest.approx([3e38, -3e38])

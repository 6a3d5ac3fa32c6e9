"""A training sets what a hook leaves open; what a user set in a hook stays as it is."""

import pytest
import tensorflow as tf

import slimguard
from slimguard.training.gate_watcher import with_watcher
from slimguard.training.training import TrainingSettings
from tests.helpers.models import Linear, train_quietly

tf1 = tf.compat.v1


def said_by(hook):
    """The attributes of a hook that a training has settings for, too."""
    return hook.max_loss, hook.logdir, hook.ends_job


class Seeing(tf1.train.SessionRunHook):
    """Collects the values of `said_by` for another hook while a training runs."""

    def __init__(self, hook):
        self._hook = hook
        self.seen = set()

    def after_run(self, run_context, run_values):
        self.seen.add(said_by(self._hook))


def assert_limited(hook, seen, logdir):
    """The loss was limited, and the incident recorded; the hook's attributes did not change."""
    (incident,) = hook.incidents
    assert 'max_loss' in incident.reason and slimguard.read_incidents(logdir)
    assert seen == {(None, None, True)} == {said_by(hook)} and hook.max_loss_now is None


def build():
    """A model whose third batch has a loss of 1e8, and its hook."""
    model = Linear((2,), value=1e4)
    return model, slimguard.NanLossHook(model.loss, on_nan='skip')


def guarded(model):
    return slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False)


def test_in_train(tmp_path):
    model, hook = build()
    seeing = Seeing(hook)
    kwargs = {'hooks': [hook, seeing], 'max_loss': 1e6, 'ends_job': False}
    train_quietly(guarded(model), tmp_path, **kwargs)
    assert_limited(hook, seeing.seen, tmp_path)


def test_in_a_session_that_is_watched(tmp_path):
    model, hook = build()
    train_op = guarded(model)
    seeing = Seeing(hook)
    with tf1.Session() as plain, slimguard.watch(
        plain, [hook, seeing], max_loss=1e6, logdir=tmp_path
    ) as session:
        session.run(tf1.global_variables_initializer())
        for _ in range(3):
            session.run(train_op)
    assert_limited(hook, seeing.seen, tmp_path)


def test_where_a_hook_beside_it_cannot_begin(tmp_path):
    class Broken(tf1.train.SessionRunHook):
        def begin(self):
            raise KeyError('no table')

    model = Linear()
    hook = slimguard.NanLossHook(model.loss)
    with pytest.raises(KeyError):
        train_quietly(guarded(model), tmp_path, hooks=[hook, Broken()], max_loss=1e6)
    assert said_by(hook) == (None, None, True) and hook.max_loss_now is None


def test_what_a_user_changes_during_a_training_stays():
    class Changing(tf1.train.SessionRunHook):
        def begin(self):
            hook.max_loss = 5e3

    model = Linear()
    hook = slimguard.NanLossHook(model.loss)
    train_op = slimguard.create_train_op(model.loss, model.optimizer)
    slimguard.train(train_op, None, number_of_steps=2, hooks=[Changing(), hook], max_loss=1e6)
    assert hook.max_loss == hook.max_loss_now == 5e3


@pytest.mark.full
def test_a_subclass_may_say_it_later(tmp_path):
    class Mine(slimguard.NanLossHook):
        def __init__(self, loss):
            slimguard.NanLossHook.__init__(self, loss, on_nan='skip')
            self.max_loss, self.logdir, self.ends_job = 1e6, str(tmp_path / 'mine'), False

    model, _ = build()
    hook = Mine(model.loss)
    slimguard.train(guarded(model), None, number_of_steps=3, hooks=[hook])
    assert len(slimguard.read_incidents(tmp_path / 'mine')) == 1
    assert said_by(hook) == (1e6, str(tmp_path / 'mine'), False)


def test_hooks_that_disagree():
    model = Linear()
    hooks = [slimguard.NanLossHook(model.loss), slimguard.NanLossHook(model.loss, max_loss=2.0)]
    with pytest.raises(ValueError, match='max_loss=1.0 disagrees'):
        with_watcher(hooks, None, TrainingSettings(max_loss=1.0))
    assert hooks[0].max_loss is None

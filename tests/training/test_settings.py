"""What a training lends to the watchers among its hooks, and that it takes it back."""

import pytest
import tensorflow as tf

import slimguard
from slimguard import compat
from slimguard.training.context import TrainingContext
from slimguard.training.watchers import lent, with_watcher
from tests.helpers.models import Linear, train_quietly

tf1 = tf.compat.v1
slim = compat.import_slim()


def said_by(hook):
    """What a user said, and a training may say as well."""
    return hook.max_loss, hook.logdir, hook.ends_job


class Seeing(tf1.train.SessionRunHook):
    """Keeps what another hook has while a training runs."""

    def __init__(self, hook):
        self._hook = hook
        self.seen = []

    def after_run(self, run_context, run_values):
        self.seen.append(said_by(self._hook))


@pytest.mark.parametrize('bad', [(), (2,)])
def test_train_leaves_a_hook_as_it_was(bad, tmp_path):
    model = Linear(bad)
    train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False)
    hook = slimguard.NanLossHook(model.loss)
    seeing = Seeing(hook)
    kwargs = {'hooks': [hook, seeing], 'max_loss': 1e6, 'ends_job': False}
    if bad:
        with pytest.raises(slimguard.NanLossError):
            train_quietly(train_op, tmp_path, **kwargs)
    else:
        train_quietly(train_op, tmp_path, **kwargs)
    assert set(seeing.seen) == {(1e6, str(tmp_path), False)}
    assert said_by(hook) == (None, None, True) and hook.incident_count == len(bad)


def test_train_leaves_a_hook_as_it_was_where_a_hook_cannot_begin(tmp_path):
    class Broken(tf1.train.SessionRunHook):
        def begin(self):
            raise KeyError('no table')

    model = Linear()
    hook = slimguard.NanLossHook(model.loss)
    with pytest.raises(KeyError):
        train_quietly(model.minimize(), tmp_path, hooks=[hook, Broken()], max_loss=1e6)
    assert said_by(hook) == (None, None, True)


def test_what_a_user_changes_during_a_training_stays():
    class Changing(tf1.train.SessionRunHook):
        def begin(self):
            hook.max_loss = 5e3

    model = Linear()
    hook = slimguard.NanLossHook(model.loss)
    train_op = slimguard.create_train_op(model.loss, model.optimizer)
    slimguard.train(train_op, None, number_of_steps=2, hooks=[Changing(), hook], max_loss=1e6)
    assert hook.max_loss == 5e3


@pytest.mark.full
def test_a_subclass_may_say_it_later(tmp_path):
    class Mine(slimguard.NanLossHook):
        def __init__(self, loss):
            slimguard.NanLossHook.__init__(self, loss)
            self.max_loss, self.logdir, self.ends_job = 7.0, str(tmp_path), False

    assert said_by(Mine(Linear().loss)) == (7.0, str(tmp_path), False)


def test_watch_leaves_a_hook_as_it_was(tmp_path):
    model = Linear()
    train_op = slimguard.guard(model.minimize(), loss=model.loss)
    hook = slimguard.NanLossHook(model.loss)
    with tf1.Session() as plain, slimguard.watch(
        plain, [hook], max_loss=1e6, logdir=tmp_path
    ) as session:
        session.run(tf1.global_variables_initializer())
        session.run(train_op)
        assert said_by(hook) == (1e6, str(tmp_path), True)
    assert said_by(hook) == (None, None, True)


@pytest.mark.full
def test_an_unedited_monitored_training_leaves_a_hook_as_it_was(tmp_path):
    with slimguard.instrument():
        module = slim.training.training if hasattr(slim.training, 'training') else slim.training
        model = Linear()
        hook = slimguard.NanLossHook(model.loss)
        seeing = Seeing(hook)
        module.train(
            module.create_train_op(model.loss, model.optimizer),
            str(tmp_path),
            hooks=[hook, seeing, tf1.train.StopAtStepHook(2)],
        )
    assert set(seeing.seen) == {(None, str(tmp_path), True)}
    assert said_by(hook) == (None, None, True)


def test_hooks_that_disagree_are_left_as_they_were():
    model = Linear()
    hooks = [slimguard.NanLossHook(model.loss), slimguard.NanLossHook(model.loss, max_loss=2.0)]
    with pytest.raises(ValueError, match='max_loss=1.0 disagrees'):
        with_watcher(hooks, None, 1.0)
    assert hooks[0].max_loss is None


def test_a_training_within_a_training_gives_back_to_the_outer_one():
    hook = slimguard.NanLossHook(Linear().loss)
    with lent([hook], TrainingContext(max_loss=1.0)):
        with lent([hook], TrainingContext(max_loss=2.0)):
            assert hook.max_loss == 2.0
        assert hook.max_loss == 1.0
    assert hook.max_loss is None

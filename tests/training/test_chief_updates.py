"""Bad updates of a chief, which a thread makes beside its steps: told to what watches the steps."""

import pytest
import tensorflow as tf

import slimguard
from tests.helpers.models import records_in
from tests.helpers.synchronous import BAD, Synchronous, said_of_chief

tf1 = tf.compat.v1

FEEDS = [{}, {BAD: 1e30}, {}, {}]


def train(model, *hooks, feeds=FEEDS, train_op=None, **settings):
    """Runs steps; returns the global step after each of them."""
    steps = []

    def read_step(step_context):
        steps.append(int(step_context.session.run(model.step)))

    with model.session(*hooks, **settings) as session:
        for feed in feeds:
            if not session.should_stop():
                fed = {model.damage.places[place]: value for place, value in feed.items()}
                session.run(model.train_op if train_op is None else train_op, fed)
                session.run_step_fn(read_step)
    return steps


def exploding():
    return Synchronous(tf1.train.GradientDescentOptimizer(1e9))


def is_of_chief(record):
    return record['reason'].startswith("in the chief's update: not finite once updated: w")


@pytest.mark.parametrize('on_nan, steps', [('skip', [1, 1, 2, 3]), ('stop', [1, 1])])
def test_a_hook_acts_by_its_policy_in_the_same_step(on_nan, steps, tmp_path, capfd):
    model = exploding()
    train_op = slimguard.guard(model.train_op, model.loss)
    hook = slimguard.NanLossHook(model.loss, on_nan=on_nan, logdir=tmp_path, max_loss=100.0)
    assert train(model, hook, train_op=train_op) == steps
    (record,) = records_in(tmp_path)
    assert record['action'] == on_nan and record['step'] == 1 and is_of_chief(record)
    assert record['tensors'][0] == 'w' and record['held']
    assert said_of_chief(capfd) == []  # it was told


def test_raise_saves_the_last_good_state_first(tmp_path):
    model = exploding()
    train_op = slimguard.guard(model.train_op, model.loss)
    hook = slimguard.NanLossHook(model.loss)
    with pytest.raises(slimguard.NanLossError, match="in the chief's update"):
        train(model, hook, train_op=train_op, checkpoint_dir=str(tmp_path))
    assert slimguard.latest_finite_checkpoint(str(tmp_path)).endswith('model.ckpt-1')


def test_what_nobody_was_told_of_is_recorded_at_the_end(tmp_path):
    """A thread may make an update when the chief makes no step any more."""
    model = exploding()
    train_op = slimguard.guard(model.train_op, model.loss)
    hook = slimguard.NanLossHook(model.loss, on_nan='skip', logdir=tmp_path)
    with model.session(hook) as session:
        session.run(train_op)
        # Past the hooks.
        feed = {model.damage.places[BAD]: 1e30}
        session.run_step_fn(lambda step_context: step_context.session.run(train_op, feed))
    (record,) = records_in(tmp_path)
    assert is_of_chief(record) and record['reason'].endswith('; after the last step')


def test_a_script_that_is_not_edited_is_told(tmp_path, capfd):
    with slimguard.instrument(on_nan='skip', logdir=tmp_path):
        model = exploding()
        assert train(model) == [1, 1, 2, 3]
    (record,) = records_in(tmp_path)
    assert record['action'] == 'skip' and is_of_chief(record)
    assert said_of_chief(capfd) == []

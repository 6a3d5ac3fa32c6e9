"""Where a run feeds what the model computes, a hook runs nothing behind it to keep it."""

import pytest
import tensorflow as tf

import slimguard
from tests.helpers.inner_feeds import BAD, GOOD, Fed
from tests.helpers.models import LogLines, records_in, train_quietly

tf1 = tf.compat.v1
KINDS = ('placeholder', 'chance', 'queue')


def build(kind):
    model = Fed(kind)
    return model, slimguard.guard(model.minimize(), loss=model.loss)


def in_watch(model, train_op, hook):
    with slimguard.watch(tf1.Session(), hooks=[hook]) as session:
        session.run(tf1.global_variables_initializer())
        for feed in (GOOD, BAD, GOOD):
            session.run(train_op, {model.inner: feed})
        return session.run(model.step)


def in_monitored_session(model, train_op, hook):
    with tf1.train.MonitoredSession(hooks=[hook]) as session:
        for feed in (GOOD, BAD, GOOD):
            session.run(train_op, {model.inner: feed})
        return session.run(model.step)


def in_train(model, train_op, hook):
    feeds = iter((GOOD, BAD, GOOD))

    def step_fn(session, train_op, global_step, kwargs):
        session.run(train_op, {model.inner: next(feeds)})
        steps.append(session.run(global_step))
        return 0.0, len(steps) == 3

    steps = []
    train_quietly(train_op, hook.logdir, hooks=[hook], train_step_fn=step_fn)
    return steps[-1]


@pytest.mark.parametrize('loop', [in_watch, in_monitored_session, in_train])
@pytest.mark.parametrize('kind', KINDS)
def test_a_bad_step_is_held_and_what_it_drew_is_not_asked_for(kind, loop, tmp_path):
    model, train_op = build(kind)
    hook = slimguard.NanLossHook(model.loss, on_nan='skip', logdir=str(tmp_path))
    with LogLines() as log:
        assert loop(model, train_op, hook) == 2
    (incident,) = records_in(tmp_path)
    assert incident['action'] == 'skip' and incident['bundle'] is None
    said = [line for line in log if 'not examined' in line]
    assert len(said) == 1 and 'z:0' in said[0]


def test_what_is_behind_is_drawn_as_often_as_without_a_guard():
    model, train_op = build('chance')
    hook = slimguard.NanLossHook(model.loss, on_nan='skip')
    with slimguard.watch(tf1.Session(), hooks=[hook]) as session:
        session.run(tf1.global_variables_initializer())
        drawn = [session.run(model.drawn).tolist()]
        for number in range(4):
            session.run(train_op, {model.inner: GOOD} if number % 2 else None)
        drawn.append(session.run(model.drawn).tolist())
    with tf1.Session() as session:
        expected = [session.run(model.drawn).tolist() for _ in range(4)]
    assert drawn == [expected[0], expected[3]]

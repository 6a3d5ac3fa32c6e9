"""Runs of what waits for a guarded train op: they are its steps, whatever is fetched."""

import pytest
import tensorflow as tf

import slimguard
from tests.helpers.models import Linear, LogLines, state
from tests.helpers.monitored import monitored

tf1 = tf.compat.v1


def guarded(bad=()):
    model = Linear(bad)
    return model, slimguard.guard(model.minimize(), loss=model.loss)


def average_on_top(model, train_op):
    """What TensorFlow's documentation of `ExponentialMovingAverage` makes of a train op."""
    with tf.control_dependencies([train_op]):
        return tf1.train.ExponentialMovingAverage(0.9).apply([model.weights])


def value_on_top(model, train_op):
    with tf.control_dependencies([train_op]):
        return tf.identity(model.loss, name='loss_of_step')


def group_on_top(model, train_op):
    return tf.group(train_op, name='everything')


def branch_on_top(model, train_op):
    return tf.cond(model.step < 100, lambda: tf.group(train_op), tf.no_op)


@pytest.fixture(params=[average_on_top, value_on_top, group_on_top, branch_on_top])
def on_top(request):
    return request.param


def steps(session, train_op, number):
    """Runs the variables' initializers, and then the op; the state before the last step."""
    session.run(tf1.global_variables_initializer())
    before = None
    for _ in range(number):
        before = state(session)
        session.run(train_op)
    return before


def test_raise(on_top):
    model, train_op = guarded(bad=(2,))
    outer = on_top(model, train_op)
    with pytest.raises(slimguard.NanLossError, match='bad data.*in row 1'):
        with slimguard.watch(tf1.Session()) as session:
            steps(session, outer, 4)
    assert model.batches.drawn == 3


@pytest.mark.parametrize('on_nan, drawn', [('skip', 5), ('stop', 3), ('skip:1,raise', 5)])
def test_other_policies_in_a_monitored_session(on_top, on_nan, drawn, tmp_path):
    model, train_op = guarded(bad=(2,))
    outer = on_top(model, train_op)
    hook = slimguard.NanLossHook(model.loss, on_nan=on_nan)
    with monitored(tmp_path, hook) as session:
        for _ in range(5):
            if session.should_stop():
                break
            session.run(outer)
    assert [(each.step, each.held) for each in hook.incidents] == [(2, True)]
    assert model.batches.drawn == drawn


def test_rollback(on_top, tmp_path):
    model, train_op = guarded(bad=(2,))
    outer = on_top(model, train_op)
    with slimguard.watch(tf1.Session(), on_nan='rollback', logdir=tmp_path) as session:
        steps(session, outer, 3)
        assert session.run(model.step) == 0


def test_two_trainings_in_one_group():
    models = []
    for scope in ('a', 'b'):
        with tf1.variable_scope(scope):
            models.append(guarded(bad=(1,) if scope == 'b' else ()))
    both = tf.group(*(train_op for _, train_op in models))
    losses = [model.loss for model, _ in models]
    hooks = [slimguard.NanLossHook(loss, on_nan='skip') for loss in losses]
    with LogLines() as lines, slimguard.watch(tf1.Session(), hooks=hooks) as session:
        steps(session, both, 3)
    assert [len(hook.incidents) for hook in hooks] == [0, 1]
    assert not any('NOT guarded' in line for line in lines)


def test_what_is_written_on_top_is_named_once():
    model, train_op = guarded()
    outer = average_on_top(model, train_op)
    with LogLines() as lines, slimguard.watch(tf1.Session()) as session:
        steps(session, outer, 2)
        session.run([outer, model.loss])
    (said,) = [line for line in lines if 'NOT guarded' in line]
    assert "'w/ExponentialMovingAverage'" in said
    assert 'build slimguard.guard() of that as well' in said


@pytest.mark.parametrize('on_top', [value_on_top, group_on_top, branch_on_top])
def test_what_writes_nothing_of_its_own_is_not(on_top):
    model, train_op = guarded()
    outer = on_top(model, train_op)
    with LogLines() as lines, slimguard.watch(tf1.Session()) as session:
        steps(session, outer, 2)
    assert not any('guarded' in line for line in lines)


def test_guarded_as_well_nothing_is_named_and_a_bad_step_leaves_all():
    model, train_op = guarded(bad=(2,))
    outer = slimguard.guard(average_on_top(model, train_op), loss=model.loss)
    with LogLines() as lines, slimguard.watch(tf1.Session(), on_nan='skip') as session:
        before = steps(session, outer, 3)
        assert state(session) == before
    assert not any('NOT guarded' in line for line in lines)


class TestInABranch:
    """A train op that is made and guarded in a branch of `tf.cond`, which not every run takes."""

    def build(self, bad):
        model = Linear(bad)
        with tf.control_dependencies([model.loss]):
            taken = tf.equal(model.step % 2, 0)

        def train():
            train_op = model.optimizer.minimize(model.loss)
            with tf.control_dependencies([slimguard.guard(train_op, loss=model.loss)]):
                return tf.no_op()

        done = tf.cond(taken, train, tf.no_op)
        with tf.control_dependencies([done]):
            return model, tf1.assign_add(model.step, 1)

    def test_raise(self, control_flow_v1):
        model, outer = self.build(bad=(2,))
        with pytest.raises(slimguard.NanLossError, match='global step 2'):
            with slimguard.watch(tf1.Session()) as session:
                steps(session, outer, 4)
        assert model.batches.drawn == 3

    def test_max_loss(self, control_flow_v1):
        model, outer = self.build(bad=())
        with pytest.raises(slimguard.NanLossError, match='above max_loss'):
            with slimguard.watch(tf1.Session(), max_loss=1e-9) as session:
                steps(session, outer, 1)

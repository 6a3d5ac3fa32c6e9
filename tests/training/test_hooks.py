"""NanLossHook in every loop that takes SessionRunHooks."""

import inspect
import os
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard import compat, hooks
from slimguard.training import watchers
from tests.helpers.models import Batches, Linear, LogLines, non_finite, state

tf1 = tf.compat.v1
slim = compat.import_slim()


def monitored(hook, train_op, steps=6, **kwargs):
    """Trains to `steps` good steps in a MonitoredTrainingSession; returns the values fetched."""
    values = []
    stop = tf1.train.StopAtStepHook(last_step=steps)
    with tf1.train.MonitoredTrainingSession(hooks=[hook, stop], **kwargs) as session:
        while not session.should_stop():
            values.append(session.run(train_op))
    return values


def test_help_on_its_arguments_is_its_own_and_not_tensorflows():
    said = inspect.getdoc(slimguard.NanLossHook.__init__)
    assert said == inspect.getdoc(slimguard.NanLossHook) and 'on_nan: ' in said


def test_it_is_a_nan_tensor_hook():
    model = Linear()
    assert isinstance(slimguard.NanLossHook(model.loss), tf1.train.NanTensorHook)


@pytest.mark.parametrize('check_numerics', [True, False])
class TestGuarded:
    def build(self, check_numerics, on_nan, bad=(3,), **kwargs):
        model = Linear(bad)
        train_op = slimguard.create_train_op(
            model.loss, model.optimizer, check_numerics=check_numerics
        )
        return model, train_op, slimguard.NanLossHook(model.loss, on_nan=on_nan, **kwargs)

    def test_skip_goes_on_with_the_next_batch(self, check_numerics):
        model, train_op, hook = self.build(check_numerics, 'skip')
        values = monitored(hook, train_op)
        assert np.isnan(values[3]) and np.isfinite(values[4:]).all()
        assert model.batches.drawn == 7
        assert [(i.step, i.action, i.held) for i in hook.incidents] == [(3, 'skip', True)]

    def test_stop_ends_cleanly(self, check_numerics):
        model, train_op, hook = self.build(check_numerics, 'stop')
        assert len(monitored(hook, train_op)) == 4
        assert model.batches.drawn == 4

    def test_raise_raises(self, check_numerics):
        _, train_op, hook = self.build(check_numerics, 'raise')
        with pytest.raises(slimguard.NanLossError, match='global step 3') as caught:
            monitored(hook, train_op)
        assert hook.incidents == [caught.value.incident]

    def test_both_strategies_give_the_same_incident(self, check_numerics):
        _, train_op, hook = self.build(check_numerics, 'skip')
        monitored(hook, train_op)
        (incident,) = hook.incidents
        assert incident.tensors == ('loss (Mean)', 'gradient of w')
        assert np.isnan(incident.loss)
        assert incident.strategy == ('check_numerics' if check_numerics else 'hook')

    def test_handlers_that_users_have_catch_it(self, check_numerics):
        for handled in (tf1.train.NanLossDuringTrainingError, tf.errors.InvalidArgumentError):
            with tf.Graph().as_default():
                _, train_op, hook = self.build(check_numerics, 'raise')
                with pytest.raises(handled):
                    monitored(hook, train_op)

    def test_the_state_keeps_its_bits(self, check_numerics):
        model, train_op, hook = self.build(check_numerics, 'skip')
        with tf1.train.SingularMonitoredSession(hooks=[hook]) as session:
            for _ in range(3):
                session.run(train_op)
            before = state(session.raw_session())
            session.run(train_op)
            assert state(session.raw_session()) == before
            session.run(train_op)
            assert state(session.raw_session()) != before

    def test_tf_slim_training_train(self, check_numerics, tmp_path):
        training = pytest.importorskip('tf_slim.training.training')
        model, train_op, hook = self.build(check_numerics, 'skip')
        stop = tf1.train.StopAtStepHook(last_step=6)
        training.train(train_op, str(tmp_path), hooks=[hook, stop])
        assert len(hook.incidents) == 1
        assert model.batches.drawn == 7

    def test_fail_on_nan_loss_says_where_on_nan_does_not(self, check_numerics):
        _, train_op, _ = self.build(check_numerics, None)
        stopping = slimguard.NanLossHook(
            tf1.get_collection(tf1.GraphKeys.TRAIN_OP)[-1], fail_on_nan_loss=False
        )
        assert len(monitored(stopping, train_op)) == 4


def estimator():
    try:
        return tf1.estimator
    except (AttributeError, ImportError):
        pytest.skip('this TensorFlow has no tf.estimator')


@pytest.mark.not_shared
@pytest.mark.parametrize('on_nan', ['skip', 'raise'])
def test_in_an_estimator(on_nan, tmp_path):
    made = []

    def model_fn(features, mode):
        model = Linear(bad=(3,))
        train_op = slimguard.guard(model.minimize(), loss=model.loss)
        made.append((model, slimguard.NanLossHook(model.loss, on_nan=on_nan)))
        # An Estimator adds a NanTensorHook of its own, which would raise where we skip.
        loss = tf.where(tf.math.is_finite(model.loss), model.loss, tf.zeros_like(model.loss))
        return estimator().EstimatorSpec(
            mode, loss=loss, train_op=train_op, training_hooks=[made[-1][1]]
        )

    def input_fn():
        return tf1.data.Dataset.from_tensors({'unused': [0.0]}).repeat()

    training = estimator().Estimator(model_fn, model_dir=str(tmp_path))
    if on_nan == 'raise':
        with pytest.raises(slimguard.NanLossError):
            training.train(input_fn, max_steps=6)
    else:
        training.train(input_fn, max_steps=6)
    ((_, hook),) = made
    assert [incident.step for incident in hook.incidents] == [3]


class TestWithoutAGate:
    def test_it_detects_and_says_that_the_update_had_landed(self):
        model = Linear(bad=(3,))
        hook = slimguard.NanLossHook(model.loss)
        with pytest.raises(slimguard.NanLossError, match='the update had already landed'):
            monitored(hook, model.minimize())
        (incident,) = hook.incidents
        assert (incident.step, incident.held, incident.strategy) == (4, False, 'hook')

    def test_stop_stops(self):
        model = Linear(bad=(3,))
        hook = slimguard.NanLossHook(model.loss, fail_on_nan_loss=False)
        assert len(monitored(hook, model.minimize())) == 4

    def test_max_loss_detects(self):
        model = Linear(bad=(3,), value=1e6)
        hook = slimguard.NanLossHook(model.loss, max_loss=1e6)
        with pytest.raises(slimguard.NanLossError, match=r'above max_loss: loss \(Mean\)'):
            monitored(hook, model.minimize())

    def test_skip_is_refused_before_the_first_step(self):
        model = Linear()
        hook = slimguard.NanLossHook(model.loss, on_nan='skip')
        with pytest.raises(ValueError, match='has no gate.*slimguard.guard'):
            monitored(hook, model.minimize())
        assert model.batches.drawn == 0

    def test_a_callable_that_skips_is_refused_at_the_incident(self):
        model = Linear(bad=(3,))
        hook = slimguard.NanLossHook(model.loss, on_nan=lambda incident: 'skip')
        with pytest.raises(ValueError, match='no gate looks at loss'):
            monitored(hook, model.minimize())


def test_runs_that_are_no_steps_draw_no_batch():
    model = Linear()
    for train_op in (model.minimize(), slimguard.guard(model.minimize())):
        model.batches.drawn = 0
        hook = slimguard.NanLossHook(model.loss)
        with tf1.train.SingularMonitoredSession(hooks=[hook]) as session:
            session.run(model.step)
            session.run([model.weights, {'again': model.step}])
            assert model.batches.drawn == 0
            session.run({'train': train_op, 'step': model.step})
            assert model.batches.drawn == 1


def test_a_ladder_in_a_training():
    model = Linear(bad=(1, 3, 4, 5))
    train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False)
    hook = slimguard.NanLossHook(model.loss, on_nan=[slimguard.Skip(2), 'stop'], capture=False)
    monitored(hook, train_op, steps=100)
    assert [i.action for i in hook.incidents] == ['skip', 'skip', 'skip', 'stop']
    assert [i.step for i in hook.incidents] == [1, 2, 2, 2]


def test_a_hook_serves_a_second_training():
    model = Linear(bad=(1, 3))
    train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False)
    hook = slimguard.NanLossHook(model.loss, on_nan=slimguard.Skip(1))
    with tf1.train.SingularMonitoredSession(hooks=[hook]) as session:
        session.run(train_op)
        session.run(train_op)
    with tf1.train.SingularMonitoredSession(hooks=[hook]) as session:
        session.run(train_op)
        session.run(train_op)
    assert [i.action for i in hook.incidents] == ['skip', 'skip']


class TestSubclass:
    class Recording(slimguard.NanLossHook):
        def on_nan_loss(self, run_context, incident):
            self.seen = (run_context.session.graph, incident.reason)

    def test_on_nan_loss_decides_alone(self):
        model = Linear(bad=(3,))
        train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False)
        hook = self.Recording(model.loss)
        assert len(monitored(hook, train_op)) == 7
        assert hook.seen == (model.loss.graph, 'not finite: loss (Mean), gradient of w')
        assert [i.action for i in hook.incidents] == ['on_nan_loss']

    def test_on_nan_loss_may_leave_it_to_the_policy(self):
        class Counting(slimguard.NanLossHook):
            count = 0

            def on_nan_loss(self, run_context, incident):
                self.count += 1
                super(Counting, self).on_nan_loss(run_context, incident)

        model = Linear(bad=(3,))
        train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False)
        hook = Counting(model.loss, on_nan='stop')
        assert len(monitored(hook, train_op)) == 4
        assert hook.count == 1


def test_the_log_line_can_be_acted_on():
    model = Linear(bad=(3, 5))
    train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False)
    with LogLines() as lines:
        monitored(slimguard.NanLossHook(model.loss, on_nan='skip'), train_op)
    *incidents, last = [line for line in lines if line.startswith('slimguard')]
    # What happened, what was done, what made it so, and where the user wrote that.
    what = re.compile(
        r'slimguard: incident (\d) at global step (\d) \(loss nan\): not finite: loss \(Mean\), '
        r'gradient of w; nothing was written; skipping this batch\. Why the step was bad: '
        r'in the input: bad data: 1 NaN among 12 values, in row 1; PyFunc:0 \(PyFunc\); '
        r'.*models\.py:\d+, in __init__: self\.x = tf1\.py_func\(.*\)\.'
    )
    found = [what.fullmatch(line) for line in incidents]
    assert [match and match.groups() for match in found] == [('1', '3'), ('2', '4')]
    assert last.startswith('slimguard: 2 of 8 batches were skipped; why, of the last that')


def test_while_a_hook_watches_nothing_is_printed(capfd):
    model = Linear(bad=(3,))
    train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False)
    monitored(slimguard.NanLossHook(model.loss, on_nan='skip'), train_op)
    assert 'slimguard' not in capfd.readouterr().err


class TestTwoTrainingsInOneGraph:
    """As a GAN has them."""

    def build(self):
        step = tf1.train.get_or_create_global_step()
        batches, trains = {}, {}
        for name, bad in (('d', (2,)), ('g', ())):
            batches[name] = Batches(bad)
            with tf1.variable_scope(name):
                w = tf1.get_variable('w', [3, 1], initializer=tf1.ones_initializer())
            loss = tf.reduce_mean(tf.matmul(batches[name].x, w), name=name + '_loss')
            sgd = tf1.train.GradientDescentOptimizer(0.1)
            train_op = slimguard.guard(sgd.minimize(loss, global_step=step), loss=loss)
            trains[name] = (train_op, slimguard.NanLossHook(loss, on_nan='skip'))
        return batches, trains

    def test_a_hook_watches_the_training_of_its_loss(self):
        batches, trains = self.build()
        (d_train, d_hook), (g_train, g_hook) = trains['d'], trains['g']
        with tf1.train.SingularMonitoredSession(hooks=[d_hook, g_hook]) as session:
            for _ in range(4):
                session.run(d_train)
                session.run(g_train)
            assert not non_finite(session.raw_session())
        assert len(d_hook.incidents) == 1 and not g_hook.incidents
        assert batches['d'].drawn == batches['g'].drawn == 4

    def test_both_in_one_run(self):
        batches, trains = self.build()
        (d_train, d_hook), (g_train, g_hook) = trains['d'], trains['g']
        with tf1.train.SingularMonitoredSession(hooks=[d_hook, g_hook]) as session:
            for _ in range(4):
                session.run([d_train, g_train])
        assert len(d_hook.incidents) == 1 and not g_hook.incidents
        assert batches['d'].drawn == batches['g'].drawn == 4

    def test_two_hooks_on_one_training_do_not_clash(self):
        _, trains = self.build()
        train_op, hook = trains['d']
        other = slimguard.NanLossHook(hook._loss, on_nan='skip')
        with tf1.train.SingularMonitoredSession(hooks=[hook, other]) as session:
            for _ in range(4):
                session.run(train_op)
        assert len(hook.incidents) == len(other.incidents) == 1


class TestMaxLoss:
    def build(self, max_loss, of_gate=None):
        model = Linear(bad=(3,), value=1e6)
        train_op = slimguard.guard(model.minimize(), loss=model.loss, max_loss=of_gate)
        return model, train_op, slimguard.NanLossHook(model.loss, on_nan='skip', max_loss=max_loss)

    def test_a_larger_loss_is_held(self):
        model, train_op, hook = self.build(1e6)
        monitored(hook, train_op)
        (incident,) = hook.incidents
        assert incident.held and incident.loss > 1e6
        assert incident.reason == 'above max_loss: loss (Mean)'

    def test_it_must_not_disagree_with_the_gate(self):
        _, train_op, hook = self.build(1e6, of_gate=1e5)
        with pytest.raises(ValueError, match='max_loss=1000000.0 here.*max_loss=100000.0'):
            monitored(hook, train_op)

    def test_it_needs_a_loss_in_the_gate(self):
        model = Linear()
        hook = slimguard.NanLossHook(model.loss, max_loss=10.0)
        with pytest.raises(ValueError, match='needs a loss in the gate'):
            monitored(hook, slimguard.guard(model.minimize()))
        assert model.batches.drawn == 0

    @pytest.mark.parametrize('max_loss', [0, -1.0, np.nan, np.inf, 'much', True])
    def test_it_must_be_positive_and_finite(self, max_loss):
        with pytest.raises(ValueError, match='positive finite number'):
            slimguard.NanLossHook(Linear().loss, max_loss=max_loss)


def test_a_bad_loss_that_the_gate_does_not_know_is_detected():
    model = Linear(bad=(3,))
    # The gradient of the constant part is finite whatever it is.
    loss = 0.5 + tf1.py_func(lambda: np.float32(np.nan), [], tf.float32)
    loss.set_shape([])
    hook = slimguard.NanLossHook(loss)
    with pytest.raises(slimguard.NanLossError, match='already landed'):
        monitored(hook, slimguard.guard(model.minimize()))


class TestAnotherLossThanTheGates:
    """The hook's goes beyond what the gate checks, as it is made of that and of something else."""

    def build(self, beyond, **kwargs):
        model = Linear()
        values = iter(beyond)
        part = tf1.py_func(lambda: np.float32(next(values)), [], tf.float32)
        part.set_shape([])
        train_op = slimguard.guard(model.minimize(), loss=model.loss)
        loss = tf.identity(model.loss + tf.stop_gradient(part), name='total')
        return train_op, slimguard.NanLossHook(loss, **kwargs)

    def test_a_nan_in_it_is_an_incident(self):
        train_op, hook = self.build([0, np.nan, 0])
        with pytest.raises(slimguard.NanLossError, match='not finite: loss total.*already landed'):
            monitored(hook, train_op)
        assert [incident.held for incident in hook.incidents] == [False]

    def test_a_larger_one_is_an_incident(self):
        train_op, hook = self.build([0, 1e9, 0], max_loss=1e6, on_nan='stop')
        monitored(hook, train_op)
        (incident,) = hook.incidents
        assert incident.reason == 'above max_loss: loss total' and incident.loss >= 1e9

    def test_to_skip_it_the_gate_has_to_know_it(self):
        train_op, hook = self.build([0, np.nan, 0], on_nan='skip')
        told = r'no gate looks at loss total.*guard\(train_op, loss='
        with pytest.raises(ValueError, match=told):
            monitored(hook, train_op)

    def test_one_of_no_training_is_told_of_once(self):
        model = Linear()
        train_op = slimguard.guard(model.minimize(), loss=model.loss)
        with LogLines() as lines:
            monitored(slimguard.NanLossHook(tf.constant(np.nan, name='alone')), train_op)
        (line,) = [line for line in lines if 'are not watched by the hook' in line]
        assert "loss 'alone:0', which no guarded train op computes" in line

    @pytest.mark.parametrize('copies', [tf.identity, lambda loss: tf1.check_numerics(loss, 'bad')])
    def test_a_copy_of_the_gates_is_the_gates(self, copies):
        model = Linear(bad=(3,))
        train_op = slimguard.guard(model.minimize(), loss=model.loss)
        hook = slimguard.NanLossHook(copies(model.loss), on_nan='skip')
        monitored(hook, train_op)
        assert [incident.held for incident in hook.incidents] == [True]


@pytest.mark.parametrize(
    'make, error, words',
    [
        (lambda: 3.0, TypeError, 'loss_tensor must be a tf.Tensor.* 3.0'),
        (lambda: tf.constant([1.0, 2.0]), ValueError, r'shape \(2,\).*reduce it'),
        (lambda: tf.constant(1), ValueError, 'floating scalar.*int32'),
    ],
)
def test_a_loss_that_is_no_floating_scalar_is_named(make, error, words):
    with pytest.raises(error, match=words):
        slimguard.NanLossHook(make())


def test_a_loss_of_another_graph_is_named():
    with tf.Graph().as_default():
        hook = slimguard.NanLossHook(Linear().loss)
    model = Linear()
    with pytest.raises(ValueError, match='belongs to another graph'):
        monitored(hook, model.minimize())


def test_tensorflows_hook_classes_are_at_one_path():
    for name in hooks.__all__:
        if name != 'NanLossHook':
            assert getattr(hooks, name) is getattr(tf1.train, name)


class TestLogdir:
    @pytest.mark.parametrize('form', [str, os.fsencode, pathlib.Path, lambda path: path + '/'])
    def test_it_may_be_any_path_and_is_absolute(self, form, tmp_path):
        hook = slimguard.NanLossHook(Linear().loss, logdir=form(str(tmp_path)))
        assert hook.logdir == str(tmp_path)

    def test_a_relative_one_stays_where_it_was_when_it_was_given(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / 'elsewhere').mkdir()
        model = Linear(bad=(3,))
        train_op = slimguard.guard(model.minimize(), loss=model.loss)
        hook = slimguard.NanLossHook(model.loss, on_nan='skip', logdir='log')
        monkeypatch.chdir(tmp_path / 'elsewhere')
        monitored(hook, train_op)
        assert (tmp_path / 'log' / 'slimguard' / 'incidents.jsonl').exists()
        assert not os.listdir(str(tmp_path / 'elsewhere'))

    @pytest.mark.parametrize(
        'logdir, error, words', [(3, TypeError, 'logdir must be a path'), ('', ValueError, 'empty')]
    )
    def test_what_is_no_path_is_named(self, logdir, error, words):
        with pytest.raises(error, match=words):
            slimguard.NanLossHook(Linear().loss, logdir=logdir)

    def test_two_spellings_of_one_directory_agree(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        hook = slimguard.NanLossHook(Linear().loss, logdir='a/../log')
        _, watcher = watchers.with_watcher([hook], None, None, logdir=str(tmp_path / 'log'))
        assert watcher is hook and hook.logdir == str(tmp_path / 'log')
        with pytest.raises(ValueError, match='logdir=.* disagrees'):
            watchers.with_watcher([hook], None, None, logdir=str(tmp_path / 'other'))

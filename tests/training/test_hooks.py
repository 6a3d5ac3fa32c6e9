"""NanLossHook in loops that take SessionRunHooks."""

import contextlib
import inspect
import os
import re

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard import hooks
from slimguard.diagnosis.bundle import paths as bundle_paths
from slimguard.training.gate_watcher import with_watcher
from slimguard.training.training import TrainingSettings
from tests.helpers import inner_feeds
from tests.helpers.models import (
    Batches,
    Linear,
    LogLines,
    checkpoint_at,
    non_finite,
    records_in,
    state,
    train_quietly,
)
from tests.helpers.monitored import build, monitored

tf1 = tf.compat.v1


def train_monitored(hook, train_op, steps=6, **kwargs):
    """Trains to `steps` good steps in a MonitoredTrainingSession; returns the values fetched."""
    values = []
    stop = tf1.train.StopAtStepHook(last_step=steps)
    with tf1.train.MonitoredTrainingSession(hooks=[hook, stop], **kwargs) as session:
        while not session.should_stop():
            values.append(session.run(train_op))
    return values


def test_it_is_a_nan_tensor_hook_with_help_of_its_own():
    assert issubclass(slimguard.NanLossHook, tf1.train.NanTensorHook)
    said = inspect.getdoc(slimguard.NanLossHook.__init__)
    assert said == inspect.getdoc(slimguard.NanLossHook) and 'on_nan: ' in said


def test_tensorflows_hook_classes_are_at_one_path():
    for name in hooks.__all__:
        if name != 'NanLossHook':
            assert getattr(hooks, name) is getattr(tf1.train, name)


@pytest.mark.parametrize('check_numerics', [True, False])
class TestGuarded:
    def build(self, check_numerics, on_nan, bad=(3,), **kwargs):
        model = Linear(bad)
        train_op = slimguard.create_train_op(
            model.loss, model.optimizer, check_numerics=check_numerics
        )
        return model, train_op, slimguard.NanLossHook(model.loss, on_nan=on_nan, **kwargs)

    @pytest.mark.full
    def test_skip_goes_on_with_the_bits_of_before_and_the_next_batch(self, check_numerics, capfd):
        model, train_op, hook = self.build(check_numerics, 'skip')
        with tf1.train.SingularMonitoredSession(hooks=[hook]) as session:
            for _ in range(3):
                session.run(train_op)
            before = state(session.raw_session())
            assert np.isnan(session.run(train_op))
            assert state(session.raw_session()) == before
            assert np.isfinite(session.run(train_op))
            assert state(session.raw_session()) != before
        assert model.batches.drawn == 5
        (incident,) = hook.incidents
        assert (incident.step, incident.action, incident.held) == (3, 'skip', True)
        assert incident.tensors == ('loss (Mean)', 'gradient of w') and np.isnan(incident.loss)
        assert incident.strategy == ('check_numerics' if check_numerics else 'hook')
        assert 'slimguard' not in capfd.readouterr().err  # the log has the incident

    @pytest.mark.full
    def test_raise_is_caught_by_handlers_that_users_have(self, check_numerics):
        for handled in (tf1.train.NanLossDuringTrainingError, tf.errors.InvalidArgumentError):
            with tf.Graph().as_default():
                _, train_op, hook = self.build(check_numerics, 'raise')
                with pytest.raises(handled, match='global step 3') as caught:
                    train_monitored(hook, train_op)
                assert hook.incidents == [caught.value.incident]

    @pytest.mark.full
    def test_fail_on_nan_loss_says_where_on_nan_does_not(self, check_numerics):
        _, train_op, _ = self.build(check_numerics, None)
        stopping = slimguard.NanLossHook(
            tf1.get_collection(tf1.GraphKeys.TRAIN_OP)[-1], fail_on_nan_loss=False
        )
        assert len(train_monitored(stopping, train_op)) == 4


class TestWithoutAGate:
    def test_it_detects_and_says_that_the_update_had_landed(self):
        model = Linear(bad=(3,))
        hook = slimguard.NanLossHook(model.loss)
        with pytest.raises(slimguard.NanLossError, match='the update was written'):
            train_monitored(hook, model.minimize())
        (incident,) = hook.incidents
        assert (incident.step, incident.held, incident.strategy) == (4, False, 'hook')

    def test_max_loss_detects(self):
        model = Linear(bad=(3,), value=1e6)
        hook = slimguard.NanLossHook(model.loss, max_loss=1e6)
        with pytest.raises(slimguard.NanLossError, match=r'above max_loss=1e\+06: loss \(Mean\)'):
            train_monitored(hook, model.minimize())

    def test_skip_is_refused_before_the_first_step(self):
        model = Linear()
        hook = slimguard.NanLossHook(model.loss, on_nan='skip')
        with pytest.raises(ValueError, match="'Momentum' is not guarded.*slimguard.guard"):
            train_monitored(hook, model.minimize())
        assert model.batches.drawn == 0


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


@pytest.mark.full
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
        assert len(train_monitored(hook, train_op)) == 7
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
        assert len(train_monitored(hook, train_op)) == 4
        assert hook.count == 1


def test_the_log_line_can_be_acted_on():
    model = Linear(bad=(3, 5))
    train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False)
    with LogLines('slimguard') as lines:
        train_monitored(slimguard.NanLossHook(model.loss, on_nan='skip'), train_op)
    first, no_record, second, last = lines
    # The cause and the user's line, for the first incident only; then the action.
    what = r'incident %d at global step %d \(loss nan\): bad data: 1 NaN among 12 values, in row 1'
    done = r'update not applied, batch skipped \(bad batches in a row: 1, allowed: 100\)\.'
    assert re.fullmatch(what % (1, 3) + r'; PyFunc; .*models\.py:\d+\.\n    ' + done, first)
    assert re.fullmatch(what % (2, 4) + ', see incident 1; ' + done, second)
    assert "pass logdir='logs' to slimguard.watch()" in no_record  # said once
    assert last.startswith('2 of 8 batches were skipped; the last cause found: bad data')


class TestTwoTrainingsInOneGraph:
    """Two train ops, as in a GAN."""

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

    @pytest.mark.full
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


class TestMaxLoss:
    def build(self, max_loss, of_gate=None):
        model = Linear(bad=(3,), value=1e6)
        train_op = slimguard.guard(model.minimize(), loss=model.loss, max_loss=of_gate)
        return model, train_op, slimguard.NanLossHook(model.loss, on_nan='skip', max_loss=max_loss)

    def test_it_must_not_disagree_with_the_gate(self):
        _, train_op, hook = self.build(1e6, of_gate=1e5)
        with pytest.raises(ValueError, match='max_loss=1000000.0 here.*max_loss=100000.0'):
            train_monitored(hook, train_op)

    def test_it_needs_a_loss_in_the_gate(self):
        model = Linear()
        hook = slimguard.NanLossHook(model.loss, max_loss=10.0)
        with pytest.raises(ValueError, match='needs a loss in the gate'):
            train_monitored(hook, slimguard.guard(model.minimize()))
        assert model.batches.drawn == 0


def test_a_bad_loss_that_the_gate_does_not_know_is_detected():
    model = Linear(bad=(3,))
    # The gradient is finite even with a NaN, since the NaN is a constant to it.
    loss = 0.5 + tf1.py_func(lambda: np.float32(np.nan), [], tf.float32)
    loss.set_shape([])
    hook = slimguard.NanLossHook(loss)
    with pytest.raises(slimguard.NanLossError, match='was written'):
        train_monitored(hook, slimguard.guard(model.minimize()))


class TestAnotherLossThanTheGates:
    """The hook watches the gate's loss plus another part, which the gate does not check."""

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
        with pytest.raises(slimguard.NanLossError, match='not finite: loss total.*was written'):
            train_monitored(hook, train_op)
        assert [incident.held for incident in hook.incidents] == [False]

    def test_a_larger_one_is_an_incident(self):
        train_op, hook = self.build([0, 1e9, 0], max_loss=1e6, on_nan='stop')
        train_monitored(hook, train_op)
        (incident,) = hook.incidents
        assert incident.reason == 'above max_loss=1e+06: loss total' and incident.loss >= 1e9

    def test_to_skip_it_the_gate_has_to_know_it(self):
        train_op, hook = self.build([0, np.nan, 0], on_nan='skip')
        told = r'no gate checks loss total.*guard\(train_op, loss='
        with pytest.raises(ValueError, match=told):
            train_monitored(hook, train_op)

    def test_one_of_no_training_is_told_of_once(self):
        model = Linear()
        train_op = slimguard.guard(model.minimize(), loss=model.loss)
        with LogLines() as lines:
            train_monitored(slimguard.NanLossHook(tf.constant(np.nan, name='alone')), train_op)
        (line,) = [line for line in lines if 'are not watched by the hook' in line]
        assert "loss 'alone:0', which no guarded train op computes" in line

    @pytest.mark.parametrize('copies', [tf.identity, lambda loss: tf1.check_numerics(loss, 'bad')])
    def test_a_copy_of_the_gates_is_the_gates(self, copies):
        model = Linear(bad=(3,))
        train_op = slimguard.guard(model.minimize(), loss=model.loss)
        hook = slimguard.NanLossHook(copies(model.loss), on_nan='skip')
        train_monitored(hook, train_op)
        assert [incident.held for incident in hook.incidents] == [True]


class TestLogdir:
    def test_a_relative_one_stays_where_it_was_when_it_was_given(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / 'elsewhere').mkdir()
        model = Linear(bad=(3,))
        train_op = slimguard.guard(model.minimize(), loss=model.loss)
        hook = slimguard.NanLossHook(model.loss, on_nan='skip', logdir='log')
        monkeypatch.chdir(tmp_path / 'elsewhere')
        train_monitored(hook, train_op)
        assert (tmp_path / 'log' / 'slimguard' / 'incidents.jsonl').exists()
        assert not os.listdir(str(tmp_path / 'elsewhere'))

    def test_two_spellings_of_one_directory_agree(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        hook = slimguard.NanLossHook(Linear().loss, logdir='a/../log')
        log, other = (TrainingSettings(logdir=str(tmp_path / name)) for name in ('log', 'other'))
        _, watcher = with_watcher([hook], None, log)
        assert watcher is hook and hook.logdir == str(tmp_path / 'log')
        with pytest.raises(ValueError, match='logdir=.* disagrees'):
            with_watcher([hook], None, other)


def run_past_the_hooks(session, train_op):
    def step_fn(step_context):
        return step_context.session.run(train_op)

    session.run_step_fn(step_fn)


class TestARunThatGoesPastTheHooks:
    def test_is_acted_on_after_the_next_that_they_see(self, capfd):
        train_op, hook = build(bad=(1,), on_nan='stop')
        with monitored(None, hook) as session:
            session.run(train_op)
            run_past_the_hooks(session, train_op)
            assert hook.incidents == [] and not session.should_stop()
            session.run(train_op)
            assert session.should_stop()
        assert [(each.step, each.action) for each in hook.incidents] == [(1, 'stop')]
        assert 'this step wrote nothing' not in capfd.readouterr().err

    @pytest.mark.full
    def test_is_heard_of_though_it_comes_first(self, tmp_path):
        train_op, hook = build(bad=(0,), on_nan='raise')
        with monitored(tmp_path, hook) as session:
            run_past_the_hooks(session, train_op)
            with pytest.raises(slimguard.NanLossError):
                session.run(train_op)
        assert [each['action'] for each in records_in(tmp_path)] == ['raise']

    @pytest.mark.full
    def test_is_recorded_at_the_end(self, tmp_path):
        train_op, hook = build(bad=(1,), on_nan='raise')
        with monitored(tmp_path, hook) as session:
            session.run(train_op)
            run_past_the_hooks(session, train_op)
        (record,) = records_in(tmp_path)
        assert record['action'] == 'skip'
        assert record['reason'].endswith('; in a run that went past the hooks')
        assert [each.action for each in hook.incidents] == ['skip']


@pytest.mark.full
@pytest.mark.parametrize('on_nan', ['rollback', 'skip', 'raise'])
def test_a_run_of_the_loss_alone_is_no_step(on_nan, tmp_path):
    model = Linear(bad=(1,))
    train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False)
    hook = slimguard.NanLossHook(model.loss, on_nan=on_nan)
    with monitored(tmp_path, hook) as session:
        session.run(train_op)
        session.run(model.loss)  # the bad batch
        session.run(train_op)
    assert hook.incidents == [] and checkpoint_at(tmp_path) == (2, [])


@pytest.mark.full
def test_two_hooks_hear_of_the_same_incident(tmp_path):
    model = Linear(bad=(1,))
    train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False)
    hooks = [slimguard.NanLossHook(model.loss, on_nan='skip') for _ in range(2)]
    with LogLines() as lines, monitored(tmp_path, *hooks) as session:
        for _ in range(3):
            session.run(train_op)
    assert [[each.step for each in hook.incidents] for hook in hooks] == [[1], [1]]
    assert not [line for line in lines if 'another training' in line]
    # Both hooks save and close their records when the session closes.
    assert checkpoint_at(tmp_path) == (2, [])


@pytest.mark.full
def test_without_capture_nothing_is_kept(tmp_path):
    train_op, hook = build(bad=(1,), on_nan='skip', capture=False)
    with monitored(tmp_path, hook) as session:
        for _ in range(3):
            session.run(train_op)
        graph = session.graph
    assert bundle_paths(str(tmp_path)) == []
    assert not [op for op in graph.get_operations() if op.name.startswith('slimguard/capture')]


@pytest.mark.full
def test_so_many_bundles_are_kept(tmp_path):
    train_op, hook = build(bad=(1, 2, 3), on_nan='skip', max_bundles=2)
    with monitored(tmp_path, hook) as session:
        for _ in range(6):
            session.run(train_op)
    assert len(bundle_paths(str(tmp_path))) == 2


class Later(tf1.train.SessionRunHook):
    """Adds a variable when it begins, as some of TensorFlow's own hooks do."""

    def begin(self):
        self.variable = tf1.get_variable('later', initializer=7.0, trainable=False)


@pytest.mark.full
@pytest.mark.parametrize('own', ['none', 'scaffold', 'collection'])
def test_what_a_session_saves_is_what_it_would_save(own, tmp_path):
    """All variables, also those of hooks that begin later; or the variables of the user's saver."""
    train_op, hook = build(on_nan='skip')
    scaffold = None
    if own != 'none':
        saver = tf1.train.Saver([v for v in tf1.global_variables() if 'Momentum' not in v.name])
        if own == 'scaffold':
            scaffold = tf1.train.Scaffold(saver=saver)
        else:
            tf1.add_to_collection(tf1.GraphKeys.SAVERS, saver)
    with monitored(tmp_path, hook, Later(), scaffold=scaffold) as session:
        session.run(train_op)
    saved = {name for name, _ in tf1.train.list_variables(tf1.train.latest_checkpoint(tmp_path))}
    momentum = {'w/Momentum'} if own == 'none' else set()
    later = {'later'} if own == 'none' else set()
    assert saved == {'w', 'global_step'} | momentum | later


@pytest.mark.full
def test_where_the_record_is_elsewhere_the_session_saves_where_it_does(tmp_path):
    saved, record = tmp_path / 'saved', tmp_path / 'record'
    train_op, hook = build(bad=(2,), logdir=record)
    with pytest.raises(slimguard.NanLossError):
        with monitored(saved, hook) as session:
            while True:
                session.run(train_op)
    assert checkpoint_at(saved) == (2, [])
    assert checkpoint_at(record) == (None, [])
    assert [each['step'] for each in records_in(record)] == [2]
    assert len(bundle_paths(str(record))) == 1


@pytest.mark.full
@pytest.mark.parametrize('error', [KeyboardInterrupt, SystemExit])
def test_leaving_by_an_interrupt_saves(error, tmp_path):
    train_op, hook = build()
    with pytest.raises(error):
        with monitored(tmp_path, hook) as session:
            for _ in range(3):
                session.run(train_op)
            raise error()
    assert checkpoint_at(tmp_path) == (3, [])


@pytest.mark.full
def test_leaving_by_another_error_saves_nothing(tmp_path):
    train_op, hook = build()
    with pytest.raises(KeyError):
        with monitored(tmp_path, hook) as session:
            session.run(train_op)
            raise KeyError()
    assert checkpoint_at(tmp_path) == (0, [])


@pytest.mark.full
def test_a_process_that_is_not_the_chief_saves_nothing(tmp_path):
    train_op, hook = build(bad=(1,))
    variables = tf1.global_variables()
    with contextlib.ExitStack() as stack:
        server = tf1.train.Server.create_local_server()
        chief = stack.enter_context(tf1.Session(server.target))
        chief.run(tf1.variables_initializer(variables))
        with pytest.raises(slimguard.NanLossError):
            with monitored(tmp_path, hook, master=server.target, is_chief=False) as session:
                while True:
                    session.run(train_op)
    assert not [name for name in os.listdir(str(tmp_path)) if name.startswith('model')]


def test_an_evaluation_saves_nothing(tmp_path):
    """A hook may watch a loss in a session that does not train."""
    model = Linear(bad=(1,))
    hook = slimguard.NanLossHook(model.loss, logdir=tmp_path)
    with pytest.raises(slimguard.NanLossError):
        with tf1.train.SingularMonitoredSession(hooks=[hook]) as session:
            while True:
                session.run(model.loss)
    assert not [name for name in os.listdir(str(tmp_path)) if name.startswith('model')]


def fed_in_watch(model, train_op, hook):
    with slimguard.watch(tf1.Session(), hooks=[hook]) as session:
        session.run(tf1.global_variables_initializer())
        for feed in (inner_feeds.GOOD, inner_feeds.BAD, inner_feeds.GOOD):
            session.run(train_op, {model.inner: feed})
        return session.run(model.step)


def fed_in_monitored_session(model, train_op, hook):
    with tf1.train.MonitoredSession(hooks=[hook]) as session:
        for feed in (inner_feeds.GOOD, inner_feeds.BAD, inner_feeds.GOOD):
            session.run(train_op, {model.inner: feed})
        return session.run(model.step)


def fed_in_train(model, train_op, hook):
    feeds = iter((inner_feeds.GOOD, inner_feeds.BAD, inner_feeds.GOOD))

    def step_fn(session, train_op, global_step, kwargs):
        session.run(train_op, {model.inner: next(feeds)})
        steps.append(session.run(global_step))
        return 0.0, len(steps) == 3

    steps = []
    train_quietly(train_op, hook.logdir, hooks=[hook], train_step_fn=step_fn)
    return steps[-1]


class TestARunThatFeedsWhatTheModelComputes:
    """The capture runs no op that only computes the fed tensor."""

    def build(self, kind):
        model = inner_feeds.Fed(kind)
        return model, slimguard.guard(model.minimize(), loss=model.loss)

    @pytest.mark.parametrize(
        ('kind', 'loop'),
        [
            ('chance', fed_in_watch),
            ('queue', fed_in_monitored_session),
            ('placeholder', fed_in_train),
        ],
    )
    def test_a_bad_step_is_held_and_what_it_drew_is_not_asked_for(self, kind, loop, tmp_path):
        model, train_op = self.build(kind)
        hook = slimguard.NanLossHook(model.loss, on_nan='skip', logdir=str(tmp_path))
        with LogLines() as log:
            assert loop(model, train_op, hook) == 2
        (incident,) = records_in(tmp_path)
        assert incident['action'] == 'skip' and incident['bundle'] is None
        said = [line for line in log if 'not examined' in line]
        assert len(said) == 1 and 'z:0' in said[0]

    def test_what_is_behind_is_drawn_as_often_as_without_a_guard(self):
        model, train_op = self.build('chance')
        hook = slimguard.NanLossHook(model.loss, on_nan='skip')
        with slimguard.watch(tf1.Session(), hooks=[hook]) as session:
            session.run(tf1.global_variables_initializer())
            drawn = [session.run(model.drawn).tolist()]
            for number in range(4):
                session.run(train_op, {model.inner: inner_feeds.GOOD} if number % 2 else None)
            drawn.append(session.run(model.drawn).tolist())
        with tf1.Session() as session:
            expected = [session.run(model.drawn).tolist() for _ in range(4)]
        assert drawn == [expected[0], expected[3]]

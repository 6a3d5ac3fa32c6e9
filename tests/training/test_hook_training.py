"""What a NanLossHook does beyond acting, where the loop is TensorFlow's."""

import contextlib
import os

import pytest
import tensorflow as tf

import slimguard
from slimguard.diagnosis.bundle import paths as bundle_paths
from tests.helpers.models import Linear, LogLines, checkpoint_at, records_in
from tests.helpers.monitored import build, monitored

tf1 = tf.compat.v1


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

    def test_is_heard_of_though_it_comes_first(self, tmp_path):
        train_op, hook = build(bad=(0,), on_nan='raise')
        with monitored(tmp_path, hook) as session:
            run_past_the_hooks(session, train_op)
            with pytest.raises(slimguard.NanLossError):
                session.run(train_op)
        assert [each['action'] for each in records_in(tmp_path)] == ['raise']

    def test_is_recorded_at_the_end(self, tmp_path):
        train_op, hook = build(bad=(1,), on_nan='raise')
        with monitored(tmp_path, hook) as session:
            session.run(train_op)
            run_past_the_hooks(session, train_op)
        (record,) = records_in(tmp_path)
        assert record['action'] == 'skip'
        assert record['reason'].endswith('; in a run that went past the hooks')
        assert [each.action for each in hook.incidents] == ['skip']


@pytest.mark.parametrize('on_nan', ['skip', 'raise', 'rollback'])
def test_a_run_of_the_loss_alone_is_no_step(on_nan, tmp_path):
    model = Linear(bad=(1,))
    train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False)
    hook = slimguard.NanLossHook(model.loss, on_nan=on_nan)
    with monitored(tmp_path, hook) as session:
        session.run(train_op)
        session.run(model.loss)  # the bad batch
        session.run(train_op)
    assert hook.incidents == [] and checkpoint_at(tmp_path) == (2, [])


def test_two_hooks_hear_of_the_same_incident(tmp_path):
    model = Linear(bad=(1,))
    train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False)
    hooks = [slimguard.NanLossHook(model.loss, on_nan='skip') for _ in range(2)]
    with LogLines() as lines, monitored(tmp_path, *hooks) as session:
        for _ in range(3):
            session.run(train_op)
    assert [[each.step for each in hook.incidents] for hook in hooks] == [[1], [1]]
    assert not [line for line in lines if 'another training' in line]
    # Closing is listened to by both, and each closes its record.
    assert checkpoint_at(tmp_path) == (2, [])


def test_without_capture_nothing_is_kept(tmp_path):
    train_op, hook = build(bad=(1,), on_nan='skip', capture=False)
    with monitored(tmp_path, hook) as session:
        for _ in range(3):
            session.run(train_op)
        graph = session.graph
    assert bundle_paths(str(tmp_path)) == []
    assert not [op for op in graph.get_operations() if op.name.startswith('slimguard/capture')]


def test_so_many_bundles_are_kept(tmp_path):
    train_op, hook = build(bad=(1, 2, 3), on_nan='skip', max_bundles=2)
    with monitored(tmp_path, hook) as session:
        for _ in range(6):
            session.run(train_op)
    assert len(bundle_paths(str(tmp_path))) == 2


@pytest.mark.parametrize('bad', [0, -1, True, 'many'])
def test_a_number_of_bundles_that_is_none_is_an_error(bad):
    model = Linear()
    with pytest.raises(ValueError, match='max_bundles must be an int, at least 1, not'):
        slimguard.NanLossHook(model.loss, max_bundles=bad)


class Later(tf1.train.SessionRunHook):
    """Adds a variable when it begins, as some of TensorFlow's own hooks do."""

    def begin(self):
        self.variable = tf1.get_variable('later', initializer=7.0, trainable=False)


@pytest.mark.parametrize('own', ['none', 'scaffold', 'collection'])
def test_what_a_session_saves_is_what_it_would_save(own, tmp_path):
    """All variables, those of hooks that begin later too; or those of the user's saver."""
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


def test_a_callable_that_fails_leaves_the_last_good_state_saved(tmp_path):
    def fail(incident):
        raise KeyError('of the user')

    train_op, hook = build(bad=(2,), on_nan=fail)
    with pytest.raises(KeyError, match='of the user'):
        with monitored(tmp_path, hook) as session:
            while True:
                session.run(train_op)
    assert checkpoint_at(tmp_path) == (2, [])


@pytest.mark.parametrize('error', [KeyboardInterrupt, SystemExit])
def test_leaving_by_an_interrupt_saves(error, tmp_path):
    train_op, hook = build()
    with pytest.raises(error):
        with monitored(tmp_path, hook) as session:
            for _ in range(3):
                session.run(train_op)
            raise error()
    assert checkpoint_at(tmp_path) == (3, [])


def test_leaving_by_another_error_saves_nothing(tmp_path):
    train_op, hook = build()
    with pytest.raises(KeyError):
        with monitored(tmp_path, hook) as session:
            session.run(train_op)
            raise KeyError()
    assert checkpoint_at(tmp_path) == (0, [])


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
    """A hook may watch a loss where nothing trains."""
    model = Linear(bad=(1,))
    hook = slimguard.NanLossHook(model.loss, logdir=tmp_path)
    with pytest.raises(slimguard.NanLossError):
        with tf1.train.SingularMonitoredSession(hooks=[hook]) as session:
            while True:
                session.run(model.loss)
    assert not [name for name in os.listdir(str(tmp_path)) if name.startswith('model')]

"""A NanLossHook without a logdir finds the directory that its session saves to."""

import logging
import os

import pytest
import tensorflow as tf

import slimguard
from tests.helpers.models import Linear, LogLines, checkpoint_at, records_in, train_quietly

tf1 = tf.compat.v1


def build(on_nan='skip', **kwargs):
    model = Linear(bad=(3,))
    train_op = slimguard.guard(model.minimize(), loss=model.loss)
    return train_op, slimguard.NanLossHook(model.loss, on_nan=on_nan, capture=False, **kwargs)


def run(session, train_op, steps=6):
    for _ in range(steps):
        session.run(train_op)


def recorded(logdir):
    records = records_in(logdir)
    return [(record['step'], record['action']) for record in records]


def checkpoint_saver(logdir, **kwargs):
    return tf1.train.CheckpointSaverHook(str(logdir), save_steps=1, **kwargs)


def in_monitored_training_session(hook, train_op, logdir):
    with tf1.train.MonitoredTrainingSession(checkpoint_dir=str(logdir), hooks=[hook]) as session:
        run(session, train_op)


def in_monitored_session(hook, train_op, logdir):
    creator = tf1.train.ChiefSessionCreator(checkpoint_dir=str(logdir))
    # It is found also if its `begin` comes later.
    hooks = [hook, checkpoint_saver(logdir)]
    with tf1.train.MonitoredSession(creator, hooks) as session:
        run(session, train_op)


def in_singular_monitored_session(hook, train_op, logdir):
    scaffold = tf1.train.Scaffold()
    hooks = (checkpoint_saver(logdir, scaffold=scaffold), hook)
    with tf1.train.SingularMonitoredSession(hooks=hooks, scaffold=scaffold) as session:
        run(session, train_op)


def in_a_watched_session(hook, train_op, logdir):
    saver = checkpoint_saver(logdir, saver=tf1.train.Saver())
    plain = tf1.Session()
    plain.run(tf1.global_variables_initializer())  # the saver's hook saves at once
    with slimguard.watch(plain, hooks=[saver, hook]) as session:
        run(session, train_op)


def in_tf_slim_training(hook, train_op, logdir):
    training = pytest.importorskip('tf_slim.training.training')
    training.train(train_op, str(logdir), hooks=[hook, tf1.train.StopAtStepHook(last_step=5)])


LOOPS = [
    in_monitored_training_session,
    in_monitored_session,
    in_singular_monitored_session,
    in_a_watched_session,
    in_tf_slim_training,
]


class Warnings(LogLines):
    def emit(self, record):
        if record.levelno >= logging.WARNING:
            LogLines.emit(self, record)


@pytest.mark.parametrize('loop', LOOPS)
def test_the_record_goes_there_and_one_line_says_so(loop, tmp_path):
    train_op, hook = build()
    with LogLines() as lines, Warnings() as warnings:
        loop(hook, train_op, tmp_path)
    assert recorded(tmp_path) == [(3, 'skip')]
    said = [line for line in lines if 'has no logdir' in line]
    assert said == [
        'slimguard: NanLossHook has no logdir; incidents go to %s, where this session keeps its '
        'checkpoints.' % tmp_path
    ]
    # It is as it should be: the README's own snippet does so.
    assert any('skipping' in line for line in warnings)
    assert not any('has no logdir' in line for line in warnings)


@pytest.mark.parametrize('loop', LOOPS[:3])
def test_a_rollback_finds_its_checkpoints_there(loop, tmp_path):
    train_op, hook = build('rollback')
    loop(hook, train_op, tmp_path)
    (incident,) = hook.incidents
    assert incident.action == 'rollback' and incident.restored.startswith(str(tmp_path))
    assert not checkpoint_at(tmp_path)[1]


def test_a_callable_may_roll_back_there(tmp_path):
    train_op, hook = build(lambda incident: 'rollback')
    with tf1.train.SingularMonitoredSession(hooks=[checkpoint_saver(tmp_path), hook]) as session:
        run(session, train_op)
    assert recorded(tmp_path) == [(3, 'rollback')]


def test_an_estimators_directory_is_found(tmp_path):
    try:
        estimator = tf1.estimator
    except (AttributeError, ImportError):
        pytest.skip('this TensorFlow has no tf.estimator')

    def model_fn(features, mode):
        train_op, hook = build()
        return estimator.EstimatorSpec(
            mode, loss=tf.constant(0.0), train_op=train_op, training_hooks=[hook]
        )

    def input_fn():
        return tf1.data.Dataset.from_tensors({'unused': [0.0]}).repeat()

    estimator.Estimator(model_fn, model_dir=str(tmp_path)).train(input_fn, max_steps=5)
    assert recorded(tmp_path) == [(3, 'skip')]


def test_a_worker_that_saves_nothing_finds_the_chiefs_directory(tmp_path):
    server = tf1.train.Server.create_local_server()
    train_op, hook = build()
    init = tf1.global_variables_initializer()
    tf1.report_uninitialized_variables()
    with tf1.Session(server.target) as session:
        session.run(init)
    with tf1.train.MonitoredTrainingSession(
        server.target, is_chief=False, checkpoint_dir=str(tmp_path), hooks=[hook]
    ) as session:
        run(session, train_op)
    assert recorded(tmp_path) == [(3, 'skip')]


def test_what_the_hook_is_given_comes_first(tmp_path):
    train_op, hook = build(logdir=tmp_path / 'mine')
    with LogLines() as lines:
        in_monitored_training_session(hook, train_op, tmp_path / 'sessions')
    assert recorded(tmp_path / 'mine') == [(3, 'skip')]
    assert not (tmp_path / 'sessions' / 'slimguard').exists()
    assert not [line for line in lines if 'has no logdir' in line]


def test_each_session_is_asked_for_its_own(tmp_path):
    train_op, hook = build()
    with tf1.train.SingularMonitoredSession(hooks=[checkpoint_saver(tmp_path), hook]) as session:
        run(session, train_op)
    with tf1.train.SingularMonitoredSession(hooks=[hook]) as session:
        run(session, train_op)
    assert hook.logdir is None and len(hook.incidents) == 1
    assert recorded(tmp_path) == [(3, 'skip')]


def test_anothers_hooks_are_not_taken_for_its_own(tmp_path):
    hooks = [checkpoint_saver(tmp_path)]  # of another session, made in the same function
    train_op, hook = build()
    with tf1.train.SingularMonitoredSession(hooks=[hook]) as session:
        run(session, train_op)
    assert hooks and not os.listdir(str(tmp_path))


def test_for_the_record_alone_the_graphs_savers_stay_as_they_are(tmp_path):
    train_op, hook = build()
    made = []

    class Later(tf1.train.SessionRunHook):
        def begin(self):
            made.append(tf1.get_variable('made_later', initializer=1.0))

    hooks = [checkpoint_saver(tmp_path), hook, Later()]
    with tf1.train.SingularMonitoredSession(hooks=hooks) as session:
        run(session, train_op)
    saved = tf1.train.list_variables(tf1.train.latest_checkpoint(str(tmp_path)))
    assert 'made_later' in dict(saved)


def test_a_relative_directory_is_where_it_was_when_the_session_began(tmp_path, monkeypatch):
    (tmp_path / 'elsewhere').mkdir()
    monkeypatch.chdir(tmp_path)
    train_op, hook = build()
    with tf1.train.SingularMonitoredSession(
        hooks=[hook, checkpoint_saver('log', saver=tf1.train.Saver())]
    ) as session:
        run(session, train_op, 2)
        monkeypatch.chdir(tmp_path / 'elsewhere')
        os.mkdir('log')
        run(session, train_op, 3)
    assert not os.path.exists(os.path.join('log', 'slimguard'))
    assert recorded(tmp_path / 'log') == [(3, 'skip')]


class TestTwoDirectories:
    """A logdir that is not where the session saves."""

    def said(self, loop, tmp_path, logdir, on_nan='rollback'):
        train_op, hook = build(on_nan, logdir=logdir)
        with LogLines() as lines:
            loop(hook, train_op, tmp_path)
        return [line for line in lines if 'but this session keeps' in line], hook

    @pytest.mark.parametrize('loop', LOOPS[:4])
    def test_one_line_says_which_is_used_for_what(self, loop, tmp_path):
        ours, theirs = tmp_path / 'ours', tmp_path / 'theirs'
        (line,), hook = self.said(loop, theirs, ours)
        assert line == (
            'slimguard: NanLossHook records incidents in %s, its logdir, but this session keeps '
            'its checkpoints in %s. A rollback restores what is in %s: not what this session '
            'saves, but an older state, or that of another training. To have all in one place, '
            'pass logdir=%r, or none.' % (ours, theirs, ours, str(theirs))
        )
        (incident,) = hook.incidents
        if loop is not in_a_watched_session:  # it is alone, and saves nothing first
            assert incident.restored == str(ours / 'model.ckpt-0')

    def test_without_a_rollback_only_the_record_is_elsewhere(self, tmp_path):
        lines, _ = self.said(
            in_monitored_training_session, tmp_path / 'theirs', tmp_path / 'ours', 'skip'
        )
        (line,) = lines
        assert 'records incidents in %s,' % (tmp_path / 'ours') in line
        assert 'A rollback restores' not in line

    @pytest.mark.parametrize(
        'spelling', ['logs', 'logs/', './logs/../logs', 'link', 'whole', b'logs']
    )
    @pytest.mark.parametrize('is_there', [True, False])
    def test_one_directory_has_many_spellings(self, tmp_path, monkeypatch, spelling, is_there):
        monkeypatch.chdir(tmp_path)
        if is_there:
            os.mkdir('logs')
        os.symlink('logs', 'link')
        logdir = str(tmp_path / 'logs') if spelling == 'whole' else spelling
        if spelling == 'link' and not is_there:
            os.mkdir('logs')
        lines, hook = self.said(in_monitored_training_session, 'logs', logdir)
        assert lines == [] and hook.incidents[0].restored is not None

    def test_a_second_saver_may_save_to_it(self, tmp_path):
        train_op, hook = build('rollback', logdir=tmp_path / 'ours')
        hooks = [hook, checkpoint_saver(tmp_path / 'ours')]
        theirs = str(tmp_path / 'theirs')
        with LogLines() as lines:
            with tf1.train.MonitoredTrainingSession(checkpoint_dir=theirs, hooks=hooks) as session:
                run(session, train_op)
        assert not [line for line in lines if 'but this session keeps' in line]

    def test_watch_is_given_it(self, tmp_path):
        model = Linear(bad=(3,))
        train_op = slimguard.guard(model.minimize(), loss=model.loss)
        saver = checkpoint_saver(tmp_path / 'theirs', saver=tf1.train.Saver())
        plain = tf1.Session()
        plain.run(tf1.global_variables_initializer())
        ours = tmp_path / 'ours'
        with LogLines() as lines:
            with slimguard.watch(plain, hooks=[saver], on_nan='skip', logdir=ours) as session:
                run(session, train_op)
        (line,) = [line for line in lines if 'but this session keeps' in line]
        assert str(ours) in line and str(tmp_path / 'theirs') in line

    def test_a_training_of_slimguards_saves_to_its_own(self, tmp_path):
        model = Linear(bad=(3,))
        train_op = slimguard.create_train_op(model.loss, model.optimizer)
        hooks = [checkpoint_saver(tmp_path / 'theirs')]
        with LogLines() as lines:
            train_quietly(train_op, tmp_path / 'ours', on_nan='rollback', hooks=hooks)
        assert not [line for line in lines if 'but this session keeps' in line]

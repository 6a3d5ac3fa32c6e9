"""Errors at a bad step: failures in the user's code, and the error that ends the training."""

import os
import signal
import traceback

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard.diagnosis.evidence import Evidence
from tests.helpers.children import forked_python
from tests.helpers.models import Counted, Linear, LogLines, checkpoint_at, records_in, train_quietly
from tests.helpers.signals import press_ctrl_c

tf1 = tf.compat.v1


class Boom(Exception):
    pass


def explode(*_):
    raise Boom('it broke\nand more')


class Overriding(slimguard.NanLossHook):
    def on_nan_loss(self, run_context, incident):
        explode()


CASES = {
    'on_nan_loss raises': (
        'skip',
        Overriding,
        Boom,
        'Overriding.on_nan_loss raised Boom: it broke',
    ),
    'on_nan raises': (explode, slimguard.NanLossHook, Boom, 'on_nan raised Boom: it broke'),
    'on_nan returns a number': (
        lambda incident: 42,
        slimguard.NanLossHook,
        TypeError,
        'on_nan raised TypeError: the on_nan callable',
    ),
    'on_nan returns an unknown name': (
        lambda incident: 'skp',
        slimguard.NanLossHook,
        ValueError,
        "returned 'skp': on_nan: unknown policy 'skp' (did you mean 'skip'?); expected raise",
    ),
}


def build(bad=(3,), check_numerics=False):
    model = Linear(bad)
    return model, slimguard.create_train_op(
        model.loss, model.optimizer, check_numerics=check_numerics
    )


def one_record(logdir):
    (record,) = records_in(logdir)
    return record


def incidents_in(lines):
    return [line for line in lines if line.startswith('incident 1 at global step 3')]


@pytest.mark.full
@pytest.mark.parametrize('case', CASES)
def test_in_train_it_is_on_record_logged_and_saved_before_the_error_leaves(case, tmp_path):
    on_nan, kind, error, words = CASES[case]
    model, train_op = build(check_numerics='raises' in case)
    with LogLines() as lines, pytest.raises(error):
        train_quietly(train_op, tmp_path, hooks=[kind(model.loss, on_nan=on_nan)])
    record = one_record(tmp_path)
    assert (record['step'], record['action']) == (3, 'error')
    assert words in record['reason'] and 'and more' not in record['reason']
    assert record['bundle'] is not None
    (line,) = incidents_in(lines)
    assert words in line
    assert checkpoint_at(tmp_path) == (3, [])


def test_ctrl_c_while_a_bad_step_is_examined_is_no_error_of_the_policys(tmp_path, monkeypatch):
    monkeypatch.setattr(Evidence, 'examine', lambda *_: press_ctrl_c())
    _, train_op = build()
    before = signal.signal(signal.SIGINT, lambda *given: signal.default_int_handler(*given))
    try:
        with LogLines() as lines, pytest.raises(KeyboardInterrupt):
            train_quietly(train_op, tmp_path, on_nan='skip')
    finally:
        signal.signal(signal.SIGINT, before)
    assert one_record(tmp_path)['action'] == 'interrupted'
    (line,) = incidents_in(lines)
    assert line.endswith('applied; KeyboardInterrupt (Ctrl-C) came while it was handled.')
    assert 'on_nan' not in line and checkpoint_at(tmp_path) == (3, [])


@pytest.mark.full
def test_the_incident_that_ends_the_training_has_a_bundle_though_others_took_the_room(tmp_path):
    model, train_op = build(bad=(2, 3))
    hook = slimguard.NanLossHook(
        model.loss, on_nan=lambda incident: 'skip' if len(hook.incidents) == 1 else explode()
    )
    with pytest.raises(Boom):
        train_quietly(train_op, tmp_path, hooks=[hook], max_bundles=1)
    assert [incident.action for incident in hook.incidents] == ['skip', 'error']
    first, second = records_in(tmp_path)
    assert first['bundle'] is None and second['bundle'] == hook.incidents[1].bundle


@pytest.mark.full
def test_where_on_rollback_raises_the_rollback_is_on_record(tmp_path):
    model, train_op = build()
    with LogLines() as lines, pytest.raises(Boom):
        train_quietly(train_op, tmp_path, on_nan=slimguard.Rollback(on_rollback=explode))
    record = one_record(tmp_path)
    assert record['action'] == 'rollback' and record['restored'] is not None
    assert 'on_rollback raised Boom: it broke' in record['reason']
    assert len(incidents_in(lines)) == 1
    assert checkpoint_at(tmp_path) == (0, [])  # the restored state


def test_a_policy_that_cannot_act_is_on_record_as_what_it_is(tmp_path):
    model = Linear(bad=(3,))
    hook = slimguard.NanLossHook(model.loss, on_nan=lambda incident: 'skip', logdir=tmp_path)
    train_op = model.minimize()
    with pytest.raises(ValueError, match='no gate checks loss'):
        with tf1.train.SingularMonitoredSession(hooks=[hook]) as session:
            for _ in range(6):
                session.run(train_op)
    assert one_record(tmp_path)['action'] == 'error'


class Looking(tf1.train.SessionRunHook):
    """A user's hook that raises an error of its own at a NaN loss."""

    def __init__(self, loss):
        self._loss = loss

    def before_run(self, run_context):
        return tf1.train.SessionRunArgs(self._loss)

    def after_run(self, run_context, run_values):
        if run_values.results != run_values.results:
            explode()


@pytest.mark.full
@pytest.mark.parametrize(
    ('wrapped', 'last'), [(False, 'the watcher'), (True, 'a hook of the user')]
)
def test_a_hook_of_the_users_that_fails_at_a_bad_step_hides_no_incident(wrapped, last, tmp_path):
    model, train_op = build()
    hooks = [Looking(model.loss)]
    if last == 'a hook of the user':
        hooks.append(Looking(model.loss))
    kwargs = {'session_wrapper': lambda session: Counted(session, [])} if wrapped else {}
    with LogLines() as lines, pytest.raises(Boom):
        train_quietly(train_op, tmp_path, hooks=hooks, on_nan='skip', **kwargs)
    record = one_record(tmp_path)
    assert (record['step'], record['action']) == (3, 'skip')  # the policy acts despite the error
    assert record['bundle'] is not None
    assert len(incidents_in(lines)) == 1


@pytest.mark.full
@pytest.mark.parametrize('wrapped', [False, True])
def test_what_one_watcher_raises_is_no_incident_of_the_next(wrapped, tmp_path):
    model, train_op = build()
    hooks = [slimguard.NanLossHook(model.loss, on_nan=on_nan) for on_nan in ('raise', 'skip')]
    kwargs = {'session_wrapper': lambda session: Counted(session, [])} if wrapped else {}
    with pytest.raises(slimguard.NanLossError):
        train_quietly(train_op, tmp_path, hooks=hooks, **kwargs)
    assert one_record(tmp_path)['action'] == 'raise'
    assert hooks[1].incidents == []


@pytest.mark.full
@pytest.mark.parametrize(
    ('error', 'check_numerics'),
    [(StopIteration(), True), (tf.errors.OutOfRangeError(None, None, 'none left'), False)],
)
def test_a_policy_that_raises_what_ends_the_input_does_not_end_it(error, check_numerics, tmp_path):
    def end(incident):
        raise error

    _, train_op = build(check_numerics=check_numerics)
    with pytest.raises(RuntimeError, match='^on_nan raised (StopIteration|OutOfRangeError)'):
        train_quietly(train_op, tmp_path, on_nan=end)
    assert one_record(tmp_path)['action'] == 'error'
    assert checkpoint_at(tmp_path) == (3, [])


@pytest.mark.parametrize('error', [Boom, KeyboardInterrupt])
def test_where_a_hooks_end_fails_the_training_is_saved(error, tmp_path):
    class Ending(tf1.train.SessionRunHook):
        def end(self, session):
            raise error

    _, train_op = build(bad=())
    with pytest.raises(error):
        train_quietly(train_op, tmp_path, hooks=[Ending()])
    assert checkpoint_at(tmp_path) == (6, [])


@pytest.mark.full
def test_an_error_of_a_later_step_saves_nothing_on_account_of_an_incident(tmp_path):
    model, train_op = build()

    class Later(tf1.train.SessionRunHook):
        def before_run(self, run_context):
            if model.batches.drawn == 5:
                explode()

    with pytest.raises(Boom):
        train_quietly(train_op, tmp_path, on_nan='skip', hooks=[Later()])
    assert checkpoint_at(tmp_path) == (None, [])


@pytest.mark.full
def test_tensorflows_nan_hook_before_ours_hides_no_incident_in_a_monitored_session(tmp_path):
    model, train_op = build()
    hook = slimguard.NanLossHook(model.loss, on_nan='skip')
    hooks = [tf1.train.NanTensorHook(model.loss), hook]
    with pytest.raises(tf1.train.NanLossDuringTrainingError):
        with tf1.train.MonitoredTrainingSession(
            checkpoint_dir=str(tmp_path), hooks=hooks, save_summaries_steps=None
        ) as session:
            while not session.should_stop():
                session.run(train_op)
    assert [incident.action for incident in hook.incidents] == ['skip']
    assert [record['step'] for record in records_in(tmp_path)] == [3]


# An error that nobody catches: the cause comes before pages of frames.


OURS = os.path.dirname(slimguard.__file__)

SCRIPT = """\
import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1
tf1.disable_eager_execution()
x = tf1.placeholder(tf.float32, [2], name='pixels')
w = tf1.get_variable('w', initializer=[1.0, 2.0])
loss = tf.reduce_sum(w * x, name='my_loss')
train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)


def step(session, value):
    session.run(train_op, {x: [1.0, value]})


with tf1.Session() as session:
    session.run(tf1.global_variables_initializer())
    step(session, 1.0)
    step(session, np.nan)
"""


def bad_train_op():
    w = tf1.get_variable('w', initializer=[1.0, 2.0])
    loss = tf.reduce_sum(w * np.array([1.0, np.nan], np.float32), name='my_loss')
    optimizer = tf1.train.GradientDescentOptimizer(0.1)
    tf1.train.get_or_create_global_step()
    return loss, slimguard.create_train_op(loss, optimizer, check_numerics=True)


def our_frames(error):
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if frame.filename.startswith(OURS)]


def watched(loss, train_op):
    with slimguard.watch(tf1.Session()) as session:
        session.run(tf1.global_variables_initializer())
        session.run(train_op)


def monitored(loss, train_op):
    hooks = [slimguard.NanLossHook(loss)]
    with tf1.train.MonitoredTrainingSession(hooks=hooks, log_step_count_steps=None) as session:
        session.run(train_op)


def trained(loss, train_op):
    slimguard.train(train_op, None, number_of_steps=3)


@pytest.mark.parametrize('loop, most', [(watched, 1), (trained, 1), (monitored, 2)])
def test_an_error_brings_few_frames_of_ours(loop, most, capfd):
    with pytest.raises(slimguard.NanLossError, match='not finite: loss my_loss') as caught:
        loop(*bad_train_op())
    assert len(our_frames(caught.value)) <= most
    assert any('loop(*bad' in str(frame.line) for frame in traceback.extract_tb(caught.tb))
    assert 'wrote nothing (' not in capfd.readouterr().err  # the log has the incident


@pytest.mark.full
def test_the_traceback_of_a_script_is_of_the_script_alone(tmp_path):
    (tmp_path / 'script.py').write_text(SCRIPT)
    done = forked_python(
        '-m', 'slimguard', 'run', '--capture=no', 'script.py', cwd=str(tmp_path), finds='tensorflow'
    )
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    at = lines.index('Traceback (most recent call last):')
    files = [line for line in lines[at:] if line.startswith('  File "')]
    assert [file.partition(', ')[2] for file in files] == [
        'line 19, in <module>',
        'line 13, in step',
    ]
    assert any(line.startswith('slimguard.NanLossError: Bad step') for line in lines[at:])
    assert 'not finite: loss my_loss' in '\n'.join(lines[:at])

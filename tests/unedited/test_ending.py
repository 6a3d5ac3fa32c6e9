"""The last lines that `run` prints at the end of a script, on stderr only."""

import contextlib
import io
import os
import re
import signal
import sys

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard.incidents.incident import Incident
from slimguard.unedited.ending import Account, Ending
from tests.helpers.children import forked_python

tf1 = tf.compat.v1


def test_it_is_said_once_on_stderr_or_where_that_is_closed_nowhere(capsys, monkeypatch):
    ending = Ending(Account())
    ending.say()
    ending.say()
    out, err = capsys.readouterr()
    assert (out, err.count('slimguard: nothing here was guarded')) == ('', 1)
    closed = io.StringIO()
    closed.close()
    for stderr in (None, closed):
        monkeypatch.setattr(sys, 'stderr', stderr)
        Ending(Account()).say()
        assert capsys.readouterr().out == ''


@pytest.mark.parametrize('has_trained', [True, False])
def test_runs_that_only_wrote_and_saves_that_were_refused_are_counted(has_trained, tmp_path):
    """The command names the logdirs that have a record."""
    kept, empty = tmp_path / 'kept', tmp_path / 'empty'
    (kept / 'slimguard').mkdir(parents=True)
    (kept / 'slimguard' / 'incidents.jsonl').touch()
    seen = Account()
    if has_trained:
        for train_ops in [['Adam']] * 3 + [[]] * 2:
            seen.note_run(train_ops)
    for logdir in (kept, empty):
        seen.note_refused_save(['v', 'w'], str(logdir))
    result, command = seen.lines()
    before, _, after = result.partition(', 2 saves refused as not finite (v, w)')
    assert command == 'to see what happened: python -m slimguard report %s' % kept and not after
    if has_trained:
        assert before == 'guarded Adam: 3 steps and 2 runs that only wrote, no incident'
    else:
        assert before.startswith('nothing here was guarded: ')


def test_incidents_that_no_record_has_are_counted_and_several_records_are_told_apart(tmp_path):
    seen, bad = Account(), [Incident(3, 0.5, 'reason', (), 'hook', 1.0, action='skip')]
    seen.note_run(['Adam'])
    one, two, none = (tmp_path / name for name in ('one', 'two', 'none'))
    for logdir in (one, two):
        (logdir / 'slimguard').mkdir(parents=True)
        (logdir / 'slimguard' / 'incidents.jsonl').touch()
    for logdir, missing in [(one, 0), (two, 0), (two, 1), (none, 1), (none, 1)]:
        seen.note_incidents(bad, str(logdir), missing)
    seen.note_refused_save(['v'], str(two))
    assert seen.lines()[1:] == [
        '1 incident is missing in %s/slimguard/incidents.jsonl' % two,
        '2 incidents are missing in %s/slimguard/incidents.jsonl' % none,
        'to see what happened (1 incident): python -m slimguard report %s' % one,
        'to see what happened (2 incidents, 1 refused save): python -m slimguard report %s' % two,
    ]


def test_the_learning_rate_that_rollbacks_left_is_said():
    seen = Account()
    for _ in range(9):
        seen.note_run(['Adam'])
    for action, rate in [('rollback', 0.5), ('rollback', 0.25), ('skip', None)]:
        incident = Incident(3, 0.5, 'reason', (), 'hook', 1.0, action=action, learning_rate=rate)
        seen.note_incidents([incident], None)
    said = 'guarded Adam: 9 steps, 3 incidents in this run (rollback 2, skip 1; learning rate '
    assert str(seen) == said + 'x0.25 since the last rollback)'


def test_why_nothing_was_guarded_is_said(monkeypatch):
    """The line advises --tf1 if that may help: on TensorFlow 2, if the script ran without it."""
    is_tf1 = tf.__version__.startswith('1.')
    hint = '' if is_tf1 else '. If it was written for TensorFlow 1, use --tf1'
    for error, said in [
        (KeyError('a key'), ''),
        (SystemExit('a text'), ''),
        (KeyboardInterrupt(), ''),
        (AttributeError("module 'tensorflow' has no attribute 'no_such_name'"), hint),
    ]:
        seen = Account()
        seen.error = error
        started = 'nothing here was guarded: the script ended before it ran a session'
        assert str(seen) == started + said
    seen = Account()
    monkeypatch.setattr(tf, 'executing_eagerly', lambda: True)
    assert 'use --tf1. Another process that it started is guarded only if run' in str(seen)
    seen.has_names_of_1 = True
    assert 'this script ran no session: it enabled eager execution. Another' in str(seen)
    seen.runs = 1
    assert str(seen).endswith('that the script computes, and 1 run of a session made none')
    seen.error = KeyError('a key')
    early = 'the script ended early, and 1 run of a session made no update'
    assert str(seen) == 'nothing here was guarded: ' + early
    seen.own_steps = 2
    assert str(seen).startswith('the script guards itself with a NanLossHook')
    assert ': 2 steps. Its own settings hold' in str(seen)


def test_a_step_that_fails_by_itself_has_written_nothing(tmp_path):
    """The script's own check fails the step, and the script catches the error: no incident."""
    x = tf1.placeholder(tf.float32, [2])
    w = tf1.get_variable('w', initializer=1.0)
    with slimguard.instrument('skip', logdir=str(tmp_path)) as guards:
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(w * x))
        check = tf1.add_check_numerics_ops()
        with tf1.Session() as session:
            session.run(w.initializer)
            for value in (1.0, np.nan, 1.0):
                with contextlib.suppress(tf.errors.InvalidArgumentError):
                    session.run([train_op, check], {x: [value, 1.0]})
            assert session.run(w) == np.float32(1.0 - 2 * 0.2)
        assert str(guards.sessions.seen) == 'guarded GradientDescent: 2 steps, no incident'


@pytest.mark.full
def test_a_training_by_slim_is_said_to_be_guarded_and_nothing_else(tmp_path):
    slim = slimguard.compat.import_slim()
    with slimguard.instrument('skip') as guards:
        loss = tf.reduce_sum(tf1.get_variable('w', initializer=1.0) ** 2)
        train_op = slim.learning.create_train_op(loss, tf1.train.GradientDescentOptimizer(0.1))
        slim.learning.train(train_op, str(tmp_path), number_of_steps=3)
    said = 'guarded %s: 3 steps, no incident'
    assert str(guards.sessions.seen) == said % 'train_op/control_dependency'


SCRIPT = """
import multiprocessing
import os
import sys

import tensorflow.compat.v1 as tf1


def train(steps, in_parts=False, factor=1.0):
    with tf1.Graph().as_default(), tf1.Session() as session:
        w = tf1.get_variable('w', initializer=1.0)
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(w * w * factor)
        session.run(w.initializer)
        if in_parts:
            session.partial_run_setup([train_op])
        for _ in range(steps):
            session.run(train_op)


process = multiprocessing.get_context('fork').Process(target=train, args=[2])
process.start()
process.join()
unguarded = multiprocessing.get_context('fork').Process(target=train, args=[0, True])
unguarded.start()
unguarded.join()
idle = multiprocessing.get_context('fork').Process(target=len, args=[''])
idle.start()
idle.join()
stopped = multiprocessing.get_context('fork').Process(target=train, args=[2, False, 1e39])
stopped.start()
stopped.join()
assert stopped.exitcode == 0
if not os.fork():
    train(3)
    sys.exit()
os.wait()
"""


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, 'fork'), reason='there are no forks')
def test_a_fork_that_trains_says_so_and_its_parent_that_forks_do(tmp_path):
    script = tmp_path / 'train.py'
    script.write_text(SCRIPT)
    options = ['--tf1', '--on_nan=stop']
    done = forked_python('-m', 'slimguard', 'run', *options, script, cwd=str(tmp_path))
    said = [line for line in done.stderr.splitlines() if line.startswith('slimguard: ')]
    assert done.returncode == 0, done.stderr
    process = r'slimguard: in process \d+, a fork: guarded GradientDescent: '
    assert re.fullmatch(process + '2 steps, no incident', said[0])
    not_guarded = (
        r'slimguard: in process \d+, a fork: nothing here was guarded: train op .* cannot be'
    )
    assert re.match(not_guarded, said[1])
    stopped, of_stopped, command, of_fork, of_parent = said[2:]
    assert stopped.startswith("slimguard: 'stop' ended the script inside its loop")
    assert re.fullmatch(process + r'1 step, 1 incident in this run \(stop 1\)', of_stopped)
    assert 'python -m slimguard report ' in command
    assert re.fullmatch(process + '3 steps, no incident', of_fork)
    assert of_parent == (
        'slimguard: nothing was guarded in this process, which ran no session; it started 5 '
        'others, and each that was guarded has a last line of its own'
    )


INTERRUPTED = """
import os
import signal
import sys

import numpy as np
import tensorflow.compat.v1 as tf1
import tf_slim as slim

drawn = [0]


def draw():
    drawn[0] += 1
    if drawn[0] == 4:
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    return np.float32(np.nan if drawn[0] == 2 else 1)


x = tf1.py_func(draw, [], tf1.float32, stateful=True)
loss = tf1.square(tf1.get_variable('w', initializer=1.0) * tf1.reshape(x, []))
train_op = slim.learning.create_train_op(loss, tf1.train.GradientDescentOptimizer(0.1))
slim.learning.train(train_op, 'logs', number_of_steps=1000, log_every_n_steps=0)
"""


@pytest.mark.full
@pytest.mark.skipif(os.name == 'nt', reason='there is no SIGTERM')
@pytest.mark.parametrize(('number', 'name'), [('SIGINT', 'Ctrl-C'), ('SIGTERM', 'SIGTERM')])
def test_a_signal_ends_slims_loop_after_the_step_and_it_is_said_what_was_saved(
    number, name, tmp_path
):
    script = tmp_path / 'train.py'
    script.write_text(INTERRUPTED)
    options = ['--tf1', '--on_nan=skip', '--quiet', script, number]
    done = forked_python('-m', 'slimguard', 'run', *options, cwd=str(tmp_path))
    *before, result, saved_at, command = done.stderr.splitlines()
    saved = '%s: saved %s' % (name, tmp_path / 'logs' / 'model.ckpt-3 (global step 3)')
    assert saved in saved_at and result.endswith(': 4 steps, 1 incident in this run (skip 1)')
    assert command.endswith('python -m slimguard report %s' % (tmp_path / 'logs'))
    if number == 'SIGTERM':
        assert done.returncode == -signal.SIGTERM
        return
    assert done.returncode in (130, -signal.SIGINT, 1)  # 1 before Python 3.8
    shown = before[before.index('Traceback (most recent call last):') :]
    files = [line.split('"')[1] for line in shown if line.startswith('  File ')]
    assert files == [str(script)] and shown[-1] == 'KeyboardInterrupt'


ENDED = """
import os
import signal

import tensorflow.compat.v1 as tf1

w = tf1.get_variable('w', initializer=1.0)
train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(w * w)
with tf1.Session() as session:
    session.run(w.initializer)
    session.run(train_op)
    os.kill(os.getpid(), signal.SIGTERM)
    session.run(train_op)
"""


@pytest.mark.full
@pytest.mark.skipif(os.name == 'nt', reason='there is no SIGTERM')
def test_it_is_said_before_a_signal_ends_the_process(tmp_path):
    script = tmp_path / 'train.py'
    script.write_text(ENDED)
    done = forked_python('-m', 'slimguard', 'run', '--tf1', script, cwd=str(tmp_path))
    assert done.returncode == -signal.SIGTERM
    said = [line for line in done.stderr.splitlines() if line.startswith('slimguard: ')]
    assert said == ['slimguard: guarded GradientDescent: 1 step, no incident']

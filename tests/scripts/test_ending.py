"""What `run` says at the end of a script goes to stderr, or nowhere."""

import contextlib
import io
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard.scripts.ending import Ending, Seen
from tests.helpers.models import Linear

tf1 = tf.compat.v1


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize('stderr', [None, closed()], ids=['none', 'closed by the script'])
def test_a_stderr_that_is_closed_gets_nothing_and_stdout_neither(stderr, capsys, monkeypatch):
    monkeypatch.setattr(sys, 'stderr', stderr)
    Ending(Seen()).say()
    assert capsys.readouterr().out == ''


def test_it_is_said_on_stderr_and_once(capsys):
    ending = Ending(Seen())
    ending.say()
    ending.say()
    out, err = capsys.readouterr()
    assert out == ''
    assert err.count('slimguard: nothing here was guarded') == 1


def test_runs_that_only_wrote_are_no_steps():
    seen = Seen()
    seen.note_steps('Adam', 3)
    seen.writing_runs = 2
    assert str(seen) == 'guarded Adam: 3 steps and 2 runs that only wrote, no incident'


def test_a_save_that_was_refused_is_counted_and_its_record_named(tmp_path):
    folder = tmp_path / 'slimguard'
    folder.mkdir()
    (folder / 'incidents.jsonl').touch()
    seen = Seen()
    seen.note_steps('Adam', 3)
    seen.note_refused_save(['v', 'w'], str(tmp_path))
    said = 'guarded Adam: 3 steps, no incident, 1 save refused as not finite (v, w); '
    assert str(seen) == said + 'record and bundles: %s' % folder


def test_of_records_that_are_not_there_it_is_said(tmp_path):
    """Where they could not be written, and where the script has deleted them, or their folder."""
    kept, empty, lost = tmp_path / 'kept', tmp_path / 'empty', tmp_path / 'lost'
    for logdir in (kept, empty):
        (logdir / 'slimguard').mkdir(parents=True)
    (kept / 'slimguard' / 'incidents.jsonl').touch()
    seen = Seen()
    seen.note_steps('Adam', 3)
    for logdir in (kept, empty, lost):
        seen.note_refused_save(['w'], str(logdir))
    said = '; record and bundles: %s; NO record is left in %s, %s: it could not be written, or was '
    folders = tuple(logdir / 'slimguard' for logdir in (kept, empty, lost))
    assert said % folders + 'moved or deleted since' in str(seen)


def test_a_save_that_was_refused_is_counted_where_nothing_trained(tmp_path):
    folder = tmp_path / 'slimguard'
    folder.mkdir()
    (folder / 'incidents.jsonl').touch()
    seen = Seen()
    seen.runs = 5
    seen.note_refused_save(['w'], str(tmp_path))
    said = ', 1 save refused as not finite (w); record and bundles: %s' % folder
    assert str(seen).startswith('nothing here was guarded: ') and str(seen).endswith(said)


def test_other_processes_that_may_have_trained_are_told(monkeypatch):
    nothing, seen = Seen(), Seen()
    times = os.times()
    later = os.times_result((*times[:2], times.children_user + 3.0, *times[3:]))
    monkeypatch.setattr(os, 'times', lambda: later)
    assert 'Other processes may have trained: each is guarded only if run starts' in str(nothing)
    seen.note_steps('Adam', 3)
    others = '; of other processes that it started, each is guarded only if run starts it too'
    assert others in str(seen)
    seen.children = 1  # which say so themselves
    assert others not in str(seen)


def test_steps_that_fail_by_themselves_are_counted(tmp_path):
    """By a check of the script's own, which it catches: the gate hears nothing of such a step."""
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
        said = 'guarded GradientDescent: 2 steps, no incident, 1 step that failed with '
        assert str(guards.sessions.seen) == said + 'InvalidArgumentError'


def test_a_folder_is_named_as_it_was_meant_where_slims_loop_began(tmp_path, monkeypatch):
    slim = slimguard.compat.import_slim()
    monkeypatch.chdir(tmp_path)
    with slimguard.instrument('skip') as guards:
        model = Linear(bad=(1,))
        train_op = slim.learning.create_train_op(model.loss, model.optimizer)

        def step(*args):
            os.chdir(os.sep)
            return slim.learning.train_step(*args)

        slim.learning.train(train_op, 'logs', train_step_fn=step, number_of_steps=3)
    folder = str(tmp_path / 'logs' / 'slimguard')
    assert str(guards.sessions.seen).endswith('record and bundles: ' + folder)


def test_a_training_by_slim_is_said_to_be_guarded_and_nothing_else(tmp_path):
    slim = slimguard.compat.import_slim()
    with slimguard.instrument('skip') as guards:
        loss = tf.reduce_sum(tf1.get_variable('w', initializer=1.0) ** 2)
        train_op = slim.learning.create_train_op(loss, tf1.train.GradientDescentOptimizer(0.1))
        slim.learning.train(train_op, str(tmp_path), number_of_steps=3)
        name = slimguard.gate.gate_of(train_op).original.op.name
        assert str(guards.sessions.seen) == 'guarded %s: 3 steps, no incident' % name


def test_an_eager_script_is_not_told_to_do_what_it_did(monkeypatch):
    monkeypatch.setattr(tf, 'executing_eagerly', lambda: True)
    seen = Seen()
    assert str(seen).endswith('use --tf1')
    seen.has_names_of_1 = True
    assert str(seen).endswith('this script ran no session: it enabled eager execution')


def test_a_script_that_guards_itself_is_not_called_unguarded():
    seen = Seen()
    seen.runs, seen.own_steps = 5, 2
    assert str(seen).startswith('the script guards itself, by a NanLossHook')
    assert ': 2 steps. What it says there holds' in str(seen)


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


@pytest.mark.skipif(not hasattr(os, 'fork'), reason='there are no forks')
def test_a_fork_that_trains_says_so_and_its_parent_that_there_was_one(tmp_path):
    script = tmp_path / 'train.py'
    script.write_text(SCRIPT)
    command = [sys.executable, '-W', 'ignore', '-m', 'slimguard', 'run', '--tf1', '--on_nan=stop']
    command += [str(script)]
    done = subprocess.run(command, cwd=str(tmp_path), stderr=subprocess.PIPE, text=True)
    said = [line for line in done.stderr.splitlines() if line.startswith('slimguard: ')]
    assert done.returncode == 0, done.stderr
    process = r'slimguard: in process \d+, a fork: guarded GradientDescent: '
    assert re.fullmatch(process + '2 steps, no incident', said[0])
    not_guarded = (
        r'slimguard: in process \d+, a fork: nothing here was guarded: train op .* cannot be'
    )
    assert re.match(not_guarded, said[1])
    stopped, of_stopped, of_fork, of_parent = said[2:]
    assert stopped.startswith("slimguard: 'stop' has ended the script inside its loop")
    assert re.match(process + r'1 step, 1 incident \(stop 1\)', of_stopped)
    assert re.fullmatch(process + '3 steps, no incident', of_fork)
    assert 'ran no session itself. What it started (5 processes) is guarded as it is' in of_parent


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


@pytest.mark.skipif(os.name == 'nt', reason='there is no SIGTERM')
def test_it_is_said_before_a_signal_ends_the_process(tmp_path):
    script = tmp_path / 'train.py'
    script.write_text(ENDED)
    command = [sys.executable, '-W', 'ignore', '-m', 'slimguard', 'run', '--tf1', str(script)]
    done = subprocess.run(command, cwd=str(tmp_path), stderr=subprocess.PIPE, text=True)
    assert done.returncode == -signal.SIGTERM
    said = [line for line in done.stderr.splitlines() if line.startswith('slimguard: ')]
    assert said == ['slimguard: guarded GradientDescent: 1 step, no incident']

"""Every loop alike: a test for each cell of the README's table."""

import os
import re
import signal
import struct
import subprocess

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard.checkpoints import checkpoint_reader, snapshots
from slimguard.diagnosis.bundle import paths as bundle_paths
from tests.helpers import checkpoints
from tests.helpers.children import ROOT, environment, forked_python
from tests.helpers.loops import EDITED, LOOPS, Given, cells
from tests.helpers.models import checkpoint_at, records_in
from tests.helpers.template import Forked

tf1 = tf.compat.v1

every_loop = pytest.mark.parametrize('loop', cells(LOOPS))


pytestmark = pytest.mark.usefixtures('ctrl_c_is_pythons')


def given(logdir, **kwargs):
    """What a training is given whose bad steps need no diagnosis."""
    return Given(str(logdir), capture=False, **kwargs)


def interrupt_at(draw):
    return lambda drawn: drawn == draw and os.kill(os.getpid(), signal.SIGINT)


def steps_of(records):
    return [(record['step'], record['action']) for record in records]


@every_loop
class TestAfterABadStep:
    def test_the_policy_acts_and_the_record_and_a_bundle_say_why(self, loop, tmp_path):
        trained = loop(Given(str(tmp_path), on_nan='skip', bad=(3,)))
        assert trained.drawn == 7
        (record,) = records_in(tmp_path)
        assert (record['step'], record['action'], record['held']) == (3, 'skip', True)
        assert 'bad data: 1 NaN among 12 values, in row 1' in record['diagnosis']
        assert [record['bundle']] == bundle_paths(str(tmp_path))
        assert checkpoint_at(tmp_path) == (6, [])

    def test_raise_saves_the_last_good_state(self, loop, tmp_path):
        with pytest.raises(slimguard.NanLossError, match='global step 3'):
            loop(given(tmp_path, on_nan='raise', bad=(3,)))
        assert checkpoint_at(tmp_path) == (3, [])
        assert steps_of(records_in(tmp_path)) == [(3, 'raise')]

    def test_rollback_goes_back(self, loop, tmp_path):
        loop(given(tmp_path, on_nan='rollback', bad=(3,)))
        (record,) = records_in(tmp_path)
        assert record['action'] == 'rollback'
        assert os.path.basename(record['restored']) == 'model.ckpt-0'
        assert checkpoint_at(tmp_path) == (6, [])

    def test_rollback_goes_back_to_a_state_in_memory(self, loop, tmp_path):
        trained = loop(given(tmp_path, on_nan='rollback', bad=(25,), steps=30))
        (record,) = records_in(tmp_path)
        assert (record['step'], record['restored']) == (25, 'a snapshot of global step 11')
        assert trained.drawn == 26 + 19
        assert checkpoint_at(tmp_path) == (30, [])

    def test_raise_saves_a_state_that_is_not_ruined(self, loop, tmp_path, monkeypatch):
        monkeypatch.setattr(snapshots, '_RUINED_NOW', 1e-9)  # so what is in memory always is
        policies = [slimguard.Skip(1), slimguard.Rollback(1), 'raise']
        with pytest.raises(slimguard.NanLossError, match='the weights are ruined'):
            loop(given(tmp_path, on_nan=policies, bad=(25, 50), steps=60))
        assert steps_of(records_in(tmp_path)) == [(25, 'rollback'), (35, 'raise')]
        assert checkpoint_at(tmp_path) == (11, [])

    def test_max_loss(self, loop, tmp_path):
        loop(given(tmp_path, on_nan='skip', bad=(), steps=2, max_loss=1e6))
        assert records_in_if_any(tmp_path) == []
        with tf.Graph().as_default(), pytest.raises(slimguard.NanLossError, match='above max_loss'):
            loop(given(tmp_path, on_nan='raise', steps=6, max_loss=1e-6))


def records_in_if_any(logdir):
    try:
        return records_in(logdir)
    except FileNotFoundError:
        return []


@every_loop
def test_ctrl_c_lets_the_step_finish_and_saves(loop, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        loop(given(tmp_path, bad=interrupt_at(4), steps=1000))
    assert checkpoint_at(tmp_path) == (5, [])


@pytest.mark.parametrize('name', cells(LOOPS, by_name=True))
def test_sigterm_lets_the_step_finish_and_saves(name, tmp_path):
    program = 'from tests.helpers import loops; import sys; loops.main(sys.argv[1:])'
    arguments = [program, name, tmp_path, '4']
    done = forked_python('-c', *arguments, stderr=subprocess.STDOUT, cwd=str(ROOT))
    assert done.returncode == -signal.SIGTERM, done.stdout
    assert checkpoint_at(tmp_path) == (5, [])


@every_loop
def test_a_training_resumes_from_a_good_checkpoint(loop, tmp_path):
    loop(given(tmp_path, steps=2))
    with tf.Graph().as_default():
        loop(given(tmp_path, steps=4))
    newest = checkpoints.newest(tmp_path)
    assert newest.endswith('model.ckpt-4')
    checkpoints.truncate(newest + '.data-00000-of-00001')
    # What is in it, and not what it is called: slim saves while steps go on.
    good = checkpoint_reader.inspect(slimguard.latest_finite_checkpoint(tmp_path)).step
    with tf.Graph().as_default():
        assert loop(given(tmp_path, steps=5)).began_at == good


@every_loop
def test_what_is_not_finite_is_not_published(loop, tmp_path):
    """A variable that no train op writes, and that somebody fills with a NaN, say."""
    with tf.Graph().as_default():
        stray = tf1.get_variable('stray', initializer=np.float32('nan'), trainable=False)
        assert stray is not None
        try:
            loop(given(tmp_path, steps=2))
        except Exception as error:  # no loop has to take it well
            assert 'stray' in str(error)
    assert checkpoint_at(tmp_path)[1] == []


@pytest.mark.parametrize('name', cells(EDITED, by_name=True))
def test_the_progress_is_shown(name, tmp_path):
    pytest.importorskip('tqdm')
    pty = pytest.importorskip('pty')  # there is none on Windows
    ours, theirs = pty.openpty()
    size = struct.pack('HHHH', 24, 100, 0, 0)
    pytest.importorskip('fcntl').ioctl(theirs, pytest.importorskip('termios').TIOCSWINSZ, size)
    program = 'from tests.helpers import loops; import sys; loops.main(sys.argv[1:])'
    process = Forked(
        ['-c', program, name, str(tmp_path), 'progress'],
        environment(),
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        cwd=str(ROOT),
    )
    os.close(theirs)
    written = b''
    while True:
        try:
            data = os.read(ours, 4096)
        except OSError:  # how a terminal says that nobody is left to write
            break
        written += data
    os.close(ours)
    assert process.wait() == 0, written.decode()
    assert re.search(r'step.*, loss \d.*, 1 incident', written.decode())

"""Two trainings that write to one logdir at the same time: the second says so."""

import os
import signal
import subprocess

import pytest
import tensorflow as tf

import slimguard
from slimguard.training.occupancy import occupied
from tests.helpers.children import ROOT, environment
from tests.helpers.models import Linear, LogLines, checkpoint_at, train_quietly
from tests.helpers.template import Forked

fcntl = pytest.importorskip('fcntl')

WORDS = 'another training is writing to '


def warnings_of(logdir, **kwargs):
    """What a training says of others in its logdir."""
    with tf.Graph().as_default(), LogLines() as lines:
        model = Linear()
        train_op = slimguard.create_train_op(model.loss, model.optimizer)
        train_quietly(train_op, logdir, number_of_steps=None, hooks=[Once()], **kwargs)
    return [line for line in lines if WORDS in line]


class Once(tf.compat.v1.train.SessionRunHook):
    def after_run(self, run_context, run_values):
        run_context.request_stop()


def warnings_while_held(logdir):
    with LogLines() as lines, occupied(str(logdir)):
        pass
    return [line for line in lines if WORDS in line]


def test_the_second_of_two_says_so_and_trains_until_the_first_is_killed(tmp_path):
    first = Forked(
        [ROOT / 'tests' / 'data' / 'scripts' / 'train_until_told.py', tmp_path],
        environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert first.stdout.readline() == b'training\n'
        (line,) = warnings_of(tmp_path)
        assert line.startswith('slimguard: %s%s at the moment.' % (WORDS, tmp_path))
        assert checkpoint_at(tmp_path)[0] >= 1
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate()
    assert warnings_of(tmp_path) == []


def test_one_after_the_other_is_no_matter(tmp_path):
    with occupied(str(tmp_path)):
        pass
    assert warnings_of(tmp_path) == [] and warnings_of(tmp_path) == []


def test_a_training_that_failed_lets_go(tmp_path):
    with pytest.raises(ArithmeticError):
        with occupied(str(tmp_path)):
            raise ArithmeticError('of the user')
    assert warnings_while_held(tmp_path) == []


def test_the_third_is_told_as_well(tmp_path):
    with occupied(str(tmp_path)):
        assert len(warnings_while_held(tmp_path)) == 1
        assert len(warnings_of(tmp_path)) == 1
    assert warnings_while_held(tmp_path) == []


def test_who_watches_and_the_user_lock_the_logdir_itself_without_an_alarm(tmp_path):
    number = os.open(str(tmp_path), os.O_RDONLY)  # as `flock LOGDIR python train.py` does
    try:
        fcntl.flock(number, fcntl.LOCK_EX)
        assert warnings_of(tmp_path) == []
    finally:
        os.close(number)


def test_a_child_of_a_training_that_was_killed_holds_nothing(tmp_path):
    read, write = os.pipe()
    started, start = os.pipe()
    training = os.fork()
    if not training:
        with occupied(str(tmp_path)):
            if not os.fork():  # a worker, which lives on
                os.write(start, b'.')
                os.close(write)
                os.read(read, 1)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
    try:
        os.waitpid(training, 0)
        os.read(started, 1)
        assert warnings_while_held(tmp_path) == []
    finally:
        os.close(write)


def test_a_child_that_outlives_the_training_holds_nothing(tmp_path):
    read, write = os.pipe()
    with occupied(str(tmp_path)):
        child = os.fork()
        if not child:  # a worker that feeds the training, say
            os.close(write)
            os.read(read, 1)
            os._exit(0)
    try:
        assert warnings_while_held(tmp_path) == []
    finally:
        os.close(write)
        os.waitpid(child, 0)
        os.close(read)


@pytest.mark.parametrize('error', [OSError(95, 'not supported'), OSError(37, 'no locks')])
def test_where_there_are_no_locks_nothing_is_said(tmp_path, monkeypatch, error):
    def flock(*args):
        raise error

    monkeypatch.setattr(fcntl, 'flock', flock)
    assert warnings_of(tmp_path) == []


def test_a_logdir_that_cannot_be_made_is_for_others_to_tell(tmp_path):
    (tmp_path / 'slimguard').write_text('in the way')
    assert warnings_while_held(tmp_path) == []


def test_it_leaves_nothing_behind(tmp_path):
    before = len(os.listdir('/proc/self/fd')) if os.path.isdir('/proc/self/fd') else 0
    with occupied(str(tmp_path)):
        assert os.listdir(str(tmp_path / 'slimguard')) == []
    if before:
        assert len(os.listdir('/proc/self/fd')) == before
    assert os.listdir(str(tmp_path / 'slimguard')) == []

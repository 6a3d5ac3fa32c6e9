"""A nearly full disk: no bundle takes the room that a checkpoint needs."""

import contextlib
import os
import shutil
import subprocess

import pytest
import tensorflow as tf

import slimguard
from slimguard.diagnosis import bundle
from slimguard.system import files
from tests.helpers.models import Batches, LogLines, checkpoint_at, records_in, train_quietly

tf1 = tf.compat.v1

MEGABYTE = 1 << 20


class Large:
    """A linear model whose weights take about three megabytes; each batch in `bad` is NaN."""

    def __init__(self, bad):
        self.batches = Batches(bad)
        self.step = tf1.train.get_or_create_global_step()
        weights = tf1.get_variable('w', [3, 250000], initializer=tf1.ones_initializer())
        output = tf.matmul(self.batches.x, weights)
        self.loss = tf.reduce_mean(tf.square(output - 1.0))
        optimizer = tf1.train.GradientDescentOptimizer(0.05)
        self.train_op = slimguard.create_train_op(self.loss, optimizer)


def fill(folder, leave, free_bytes=files.free_bytes):
    """Fills a disk up to the last `leave` bytes."""
    with open(str(folder / 'of somebody else'), 'ab') as file:
        while free_bytes(str(folder)) > leave:
            file.write(b'x' * min(1 << 16, free_bytes(str(folder)) - leave))
            file.flush()


@pytest.fixture
def disk(tmp_path):
    """A file system of sixteen megabytes."""
    if shutil.which('mount') is None:
        pytest.skip('there is no mount')
    command = ['mount', '-t', 'tmpfs', '-o', 'size=16m', 'tmpfs', str(tmp_path)]
    if subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
        pytest.skip('a file system of its own takes the right to mount one')
    yield tmp_path
    subprocess.run(['umount', '-l', str(tmp_path)], check=True)


def said(lines, words):
    return [line for line in lines if words in line]


@pytest.mark.full
@pytest.mark.parametrize('megabytes, count', [(6, 0), (12, 1)])
def test_a_bundle_leaves_room_for_two_checkpoints(tmp_path, monkeypatch, megabytes, count):
    monkeypatch.setattr(files, 'free_bytes', lambda path: megabytes * MEGABYTE)
    with LogLines() as lines:
        train_quietly(Large(bad=(1,)).train_op, tmp_path, on_nan='skip', number_of_steps=2)
    assert len(bundle.paths(str(tmp_path))) == count
    told = said(lines, 'the bundle could not be written')
    assert bool(told) != count
    if told:
        assert 'it takes 3.' in told[0] and 'Make room there' in told[0]


@pytest.mark.full
def test_a_bundle_that_fails_all_the_same_costs_neither_training_nor_checkpoint(disk, monkeypatch):
    monkeypatch.setattr(files, 'free_bytes', lambda path: None)  # as some network's disks say
    model, left = Large(bad=(1, 2)), []

    class Crowded(slimguard.NanLossHook):
        """Removes the other file that fills the disk, after the first bad step."""

        def on_nan_loss(self, run_context, incident):
            left.append(os.listdir(str(disk / 'slimguard')))
            with contextlib.suppress(FileNotFoundError):
                os.remove(str(disk / 'of somebody else'))

    fill(disk, 2 * MEGABYTE)
    with LogLines() as lines:
        train_quietly(model.train_op, disk, hooks=[Crowded(model.loss, on_nan='skip')])
    assert checkpoint_at(disk) == (6, [])
    assert len(said(lines, 'the bundle could not be written')) == 1
    assert sorted(left[0]) == ['incidents.jsonl', 'lock']
    (path,) = bundle.paths(disk)
    assert [record['bundle'] for record in records_in(disk)] == [None, path]


@pytest.mark.full
def test_without_bundles_the_error_is_tensorflows(disk):
    model = Large(bad=())
    fill(disk, MEGABYTE)
    with LogLines() as lines, pytest.raises(tf.errors.ResourceExhaustedError) as caught:
        train_quietly(model.train_op, disk)
    assert 'No space left on device' in caught.value.message
    assert len(said(lines, 'could not be written')) == 1


def test_what_is_left_of_a_save_that_failed_is_removed(disk):
    """TensorFlow leaves parts of the graph and of the checkpoint; of the state file some bytes."""
    tf1.get_variable('w', [250000])
    saver = slimguard.FiniteSaver(max_to_keep=None)
    path = str(disk / 'm')
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        saver.save(session, path, 1)
        for room in (200, 800, 980, 984, 988, 992, 996, 1000, 1004):
            fill(disk, room * 1024)
            before = set(os.listdir(str(disk)))
            for step in (1, 2):
                with contextlib.suppress(tf.errors.ResourceExhaustedError):
                    saver.save(session, path, step)
                    continue
                left = set(os.listdir(str(disk))) - before
                left = {name for name in left if not name.startswith('checkpoint.tmp')}
                assert not [name for name in left if 'temp' in name or '.tmp' in name]
            for name in set(os.listdir(str(disk))) - before:
                os.remove(str(disk / name))
            os.remove(str(disk / 'of somebody else'))

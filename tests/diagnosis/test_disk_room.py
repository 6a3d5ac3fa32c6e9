"""A nearly full disk: a bundle never costs a checkpoint."""

import contextlib
import os
import re
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


class Crowded(slimguard.NanLossHook):
    """Somebody else fills the disk once the bundle of the last bad step is written."""

    def __init__(self, loss, on_nan, disk, last):
        slimguard.NanLossHook.__init__(self, loss, on_nan=on_nan)
        self._crowd = disk, last

    def on_nan_loss(self, run_context, incident):
        disk, last = self._crowd
        if incident.step == last:
            fill(disk, MEGABYTE)
        slimguard.NanLossHook.on_nan_loss(self, run_context, incident)


def fill(folder, leave):
    """Leaves so many bytes of a disk free."""
    with open(str(folder / 'of somebody else'), 'ab') as file:
        while files.free_bytes(str(folder)) > leave:
            file.write(b'x' * min(1 << 16, files.free_bytes(str(folder)) - leave))
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


def test_a_bundle_that_would_take_the_last_checkpoints_room_is_not_written(disk):
    fill(disk, 5 * MEGABYTE)  # one of the two, and not both
    model = Large(bad=(1, 2, 3))
    with LogLines() as lines:
        train_quietly(model.train_op, disk, on_nan='skip')
    assert checkpoint_at(disk) == (6, [])
    assert bundle.paths(str(disk)) == []
    assert [record['bundle'] for record in records_in(disk)] == [None] * 3
    (line,) = said(lines, 'no bundle is written')
    # What was free, but for what the training's summaries have taken of it.
    assert re.search(r'it takes about 3\.0 MB, and of the (5\.\d|4\.9) MB', line)
    assert 'next checkpoint may need 4.' in line
    assert 'Make room there' in line
    assert said(lines, 'for lack of room 2 incidents more have no bundle')


def test_it_is_written_where_both_find_room(disk):
    fill(disk, 9 * MEGABYTE)
    model = Large(bad=(1,))
    train_quietly(model.train_op, disk, on_nan='skip')
    assert checkpoint_at(disk) == (6, [])
    assert len(bundle.paths(str(disk))) == 1


def bundle_of_another(logdir):
    """A bundle that somebody else wrote: the oldest, since it does not tell its time."""
    path = logdir / 'slimguard' / 'incident-7'
    path.mkdir(parents=True)
    (path / 'incident.json').write_text('{}')
    return path


def test_the_oldest_bundles_of_this_training_give_way_to_a_checkpoint(disk):
    others = bundle_of_another(disk)
    model = Large(bad=(1, 3, 5))
    hook = Crowded(model.loss, 'skip', disk, last=3)
    with LogLines() as lines:
        train_quietly(model.train_op, disk, hooks=[hook])
    assert checkpoint_at(disk) == (6, [])
    # One is as large as the values of a checkpoint, and the graph has to find room as well.
    first, second, third = [record['bundle'] for record in records_in(disk)]
    assert bundle.paths(str(disk)) == [str(others), third]
    (line,) = said(lines, 'gave way to checkpoint')
    assert line == (
        'slimguard: the bundles %s, %s of this training gave way to checkpoint %s, which had no '
        'room; saving it once more.' % (first, second, disk / 'model.ckpt-6')
    )
    assert lines[-1] == 'slimguard: checkpoint %s is written.' % (disk / 'model.ckpt-6')
    assert [incident.bundle for incident in hook.incidents] == [None, None, third]


def test_an_error_no_longer_names_a_bundle_that_gave_way(disk):
    model = Large(bad=(2,))
    hook = Crowded(model.loss, 'raise', disk, last=2)
    with LogLines() as lines, pytest.raises(slimguard.NanLossError) as caught:
        train_quietly(model.train_op, disk, hooks=[hook])
    assert checkpoint_at(disk) == (2, [])
    assert said(lines, 'gave way to checkpoint') and bundle.paths(str(disk)) == []
    assert 'in row 1' in str(caught.value) and 'replay' not in str(caught.value)
    (record,) = records_in(disk)
    assert record['action'] == 'raise'


def test_where_that_is_not_enough_the_error_says_what_was_done(disk):
    model = Large(bad=(2,))
    hook = Crowded(model.loss, 'skip', disk, last=2)

    class TakesAll(tf1.train.SessionRunHook):
        """Somebody else takes the room that the bundle leaves, too."""

        def end(self, session):
            path = hook.incidents[0].bundle
            large = [os.path.join(path, name) for name in os.listdir(path)]
            for name in large:
                os.link(name, str(disk / os.path.basename(name)))

    with pytest.raises(tf.errors.ResourceExhaustedError) as caught:
        train_quietly(model.train_op, disk, hooks=[hook, TakesAll()])
    assert 'No space left on device; slimguard had removed the bundle' in caught.value.message
    assert not [name for name in os.listdir(str(disk)) if name.startswith('model.ckpt-6')]


def test_without_bundles_the_error_is_tensorflows(disk):
    model = Large(bad=())
    fill(disk, MEGABYTE)
    with LogLines() as lines, pytest.raises(tf.errors.ResourceExhaustedError) as caught:
        train_quietly(model.train_op, disk)
    assert 'No space left on device' in caught.value.message
    assert 'to make room' not in caught.value.message
    assert len(said(lines, 'could not be written')) == 1


# Without a disk of its own.


@pytest.mark.parametrize('megabytes, count', [(6, 0), (9, 1), (None, 1)])
def test_what_the_file_system_says_decides(tmp_path, monkeypatch, megabytes, count):
    free = None if megabytes is None else megabytes * MEGABYTE
    monkeypatch.setattr(files, 'free_bytes', lambda path: free)
    model = Large(bad=(1,))
    train_quietly(model.train_op, tmp_path, on_nan='skip')
    assert len(bundle.paths(str(tmp_path))) == count


def test_bundles_on_another_disk_take_no_checkpoints_room(tmp_path, monkeypatch):
    monkeypatch.setattr(files, 'free_bytes', lambda path: 0)
    monkeypatch.setattr(files, 'is_same_disk', lambda path, other: False)
    model = Large(bad=(1,))
    train_quietly(model.train_op, tmp_path, on_nan='skip')
    assert len(bundle.paths(str(tmp_path))) == 1


class FullOnce(tf1.train.Saver):
    """A Saver whose disk is full when it saves for the first time: after that, `then`."""

    def __init__(self, error, then=None):
        tf1.train.Saver.__init__(self)
        self._errors = [error, then]

    def save(self, *args, **kwargs):
        error = self._errors.pop(0) if self._errors else None
        if error is not None:
            raise error
        return tf1.train.Saver.save(self, *args, **kwargs)


NO_ROOM = tf.errors.ResourceExhaustedError(None, None, 'm-1.index; No space left on device')
QUOTA = tf.errors.ResourceExhaustedError(None, None, 'm-1.index; Disk quota exceeded')
NO_MEMORY = tf.errors.ResourceExhaustedError(None, None, 'OOM when allocating tensor')


def train_with(saver_error, logdir):
    model = Large(bad=(1,))
    saver = FullOnce(saver_error)
    hook = slimguard.NanLossHook(model.loss, on_nan='skip')
    train_quietly(model.train_op, logdir, saver=saver, hooks=[hook])
    return hook.incidents


@pytest.mark.parametrize('error', [NO_ROOM, QUOTA], ids=['full', 'quota'])
def test_lack_of_room_is_told_by_tensorflows_message(tmp_path, error):
    (incident,) = train_with(error, tmp_path)
    assert checkpoint_at(tmp_path) == (6, [])
    assert incident.bundle is None and bundle.paths(str(tmp_path)) == []


def test_lack_of_memory_takes_no_bundle(tmp_path):
    with pytest.raises(tf.errors.ResourceExhaustedError, match='OOM'):
        train_with(NO_MEMORY, tmp_path)
    assert len(bundle.paths(str(tmp_path))) == 1


def by_another_folder(path):
    os.rename(path, path + '.kept')
    shutil.copytree(path + '.kept', path)


def by_another_bundle_in_the_folder(path):
    os.utime(os.path.join(path, 'incident.json'), (1.0, 1.0))


@pytest.mark.parametrize('replace', [by_another_folder, by_another_bundle_in_the_folder])
def test_what_somebody_put_in_a_bundles_place_is_not_removed(tmp_path, replace):
    class Replaced(slimguard.NanLossHook):
        def on_nan_loss(self, run_context, incident):
            replace(incident.bundle)

    model = Large(bad=(1,))
    hooks = [Replaced(model.loss)]
    with pytest.raises(tf.errors.ResourceExhaustedError):
        train_quietly(model.train_op, tmp_path, saver=FullOnce(NO_ROOM), hooks=hooks)
    assert len(bundle.paths(str(tmp_path))) == 1


def test_a_saver_lets_go_of_a_training_that_has_ended(tmp_path):
    model = Large(bad=(1,))
    saver = slimguard.FiniteSaver()
    train_quietly(model.train_op, tmp_path, saver=saver, on_nan='skip')
    assert saver.make_room is None


def test_what_is_left_of_a_save_that_failed_is_removed(disk):
    """TensorFlow leaves parts of the state file and of the graph, and where it writes anew."""
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
                assert not [name for name in left if 'temp' in name or '.tmp' in name]
            for name in set(os.listdir(str(disk))) - before:
                os.remove(str(disk / name))
            os.remove(str(disk / 'of somebody else'))

"""Where bundles are: in the order of their incidents, never half there, and on any file system."""

import json
import os
import stat
import tempfile
import time
import uuid

import numpy as np
import pytest
import tensorflow as tf

from slimguard.diagnosis import bundle, replay
from slimguard.diagnosis.bundle import BundleError, folders
from tests.helpers import zoo
from tests.helpers.bundles import hidden, kill_one, write
from tests.helpers.children import forked_python

tf1 = tf.compat.v1

HAS_RAM = tuple(map(int, tf.__version__.split('.')[:2])) >= (2, 12)
needs_ram = pytest.mark.skipif(not HAS_RAM, reason='TensorFlow has ram:// from 2.12 on')


@pytest.fixture
def ram():
    return 'ram://%s/logs' % uuid.uuid4().hex


# The order, and what goes.


def put_bundle(logdir, name, **said):
    """The beginnings of a bundle: as much as the order of bundles is told by."""
    folder = logdir / 'slimguard' / name
    folder.mkdir(parents=True)
    (folder / 'incident.json').write_text(json.dumps(said))
    return str(folder)


def test_the_order_is_that_of_the_incidents_whatever_the_files_say(tmp_path):
    names = ['incident-30', 'incident-4', 'incident-4-2', 'incident-unknown']
    made = [put_bundle(tmp_path, n, version=1, time=1e9 + i) for i, n in enumerate(names)]
    for number, path in enumerate(made):
        os.utime(os.path.join(path, 'incident.json'), (4e9 - number, 4e9 - number))
    assert bundle.paths(str(tmp_path)) == made


def test_bundles_of_the_first_version_tell_their_time_too(tmp_path):
    late = {'step': 1, 'reason': 'not "time": 5 yet', 'tensors': ['time'] * 1000, 'time': 2e9}
    old = put_bundle(tmp_path, 'incident-2', version=1, time=1.5e9)
    new = put_bundle(tmp_path, 'incident-1', version=1, versions={}, incident=late)
    assert bundle.paths(str(tmp_path)) == [old, new]


@pytest.mark.parametrize(
    'content', [b'', b'\xff\xfe', b'[' * 9, b'{"time": "NaN"}', b'"time": 9e9']
)
def test_what_does_not_tell_its_time_is_the_oldest(tmp_path, content):
    good = put_bundle(tmp_path, 'incident-1', version=1, time=1.0)
    bad = put_bundle(tmp_path, 'incident-2')
    with open(os.path.join(bad, 'incident.json'), 'wb') as file:
        file.write(content)
    assert bundle.paths(str(tmp_path)) == [bad, good]


def test_the_one_just_written_stays_even_among_bundles_of_the_future(tmp_path):
    later = [
        put_bundle(tmp_path, 'incident-%d' % step, version=1, time=9e9 + step) for step in (7, 8)
    ]
    path = write(zoo.failed('log_of_zero'), tmp_path, max_bundles=2)
    assert bundle.paths(str(tmp_path)) == [path, later[1]]
    assert not os.path.exists(later[0])
    assert bundle.read(path).text


def test_what_is_not_ours_is_never_removed(tmp_path):
    elsewhere = tmp_path / 'elsewhere'
    put_bundle(elsewhere, 'incident-1', version=1, time=1.0)
    ours = put_bundle(tmp_path, 'incident-2', version=1, time=2.0)
    noted = put_bundle(tmp_path, 'incident-3', version=1, time=3.0)
    (tmp_path / 'slimguard' / 'incident-3' / 'notes.txt').write_text('mine')
    link = tmp_path / 'slimguard' / 'incident-1'
    os.symlink(str(elsewhere / 'slimguard' / 'incident-1'), str(link))
    path = write(zoo.failed('log_of_zero'), tmp_path, max_bundles=1)
    # The link is shown, and neither counted nor followed.
    assert bundle.paths(str(tmp_path)) == [str(link), path]
    assert bundle.own_paths(str(tmp_path)) == [path]
    assert (elsewhere / 'slimguard' / 'incident-1' / 'incident.json').exists()
    assert not os.path.exists(ours)
    assert os.listdir(noted) == ['notes.txt']


def test_a_name_that_is_taken_by_anything_is_not_used(tmp_path):
    parent = tmp_path / 'slimguard'
    parent.mkdir()
    os.symlink('nowhere', str(parent / 'incident-1'))
    (parent / 'incident-1-2').write_text('a file')
    path = write(zoo.failed('log_of_zero'), tmp_path)
    assert os.path.basename(path) == 'incident-1-3'
    assert os.readlink(str(parent / 'incident-1')) == 'nowhere'


@pytest.mark.parametrize('mask', [0o022, 0o077])
def test_the_umask_says_who_may_read_it(tmp_path, mask):
    before = os.umask(mask)
    try:
        path = write(zoo.failed('log_of_zero'), tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o777 & ~mask
    assert stat.S_IMODE(os.stat(os.path.join(path, 'incident.json')).st_mode) == 0o666 & ~mask


TIDY = 'import sys; from slimguard.diagnosis import bundle; bundle.remove_abandoned(sys.argv[1])'


def test_what_a_killed_process_left_goes_at_once_and_what_is_being_written_stays(tmp_path):
    left = kill_one(tmp_path)
    with folders.Making(str(tmp_path / 'slimguard')) as making:
        for tidy_up in (bundle.remove_abandoned, lambda logdir: forked_python('-c', TIDY, logdir)):
            tidy_up(str(tmp_path))
            assert not left.exists()
            assert hidden(tmp_path) == [os.path.basename(making.path)]
    assert hidden(tmp_path) == []


def age(folder, seconds):
    for path in [folder, *folder.iterdir()]:
        os.utime(str(path), (time.time() - seconds, time.time() - seconds))


@pytest.mark.parametrize('where', ['another machine', 'the first version', 'no locks'])
def test_what_no_lock_can_tell_about_stays_for_a_day(tmp_path, where):
    left = kill_one(tmp_path)
    if where == 'another machine':
        left = left.rename(left.with_name('.making-0123456789ab-' + uuid.uuid4().hex))
    else:
        (left / 'lock').unlink()
    if where == 'the first version':
        left = left.rename(left.with_name('.making-a1b2c3d4'))
    left = tmp_path / 'slimguard' / hidden(tmp_path)[0]
    age(left, 20 * 3600)
    bundle.remove_abandoned(str(tmp_path))
    assert left.exists()
    age(left, 25 * 3600)
    # What was written last counts.
    os.utime(str(left / 'step.pb'))
    bundle.remove_abandoned(str(tmp_path))
    assert left.exists()
    age(left, 25 * 3600)
    bundle.remove_abandoned(str(tmp_path))
    assert os.listdir(str(tmp_path / 'slimguard')) == []


def test_a_link_or_a_fifo_of_such_a_name_is_left_alone(tmp_path):
    outside = tmp_path / 'outside'
    outside.mkdir()
    (outside / 'kept').write_text('')
    parent = tmp_path / 'slimguard'
    parent.mkdir()
    name = '.making-%s-' % folders._kernel()
    os.symlink(str(outside), str(parent / (name + 'link')))
    os.mkfifo(str(parent / (name + 'fifo')))
    (parent / (name + 'folder')).mkdir()
    os.mkfifo(str(parent / (name + 'folder') / 'lock'))
    bundle.remove_abandoned(str(tmp_path))
    assert len(hidden(tmp_path)) == 3
    assert (outside / 'kept').exists()


# Other file systems.


def test_a_url_of_this_machine_is_a_path_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write(zoo.failed('log_of_zero'), 'file://%s/logs' % tmp_path)
    assert path == str(tmp_path / 'logs' / 'slimguard' / 'incident-1')
    assert bundle.paths('file://%s/logs' % tmp_path) == [path]
    assert bundle.read('file://' + path).path == path
    assert replay.main('file://' + path) == 0
    assert os.listdir(str(tmp_path)) == ['logs']


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Where temporary files of this process go; it has to be empty in the end."""
    folder = tmp_path / 'temporary'
    folder.mkdir()
    monkeypatch.setattr(tempfile, 'tempdir', str(folder))
    yield folder
    assert os.listdir(str(folder)) == []


@needs_ram
def test_a_remote_bundle_is_written_read_and_replayed(
    tmp_path, ram, monkeypatch, temporary, capsys
):
    monkeypatch.chdir(tmp_path)
    failed = zoo.failed('a_pixel_that_relu_swallows')
    path = write(failed, ram)
    assert path == ram + '/slimguard/incident-1'
    assert bundle.paths(ram) == [path]
    assert not [name for name in tf.io.gfile.listdir(path) if 'making' in name]
    it = bundle.read(path)
    assert it.path == path and it.diagnosis['rows'] == [5]
    for name, value in failed.values.items():
        np.testing.assert_array_equal(it.values[name], value)
    # The copy on this machine holds no variables before they are asked for, and then all.
    (copy,) = os.listdir(str(temporary))
    assert sorted(os.listdir(str(temporary / copy))) == [
        'drawn.npz',
        'incident.json',
        'state.index',
        'step.pb',
    ]
    values = {n: v for part in it.variables(['w', 'global_step']) for n, v in part.items()}
    np.testing.assert_array_equal(values['w'], failed.session.run('w/Read/ReadVariableOp:0'))
    assert len(os.listdir(str(temporary / copy))) == 5
    del it
    assert os.listdir(str(temporary)) == []
    assert replay.main(path) == 0
    assert 'The failure came back' in capsys.readouterr().out
    assert os.listdir(str(tmp_path)) == ['temporary']


def test_a_name_that_is_on_record_is_given_to_no_other_bundle(tmp_path):
    failed = zoo.failed('log_of_zero')
    made = [write(failed, tmp_path, step=1, max_bundles=1) for _ in range(3)]
    names = [os.path.basename(path) for path in made]
    assert names == ['incident-1', 'incident-1-2', 'incident-1-3']
    assert bundle.paths(tmp_path) == made[2:]


@needs_ram
def test_remote_bundles_are_numbered_and_the_oldest_goes(ram, temporary):
    failed = zoo.failed('log_of_zero')
    made = [write(failed, ram, step=step, max_bundles=2) for step in (1, 1, 7)]
    assert [os.path.basename(path) for path in made] == [
        'incident-1',
        'incident-1-2',
        'incident-7',
    ]
    assert bundle.paths(ram) == made[1:]
    assert not tf.io.gfile.exists(made[0] + '/step.pb')


@needs_ram
def test_a_remote_bundle_is_seen_when_it_is_whole_and_not_before(ram, monkeypatch, temporary):
    seen, copy = [], tf.io.gfile.copy

    def copy_and_look(*args, **kwargs):
        copy(*args, **kwargs)
        seen.append((os.path.basename(args[1]), bundle.paths(ram)))

    monkeypatch.setattr(tf.io.gfile, 'copy', copy_and_look)
    path = write(zoo.failed('log_of_zero'), ram)
    names = ['drawn.npz', 'state.data-00000-of-00001', 'state.index', 'step.pb']
    assert seen == [(name, []) for name in names]
    assert bundle.paths(ram) == [path]


@needs_ram
def test_a_remote_bundle_that_could_not_be_finished_leaves_nothing(ram, monkeypatch, temporary):
    copy = tf.io.gfile.copy

    def full(source, target):
        if target.endswith('state.index'):
            raise tf.errors.ResourceExhaustedError(None, None, 'no space left')
        copy(source, target)

    monkeypatch.setattr(tf.io.gfile, 'copy', full)
    with pytest.raises(tf.errors.ResourceExhaustedError, match='no space left'):
        write(zoo.failed('log_of_zero'), ram)
    assert bundle.paths(ram) == []
    assert folders._parts(ram + '/slimguard/incident-1') == []


@needs_ram
def test_two_that_write_at_once_take_two_remote_folders(ram, monkeypatch, temporary):
    lay, others = folders._lay, ram + '/slimguard/incident-1/making-%d-' % time.time()

    def lay_after_another(path, claim):
        if path.endswith('incident-1'):
            put_remotely(others + 'a' * 32)
        return lay(path, claim)

    monkeypatch.setattr(folders, '_lay', lay_after_another)
    assert os.path.basename(write(zoo.failed('log_of_zero'), ram)) == 'incident-1-2'
    # The other's claim stands, and only it.
    assert folders._parts(ram + '/slimguard/incident-1') == [os.path.basename(others) + 'a' * 32]


def put_remotely(path, content='x'):
    tf.io.gfile.makedirs(os.path.dirname(path))
    with tf.io.gfile.GFile(path, 'w') as file:
        file.write(content)


@needs_ram
def test_what_a_killed_process_left_remotely_goes_after_a_day(ram):
    for name, hours in (('incident-1', 25), ('incident-2', 20)):
        folder = ram + '/slimguard/' + name
        put_remotely(folder + '/step.pb')
        put_remotely(folder + '/making-%d-%s' % (time.time() - hours * 3600, 'b' * 32))
    whole = ram + '/slimguard/incident-3'
    put_remotely(whole + '/incident.json', '{}')
    put_remotely(whole + '/making-1-' + 'c' * 32)
    bundle.remove_abandoned(ram)
    left = [len(folders._parts(ram + '/slimguard/incident-%d' % n)) for n in (1, 2, 3)]
    assert left == [0, 2, 2]


@needs_ram
@pytest.mark.parametrize(
    'name, content, says',
    [
        ('incident.json', None, r'no file incident\.json'),
        ('drawn.npz', None, r'no file drawn\.npz'),
        ('state.data-00000-of-00001', None, r'no file state\.data'),
        ('step.pb', '\1\1', r'step\.pb is damaged'),
        ('state.index', 'noise', r'state\.index is damaged'),
    ],
)
def test_a_damaged_remote_bundle_is_an_error(ram, temporary, name, content, says):
    path = write(zoo.failed('log_of_zero'), ram)
    tf.io.gfile.remove(os.path.join(path, name))
    if content is not None:
        put_remotely(os.path.join(path, name), content)
    with pytest.raises(BundleError, match=says):
        bundle.read(path)


@needs_ram
def test_a_remote_file_is_measured_before_it_is_copied(ram, monkeypatch, temporary):
    from slimguard.diagnosis.bundle import files

    path = write(zoo.failed('log_of_zero'), ram)
    monkeypatch.setitem(files._MOST_BYTES, 'step.pb', 100)
    with pytest.raises(BundleError, match=r'step\.pb is damaged: larger than 100 bytes'):
        bundle.read(path)
    with pytest.raises(BundleError, match='there is no bundle'):
        bundle.read(ram + '/nothing')

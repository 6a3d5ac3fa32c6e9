"""The bundles of a log directory: in the order of their incidents, never half-written, anywhere."""

import json
import os
import uuid

import numpy as np
import pytest
import tensorflow as tf

from slimguard.diagnosis import bundle, replay
from slimguard.diagnosis.bundle import BundleError
from tests.helpers import zoo
from tests.helpers.bundles import variables_of, write

tf1 = tf.compat.v1

HAS_RAM = tuple(map(int, tf.__version__.split('.')[:2])) >= (2, 12)
needs_ram = pytest.mark.skipif(not HAS_RAM, reason='TensorFlow has ram:// from 2.12 on')


@pytest.fixture
def ram():
    return 'ram://%s/logs' % uuid.uuid4().hex


@pytest.fixture(scope='module')
def failed():
    with tf.Graph().as_default():
        yield zoo.failed('log_of_zero')


# The order, and which bundles are removed.


def put_bundle(logdir, name, **said):
    """Makes a bundle of nothing but incident.json, from which the order of bundles is read."""
    folder = logdir / 'slimguard' / name
    folder.mkdir(parents=True)
    (folder / 'incident.json').write_text(json.dumps(said))
    return str(folder)


def test_the_order_is_that_of_the_incidents_whatever_the_files_say(tmp_path):
    names = ['step-30', 'step-4', 'step-4-2', 'step-unknown']
    made = [put_bundle(tmp_path, n, version=2, time=1e9 + i) for i, n in enumerate(names)]
    untold = put_bundle(tmp_path, 'step-50', version=2, time='NaN')
    for number, path in enumerate([untold] + made):
        os.utime(os.path.join(path, 'incident.json'), (4e9 - number, 4e9 - number))
    assert bundle.paths(str(tmp_path)) == [untold] + made


@pytest.mark.full
def test_the_first_of_each_kind_is_the_last_to_go(failed, tmp_path):
    def write_one(trouble):
        return write(failed, tmp_path, step=1, trouble=trouble, max_bundles=3)

    first, other = write_one('log of 0 (1 of 7 values)'), write_one('overflow')
    again = write_one('log of 0 (3 of 7 values)')
    assert bundle.paths(tmp_path) == [first, other, again]
    third = write_one('log of 0 (5 of 7 values)')
    assert bundle.paths(tmp_path) == [first, other, third]
    fourth = write_one('division by 0')
    assert bundle.paths(tmp_path) == [first, other, fourth]
    # If each is the first of its kind, the oldest is removed.
    fifth = write_one('sqrt of a negative number')
    assert bundle.paths(tmp_path) == [other, fourth, fifth]
    # No bundle gets the name of a removed one.
    paths = (first, other, again, third, fourth, fifth)
    numbers = ['', '-2', '-3', '-4', '-5', '-6']
    assert [os.path.basename(p) for p in paths] == ['step-1' + n for n in numbers]


def test_the_one_just_written_stays_even_among_bundles_of_the_future(failed, tmp_path):
    later = [put_bundle(tmp_path, 'step-%d' % n, version=2, time=9e9 + n) for n in (7, 8)]
    path = write(failed, tmp_path, max_bundles=2)
    assert bundle.paths(str(tmp_path)) == [path, later[1]]
    assert bundle.read(path).text


def test_what_is_not_ours_is_never_removed(failed, tmp_path):
    elsewhere = put_bundle(tmp_path / 'elsewhere', 'step-1', version=2, time=1.0)
    ours = put_bundle(tmp_path, 'step-2', version=2, time=2.0)
    noted = put_bundle(tmp_path, 'step-3', version=2, time=3.0)
    (tmp_path / 'slimguard' / 'step-3' / 'notes.txt').write_text('mine')
    link = tmp_path / 'slimguard' / 'step-1'
    os.symlink(elsewhere, str(link))
    path = write(failed, tmp_path, max_bundles=1)
    assert bundle.paths(str(tmp_path)) == [path] and link.is_symlink()
    assert os.listdir(elsewhere) == ['incident.json']
    assert not os.path.exists(ours)
    assert os.listdir(noted) == ['notes.txt']


def test_half_a_bundle_of_a_killed_process_is_none(failed, tmp_path):
    left = write(failed, tmp_path)
    os.remove(os.path.join(left, 'incident.json'))  # which is written last
    assert bundle.paths(tmp_path) == []
    with pytest.raises(BundleError, match='there is no such file'):
        bundle.read(left)
    whole = write(failed, tmp_path, max_bundles=1)
    assert bundle.paths(tmp_path) == [whole] and os.path.exists(left)


# Other file systems.


def test_a_relative_folder_and_a_url_of_this_machine_are_paths_of_this_machine(
    failed, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    path = write(failed, 'file://%s/logs' % tmp_path)
    assert path == str(tmp_path / 'logs' / 'slimguard' / 'step-1')
    assert bundle.paths('file://%s/logs' % tmp_path) == bundle.paths('logs') == [path]
    assert replay.main('file://' + path) == replay.main('logs/slimguard/step-1') == 0
    it = bundle.read('logs/slimguard/step-1')
    monkeypatch.chdir('/')
    assert it.path == path and variables_of(it)
    assert os.listdir(str(tmp_path)) == ['logs']


@needs_ram
def test_a_remote_bundle_is_written_read_and_replayed(failed, ram, capsys):
    made = [write(failed, ram, step=step, max_bundles=2) for step in (1, 1, 7)]
    assert [os.path.basename(path) for path in made] == ['step-1', 'step-1-2', 'step-7']
    # All are of one kind, so the second was removed.
    assert bundle.paths(ram) == [made[0], made[2]]
    assert not tf.io.gfile.exists(made[1] + '/step.pb')
    it = bundle.read(made[2])
    assert it.path == made[2] and it.incident['step'] == 7
    for name, value in failed.values.items():
        np.testing.assert_array_equal(it.values[name], value)
    np.testing.assert_array_equal(
        variables_of(it)['w'], failed.session.run('w/Read/ReadVariableOp:0')
    )
    assert replay.main(made[2]) == 0
    assert 'The failure came back' in capsys.readouterr().out


@needs_ram
def test_a_damaged_remote_bundle_is_an_error_and_half_a_one_is_none(failed, ram):
    path = write(failed, ram)
    tf.io.gfile.remove(path + '/drawn.npz')
    with pytest.raises(BundleError, match=r'drawn\.npz cannot be read: there is no such file'):
        bundle.read(path)
    with tf.io.gfile.GFile(path + '/drawn.npz', 'wb') as file:
        file.write(b'noise' * 100)
    with pytest.raises(BundleError, match=r'drawn\.npz cannot be read: BadZipFile'):
        bundle.read(path)
    tf.io.gfile.remove(path + '/incident.json')
    assert bundle.paths(ram) == []

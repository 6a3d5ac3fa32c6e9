"""The bundle: complete, readable elsewhere, and an error where it cannot be read."""

import json
import os
import shutil
import zipfile

import numpy as np
import pytest
import tensorflow as tf

from slimguard.diagnosis import bundle, replay
from slimguard.diagnosis.bundle import BundleError, arrays, reading
from slimguard.diagnosis.rerun_step import Step
from slimguard.system import files
from tests.helpers import zoo
from tests.helpers.bundles import variables_of, write

tf1 = tf.compat.v1


def test_it_holds_what_the_step_drew_the_graph_the_state_and_the_diagnosis(tmp_path):
    failed = zoo.failed('a_pixel_that_relu_swallows')
    path = write(failed, tmp_path)
    assert path == str(tmp_path / 'slimguard' / 'step-1')
    assert bundle.paths(str(tmp_path)) == [path]
    assert os.listdir(str(tmp_path / 'slimguard')) == ['step-1']
    found = bundle.read(path)
    assert found.incident['step'] == 1
    assert found.diagnosis['non_finite']['rows'] == [5]
    assert 'in row 5' in found.text
    assert found.diagnosis['ranges'][-1]['range']['shape'] is not None
    for name, value in failed.values.items():
        np.testing.assert_array_equal(found.values[name], value)
    weights = failed.session.run('w/Read/ReadVariableOp:0')
    assert sorted(variables_of(found)) == ['global_step', 'w']
    np.testing.assert_array_equal(variables_of(found)['w'], weights)
    # As the docs say to read it, without slimguard.
    with np.load(os.path.join(path, 'state.npz'), allow_pickle=False) as state:
        np.testing.assert_array_equal(state['w'], weights)


@pytest.mark.full
def test_variables_that_numpy_has_no_dtype_for_are_in_the_replay_too(tmp_path):
    half = tf1.get_variable('half', initializer=tf.constant([1.5, 3e38], tf.bfloat16))
    words = tf1.get_variable('words', initializer=tf.constant(['a', '', 'caf\u00e9']))
    lengths = tf1.strings.length(tf.identity(words))
    with tf1.variable_scope('parts', partitioner=tf1.fixed_size_partitioner(2)):
        parts = tf1.get_variable('v', [5], initializer=tf1.ones_initializer())
    total = tf.reduce_sum(tf.identity(parts)) + tf.cast(lengths[2] - 4, tf.float32)
    loss = total * tf.cast(half[0], tf.float32) * zoo.batches(zoo.put(np.nan, 0))[0, 0]
    train = tf1.train.GradientDescentOptimizer(0.01).minimize(loss, var_list=list(parts))
    failed = zoo.Failed(loss, lambda: train)
    before = failed.session.run(failed.capture.reads)
    it = bundle.read(write(failed, tmp_path))
    assert set(variables_of(it)) == {
        *('half', 'words', 'parts/v/part_0', 'parts/v/part_1', 'global_step')
    }
    for name, value in variables_of(it).items():
        assert value.dtype == before[name].dtype and value.tolist() == before[name].tolist()
    with Step(it.exported, it.variables, it.values) as step:
        assert replay.replay(step).came_back


ARRAYS = [
    np.array([b'a', b'', b'\x00bc'], object).reshape(3, 1),
    np.array(b'one', object),
    np.array([], np.float32).reshape(0, 4),
    np.array(True),
    np.array([1 + 2j, np.nan], np.complex64),
    np.arange(6, dtype=np.uint16).reshape(2, 3)[:, ::2],
    np.array([-3, 4], np.int8).view(tf.qint8.as_numpy_dtype),
] + [
    np.array([1, 1.5]).astype(getattr(tf.dtypes, name).as_numpy_dtype).reshape(2, 1)
    for name in ('bfloat16', 'float16', 'float8_e5m2', 'float8_e4m3fn', 'int4')
    if hasattr(tf.dtypes, name)
]


def test_arrays_of_every_dtype_come_back_bit_for_bit(tmp_path):
    path = str(tmp_path / 'drawn.npz')
    given = {'x/%d:0' % number: value for number, value in enumerate(ARRAYS)}
    given['one:0'] = np.array(1.5).astype(tf.bfloat16.as_numpy_dtype)
    with open(path, 'wb') as file:
        dtypes = arrays.save(file, given.items())
    np.load(path, allow_pickle=False).close()
    with zipfile.ZipFile(path) as archive:
        for name, value in given.items():
            again = arrays.load(archive, name, json.loads(json.dumps(dtypes))[name])
            assert (again.shape, again.dtype) == (value.shape, value.dtype)
            assert again.tolist() == value.tolist() or again.tobytes() == value.tobytes()


def test_one_that_could_not_be_finished_is_not_there(tmp_path, monkeypatch):
    def full(path, content):
        assert len(os.listdir(os.path.dirname(path))) == 3 and bundle.paths(tmp_path) == []
        raise OSError('no space left')

    monkeypatch.setattr(files, 'write_atomically', full)
    with pytest.raises(OSError, match='no space left'):
        write(zoo.failed('log_of_zero'), tmp_path)
    assert os.listdir(str(tmp_path / 'slimguard')) == []


def test_one_that_would_be_too_large_is_not_written_and_not_read(tmp_path, monkeypatch):
    failed = zoo.failed('log_of_zero')
    path = write(failed, tmp_path)
    monkeypatch.setattr(reading, 'MOST_BYTES', 2000)
    with pytest.raises(BundleError, match=r'would have \d.* MB, and the most is 0\.0 MB'):
        write(failed, tmp_path / 'another')
    assert not (tmp_path / 'another').exists()
    with pytest.raises(BundleError, match=r'incident\.json cannot be read: it has .* more than'):
        bundle.read(path)


# Bundles that cannot be read.


@pytest.fixture(scope='module')
def sound(tmp_path_factory):
    """A bundle to damage copies of."""
    with tf.Graph().as_default():
        return write(zoo.failed('a_feed'), tmp_path_factory.mktemp('sound'))


def edit_json(path, change):
    name = os.path.join(path, 'incident.json')
    with open(name) as file:
        said = json.load(file)
    change(said)
    with open(name, 'w') as file:
        file.write(json.dumps(said))


def says(*keys, value):
    def damage(path):
        def change(said):
            for key in keys[:-1]:
                said = said[key]
            said[keys[-1]] = value

        edit_json(path, change)

    return damage


def cut(name, size):
    return lambda path: os.truncate(os.path.join(path, name), size)


def fill(name, content):
    def damage(path):
        with open(os.path.join(path, name), 'wb') as file:
            file.write(content)

    return damage


def replace(name, make):
    def damage(path):
        os.remove(os.path.join(path, name))
        make(os.path.join(path, name))

    return damage


def member(name, change):
    """Packs drawn.npz again; `change` maps the bytes of one of its arrays to other bytes."""

    def damage(path):
        packed = os.path.join(path, 'drawn.npz')
        with zipfile.ZipFile(packed) as old:
            content = {each: old.read(each) for each in old.namelist()}
        content[name + '.npy'] = change(content[name + '.npy'])
        with zipfile.ZipFile(packed, 'w') as new:
            for each, its_bytes in content.items():
                if its_bytes is not None:
                    new.writestr(each, its_bytes)

    return damage


def flip(name, at):
    def damage(path):
        with open(os.path.join(path, name), 'r+b') as file:
            content = file.read()
            at_byte = content.index(b'NUMPY') + at
            file.seek(at_byte)
            file.write(bytes([content[at_byte] ^ 1]))

    return damage


def pickled(_):
    return b"\x93NUMPY\x01\x00F\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(
        80
    )


# Damages that reading a bundle finds. The report shows all bundles but those.
DAMAGES = {
    'truncated npz': cut('drawn.npz', 100),
    'no npz': replace('drawn.npz', lambda path: None),
    'a flipped bit': flip('drawn.npz', 130),
    'a missing array': member('images:0', lambda content: None),
    'a shape without end': member(
        'images:0', lambda it: it.replace(b'(6, 4)', b'(9999999, 4444444)')
    ),
    'pickled objects': member('images:0', pickled),
    'an unknown dtype': says('dtypes', 'images:0', value='float7'),
    'another dtype': says('dtypes', 'images:0', value='int32'),
    'strings of numbers': says('dtypes', 'images:0', value='string'),
    'an unknown source': says('step', 'sources', value={}),
    'truncated json': cut('incident.json', 100),
    'deep json': fill('incident.json', b'[' * 100000),
    'json of a list': fill('incident.json', b'[]'),
    'another version': says('version', value=1),
    'no variables': says('step', 'variables', value=None),
    'truncated graph': cut('step.pb', 1000),
    'no graph': replace('step.pb', lambda path: None),
    'truncated state': cut('state.npz', 200),
    'a variable that is not there': says('step', 'variables', 'v', value='float32'),
    'a FIFO': replace('step.pb', os.mkfifo),
    'a folder': replace('state.npz', os.mkdir),
}
# Damages that only running the step finds.
DAMAGES_OF_THE_STEP = {
    'a variable of another dtype': says('step', 'variables', 'w', value='int8'),
    'a flipped bit of the state': flip('state.npz', 130),
    'another placeholder': says('step', 'sources', 'images:0', value=['nobody', 'Placeholder']),
    'a source of numbers': says('step', 'sources', 'images:0', value=[1, 2]),
    'an unknown tensor': says('step', 'bad', value='nobody:0'),
    'another batch than the graph takes': member(
        'images:0', lambda content: content.replace(b'(6, 4)', b'(4, 6)')
    ),
}


@pytest.mark.parametrize('name', [*DAMAGES, *DAMAGES_OF_THE_STEP])
def test_a_damaged_bundle_is_an_error_in_a_sentence(tmp_path, sound, name, capfd):
    path = shutil.copytree(sound, str(tmp_path / 'copy'))
    (DAMAGES.get(name) or DAMAGES_OF_THE_STEP[name])(path)
    if name in DAMAGES:
        with pytest.raises(BundleError, match=r'^(\w+\.\w+) cannot be read: .') as caught:
            bundle.read(path)
        assert len(str(caught.value)) < 700
    assert replay.main(path) == 2
    said = capfd.readouterr().err
    assert 'slimguard: cannot replay %s: ' % path in said
    assert 'Traceback' not in said
    assert os.listdir(str(tmp_path)) == ['copy']

"""The bundle: complete, readable elsewhere, and believed in nothing that it says."""

import json
import os
import shutil
import struct
import tempfile
import zipfile

import numpy as np
import pytest
import tensorflow as tf

from slimguard.diagnosis import bundle
from slimguard.diagnosis.bundle import BundleError, arrays, files
from tests.helpers import zoo
from tests.helpers.bundles import masked_crc, write

tf1 = tf.compat.v1


def test_it_holds_what_the_step_drew_the_graph_the_state_and_the_diagnosis(tmp_path):
    failed = zoo.failed('a_pixel_that_relu_swallows')
    path = write(failed, tmp_path)
    assert path == str(tmp_path / 'slimguard' / 'incident-1')
    assert bundle.paths(str(tmp_path)) == [path]
    assert os.listdir(str(tmp_path / 'slimguard')) == ['incident-1']
    found = bundle.read(path)
    assert found.incident['step'] == 1
    assert found.diagnosis['rows'] == [5]
    assert 'in row 5' in found.text
    assert found.diagnosis['ranges'][-1]['range']['shape'] is not None
    for name, value in failed.values.items():
        np.testing.assert_array_equal(found.values[name], value)
    names = list(found.exported.names['variables'])
    assert sorted(names) == ['global_step', 'w']
    values = {n: v for part in found.variables(names) for n, v in part.items()}
    np.testing.assert_array_equal(values['w'], failed.session.run('w/Read/ReadVariableOp:0'))


def test_the_state_is_a_checkpoint_that_a_saver_restores(tmp_path):
    with tf1.variable_scope('parts', partitioner=tf1.fixed_size_partitioner(2)):
        part = tf1.get_variable('v', [5], initializer=tf1.ones_initializer())
    total = tf.reduce_sum(tf.identity(part))
    failed = zoo.Failed(total * zoo.batches(zoo.put(np.nan, 0))[0, 0])
    path = write(failed, tmp_path)
    expected = failed.session.run([failed.capture.reads[v.op.name] for v in part])
    with tf.Graph().as_default(), tf1.Session() as session:
        with tf1.variable_scope('parts', partitioner=tf1.fixed_size_partitioner(2)):
            again = tf1.get_variable('v', [5], initializer=tf1.zeros_initializer())
        tf1.train.Saver([again]).restore(session, os.path.join(path, 'state'))
        np.testing.assert_array_equal(session.run(list(again)[0]), expected[0])
    names = list(bundle.read(path).exported.names['variables'])
    values = {n: v for p in bundle.read(path).variables(names) for n, v in p.items()}
    np.testing.assert_array_equal(values['parts/v/part_1'], expected[1])


@pytest.mark.parametrize(
    'value',
    [
        np.array([b'a', b'', b'\x00bc'], object).reshape(3, 1),
        np.array([], np.float32).reshape(0, 4),
        np.array(True),
        np.array([1 + 2j, np.nan], np.complex64),
        np.array([1.5, np.inf]).astype(tf.bfloat16.as_numpy_dtype),
        np.arange(6, dtype=np.uint16).reshape(2, 3)[:, ::2],
    ],
    ids=lambda value: str(value.dtype),
)
def test_arrays_of_every_dtype_come_back_bit_for_bit(tmp_path, value):
    said = arrays.save_arrays({'x:0': value}, str(tmp_path / 'drawn.npz'))
    opened = files.Files(str(tmp_path))
    again = arrays.read_arrays(opened, json.loads(json.dumps(said)))['x:0']
    assert again.shape == value.shape
    assert again.dtype == value.dtype
    assert again.tolist() == value.tolist() or again.tobytes() == value.tobytes()


def test_a_second_incident_at_the_same_step_gets_a_number_and_the_oldest_goes(tmp_path):
    failed = zoo.failed('log_of_zero')
    made = []
    for step in [1, 1, None, 7]:
        made.append(write(failed, tmp_path, step=step, max_bundles=3))
    names = [os.path.basename(path) for path in made]
    assert names == ['incident-1', 'incident-1-2', 'incident-1-3', 'incident-7']
    assert bundle.paths(str(tmp_path)) == made[1:]


def test_a_bundle_that_could_not_be_finished_is_not_there(tmp_path, monkeypatch):
    failed = zoo.failed('log_of_zero')

    def full(*args, **kwargs):
        raise OSError('no space left')

    monkeypatch.setattr(np, 'savez', full)
    with pytest.raises(OSError, match='no space left'):
        write(failed, tmp_path)
    assert os.listdir(str(tmp_path / 'slimguard')) == []


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


def cut(name, size):
    def damage(path):
        with open(os.path.join(path, name), 'r+b') as file:
            file.truncate(size)

    return damage


def says(*keys, value):
    def damage(path):
        def change(said):
            for key in keys[:-1]:
                said = said[key]
            said[keys[-1]] = value

        edit_json(path, change)

    return damage


def archive(write_member, compression=zipfile.ZIP_STORED):
    def damage(path):
        name = os.path.join(path, 'drawn.npz')
        with zipfile.ZipFile(name, 'w', compression) as file:
            write_member(file)

    return damage


def pickled(file):
    with file.open('a0.npy', 'w') as member:
        np.lib.format.write_array(member, np.array([{'a': 1}], object), allow_pickle=True)


def header_of(shape, dtype='|u1'):
    header = "{'descr': '%s', 'fortran_order': False, 'shape': %r, }" % (dtype, shape)
    return b'\x93NUMPY\x01\x00' + len(header).to_bytes(2, 'little') + header.encode()


def link(name, target):
    def damage(path):
        os.remove(os.path.join(path, name))
        os.symlink(target, os.path.join(path, name))

    return damage


def remove(name):
    return lambda path: os.remove(os.path.join(path, name))


def fill(name, content):
    def damage(path):
        with open(os.path.join(path, name), 'wb') as file:
            file.write(content)

    return damage


def put_fifo(name):
    def damage(path):
        os.remove(os.path.join(path, name))
        os.mkfifo(os.path.join(path, name))

    return damage


def put_folder(name):
    def damage(path):
        os.remove(os.path.join(path, name))
        os.mkdir(os.path.join(path, name))

    return damage


def noise(file):
    """A compressed member whose content is then overwritten."""
    file.writestr('a0.npy', header_of((10**4,)) + np.random.RandomState(1).bytes(10**4))
    file.fp.seek(200)
    file.fp.write(b'\xff' * 500)
    file.fp.seek(file.start_dir)


def patch_directory(offset, content):
    """Changes what the directory of the arrays says of the first of them."""

    def damage(path):
        with open(os.path.join(path, 'drawn.npz'), 'r+b') as file:
            start = file.read().index(b'PK\x01\x02') + offset
            file.seek(start)
            file.write(content)

    return damage


def npy(header):
    return b'\x93NUMPY\x01\x00' + len(header).to_bytes(2, 'little') + header


def raw_says(old, new):
    def damage(path):
        name = os.path.join(path, 'incident.json')
        with open(name) as file:
            text = file.read()
        assert old in text
        with open(name, 'w') as file:
            file.write(text.replace(old, new, 1))

    return damage


def fill_index(entry):
    """An index that is sound as a table, with a tensor that TensorFlow's reader dies of."""

    def block(*pairs):
        content = b''
        for key, value in pairs:
            content += bytes([0, len(key), len(value)]) + key + value
        content += struct.pack('<LL', 0, 1)
        return content, content + b'\0' + struct.pack('<L', masked_crc(content + b'\0'))

    data, written = block((b'', b'\x08\x01'), (b'w', entry))
    listed, index = block((b'x', bytes([0, len(data)])))
    handles = bytes([0, 0, len(written), len(listed)])
    footer = handles.ljust(40, b'\0') + struct.pack('<Q', 0xDB4775248B80FB57)
    return fill('state.index', written + index + footer)


DAMAGES = {
    'truncated npz': cut('drawn.npz', 100),
    'empty npz': cut('drawn.npz', 0),
    'truncated json': cut('incident.json', 100),
    'truncated graph': cut('step.pb', 1000),
    'no graph': remove('step.pb'),
    'empty graph': cut('step.pb', 0),
    'a graph of noise': fill('step.pb', b'\xff' * 100),
    'truncated index': cut('state.index', 20),
    'truncated state': cut('state.data-00000-of-00001', 4),
    'no state': remove('state.index'),
    'deep json': fill('incident.json', b'[' * 100000),
    'json of a list': fill('incident.json', b'[]'),
    'another version': says('version', value=99),
    'wrong shape': says('arrays', 1, 'shape', value=[6, 5]),
    'negative shape': says('arrays', 1, 'shape', value=[-1, -24]),
    'a huge shape': says('arrays', 1, 'shape', value=[10**12, 10**12]),
    'a shape of words': says('arrays', 1, 'shape', value=['6', '4']),
    'an unknown dtype': says('arrays', 1, 'dtype', value='float7'),
    'another dtype': says('arrays', 1, 'dtype', value='complex128'),
    'two names for one array': lambda path: edit_json(
        path,
        lambda said: said['arrays'][0].update(said['arrays'][1], name=said['arrays'][0]['name']),
    ),
    'a dtype of handles': says('arrays', 1, 'dtype', value='resource'),
    'an unknown array': says('arrays', 1, 'key', value='../a0'),
    'an unknown source': says('arrays', 1, 'name', value='nobody:0'),
    'another placeholder': says('step', 'sources', 'images:0', value=['nobody', 'Placeholder']),
    'a source of numbers': says('step', 'sources', 'images:0', value=[1, 2]),
    'an unknown tensor': says('step', 'bad', value='nobody:0'),
    'a line out of range': says('step', 'origins', 'ops', 'images', value=[10**6, None]),
    'a variable that is not there': says('step', 'variables', 'v', value=['float32', 'v', '']),
    'a variable of another dtype': says('step', 'variables', 'w', value=['int8', 'w', '']),
    'labels of another number': says('step', 'labels', value=[['value', 'x']]),
    'pickled objects': archive(pickled),
    'a compressed bomb': archive(
        lambda file: file.writestr('a0.npy', header_of((10**8,)) + bytes(10**8)),
        zipfile.ZIP_DEFLATED,
    ),
    'a header that asks for a terabyte': archive(
        lambda file: file.writestr('a0.npy', header_of((10**12,)))
    ),
    'a member outside': archive(lambda file: file.writestr('../a0.npy', header_of((0,)))),
    'a link to a device': link('drawn.npz', '/dev/zero'),
    'a link to itself': link('incident.json', 'incident.json'),
    'a FIFO for the graph': put_fifo('step.pb'),
    'a FIFO for the arrays': put_fifo('drawn.npz'),
    'a FIFO for the words': put_fifo('incident.json'),
    'a FIFO for the state': put_fifo('state.data-00000-of-00001'),
    'a folder for the index': put_folder('state.index'),
    'a folder for the words': put_folder('incident.json'),
    'corrupt deflate': archive(noise, zipfile.ZIP_DEFLATED),
    'corrupt LZMA': archive(noise, zipfile.ZIP_LZMA),
    'an encrypted member': patch_directory(8, b'\x01\x00'),
    'a member of another size': patch_directory(24, b'\xff\xff\xff\x7f'),
    'a header that recurses': archive(
        lambda file: file.writestr('a0.npy', npy(b'-' * 60000 + b'1'))
    ),
    'a header that nests': archive(lambda file: file.writestr('a0.npy', npy(b'(' * 60000))),
    'a count of 400 digits': raw_says('"step": 1', '"step": 1' + '0' * 400),
    'a count of 5000 digits': raw_says('"step": 1', '"step": 1' + '0' * 5000),
    'a deep diagnosis': says('diagnosis', 'output', value=json.loads('[' * 90 + ']' * 90)),
    'a shape of 300 dimensions': says('diagnosis', 'output', value={'shape': [1] * 300}),
    'positions without end': says('diagnosis', 'positions', value=[[[0], 'NaN']] * 2000),
    'a long word': says('text', value='x' * (2 << 20)),
    'arrays without end': says('arrays', value=[{}] * 60000),
    'an index that ends the process': fill_index(b'\xff' * 3),
    'an index of a shape that overflows': fill_index(
        b'\x08\x01\x12\x18' + 2 * (b'\x12\x0a\x08' + b'\x80' * 8 + b'\x40')
    ),
    'an index with the end of no group': fill_index(b'\x08\x01\x0c'),
    'an index of noise': fill('state.index', bytes(range(256)) * 4),
}


@pytest.mark.parametrize('damage', DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_or_hostile_bundle_is_an_error_and_nothing_else(tmp_path, sound, damage, capfd):
    from slimguard.diagnosis import replay

    path = str(tmp_path / 'copy')
    shutil.copytree(sound, path)
    damage(path)
    before = sorted(os.listdir(str(tmp_path)))
    assert replay.main(path) == 2
    said = capfd.readouterr().err
    assert 'slimguard: cannot replay %s: ' % path in said
    assert 'Traceback' not in said
    assert sorted(os.listdir(str(tmp_path))) == before


@pytest.mark.parametrize(
    'name', ['incident.json', 'drawn.npz', 'step.pb', 'state.index', 'state.data-00000-of-00001']
)
def test_a_file_that_leads_out_of_the_folder_is_an_error(tmp_path, sound, name):
    path = str(tmp_path / 'copy')
    shutil.copytree(sound, path)
    link(name, os.path.join(sound, name))(path)  # whole, but elsewhere
    with pytest.raises(BundleError, match='%s leads out of the folder' % name):
        bundle.read(path)


def test_a_folder_that_is_none_is_an_error(tmp_path):
    with pytest.raises(BundleError, match='there is no bundle'):
        bundle.read(str(tmp_path / 'nothing'))
    with pytest.raises(BundleError, match=r'no file incident\.json'):
        bundle.read(str(tmp_path))


@pytest.mark.skipif(os.name != 'posix' or os.geteuid() != 0, reason='only root can become another')
@pytest.mark.parametrize('name', ['', 'drawn.npz'])
def test_what_may_not_be_opened_is_said_where_the_bundle_would_be(sound, name):
    from slimguard.report import report_data

    with tempfile.TemporaryDirectory() as logdir:
        os.chmod(logdir, 0o755)
        path = shutil.copytree(sound, os.path.join(logdir, 'slimguard', 'incident-1'))
        os.chmod(os.path.join(path, name), 0)
        os.seteuid(65534)
        try:
            (found,) = report_data.gather(logdir).bundles
        finally:
            os.seteuid(0)
    assert found.name == 'incident-1'
    assert '%s cannot be opened: Permission denied' % (name or 'incident.json') in found.why


def test_a_hostile_bundle_spoils_no_report(tmp_path, sound):
    from slimguard.report import report_data

    for number, damage in enumerate(DAMAGES.values()):
        path = shutil.copytree(sound, str(tmp_path / str(number) / 'slimguard' / 'incident-1'))
        damage(path)
        (found,) = report_data.gather(str(tmp_path / str(number))).bundles
        # What only running the step tells is no matter for a report.
        assert isinstance(found, report_data.BundleView) or 0 < len(found.why) < 1000


@pytest.mark.parametrize(
    'damage, why',
    [
        ('a FIFO for the graph', r'step\.pb is no regular file'),
        ('a FIFO for the state', r'state\.data-00000-of-00001 is no regular file'),
        ('a folder for the words', r'incident\.json is no regular file'),
        ('an encrypted member', 'member a0.npy is not stored as it is'),
        ('a compressed bomb', r'drawn\.npz is damaged'),
        ('a count of 400 digits', r'incident\.json is damaged: .*a number of 401 digits'),
        ('a deep diagnosis', 'nested deeper than'),
        ('positions without end', r'diagnosis\.positions: 2000 entries, more than 1000'),
        ('an index that ends the process', r'state\.index is damaged'),
        ('an index with the end of no group', r'state\.index is damaged'),
    ],
)
def test_the_error_names_the_file_and_what_is_wrong_with_it(tmp_path, sound, damage, why):
    path = shutil.copytree(sound, str(tmp_path / 'copy'))
    DAMAGES[damage](path)
    with pytest.raises(BundleError, match=why):
        bundle.read(path)


def test_a_bundle_that_could_not_be_read_back_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setitem(files._MOST_BYTES, 'step.pb', 100)
    with pytest.raises(BundleError, match=r'step\.pb would have \d+ bytes, and more than 100'):
        write(zoo.failed('log_of_zero'), tmp_path)
    assert bundle.paths(str(tmp_path)) == []


def test_a_row_of_many_tiny_pictures_is_counted_at_once():
    from slimguard.report import samples

    value = np.zeros([200000, 4, 4, 1], np.float32)
    value[[7, 150000]] = np.nan
    (sheet,) = samples.sheets({'x:0': value}, [3, 10**9, -1], len(value), most=3)
    assert [(s.row, s.bad, s.suspect) for s in sheet.samples] == [
        (3, 0, True),
        (7, 16, False),
        (150000, 16, False),
    ]

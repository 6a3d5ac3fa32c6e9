"""Damages bundles at random and opens them: `python tests/programs/fuzz_bundles.py --mutants=5000`.

Whatever a bundle holds, opening it ends with its content or a `BundleError`, the report of its log
directory is made, and neither takes much memory. The exit code is 1 if that did not hold; a mutant
that kills or hangs the process is told by its number, which `--first=N --mutants=1` makes again.
"""

import argparse
import contextlib
import copy
import faulthandler
import io
import json
import os
import pathlib
import random
import shutil
import struct
import sys
import tempfile
import traceback
import zipfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2]))

import tensorflow as tf

from slimguard.diagnosis import bundle, replay
from slimguard.report import html, report_data
from tests.helpers.bundles import masked_crc

tf1 = tf.compat.v1

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'data', 'made_by_tf115')
HANGS = 120  # seconds, for one mutant
_SHARD = 'state.data-00000-of-00001'


# Mutations of bytes.


def bytewise(rng, content):
    content = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 8])):
        start = rng.randrange(len(content) + 1)
        end = min(len(content), start + rng.choice([1, 1, 4, 64, 4096]))
        kind = rng.randrange(6)
        if kind == 0:
            content[start:end] = bytes(rng.randrange(256) for _ in range(end - start))
        elif kind == 1:
            del content[start:end]
        elif kind == 2:
            content[start:start] = content[start:end]
        elif kind == 3:
            content[start:end] = rng.choice([b'\0', b'\xff', b'\x7f', b'9']) * (end - start)
        elif kind == 4 and end > start:
            content[start] ^= 1 << rng.randrange(8)
        elif kind == 5:
            del content[start:]
    return bytes(content)


# Mutations of incident.json.

_DEEP = json.loads('[' * 50 + ']' * 50)
_NASTY = [
    None,
    True,
    0,
    -1,
    3,
    2**31,
    2**63,
    -(2**64),
    10**39,
    0.5,
    1e308,
    -5e-324,
    '',
    'NaN',
    '-Infinity',
    'x' * 100000,
    '\0\x1b[31m\u202e',
    '\ud800',
    '../../etc/passwd',
    'slimguard/gate/max_loss:0',
    [],
    {},
    [[]],
    [None] * 3,
    ['a', 'b'],
    ['a', 'b', 'c'],
    [1] * 300,
    list(range(2000)),
    {'a': {'b': {}}},
    _DEEP,
]
_RAW = [
    '1' + '0' * 400,
    '1' + '0' * 5000,
    '1e999',
    'NaN',
    '-Infinity',
    '[' * 100000,
    '{"a":' * 5000,
]
_MARK = 'here comes the raw text'


def change_json(rng, content):
    said = json.loads(content.decode())
    raw = None
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        parent, key = _place(rng, said)
        kind = rng.randrange(6)
        if kind == 0:
            del parent[key]
        elif kind == 1:
            raw = rng.choice(_RAW)
            parent[key] = _MARK
        elif kind == 2:
            other, its_key = _place(rng, said)
            parent[key] = copy.deepcopy(other[its_key])
        elif kind == 3 and isinstance(parent, list):
            parent.extend(copy.deepcopy(parent) * rng.choice([1, 10]))
        elif kind == 4 and isinstance(parent, dict):
            parent[rng.choice(['', 'x' * 5000, '\0', 'nobody:0'])] = parent[key]
        else:
            parent[key] = copy.deepcopy(rng.choice(_NASTY))
    text = json.dumps(said)
    return (text if raw is None else text.replace('"%s"' % _MARK, raw)).encode()


def _place(rng, said):
    """A list or dictionary, and a key in it, more often near the root than in the long tables."""
    parent, key = said, rng.choice(list(said))
    while isinstance(parent[key], (dict, list)) and parent[key] and rng.random() < 0.8:
        parent = parent[key]
        key = rng.choice(list(parent)) if isinstance(parent, dict) else rng.randrange(len(parent))
    return parent, key


# Mutations of drawn.npz.


def change_npz(rng, content):
    kind = rng.randrange(5)
    if kind == 0:
        return _packed_anew(rng, content)
    content = bytearray(content)
    if kind == 1:  # the directory lies about flags, methods, sums and sizes
        at = _any_of(rng, content, b'PK\x01\x02')
        _put(rng, content, at + rng.choice([8, 10, 16, 20, 24, 28, 30, 32, 42]))
    elif kind == 2:  # a member's own header does
        at = _any_of(rng, content, b'PK\x03\x04')
        _put(rng, content, at + rng.choice([6, 8, 14, 18, 22, 26, 28]))
    elif kind == 3:  # the end of the directory does
        _put(rng, content, len(content) - 22 + rng.choice([4, 8, 10, 12, 16, 20]))
    else:  # the arrays do; the sums that zip keeps are mended
        return _packed_anew(rng, bytes(content), change_arrays=True)
    return bytes(content)


def _any_of(rng, content, mark):
    return rng.choice([i for i in range(len(content)) if content.startswith(mark, i)])


def _put(rng, content, at):
    value = rng.choice([0, 1, 8, 9, 14, 2**15, 2**31 - 1, 2**32 - 1, rng.randrange(2**32)])
    content[at : at + 4] = struct.pack('<L', value)[: max(0, len(content) - at)]


def _packed_anew(rng, content, change_arrays=False):
    packed = io.BytesIO()
    method = zipfile.ZIP_STORED
    if not change_arrays:
        method = rng.choice([zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(packed, 'w', method) as new:
        for name in old.namelist():
            array = old.read(name)
            if change_arrays and rng.random() < 0.3:
                array = _header(rng) + array[128:] if rng.random() < 0.5 else bytewise(rng, array)
            new.writestr(name, array)
    again = packed.getvalue()
    return again if change_arrays or rng.random() < 0.3 else bytewise(rng, again)


def _header(rng):
    text = rng.choice(
        [
            b'(' * 50000,
            b'-' * 50000 + b'1',
            b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n",
            b"{'descr': '|u1', 'fortran_order': False, 'shape': (%d,), }\n" % 10**15,
            b"{'descr': '<i8', 'fortran_order': False, 'shape': (-1,), }\n",
            b"{'descr': '|u1', 'fortran_order': False, 'shape': (" + b'9' * 5000 + b',), }\n',
        ]
    )
    return b'\x93NUMPY\x01\x00' + struct.pack('<H', len(text)) + text


# Mutations of step.pb.


def change_graph(rng, content):
    graph = tf1.GraphDef.FromString(content)
    for _ in range(rng.choice([1, 2, 8])):
        node, other = rng.choice(graph.node), rng.choice(graph.node)
        kind = rng.randrange(6)
        if kind == 0:
            node.name = rng.choice(['', other.name, 'x' * 10000, '\0', '../a'])
        elif kind == 1:
            node.op = rng.choice(['', other.op, 'NoSuchOp', 'ReadFile'])
        elif kind == 2:
            node.input.append(rng.choice(['', other.name, '^' + node.name, 'a:%d' % 10**9]))
        elif kind == 3:
            node.attr['shape'].shape.dim.add().size = rng.choice([-2, 0, 2**62])
        elif kind == 4:
            for _ in range(1000):
                graph.node.add()
        else:
            graph.node.remove(node)
    return graph.SerializeToString()


# Mutations of state.index: a table of blocks, each with a sum that TensorFlow compares.


def change_index(rng, content):
    content = bytearray(content)
    blocks = list(_blocks(bytes(content)))
    start, size = rng.choice(blocks)
    for _ in range(rng.choice([1, 1, 2, 4])):
        content[start + rng.randrange(size)] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
    sum_of = masked_crc(bytes(content[start : start + size + 1]))
    content[start + size + 1 : start + size + 5] = struct.pack('<L', sum_of)
    return bytes(content)


def _blocks(content):
    """(start, size) of the blocks: the index of the table, and those that it lists."""
    at = len(content) - 48
    for _ in range(2):
        _, at = _varint(content, at)
    start, at = _varint(content, at)
    size, at = _varint(content, at)
    yield start, size
    at, end = start, start + size
    (restarts,) = struct.unpack_from('<L', content, end - 4)
    while at < end - 4 * (restarts + 1):
        _, at = _varint(content, at)
        fresh, at = _varint(content, at)
        length, at = _varint(content, at)
        first, here = _varint(content, at + fresh)
        yield first, _varint(content, here)[0]
        at += fresh + length


def _varint(content, at):
    value = shift = 0
    while True:
        value |= (content[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if content[at - 1] < 128:
            return value, at


# Mutants.

_CHANGES = {
    'incident.json': change_json,
    'drawn.npz': change_npz,
    'step.pb': change_graph,
    'state.index': change_index,
    _SHARD: bytewise,
}


def mutate(rng, folder):
    """Damages the bundle in a folder; returns in a few words how."""
    name = rng.choice(['incident.json'] * 3 + ['drawn.npz'] * 2 + list(_CHANGES))
    path = os.path.join(folder, name)
    if rng.random() < 0.05:
        return '%s: %s' % (name, _replace(rng, path))
    change = _CHANGES[name] if rng.random() < 0.7 else bytewise
    with open(path, 'rb') as file:
        content = change(rng, file.read())
    with open(path, 'wb') as file:
        file.write(content)
    return '%s: %s' % (name, change.__name__)


def _replace(rng, path):
    os.remove(path)
    kind = rng.choice(['removed', 'empty', 'a FIFO', 'a folder', 'a link'])
    if kind == 'empty':
        open(path, 'w').close()
    elif kind == 'a FIFO':
        os.mkfifo(path)
    elif kind == 'a folder':
        os.mkdir(path)
    elif kind == 'a link':
        os.symlink(rng.choice(['/dev/zero', '/etc/passwd', path]), path)
    return kind


def open_everything(logdir, folder, replays):
    """What the report, the listing and a replay do with a bundle; whether it was read whole."""
    is_whole = True
    try:
        it = bundle.read(folder)
        for _ in it.variables(list(it.exported.names['variables'])):
            pass
    except bundle.BundleError as error:
        is_whole = False
        assert 0 < len(str(error)) < 4000, 'an error of %d letters' % len(str(error))
    html.render(report_data.gather(logdir))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        replay.main(logdir)
        if replays:
            assert replay.main(folder) in (0, 1, 2)
    return is_whole


def run(sound, seed, first, mutants, replays):
    """Makes and opens mutants; returns how many were refused, and what failed."""
    refused, failures = 0, []
    root = tempfile.mkdtemp(prefix='fuzz-')
    folder = os.path.join(root, 'slimguard', 'incident-1')
    for number in range(first, first + mutants):
        rng = random.Random('%d-%d' % (seed, number))
        shutil.rmtree(root)
        os.makedirs(os.path.dirname(folder))
        shutil.copytree(sound, folder)
        how = mutate(rng, folder)
        print('mutant %d: %s' % (number, how), file=sys.stderr, flush=True)
        faulthandler.dump_traceback_later(HANGS, exit=True)
        try:
            # A graph is code: what runs a damaged one may do anything.
            refused += not open_everything(root, folder, replays and not how.startswith('step.pb'))
        except Exception:
            failures.append('mutant %d (%s)\n%s' % (number, how, traceback.format_exc()))
        faulthandler.cancel_dump_traceback_later()
    shutil.rmtree(root)
    return refused, failures


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--mutants', type=int, default=1000)
    parser.add_argument('--first', type=int, default=0)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--bundle', default=DATA)
    parser.add_argument('--replays', action='store_true', help='also replay them; slow')
    options = parser.parse_args()
    tf1.logging.set_verbosity(tf1.logging.FATAL)
    refused, failures = run(
        options.bundle, options.seed, options.first, options.mutants, options.replays
    )
    for failure in failures:
        print(failure)
    # Not ru_maxrss, which begins with what the process had that started this one.
    with open('/proc/self/status') as status:
        peak = int(next(line.split()[1] for line in status if line.startswith('VmHWM'))) >> 10
    print(
        '%d mutants, %d refused, %d failures, at most %d MB'
        % (options.mutants, refused, len(failures), peak)
    )
    sys.exit(1 if failures or peak > 1024 else 0)


if __name__ == '__main__':
    main()

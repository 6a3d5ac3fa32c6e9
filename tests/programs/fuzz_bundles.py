"""Damages bundles at random and opens them: `python tests/programs/fuzz_bundles.py --mutants=5000`.

Parts of a bundle are cut off, flipped or dropped. To open it has to end with its content or a
`BundleError`, the report of its log directory has to be made, and neither may take much memory. The
exit code is 1 if one of these fails. A mutant that kills or hangs the process is known by its
number; `--first=N --mutants=1` makes it again.
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
import sys
import tempfile
import traceback
import zipfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2]))

import tensorflow as tf

from slimguard.diagnosis import bundle, replay
from slimguard.report import html, report_data

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'data', 'made_by_tf115')
HANGS = 300  # seconds, for one mutant


def change_bytes(rng, content):
    content = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 8])):
        start = rng.randrange(len(content) + 1)
        end = min(len(content), start + rng.choice([1, 1, 4, 64, 4096]))
        kind = rng.randrange(4)
        if kind == 0:
            content[start:end] = bytes(rng.randrange(256) for _ in range(end - start))
        elif kind == 1:
            del content[start:end]
        elif kind == 2 and end > start:
            content[start] ^= 1 << rng.randrange(8)
        else:
            del content[start:]
    return bytes(content)


_NASTY = [None, True, -1, 2**64, 1e308, '', 'NaN', 'x' * 10**5, '\0\ud800', '../a', [], {}, [[1]]]


def change_json(rng, content):
    said = json.loads(content.decode())
    for _ in range(rng.choice([1, 1, 2, 4])):
        # Damage is more often near the root than in the long tables.
        parent, key = said, rng.choice(list(said))
        while isinstance(parent[key], (dict, list)) and parent[key] and rng.random() < 0.8:
            parent = parent[key]
            key = rng.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
        if rng.random() < 0.2:
            del parent[key]
        else:
            parent[key] = copy.deepcopy(rng.choice(_NASTY))
    return json.dumps(said).encode()


def change_members(rng, content):
    """Packs an archive anew, its sums right: members are dropped, changed, or compressed."""
    packed = io.BytesIO()
    method = rng.choice([zipfile.ZIP_STORED] * 3 + [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(packed, 'w', method) as new:
        for name in old.namelist():
            member = old.read(name)
            if rng.random() < 0.2:
                member = change_bytes(rng, member[:128]) + member[128:]
            if rng.random() > 0.1:
                new.writestr(name, member)
    return packed.getvalue()


_CHANGES = {
    'incident.json': change_json,
    'drawn.npz': change_members,
    'state.npz': change_members,
    'step.pb': change_bytes,
}


def mutate(rng, folder):
    """Damages the bundle in a folder; returns in a few words how."""
    name = rng.choice(sorted(_CHANGES))
    path = os.path.join(folder, name)
    if rng.random() < 0.05:
        os.remove(path)
        return name + ': removed'
    change = _CHANGES[name] if rng.random() < 0.7 else change_bytes
    with open(path, 'rb') as file:
        content = change(rng, file.read())
    with open(path, 'wb') as file:
        file.write(content)
    return '%s: %s' % (name, change.__name__)


def open_everything(logdir, folder, replays):
    """Has the report, the listing and a replay open a bundle; returns whether it was read whole."""
    is_whole = True
    try:
        it = bundle.read(folder)
        for _ in it.variables(list(it.exported.names['variables'])):
            pass
    except bundle.BundleError as error:
        is_whole = False
        assert 0 < len(str(error)) < 1000, 'an error of %d letters' % len(str(error))
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
            # A graph is code: a damaged one may do anything when it runs.
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
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.FATAL)
    refused, failures = run(
        options.bundle, options.seed, options.first, options.mutants, options.replays
    )
    for failure in failures:
        print(failure)
    # ru_maxrss will not do: it begins with the memory of the process that started this one.
    with open('/proc/self/status') as status:
        peak = int(next(line.split()[1] for line in status if line.startswith('VmHWM'))) >> 10
    print(
        '%d mutants, %d refused, %d failures, at most %d MB'
        % (options.mutants, refused, len(failures), peak)
    )
    sys.exit(1 if failures or peak > 1024 else 0)


if __name__ == '__main__':
    main()

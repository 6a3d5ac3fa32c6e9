"""Writes a bundle: the step, its input, the state before it, what happened; removes old bundles.

A bundle is written under its final name. ``incident.json`` is written last and removed first.
A folder without it is no bundle: a process is writing it, or was killed while writing. This works
on object stores, too, where no folder can be renamed in one step.
"""

import itertools
import json
import math
import os
import platform
from typing import Any, Dict, List, Optional, Set

import numpy as np
import tensorflow as tf

from slimguard.diagnosis.bundle import arrays, reading
from slimguard.diagnosis.bundle.reading import DRAWN, GRAPH, JSON, STATE, BundleError
from slimguard.diagnosis.capture import BadStep, Capture, bytes_of
from slimguard.diagnosis.diagnosis import Diagnosis
from slimguard.diagnosis.exported_step import ExportedStep, export
from slimguard.system import files

# The bundles that this process made. The record of incidents may name a bundle that was removed, so
# no name is used twice.
_made: Set[str] = set()


def write(
    logdir: files.Path,
    bad_step: BadStep,
    diagnosis: Optional[Diagnosis] = None,
    max_bundles: int = 5,
) -> str:
    """Writes a bundle; if there are more than `max_bundles`, removes some by `_remove_beyond`.

    Readers never see half a bundle. If writing fails, its files are removed. On a local disk it is
    written only if two more of its size fit: the next checkpoint needs the space.

    Args:
      logdir: the log directory of the training, on any file system that `tf.io.gfile` knows.
      bad_step: the step, with its incident.
      diagnosis: the `Diagnosis`, if there is one.
      max_bundles: how many bundles there may be in `logdir`; at least 1.

    Returns:
      The path of the bundle.

    Raises:
      OSError, tf.errors.OpError: if it cannot be written.
      BundleError: if it would be larger than a bundle may be.
    """
    capture, incident, history = bad_step.capture, bad_step.incident, bad_step.history
    assert incident is not None
    exported = export(capture)
    size = _size(capture, exported, bad_step.values)
    if size > reading.MOST_BYTES:
        limit = files.megabytes(reading.MOST_BYTES)
        raise BundleError('it would have %s, and the most is %s' % (files.megabytes(size), limit))
    parent = reading.folder(logdir)
    files.make_dirs(parent)
    _require_room(parent, size)
    path = _make(parent, incident.step)
    try:
        with _create(os.path.join(path, GRAPH)) as file:
            file.write(exported.graph_def.SerializeToString())
        with _create(os.path.join(path, STATE)) as file:
            chunks = capture.variables_in(bad_step.session, list(exported.names['variables']))
            arrays.save(file, (pair for chunk in chunks for pair in chunk.items()))
        with _create(os.path.join(path, DRAWN)) as file:
            dtypes = arrays.save(file, bad_step.values.items())
        content = {
            'version': reading.VERSION,
            'time': incident.time,  # near the beginning: `reading._order` reads only that
            'versions': _versions(),
            'incident': incident.to_dict(),
            'diagnosis': diagnosis,
            'text': '' if diagnosis is None else str(diagnosis),
            'history': None if history is None else history.to_dict(),
            'dtypes': dtypes,
            'step': exported.names,
        }
        encoded = json.dumps(_to_json(content), allow_nan=False).encode('utf-8')
        files.write_atomically(os.path.join(path, JSON), encoded)
    except BaseException:
        _remove(path)
        raise
    _remove_beyond(logdir, max_bundles, path)
    return path


def _size(capture: Capture, exported: ExportedStep, values: Dict[str, np.ndarray]) -> int:
    """About how many bytes the bundle will have, without incident.json."""
    variables = sum(bytes_of(capture.reads[name]) for name in exported.names['variables'])
    return exported.graph_def.ByteSize() + variables + sum(map(arrays.bytes_of, values.values()))


def _require_room(folder: str, size: int) -> None:
    free = None if files.is_remote(folder) else files.free_bytes(folder)
    if free is not None and free < 3 * size:
        raise OSError(
            'it takes %s, and of the %s that are free in %s the next checkpoint may need twice as '
            'much. Make room there, or choose another logdir'
            % (files.megabytes(size), files.megabytes(free), folder)
        )


def _create(path: str) -> Any:
    return _RemoteFile(path) if files.is_remote(path) else open(path, 'wb')


class _RemoteFile:
    """A file on a remote file system. It cannot seek, so zipfile writes it from start to end."""

    def __init__(self, path: str):
        self._file = tf.io.gfile.GFile(path, 'wb')
        self.flush = self._file.flush

    def write(self, content) -> int:
        self._file.write(bytes(content))
        return len(content)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()


def _versions() -> Dict[str, str]:
    import slimguard

    return {
        'tensorflow': tf.__version__,
        'numpy': np.__version__,
        'python': platform.python_version(),
        'slimguard': slimguard.__version__,
    }


def _to_json(thing: Any) -> Any:
    """`thing` in the types of JSON. NaN and Inf become the strings NaN, Infinity and -Infinity."""
    as_dict = getattr(thing, '_asdict', None)  # of a NamedTuple
    thing = thing if as_dict is None else as_dict()
    if isinstance(thing, dict):
        return {str(name): _to_json(value) for name, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        return [_to_json(value) for value in thing]
    number: Any = thing
    if isinstance(thing, np.generic):
        return _to_json(number.item())
    if isinstance(thing, float) and not math.isfinite(thing):
        return 'NaN' if math.isnan(thing) else ('Infinity' if thing > 0 else '-Infinity')
    if thing is None or isinstance(thing, (bool, int, float, str)):
        return thing
    return str(thing)


# The folders.


def _make(parent: str, step: Optional[int]) -> str:
    """Makes the folder for the bundle of a step, under a name that was never used.

    On a remote file system, two trainings with one logdir may choose the same name at once.
    """
    name = 'step-%s' % ('unknown' if step is None else step)
    for number in itertools.count(1):
        path = os.path.join(parent, name if number == 1 else '%s-%d' % (name, number))
        if path not in _made and _make_dir(path):
            _made.add(path)
            return path
    raise AssertionError('not reached')


def _make_dir(path: str) -> bool:
    if files.is_remote(path):
        if files.exists(path):
            return False
        files.make_dirs(path)
        return True
    try:
        os.mkdir(path)
    except FileExistsError:
        return False
    return True


def _remove_beyond(logdir: files.Path, most: int, kept: str) -> None:
    """Removes bundles beyond `most`: first any whose kind an older bundle has, then the oldest.

    The bundle `kept` is never removed.
    """
    bundles = reading.paths(logdir)
    kinds, firsts, repeats = {''}, [], []
    for path in bundles if len(bundles) > most else ():
        kind = reading.kind_in(path)
        (repeats if kind in kinds else firsts).append(path)
        kinds.add(kind)
    goes = [path for path in repeats + firsts if path != kept]
    for path in goes[: max(0, len(bundles) - most)]:
        _remove(path)


def _remove(path: str) -> None:
    """Removes a bundle's files, and its folder if it is then empty; errors are ignored.

    ``incident.json`` goes first, so that nobody finds half a bundle.
    """
    delete = tf.io.gfile.remove if files.is_remote(path) else os.remove
    try:
        for name in sorted(_parts(path), key=lambda name: name != JSON):
            delete(os.path.join(path, name))
        if not files.is_remote(path):
            os.rmdir(path)
        elif not files.list_dir(path):
            tf.io.gfile.rmtree(path)
    except (OSError, tf.errors.OpError):
        pass  # no permission, or it holds a file that is not ours


def _parts(path: str) -> List[str]:
    """The names of our files in a folder, the temporary file of incident.json included."""
    ours = (DRAWN, GRAPH, STATE, JSON)
    return [each for each in files.list_dir(path) if each in ours or each.startswith(JSON + '.')]

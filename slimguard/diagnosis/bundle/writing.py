"""Writes a bundle: the step, what it drew, the state before it, and what happened."""

import json
import math
import os
import platform
from typing import Any, Dict, Optional

import numpy as np
import tensorflow as tf

from slimguard.diagnosis.bundle import arrays, folders, reading
from slimguard.diagnosis.bundle.reading import DRAWN, GRAPH, JSON, STATE, BundleError
from slimguard.diagnosis.capture import Capture, bytes_of
from slimguard.diagnosis.diagnosis import Diagnosis
from slimguard.diagnosis.exported_step import ExportedStep, export
from slimguard.incidents.history import History
from slimguard.system import files


def write(
    logdir: files.Path,
    session,
    capture: Capture,
    incident,
    values: Dict[str, np.ndarray],
    diagnosis: Optional[Diagnosis] = None,
    max_bundles: int = 5,
    history: Optional[History] = None,
) -> str:
    """Writes a bundle, and removes those beyond `max_bundles`, as `folders.remove_beyond` says.

    Readers never see it half-written. If it cannot be finished, nothing of it is left. On a disk of
    this machine it leaves room for two more of its size, since a checkpoint is about as large.

    Args:
      logdir: the log directory of the training, on any file system that `tf.io.gfile` knows.
      session: the session, with the variables as they were before the bad step.
      capture: the `Capture` of the train op.
      incident: the `Incident`.
      values: what the step drew, as `capture.take` returned it.
      diagnosis: the `Diagnosis`, if there is one.
      max_bundles: how many bundles there may be in `logdir`; at least 1.
      history: the last steps, the bad one included, if they are known.

    Returns:
      The path of the bundle.

    Raises:
      OSError, tf.errors.OpError: if it cannot be written.
      BundleError: if it would be larger than a bundle may be.
    """
    exported = export(capture)
    size = _size(capture, exported, values)
    if size > reading.MOST_BYTES:
        limit = files.megabytes(reading.MOST_BYTES)
        raise BundleError('it would have %s, and the most is %s' % (files.megabytes(size), limit))
    parent = folders.folder(logdir)
    files.make_dirs(parent)
    _require_room(parent, size)
    path = folders.make(parent, incident.step)
    try:
        with _create(os.path.join(path, GRAPH)) as file:
            file.write(exported.graph_def.SerializeToString())
        with _create(os.path.join(path, STATE)) as file:
            chunks = capture.variables_in(session, list(exported.names['variables']))
            arrays.save(file, (pair for chunk in chunks for pair in chunk.items()))
        with _create(os.path.join(path, DRAWN)) as file:
            dtypes = arrays.save(file, values.items())
        said = {
            'version': reading.VERSION,
            'time': incident.time,  # near the beginning: readers of the time stop there
            'versions': _versions(),
            'incident': incident.to_dict(),
            'diagnosis': diagnosis,
            'text': '' if diagnosis is None else str(diagnosis),
            'history': None if history is None else history.to_dict(),
            'dtypes': dtypes,
            'step': exported.names,
        }
        content = json.dumps(_to_json(said), allow_nan=False).encode('utf-8')
        files.write_atomically(os.path.join(path, JSON), content)
    except BaseException:
        folders.remove(path)
        raise
    folders.remove_beyond(logdir, max_bundles, path)
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
    """A file on another file system, written from its beginning to its end, as zipfile can."""

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
    """JSON has no NaN: there, such a number is one of the strings NaN, Infinity and -Infinity."""
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

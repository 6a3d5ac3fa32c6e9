"""Writes a bundle: the step, what it drew, the state before it, and what happened."""

import dataclasses
import json
import math
import os
import platform
from typing import Any, Callable, Dict, Optional

import numpy as np
import tensorflow as tf

from slimguard.diagnosis.bundle import folders
from slimguard.diagnosis.bundle.arrays import bytes_of_array, save_arrays
from slimguard.diagnosis.bundle.files import ARRAYS, GRAPH, JSON, STATE, BundleError, most_bytes
from slimguard.diagnosis.bundle.incident_json import MOST_ROWS, VERSION, check_sizes
from slimguard.diagnosis.bundle.state import run_alone
from slimguard.diagnosis.capture import Capture
from slimguard.diagnosis.diagnosis import Diagnosis
from slimguard.diagnosis.rerun import ExportedStep, ExportOnce, bytes_of, variables_in_chunks
from slimguard.graph import plain_ops
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
    require_room: Callable[[int], None] = lambda size: None,
    export: Optional[ExportOnce] = None,
    history: Optional[History] = None,
) -> str:
    """Writes a bundle, and removes the oldest ones beyond `max_bundles`.

    It is never seen half-written: see `folders`.

    Args:
      logdir: the log directory of the training, on any file system that `tf.io.gfile` knows.
      session: the session, with the variables as they were before the bad step.
      capture: the `Capture` of the train op.
      incident: the `Incident`.
      values: what the step drew, as `capture.take` returned it.
      diagnosis: the `Diagnosis`, if there is one.
      max_bundles: how many bundles there may be in `logdir`; at least 1.
      require_room: called with the size that the bundle will have, in bytes, before anything of it
        is written. It raises if that is too much.
      export: exports the step of `capture`; given by a caller that has exported it already.
      history: the last steps, the bad one included, if they are known.

    Returns:
      The path of the bundle.

    Raises:
      OSError, tf.errors.OpError: if it cannot be written.
      BundleError: if it would be larger than what can be read back.
      ValueError: if `max_bundles` is not at least 1.
    """
    if max_bundles < 1:
        raise ValueError('max_bundles must be at least 1, not %r' % (max_bundles,))
    parent = folders.folder(logdir)
    files.make_dirs(parent)
    exported = (export or ExportOnce(capture))()
    require_room(_size(capture, exported, values))
    with folders.Making(parent) as making:
        _write(making.path, GRAPH, exported.graph_def.SerializeToString())
        save_state(session, capture, exported.names['variables'], os.path.join(making.path, STATE))
        said = {
            'version': VERSION,
            'time': incident.time,  # near the beginning, where it is looked for
            'versions': _versions(),
            'incident': dataclasses.asdict(incident),
            'diagnosis': None if diagnosis is None else _dict_of(diagnosis),
            'text': '' if diagnosis is None else str(diagnosis),
            'history': None if history is None else history.to_dict(),
            'step': exported.names,
            'arrays': save_arrays(values, os.path.join(making.path, ARRAYS)),
        }
        check_sizes(said)
        _write(making.path, JSON, json.dumps(_to_json(said), allow_nan=False).encode('utf-8'))
        path = making.publish(incident.step)
    folders.remove_oldest(logdir, max_bundles, path)
    return path


def _size(capture: Capture, exported: ExportedStep, values: Dict[str, np.ndarray]) -> int:
    """How large the bundle will be, about: all but what is said in words."""
    variables = sum(bytes_of(capture.reads[name]) for name in exported.names['variables'])
    return exported.graph_def.ByteSize() + variables + sum(map(bytes_of_array, values.values()))


def _write(folder: str, name: str, content: bytes) -> None:
    if len(content) > most_bytes(name):
        raise BundleError(
            '%s would have %d bytes, and more than %d are not read back'
            % (name, len(content), most_bytes(name))
        )
    with open(os.path.join(folder, name), 'wb') as file:
        file.write(content)


def _dict_of(diagnosis: Diagnosis) -> Dict[str, Any]:
    said = diagnosis.to_dict()
    said['ranges'] = said['ranges'][:MOST_ROWS]
    return said


def _versions() -> Dict[str, str]:
    import slimguard

    return {
        'tensorflow': tf.__version__,
        'numpy': np.__version__,
        'python': platform.python_version(),
        'slimguard': slimguard.__version__,
    }


def save_state(session, capture: Capture, variables, prefix: str) -> None:
    """Writes a checkpoint part by part, so that it takes no second copy of the model."""
    parts = []
    for number, values in enumerate(variables_in_chunks(session, capture, list(variables))):
        part = '%s-part-%d' % (prefix, number)
        parts.append(part)
        run_alone(_save_part(part, values, variables))
    if not parts:
        return
    run_alone(
        lambda: tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=parts, destination_prefix=prefix, delete_old_dirs=False
        )
    )


def _save_part(part: str, values, variables):
    def build():
        feed = {}
        for name, value in values.items():
            dtype = tf.as_dtype(variables[name][0])
            feed[name] = plain_ops.placeholder(dtype, np.shape(value))
        save = tf.raw_ops.SaveV2(
            prefix=part,
            tensor_names=[variables[name][1] for name in values],
            shape_and_slices=[variables[name][2] for name in values],
            tensors=[feed[name] for name in values],
        )
        return save, {feed[name]: value for name, value in values.items()}

    return build


def _to_json(thing: Any) -> Any:
    """JSON has no NaN: there, such a number is one of the strings NaN, Infinity and -Infinity."""
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

"""Functions of TensorFlow that answer a guarded script otherwise: what takes their place."""

import functools
import threading
from typing import Any, Callable, Dict, Optional

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.checkpoints import checkpoint_reader
from slimguard.system import files
from slimguard.system.log import log

_lock = threading.Lock()


def replacements() -> Dict[Callable, Callable]:
    """By TensorFlow's function, its replacement."""
    return {**_of_checkpoints(), **_of_numeric_checks()}


def _of_checkpoints() -> Dict[Callable, Callable]:
    """What a script resumes from is a good checkpoint, also where the newest is not.

    A script asks these functions, itself or by a Supervisor, a MonitoredSession or an Estimator. If
    what they name is damaged or not finite, they name the newest that is good, and a log line says
    so. No file is changed.
    """
    latest, state = tf1.train.latest_checkpoint, tf1.train.get_checkpoint_state

    @functools.wraps(latest)
    def latest_checkpoint(checkpoint_dir, latest_filename=None):
        return _good(latest(checkpoint_dir, latest_filename), checkpoint_dir, latest_filename)

    @functools.wraps(state)
    def get_checkpoint_state(checkpoint_dir, latest_filename=None):
        found = state(checkpoint_dir, latest_filename)
        if found is not None:
            newest = found.model_checkpoint_path
            good = _good(newest, checkpoint_dir, latest_filename)
            if good != newest:
                found.model_checkpoint_path = good
        return found

    return {latest: latest_checkpoint, state: get_checkpoint_state}


def _good(newest: Optional[str], folder: Any, latest_filename: Optional[str]) -> Optional[str]:
    """The newest good checkpoint, if `newest` is not good; `newest` itself if there is none."""
    if newest is None or latest_filename not in (None, 'checkpoint'):
        return newest
    try:
        found = checkpoint_reader.inspect(newest)
        if found.is_good:
            return newest
        good = checkpoint_reader.latest_finite_checkpoint(files.as_path(folder, 'checkpoint_dir'))
    except OSError:  # it cannot be read: the restore that follows will say why
        return newest
    if good is None:
        log().error(_NONE_GOOD, newest, found)
        return newest
    log().warning(
        'checkpoint %s is %s; resuming from %s, the newest that is good.',
        newest,
        found,
        good,
    )
    return good


_NONE_GOOD = (
    'checkpoint %s is %s, and there is none that is good: restore a copy from elsewhere, or begin '
    'in an empty folder.'
)


def _of_numeric_checks() -> Dict[Callable, Callable]:
    """`tf.add_check_numerics_ops` checks what a script computes, and not what guards it.

    It lays a check over every float that its graph lists, one after the other, and returns an op
    that waits for all. Some of ours have no value in most runs: a branch that is not taken, or a
    queue that is filled for an incident only, for which it would wait for ever.
    """
    original = tf1.add_check_numerics_ops

    @functools.wraps(original)
    def add_check_numerics_ops():
        if tf.executing_eagerly():
            return original()  # which raises
        with _lock:
            return _without_ours(tf1.get_default_graph(), original)

    return {original: add_check_numerics_ops}


def _without_ours(graph: Any, original: Callable) -> Any:
    """The result of `original` while `graph` hides our ops from this thread."""
    list_all, thread = graph.get_operations, threading.get_ident()
    theirs = [op for op in list_all() if not op.name.startswith(graphs.OURS)]
    graph.get_operations = lambda: theirs if threading.get_ident() == thread else list_all()
    try:
        return original()
    finally:
        del graph.get_operations

"""What a script resumes from is a good checkpoint, also where the newest is not.

A script asks `tf.train.latest_checkpoint` or `get_checkpoint_state`, itself or by a Supervisor, a
MonitoredSession or an Estimator. Their answer is looked at. If what they name is damaged or not
finite, they name the newest that is good, and a log line says so. No file is changed.
"""

import functools
from typing import Any, Callable, Dict, Optional

import tensorflow.compat.v1 as tf1

from slimguard.checkpoints import checkpoint_reader
from slimguard.system import files
from slimguard.system.log import log


def replacements() -> Dict[Callable, Callable]:
    """By TensorFlow's function, its replacement."""
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
        log().error('checkpoint %s is %s, and there is none that is good', newest, found)
        return newest
    log().warning(
        'checkpoint %s is %s; resuming from %s, the newest that is good.',
        newest,
        found,
        good,
    )
    return good

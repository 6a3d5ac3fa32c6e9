"""Reads checkpoints on disk, and tells which of them are whole and finite.

TensorFlow's state file (``checkpoint``) names the newest checkpoint without looking into it. Here
each checkpoint is opened: every tensor is read, which compares TensorFlow's checksums, and every
float is checked. One tensor is in memory at a time.
"""

from typing import Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.checkpoints import checkpoint_files, state_file
from slimguard.checkpoints.checkpoint_files import Checkpoint, look_at, step_in_name
from slimguard.system import files, texts
from slimguard.system.log import log

_CHUNK = 1 << 20


class UnreadableError(OSError):
    """A checkpoint exists and may be good, but cannot be read (rights, a failing disk)."""


class Inspection(NamedTuple):
    """The result of reading a checkpoint.

    Attributes:
      step: the global step in it (or else in its name), or None.
      damage: why it cannot be restored, or None if it is whole.
      non_finite: names of the variables that hold a NaN or Inf.
    """

    step: Optional[int]
    damage: Optional[str]
    non_finite: Tuple[str, ...]

    @property
    def is_good(self) -> bool:
        return self.damage is None and not self.non_finite

    def __str__(self) -> str:
        if self.damage is not None:
            return 'truncated: ' + self.damage
        if not self.non_finite:
            return 'finite'
        return 'not finite: ' + texts.listed(self.non_finite, 3)


def latest_finite_checkpoint(logdir: files.Path) -> Optional[str]:
    """The newest checkpoint in `logdir` whose files are whole and whose floats are finite.

    Use it in place of `tf.train.latest_checkpoint`, which returns what the state file says. This
    function also reads checkpoints that the state file does not name: those that another program
    left out, and one whose process was killed before it wrote the state file.

    Args:
      logdir: a directory (a str, bytes or `os.PathLike`), on any file system that `tf.io.gfile`
        knows.

    Returns:
      The absolute prefix to restore from, or None if no checkpoint in `logdir` is good.

    Raises:
      TypeError, ValueError: if `logdir` is no path.
      UnreadableError: if a checkpoint that may be the newest good one cannot be read.
    """
    return next(good_ones([each.path for each in reversed(checkpoints_in(logdir))]), None)


def good_ones(paths: Sequence[str]) -> Iterator[str]:
    """Yields the checkpoints that are whole and finite; reads each one only when asked for it."""
    return (path for path in paths if inspect(path).is_good)


def checkpoints_in(logdir: files.Path) -> List[Checkpoint]:
    """All checkpoints in a directory, from the oldest to the newest; none of them is opened.

    Checkpoints in the state file keep its order, since copying a directory loses the times of
    files. Another checkpoint counts as newer if its time and its step are both larger.
    """
    logdir = files.as_path(logdir)
    try:
        state = state_file.read(logdir)
    except state_file.StateFileError as error:
        log().warning('%s', error)
        state = None
    return checkpoints_beside(logdir, state)


def checkpoints_beside(logdir: str, state: Optional[state_file.State]) -> List[Checkpoint]:
    """As `checkpoints_in`, given the state file's contents; None if it names no checkpoint."""
    listed = [look_at(path) for path in (() if state is None else state.paths)]
    listed = [checkpoint for checkpoint in listed if checkpoint.size]
    known = {checkpoint.path for checkpoint in listed}
    others = [look_at(path) for path in checkpoint_files.paths_in(logdir) if path not in known]
    others.sort(key=lambda checkpoint: (checkpoint.time, step_in_name(checkpoint.path) or 0))
    newer = [checkpoint for checkpoint in others if _is_newer(checkpoint, listed)]
    older = [checkpoint for checkpoint in others if checkpoint not in newer]
    return older + listed + newer


def _is_newer(checkpoint: Checkpoint, listed: List[Checkpoint]) -> bool:
    if not listed:
        return True
    step, newest = step_in_name(checkpoint.path), step_in_name(listed[-1].path)
    is_later = step is None or newest is None or step > newest
    return is_later and checkpoint.time > listed[-1].time


def inspect(path: str) -> Inspection:
    """As `read`, but tells a checkpoint that cannot be read from a damaged one.

    Raises:
      UnreadableError: if the files cannot be read; the checkpoint may still be good.
    """
    inspection = read(path)
    if inspection.damage is not None:
        _require_readable(path)
    return inspection


def _require_readable(path: str) -> None:
    """Raises UnreadableError if a file cannot be read; TensorFlow's error does not tell."""
    for name in checkpoint_files.files_of(path):
        try:
            with files.open_to_read(name) as file:
                while file.read(_CHUNK):
                    pass
        except (FileNotFoundError, tf.errors.NotFoundError):
            continue  # its trainer has just deleted it
        except (OSError, tf.errors.OpError) as error:
            raise UnreadableError('%s cannot be read: %s' % (name, error)) from None


def global_step_in(path: str) -> Optional[int]:
    """The global step that a checkpoint holds; None if it has none, or cannot be read."""
    try:
        value = tf1.train.NewCheckpointReader(path).get_tensor('global_step')
        return int(value)
    except Exception:
        return None


def step_of(path: str) -> Optional[int]:
    """The global step that a checkpoint holds; else the number in its name, or None.

    A script's names may count epochs.
    """
    step = global_step_in(path)
    return step_in_name(path) if step is None else step


def read(path: str) -> Inspection:
    """Reads all of a checkpoint and says what is wrong with it, or that it cannot be read."""
    step = step_in_name(path)
    non_finite = []
    if files.exists(path + '.index') and not files.is_file(path + '.index'):
        return Inspection(step, '%s.index is no regular file' % path, ())  # a FIFO would block
    try:
        # Not load_checkpoint: without directories in a file system it takes the prefix for one.
        reader = tf1.train.NewCheckpointReader(path)
        for name in sorted(reader.get_variable_to_shape_map()):
            value = np.asarray(reader.get_tensor(name))
            if name == 'global_step' and value.size == 1 and value.dtype.kind == 'i':
                step = int(value)
            if not is_finite(value):
                non_finite.append(name)
    except Exception as error:  # restoring would fail in the same way
        return Inspection(step, str(error).partition('\n')[0] or type(error).__name__, ())
    return Inspection(step, None, tuple(non_finite))


def is_finite(value: np.ndarray) -> bool:
    """Whether a value holds no NaN and no Inf; integers and strings are finite."""
    if value.dtype.kind in 'biuSUO':  # dtypes without NaN and Inf
        return True
    if value.dtype.kind not in 'fc':  # bfloat16 and similar dtypes, unknown to numpy
        value = value.astype(np.float32)
    return bool(np.isfinite(value).all())

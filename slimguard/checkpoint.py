"""Checkpoints on disk, read and not trusted: which of them are whole, and finite.

TensorFlow's state file (``checkpoint``) names the newest checkpoint without looking into it. Here
each is opened: every tensor is read, which compares TensorFlow's checksums, and every float is
looked at. One tensor is in memory at a time.
"""

import glob
import os
import re
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1

# What a checkpoint `model.ckpt-8` consists of on disk: `.index` and `.data-...` in the format V2;
# the name itself, or `-00000-of-00002`, in V1. `.meta` is the graph, which restoring does without.
_INDEX = re.compile(r'(.+)\.index$')
_META = re.compile(r'(.+)\.meta$')
_ENDS = ('.index', '.data-?????-of-?????', '', '-?????-of-?????')
_STEP = re.compile(r'-(\d+)(-\?+-of-\d+)?$')


class Checkpoint(NamedTuple):
    """What is known of a checkpoint from its files' names.

    Attributes:
      path: the prefix, as `tf.compat.v1.train.Saver.restore` takes it.
      time: when it was written, in seconds since the epoch.
      size: the size of its files, in bytes; 0 if there are none.
    """

    path: str
    time: float
    size: int


class Finding(NamedTuple):
    """What was found on reading a checkpoint.

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
            return 'torn: ' + self.damage
        if not self.non_finite:
            return 'finite'
        more = len(self.non_finite) - 3
        names = ', '.join(self.non_finite[:3]) + (' and %d more' % more if more > 0 else '')
        return 'not finite: ' + names


def latest_finite_checkpoint(logdir: str) -> Optional[str]:
    """The newest checkpoint in `logdir` whose files are whole and whose floats are finite.

    Takes the place of `tf.train.latest_checkpoint`, which returns what the state file says. It
    looks at checkpoints that the state file does not name as well: those that another program
    forgot, and one that was written when the process was killed.

    Args:
      logdir: a directory, or any path of a file system that TensorFlow knows.

    Returns:
      The prefix to restore from, or None if no checkpoint in `logdir` is good.

    Raises:
      TypeError: if `logdir` is no path.
    """
    for checkpoint in reversed(checkpoints_in(logdir)):
        if read(checkpoint.path).is_good:
            return checkpoint.path
    return None


def checkpoints_in(logdir: str) -> List[Checkpoint]:
    """All checkpoints in a directory, from the oldest to the newest; none of them is opened.

    Those in the state file keep its order, since copying a directory loses the times of files.
    The others come before or after them by their time.
    """
    if not isinstance(logdir, (str, bytes, os.PathLike)):
        raise TypeError('logdir must be the path of a directory, not %r' % (logdir,))
    logdir = tf.compat.as_str_any(os.fspath(logdir))
    listed = [_look(path) for path in _listed(logdir)]
    listed = [checkpoint for checkpoint in listed if checkpoint.size]
    known = {os.path.basename(checkpoint.path) for checkpoint in listed}
    others = [_look(path) for path in _on_disk(logdir) if os.path.basename(path) not in known]
    others.sort(key=lambda checkpoint: (checkpoint.time, step_in_name(checkpoint.path) or 0))
    newest = listed[-1].time if listed else 0.0
    newer = [checkpoint for checkpoint in others if checkpoint.time > newest]
    older = [checkpoint for checkpoint in others if checkpoint.time <= newest]
    return older + listed + newer


def read(path: str) -> Finding:
    """Reads a checkpoint whole and says what is wrong with it."""
    step = step_in_name(path)
    non_finite = []
    try:
        reader = tf.train.load_checkpoint(path)
        for name, dtype in sorted(reader.get_variable_to_dtype_map().items()):
            value = np.asarray(_tensor(reader, path, name, dtype))
            if name == 'global_step' and value.size == 1 and value.dtype.kind == 'i':
                step = int(value)
            if not _is_finite(value):
                non_finite.append(name)
    except Exception as error:  # whatever it is, restoring would meet it as well
        return Finding(step, str(error).partition('\n')[0] or type(error).__name__, ())
    return Finding(step, None, tuple(non_finite))


def _point_at(logdir: str, path: Optional[str], bad: Sequence[str] = ()) -> None:
    """Makes the state file name `path` as the newest checkpoint, and nothing that is not good.

    Checkpoints leave the list, and stay on disk. With None there is no state file afterwards: it
    is renamed to ``checkpoint.bad``. Those in `bad` are known to be so, and are not read again.
    """
    if path is None:
        state_file = os.path.join(logdir, 'checkpoint')
        if tf.io.gfile.exists(state_file):
            tf.io.gfile.rename(state_file, state_file + '.bad', overwrite=True)
        return
    others = [other for other in _listed(logdir) if other != path and other not in bad]
    kept = [other for other in others if read(other).is_good]
    write_state(logdir, kept + [path])


def write_state(logdir: str, paths: Sequence[str], latest_filename: str = 'checkpoint') -> None:
    """Makes the state file list `paths`, the newest last, at one stroke."""
    state_file = os.path.join(logdir, latest_filename)
    if _is_relative(state_file):
        paths = [os.path.relpath(path, logdir) for path in paths]
    text = str(tf1.train.generate_checkpoint_state_proto(logdir, paths[-1], list(paths)))
    with tf.io.gfile.GFile(state_file + '.new', 'w') as new:
        new.write(text)
    tf.io.gfile.rename(state_file + '.new', state_file, overwrite=True)


def named_in(logdir: str, latest_filename: str = 'checkpoint') -> Optional[str]:
    """The checkpoint that the state file names as the newest, or None."""
    state = _state(logdir, latest_filename)
    return state.model_checkpoint_path if state is not None else None


def heal(logdir: str) -> Optional[str]:
    """Makes the state file name the newest good checkpoint, so that a restart resumes there.

    Returns:
      A sentence that says what was wrong, or None if nothing was.
    """
    named = named_in(logdir)
    found = checkpoints_in(logdir)
    bad: Dict[str, str] = {}
    for checkpoint in reversed(found):
        finding = read(checkpoint.path)
        if finding.is_good:
            break
        bad[checkpoint.path] = '%s is %s' % (os.path.basename(checkpoint.path), finding)
    else:
        if not found and named is None:
            return None
        _point_at(logdir, None)
        why = '; '.join(bad.values()) or 'the files of %s are gone' % named
        return 'no checkpoint in %s can be resumed from (%s)' % (logdir, why)
    if named is not None and os.path.basename(named) == os.path.basename(checkpoint.path):
        return None
    _point_at(logdir, checkpoint.path, list(bad))
    if not bad and named is not None and not files_of(named):
        bad[named] = 'the files of %s are gone' % named
    why = '; '.join(bad.values()) or 'it was written, and the state file did not say so yet'
    return 'resuming from %s (%s)' % (checkpoint.path, why)


def resume_from_good(logdir: str) -> None:
    """Sees to it that a restart resumes from the newest good checkpoint; says so if need be."""
    said = heal(logdir)
    if said is not None:
        tf1.logging.warning('slimguard: %s', said)


def _state(logdir: str, latest_filename: str = 'checkpoint'):
    """The state file's content with absolute paths, or None if it is missing or damaged."""
    try:
        return tf1.train.get_checkpoint_state(logdir, latest_filename)
    except Exception as error:  # its parser's errors differ by version
        tf1.logging.warning('slimguard: the state file in %s cannot be read: %s', logdir, error)
        return None


def _is_relative(state_file: str) -> bool:
    """Whether a state file has paths relative to its directory, so that this can be moved."""
    if not tf.io.gfile.exists(state_file):
        return False
    with tf.io.gfile.GFile(state_file, 'rb') as file:
        path = re.search(rb'^model_checkpoint_path: "(.*)"', file.read(), re.MULTILINE)
    return path is not None and not path.group(1).startswith(b'/') and b'://' not in path.group(1)


def _listed(logdir: str) -> List[str]:
    state = _state(logdir)
    if state is None:
        return []
    paths = [path for path in state.all_model_checkpoint_paths if path]
    newest = state.model_checkpoint_path
    return [path for path in paths if path != newest] + [newest] if newest else paths


def _on_disk(logdir: str) -> Iterator[str]:
    if not tf.io.gfile.isdir(logdir):
        return
    names = sorted(tf.io.gfile.listdir(logdir))
    prefixes: Dict[str, None] = {}
    for name in names:
        match = _INDEX.match(name) or _META.match(name)
        if match:
            prefixes[match.group(1)] = None
    for prefix in prefixes:
        path = os.path.join(logdir, prefix)
        shards = [n for n in names if re.match(re.escape(prefix) + r'-\d{5}-of-\d{5}$', n)]
        if prefix + '.index' not in names and prefix not in names and shards:
            path += '-?????' + shards[0][len(prefix) + 6 :]  # as V1 names its shards together
        if prefix + '.index' in names or prefix in names or shards:
            yield path


def files_of(path: str) -> List[str]:
    """The files of a checkpoint, of any format, without its graph; empty if there is none."""
    folder, name = os.path.split(path)
    find, escape = glob.glob, glob.escape
    if '://' in path:  # a file system that only TensorFlow knows
        if not tf.io.gfile.isdir(folder):
            return []  # its glob would raise
        find, escape = tf.io.gfile.glob, str
    if '?' not in name:  # else V1 means all shards by it
        name = escape(name)
    return [file for end in _ENDS for file in find(os.path.join(escape(folder), name) + end)]


def _look(path: str) -> Checkpoint:
    written, size = 0.0, 0
    for name in files_of(path):
        try:
            if os.path.exists(name):  # TensorFlow's own stat gives whole seconds
                stat = os.stat(name)
                seconds, length = stat.st_mtime, stat.st_size
            else:
                stat = tf.io.gfile.stat(name)
                seconds, length = stat.mtime_nsec / 1e9, stat.length
        except (OSError, tf.errors.NotFoundError):
            continue  # its trainer has just deleted it
        written = max(written, seconds)
        size += length
    return Checkpoint(path, written, size)


def step_in_name(path: str) -> Optional[int]:
    """The global step that a checkpoint's name ends in, or None."""
    match = _STEP.search(os.path.basename(path))
    return int(match.group(1)) if match else None


def _tensor(reader, path: str, name: str, dtype: tf.DType):
    if dtype != tf.float16 or tf.io.gfile.exists(path + '.index'):
        return reader.get_tensor(name)
    # In the format V1 a reader knows no float16, but the op that restores does.
    with tf.Graph().as_default(), tf1.Session() as session:
        return session.run(tf.raw_ops.Restore(file_pattern=path, tensor_name=name, dt=dtype))


def _is_finite(value: np.ndarray) -> bool:
    if value.dtype.kind in 'biuSUO':  # numbers that cannot be otherwise, and strings
        return True
    if value.dtype.kind not in 'fc':  # bfloat16 and its like, unknown to numpy
        value = value.astype(np.float32)
    return bool(np.isfinite(value).all())

"""TensorFlow's state file (``checkpoint``): which checkpoints there are, and which is the newest.

It holds paths, and directories are moved and copied. So a path in it means the checkpoint of that
name beside the state file, if there is one, whatever folder the path says. TensorFlow itself goes
by what is written: what is written here is relative to the state file's own folder, and is read
back with TensorFlow's own function before it takes its place.
"""

import os
from typing import List, NamedTuple, Optional, Sequence

import tensorflow as tf

from slimguard import files
from slimguard.checkpoint_files import files_of

tf1 = tf.compat.v1

# While a FiniteSaver writes a checkpoint anew, the old one has this in its name.
SPARE = '.spare'
# No state file is as large; TensorFlow would read it whole.
_MOST_BYTES = 64 << 20


class StateFileError(Exception):
    """A state file cannot be read or written; the message says which, and why."""


class State(NamedTuple):
    """What a state file says, as absolute paths.

    Attributes:
      newest: the checkpoint that is meant to be the newest.
      paths: all that are listed, the oldest first, `newest` the last.
      as_read: what TensorFlow takes for the newest.
    """

    newest: str
    paths: List[str]
    as_read: str


def path_in(logdir: str, latest_filename: str = 'checkpoint') -> str:
    """The path of the state file in `logdir`."""
    return os.path.join(logdir, latest_filename)


def read(logdir: str, latest_filename: str = 'checkpoint') -> Optional[State]:
    """What the state file in `logdir` says, or None if there is none.

    Raises:
      StateFileError: if it cannot be read, as when it is no regular file or damaged.
    """
    proto = _parse(logdir, latest_filename)
    if proto is None:
        return None
    newest = proto.model_checkpoint_path
    others = [other for other in proto.all_model_checkpoint_paths if other and other != newest]
    meant = list(dict.fromkeys(_meant(logdir, written) for written in others + [newest]))
    last = _meant(logdir, newest)
    return State(last, [each for each in meant if each != last] + [last], newest)


def newest_in(logdir: str, latest_filename: str = 'checkpoint') -> Optional[str]:
    """The checkpoint that is meant to be the newest; None where no state file names one."""
    try:
        state = read(logdir, latest_filename)
    except StateFileError:
        return None
    return None if state is None else state.newest


def write(logdir: str, paths: Sequence[str], latest_filename: str = 'checkpoint') -> None:
    """Makes the state file list `paths`, the newest last, at one stroke.

    Raises:
      StateFileError: if TensorFlow would read something else from it; then it is not written.
      OSError, tf.errors.OpError: if it cannot be written.
    """
    written = [_relative(logdir, path) for path in paths]
    # With an absolute folder that function leaves the paths as they are.
    proto = tf1.train.generate_checkpoint_state_proto('/', written[-1], written)

    def require_intended(making: str) -> None:
        read_back = _parse(logdir, os.path.basename(making))
        found = None if read_back is None else read_back.model_checkpoint_path
        if found is None or not is_same(found, paths[-1]):
            raise StateFileError(
                '%s was to name %s, and TensorFlow would read %s; it is left as it was'
                % (path_in(logdir, latest_filename), paths[-1], found)
            )

    files.write_atomically(
        path_in(logdir, latest_filename), str(proto).encode('utf-8'), check=require_intended
    )


def is_same(path: str, other: str) -> bool:
    """Whether two absolute paths are of one file, be it through a link to its folder."""
    if path == other or files.is_remote(path) or files.is_remote(other):
        return path == other
    return os.path.realpath(path) == os.path.realpath(other)


def _parse(logdir: str, latest_filename: str):
    """The proto in the state file, its paths as TensorFlow makes them absolute, or None."""
    path = path_in(logdir, latest_filename)
    try:
        if not files.is_file(path):
            if files.exists(path):  # a FIFO, say, would be waited for
                raise StateFileError('%s is no regular file' % path)
            return None
        if tf.io.gfile.stat(path).length > _MOST_BYTES:
            raise StateFileError('%s is larger than %d bytes' % (path, _MOST_BYTES))
        proto = tf1.train.get_checkpoint_state(logdir, latest_filename)
    except StateFileError:
        raise
    except Exception as error:  # its parser's errors differ by version
        raise StateFileError('%s cannot be read: %s' % (path, error)) from None
    if proto is None:
        raise StateFileError('%s is damaged' % path)
    if any(
        '\0' in named for named in (proto.model_checkpoint_path, *proto.all_model_checkpoint_paths)
    ):
        raise StateFileError('%s names a path with a NUL in it' % path)
    return proto


def _meant(logdir: str, path: str) -> str:
    """The checkpoint that a path of a state file means, wherever the directory was then."""
    name = os.path.basename(path)
    for local in (name, name.replace(SPARE, '', 1)):
        if files_of(os.path.join(logdir, local)):
            return os.path.join(logdir, local)
    return os.path.normpath(path) if not files.is_remote(path) else path


def _relative(logdir: str, path: str) -> str:
    if is_same(os.path.dirname(path), logdir):
        return os.path.basename(path)
    return path  # of another directory, which does not move with this one

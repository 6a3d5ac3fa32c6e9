"""TensorFlow's state file (``checkpoint``): which checkpoints there are, and which is the newest.

It holds paths, but directories are moved and copied. So slimguard takes a path to mean the
checkpoint of that name beside the state file, if there is one, whatever folder the path names.
TensorFlow itself uses the path as it is written. So the paths written here are relative to the
state file's own folder, and the new file is read back with TensorFlow's own function before it
replaces the old one.

This module writes the file for repairs, and for a step that is saved again. In any other save
TensorFlow's own Saver writes it: see finite_saver.py.
"""

import os
from typing import List, NamedTuple, Optional, Sequence

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.checkpoints.checkpoint_files import files_of
from slimguard.system import files

# While a FiniteSaver writes a checkpoint again, the old one has this in its name.
SPARE = '.spare'


class StateFileError(OSError):
    """A state file cannot be read, lists no checkpoints, or cannot be written as intended."""


class State(NamedTuple):
    """What a state file says, as absolute paths.

    Attributes:
      newest: the checkpoint that is meant to be the newest.
      paths: all listed checkpoints, from the oldest to `newest`.
      as_read: the checkpoint that TensorFlow takes for the newest.
    """

    newest: str
    paths: List[str]
    as_read: str


# TensorFlow's own function: `instrument` replaces it by one that reads through this module.
_read_state = tf1.train.get_checkpoint_state


def path_in(logdir: str, latest_filename: str = 'checkpoint') -> str:
    """The path of the state file in `logdir`."""
    return os.path.join(logdir, latest_filename)


def read(logdir: str, latest_filename: str = 'checkpoint') -> Optional[State]:
    """What the state file in `logdir` says, or None if there is none.

    Raises:
      StateFileError: if it holds no list of checkpoints, or cannot be read.
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
    """The newest checkpoint by the state file; None if there is no file, or it names none."""
    try:
        state = read(logdir, latest_filename)
    except StateFileError:
        return None
    return None if state is None else state.newest


def write(logdir: str, paths: Sequence[str], latest_filename: str = 'checkpoint') -> None:
    """Makes the state file list `paths`, the newest last; replaces it atomically.

    Raises:
      StateFileError: if TensorFlow would read something else from the new file; the old file stays.
      OSError, tf.errors.OpError: if it cannot be written for another reason.
    """
    written = [_relative(logdir, path) for path in paths]
    # If the folder is '/', TensorFlow leaves the paths as they are.
    proto = tf1.train.generate_checkpoint_state_proto('/', written[-1], written)

    def require_intended(making: str) -> None:
        read_back = _parse(logdir, os.path.basename(making))
        named = None if read_back is None else read_back.model_checkpoint_path
        if named is None or not is_same(named, paths[-1]):
            raise StateFileError(
                '%s is left as it was, since TensorFlow would read %s in it in place of %s'
                % (path_in(logdir, latest_filename), named, paths[-1])
            )

    files.write_atomically(
        path_in(logdir, latest_filename), str(proto).encode('utf-8'), check=require_intended
    )


def is_same(path: str, other: str) -> bool:
    """Whether two absolute paths name one file, perhaps through a link to its folder."""
    if path == other or files.is_remote(path) or files.is_remote(other):
        return path == other
    return os.path.realpath(path) == os.path.realpath(other)


def _parse(logdir: str, latest_filename: str):
    """The state file's proto, with paths made absolute by TensorFlow; None if there is no file."""
    path = path_in(logdir, latest_filename)
    try:
        files.open_to_read(path).close()  # a FIFO would block
        proto = _read_state(logdir, latest_filename)
    except (FileNotFoundError, NotADirectoryError, tf.errors.NotFoundError):
        return None
    except Exception as error:  # the parser's errors differ between versions
        why = getattr(error, 'strerror', None) or getattr(error, 'message', error)
        raise StateFileError('%s cannot be read: %s' % (path, why)) from None
    if proto is None:
        raise StateFileError('%s is damaged' % path)
    if any(
        '\0' in named for named in (proto.model_checkpoint_path, *proto.all_model_checkpoint_paths)
    ):
        raise StateFileError('%s names a path with a NUL in it' % path)
    return proto


def _meant(logdir: str, path: str) -> str:
    """The checkpoint that a path in a state file means, even if the directory has moved."""
    name = os.path.basename(path)
    for local in (name, name.replace(SPARE, '', 1)):
        if files_of(os.path.join(logdir, local)):
            return os.path.join(logdir, local)
    return os.path.normpath(path) if not files.is_remote(path) else path


def _relative(logdir: str, path: str) -> str:
    if is_same(os.path.dirname(path), logdir):
        return os.path.basename(path)
    return path  # a checkpoint in another directory does not move with this one

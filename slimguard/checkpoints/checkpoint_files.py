"""Finds the files of checkpoints on disk by their names; opens none.

Also finds the files that a failed save leaves behind.
"""

import glob
import os
import re
from typing import Dict, Iterator, List, NamedTuple, Optional

import tensorflow as tf

from slimguard.system import files

# What a checkpoint `model.ckpt-8` consists of on disk: `.index` and `.data-...` in the format V2;
# the name itself, or `-00000-of-00002`, in V1. `.meta` is the graph; restoring does not need it.
_INDEX = re.compile(r'(.+)\.index$')
_META = re.compile(r'(.+)\.meta$')
_ENDS = ('.index', '.data-?????-of-?????', '', '-?????-of-?????')
_STEP = re.compile(r'-(\d+)(-\?+-of-\d+)?$')
_SHARDS = re.compile(r'-\?{5}-of-\d{5}$')
# The temporary files of an interrupted save; `_LEFTOVERS` adds the checkpoint's own files.
_TEMPORARY = (
    '.index.tempstate*',
    '.data-*.tempstate*',
    '.tempstate*',
    '.meta.tmp*',
    '_temp*/*',
    '_temp*',
)
_LEFTOVERS = ('.index*', '.data-*') + _TEMPORARY


class Checkpoint(NamedTuple):
    """The properties of a checkpoint that are known without opening its files.

    Attributes:
      path: the prefix, as `tf.compat.v1.train.Saver.restore` takes it.
      time: when it was written, in seconds since the epoch.
      size: the size of its files, in bytes; 0 if there are none.
    """

    path: str
    time: float
    size: int


def look_at(path: str) -> Checkpoint:
    """The time and size of the checkpoint `path`; its files are not opened."""
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


def files_of(path: str) -> List[str]:
    """The files of a checkpoint of any format, but not its graph; empty if it has no files."""
    return [
        name for name in _with_ends(path, _ENDS) if files.is_remote(name) or files.is_file(name)
    ]


def remove(path: str) -> None:
    """Removes the files that a failed or refused save has left behind."""
    _remove_files(_with_ends(path, _LEFTOVERS) + files_of(path))


def _remove_files(names: List[str]) -> None:
    """Removes files, and folders that are empty, as far as possible."""
    for name in names:
        try:
            if files.is_remote(name):
                tf.io.gfile.remove(name)
            else:
                os.rmdir(name) if os.path.isdir(name) else os.remove(name)
        except (OSError, tf.errors.OpError):
            continue  # removed already, or a folder of an object store: it vanishes with its files


def reason_of(error: tf.errors.OpError) -> str:
    """The line of an error that says what is wrong; TensorFlow puts it between two tracebacks."""
    return error.message.partition('\n\t [[')[0].strip().rpartition('\n')[2]


def remove_temporary(path: str) -> None:
    """Removes the temporary files of a failed save, to free space; keeps the checkpoint itself."""
    _remove_files(_with_ends(path, _TEMPORARY))


def link(path: str, other: str) -> None:
    """Gives the files of the checkpoint `path` second names; copies them where links do not work.

    Raises:
      OSError, tf.errors.OpError: if there is no room for a copy.
    """
    for name in files_of(path):
        second = other + name[len(path) :]
        try:
            os.link(name, second)
        except OSError:  # not on a local disk
            tf.io.gfile.copy(name, second, overwrite=True)


def paths_in(folder: str) -> Iterator[str]:
    """The prefixes of all checkpoints in a folder, in the order of their names."""
    names = files.list_dir(folder)
    there = set(names)
    prefixes: Dict[str, None] = {}
    for name in names:
        match = _INDEX.match(name) or _META.match(name)
        if match:
            prefixes[match.group(1)] = None
    for prefix in prefixes:
        path = os.path.join(folder, prefix)
        shards = [n for n in names if re.match(re.escape(prefix) + r'-\d{5}-of-\d{5}$', n)]
        if prefix + '.index' not in there and prefix not in there and shards:
            path += '-?????' + shards[0][len(prefix) + 6 :]  # one pattern names all shards of V1
        if prefix + '.index' in there or prefix in there or shards:
            yield path


def step_in_name(path: str) -> Optional[int]:
    """The global step that a checkpoint's name ends in, or None."""
    match = _STEP.search(os.path.basename(path))
    return int(match.group(1)) if match else None


def _with_ends(path: str, ends) -> List[str]:
    folder, name = os.path.split(path)
    find, escape = glob.glob, glob.escape
    if files.is_remote(path):
        if not tf.io.gfile.isdir(folder):
            return []  # glob would raise there
        find, escape = tf.io.gfile.glob, str
    shards = _SHARDS.search(name)  # the pattern of all shards of V1
    end_of_name = shards.group() if shards else ''
    name = escape(name[: len(name) - len(end_of_name)]) + end_of_name
    return [file for end in ends for file in find(os.path.join(escape(folder), name) + end)]

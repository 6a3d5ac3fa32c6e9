"""A save that found the disk full: why it failed, and the files that it leaves behind."""

import os
import re

import tensorflow as tf

from slimguard.checkpoints import checkpoint_files

# How TensorFlow's errors, from 1.15 to 2.21, say that a disk is full: their class,
# ResourceExhaustedError, also stands for a lack of memory.
_FULL = ('No space left on device', 'Disk quota exceeded')
# How they name the file that was to replace another, and is left behind.
_UNFINISHED = re.compile(r'(\S.*\.tmp[0-9a-f]{32}); (?:%s)' % '|'.join(_FULL))


def reason_of(error: tf.errors.OpError) -> str:
    """The line of an error that says what is wrong; TensorFlow puts it between two tracebacks."""
    return error.message.partition('\n\t [[')[0].strip().rpartition('\n')[2]


def remove_half_written(path: str, error: tf.errors.OpError) -> None:
    """Removes the files that TensorFlow leaves on a full disk: they take the room there was.

    Args:
      path: the prefix of the checkpoint.
      error: why it could not be saved. If it tells of no full disk, nothing is removed.
    """
    if not any(said in error.message for said in _FULL):
        return
    checkpoint_files.remove_temporary(path)
    folder = os.path.dirname(path)
    # The error names the file (the state file's or the graph's), so it is this save's own.
    for name in _UNFINISHED.findall(error.message):
        if os.path.dirname(name) == folder:
            checkpoint_files.remove_files([name])

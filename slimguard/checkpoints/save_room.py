"""Room for a save: how much it takes, and the files that it leaves behind on a full disk."""

import os
import re
from typing import Sequence

import tensorflow as tf

from slimguard.checkpoints import checkpoint_files
from slimguard.graph import graph_size

# What a checkpoint takes beyond its values: a share of them, and so many bytes for the names, the
# collections of the graph, the state file, and the events that are written meanwhile.
_MORE, _MARGIN = 1.05, 1 << 20
# How TensorFlow's errors, from 1.15 to 2.21, say that a disk is full: their class,
# ResourceExhaustedError, also stands for a lack of memory.
_FULL = ('No space left on device', 'Disk quota exceeded')
# How they name the file that was to replace another, and is left behind.
_UNFINISHED = re.compile(r'(\S.*\.tmp[0-9a-f]{32}); (?:%s)' % '|'.join(_FULL))


def room_after(graph: tf.Graph, size: int, checkpoints: Sequence[str]) -> int:
    """The bytes of the checkpoint after these, its graph included; generously.

    Args:
      graph: the graph, which is saved beside each checkpoint.
      size: the bytes of all saved values whose shape is known.
      checkpoints: the saver's list.
    """
    # Values without a shape in the graph, such as a table's, count as in the last checkpoint.
    newest = [checkpoint_files.look_at(path).size for path in checkpoints[-1:]]
    return int(max([size] + newest) * _MORE) + graph_size.bytes_of(graph) + _MARGIN


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

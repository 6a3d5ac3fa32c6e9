"""Room for a save: how much it takes, and what is done where the disk is full.

If a save fails, its files are removed. Then files that are worth less than a checkpoint give way to
it, and the save is tried once more.
"""

import os
import re
from typing import Callable, List, Sequence

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.checkpoints import checkpoint_files
from slimguard.graph import graph_size

# What a checkpoint takes beyond its values: a part of them, and so many bytes for the names, the
# collections of the graph, the state file, and the events that are written meanwhile.
_MORE, _MARGIN = 1.05, 1 << 20
# What TensorFlow's errors say of a disk that is full, from 1.15 to 2.21: they are of a class,
# ResourceExhaustedError, that stands for lack of memory as well.
_FULL = ('No space left on device', 'Disk quota exceeded')
# Where they name a file that was to replace another: it is left behind.
_UNFINISHED = re.compile(r'(\S.*\.tmp[0-9a-f]{32}); (?:%s)' % '|'.join(_FULL))


class RoomNeeded:
    """How many bytes the next checkpoint of a saver may take on its disk.

    Args:
      graph: the graph, which is saved beside each checkpoint.
      size: the bytes of all that is saved and whose shape is known.
    """

    def __init__(self, graph: tf.Graph, size: int):
        self._graph = graph
        self._size = size

    def after(self, checkpoints: Sequence[str]) -> int:
        """The bytes of the checkpoint after these, its graph included; generously."""
        # What has no shape in the graph, a table say, is known from what was saved of it.
        newest = [checkpoint_files.look_at(path).size for path in checkpoints[-1:]]
        return int(max([self._size] + newest) * _MORE) + graph_size.bytes_of(self._graph) + _MARGIN


def save_or_make_room(
    save: Callable[[], str], prefix: Callable[[], str], make_room: Callable[[], List[str]]
) -> str:
    """Saves; on a full disk, what is worth less than a checkpoint gives way to it.

    Args:
      save: saves, and returns the prefix of the checkpoint.
      prefix: the prefix of the checkpoint that `save` began to write.
      make_room: removes what is worth less; returns its paths.

    Raises:
      tf.errors.OpError: if it cannot be saved, after a second try if room was made.
    """
    try:
        return save()
    except tf.errors.OpError as error:
        if not _is_for_lack_of_room(error):
            raise
        _remove_half_written(prefix(), error)
        removed = make_room()
        if not removed:
            raise
    what = ('the bundle %s' if len(removed) == 1 else 'the bundles %s') % ', '.join(removed)
    tf1.logging.warning(
        'slimguard: %s of this training gave way to checkpoint %s, which had no room; saving '
        'it once more.',
        what,
        prefix(),
    )
    return _save_once_more(save, prefix, what)


def _save_once_more(save: Callable[[], str], prefix: Callable[[], str], removed: str) -> str:
    try:
        saved = save()
    except tf.errors.OpError as error:
        if not _is_for_lack_of_room(error):
            raise
        _remove_half_written(prefix(), error)
        said = '%s; slimguard had removed %s of this training to make room, and saved once more'
        message = said % (reason_of(error), removed)
        raise type(error)(error.node_def, error.op, message) from None
    tf1.logging.warning('slimguard: checkpoint %s is written.', saved)
    return saved


def reason_of(error: tf.errors.OpError) -> str:
    """The line of an error that says what is wrong; TensorFlow puts it between two tracebacks."""
    return error.message.partition('\n\t [[')[0].strip().rpartition('\n')[2]


def _is_for_lack_of_room(error: tf.errors.OpError) -> bool:
    return any(said in error.message for said in _FULL)


def _remove_half_written(path: str, error: tf.errors.OpError) -> None:
    """Removes what TensorFlow leaves where there is no room: it takes what room there was."""
    checkpoint_files.remove_temporary(path)
    folder = os.path.dirname(path)
    # Of the state file or of the graph, and named in the error: nobody else's.
    for name in _UNFINISHED.findall(error.message):
        if os.path.dirname(name) == folder:
            checkpoint_files.remove_files([name])

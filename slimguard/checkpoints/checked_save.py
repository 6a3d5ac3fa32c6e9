"""A Saver's save, read back before it is published: only a whole and finite checkpoint stays.

The Saver's own op writes the files, and the Saver writes its state file when that op has run. In
between the checkpoint is read from the disk, every byte and every float. If it is not good, its
files are removed, and an earlier checkpoint of that name is put back.
"""

import time
from typing import Any, Iterator, NamedTuple, Optional

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard import graph as graphs
from slimguard.checkpoints import checkpoint_files, checkpoint_reader
from slimguard.checkpoints.checkpoint_files import reason_of, step_in_name
from slimguard.checkpoints.checkpoint_reader import Inspection
from slimguard.checkpoints.spare import Spare
from slimguard.graph.sessions import SessionWrapper
from slimguard.graph.single_runs import run_once
from slimguard.system.log import log

# How often to try a save while a gate may be undoing a NaN, and the seconds between two tries.
_TRIES, _PAUSE = 5, 0.05

_SAVES = frozenset(['Save', 'SaveSlices', 'SaveV2'])


class NotGood(Exception):
    """A checkpoint must not be published.

    Attributes:
      found: what was found in it.
      path: its prefix.
      step: the global step in its name, or else in the checkpoint; or None.
    """

    def __init__(self, found: Inspection, path: str):
        Exception.__init__(self, str(found))
        self.found = found
        self.path = path
        step = step_in_name(path)
        self.step = found.step if step is None else step


class SavingSession(SessionWrapper):
    """The session that a Saver saves with; it raises `NotGood` in place of a path.

    Args:
      session: the session to save.
      saver: the saver.
      spare: keeps the checkpoint that is replaced, if any.

    Attributes:
      written: the prefix of the checkpoint that it writes; None if it writes none.
    """

    def __init__(self, session, saver: tf1.train.Saver, spare: Spare):
        SessionWrapper.__init__(self, session)
        self._saver_def = saver.saver_def
        self._spare = spare
        self.written: Optional[str] = None

    def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        is_name = isinstance(fetches, str)
        if not is_name or fetches != self._saver_def.save_tensor_name:
            return SessionWrapper.run(self, fetches, feed_dict, options, run_metadata)
        assert feed_dict is not None  # a Saver feeds the prefix
        (path,) = feed_dict.values()
        if not self._spare.make(path):
            return path
        self.written = path
        may_be_undone = any(gate.transient for gate in gates.gates_of(self.graph).values())
        for tries_left in reversed(range(_TRIES if may_be_undone else 1)):
            written = self._write(path, fetches, feed_dict)
            found = checkpoint_reader.read(tf.compat.as_str_any(written))
            if found.is_good:
                return written
            checkpoint_files.remove(path)
            if not tries_left:
                raise NotGood(found, path)
            time.sleep(_PAUSE)

    def _write(self, path: str, fetches: str, feed_dict: dict) -> Any:
        existed = bool(checkpoint_files.files_of(path))
        try:
            return run_once(self._session, fetches, feed_dict)
        except tf.errors.OpError as error:
            # A server that dies may have written the whole file, so a restart may use it.
            is_whole = not existed and checkpoint_reader.read(path).is_good
            if not (existed or is_whole):
                checkpoint_files.remove(path)
            said = 'is whole, but saving it failed' if is_whole else 'could not be written'
            log().error('checkpoint %s %s: %s', path, said, reason_of(error))
            raise


class Saved(NamedTuple):
    """A tensor that is saved, and its name in the checkpoint."""

    tensor: Any
    name: str

    @property
    def variable(self) -> Optional[tf.Operation]:
        """The op of the variable whose value it is; None for a computed value."""
        source = self.tensor
        while source.op.type == 'Identity':
            source = source.op.inputs[0]
        return graphs.variable_read(source)


def saved_by(graph: tf.Graph, saver_def: Any) -> Iterator[Saved]:
    """The tensors of a graph that a Saver saves."""
    save = graph.as_graph_element(saver_def.save_tensor_name)
    for op in graphs.ancestors([save.op]):
        if op.type in _SAVES:
            names = tf.get_static_value(op.inputs[1])
            # The values follow the filename, the names and, except in the oldest op, the slices.
            for number, tensor in enumerate(op.inputs[2 if op.type == 'Save' else 3 :]):
                name = tensor.op.name if names is None else tf.compat.as_str_any(names[number])
                yield Saved(tensor, name)

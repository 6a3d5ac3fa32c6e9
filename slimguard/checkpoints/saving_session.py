"""The session that a `Saver` saves with: it runs the checked save op in place of the Saver's own.

The published values are the checked ones, although other threads may train meanwhile. A ref
variable is checked after the save. A gate may have undone a NaN in between, so the file itself is
then read too.
"""

import threading
import time
from typing import Any, Optional, Sequence

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard.checkpoints import checkpoint_files, checkpoint_reader
from slimguard.checkpoints.checked_save import CheckedSave
from slimguard.checkpoints.checkpoint_files import step_in_name
from slimguard.checkpoints.save_room import reason_of
from slimguard.checkpoints.spare import Spare
from slimguard.graph.sessions import SessionWrapper
from slimguard.system.log import log

# How often a save is tried if a gate may just be undoing a NaN, and the seconds in between.
_TRIES, _PAUSE = 5, 0.05


class NotFinite(Exception):
    """A checkpoint is not to be published.

    Attributes:
      names: the names of the values that are not finite.
      path: the prefix of the checkpoint.
      step: the global step in it, or None.
    """

    def __init__(self, names: Sequence[str], path: str, step: Optional[int]):
        Exception.__init__(self, ', '.join(names))
        self.names = list(names)
        self.path = path
        self.step = step


class SavingSession(SessionWrapper):
    """A session in which a Saver's save op stands for the checked one.

    Args:
      session: the session to save.
      checked: the checked save op.
      saver: the saver.
      spare: keeps the checkpoint that is replaced, if any.
      is_alone: whether no step of this process is under way, as far as is known.

    Attributes:
      written: the prefix of the checkpoint, once it is known; else None.
    """

    def __init__(
        self, session, checked: CheckedSave, saver: tf1.train.Saver, spare: Spare, is_alone: bool
    ):
        SessionWrapper.__init__(self, session)
        self._checked = checked
        self._saver_def = saver.saver_def
        self._spare = spare
        self._is_alone = is_alone
        self.written: Optional[str] = None

    def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        is_name = isinstance(fetches, str)
        if not is_name or fetches != self._saver_def.save_tensor_name:
            return SessionWrapper.run(self, fetches, feed_dict, options, run_metadata)
        assert feed_dict is not None  # a Saver feeds the prefix
        (path,) = feed_dict.values()
        self.written = path
        self._spare.make(path)
        return self._try_to_write(path, feed_dict)

    def _try_to_write(self, path: str, feed_dict: dict) -> Any:
        """Writes the checkpoint; tries again if a gate may just be undoing a NaN."""
        found = gates.gates_of(self.graph).values()
        transient = any(gate.transient for gate in found)
        # Any gate may undo an update that overflowed; only the thread that trains waits for that.
        is_main = threading.current_thread() is threading.main_thread()
        beside = bool(found) and not is_main and not self._is_alone
        for tries_left in reversed(range(_TRIES if transient else 1)):
            try:
                written = self._write(path, feed_dict)
                if self._checked.has_refs and (transient or beside):
                    _read_back(path, written)
                return written
            except NotFinite:
                if not tries_left:
                    raise
                time.sleep(_PAUSE)

    def _write(self, path: str, feed_dict: dict) -> Any:
        existed = bool(checkpoint_files.files_of(path))
        try:
            saved = self._checked.run(self._session, feed_dict, existed)
        except tf.errors.OpError as error:
            # A server that dies may have written the whole file, so a restore may use it.
            is_whole = not existed and checkpoint_reader.read(path).is_good
            if not (existed or is_whole):
                checkpoint_files.remove(path)
            said = 'is whole, but saving it failed' if is_whole else 'could not be written'
            log().error('checkpoint %s %s: %s', path, said, reason_of(error))
            raise
        if saved.is_refused:
            if not existed:
                checkpoint_files.remove(path)
            raise NotFinite(saved.bad_names, path, step_in_name(path))
        return saved.path


def _read_back(path: str, written: Any) -> None:
    """Reads the written checkpoint; if it is not finite, removes it and raises `NotFinite`."""
    inspection = checkpoint_reader.read(tf.compat.as_str_any(written))
    if inspection.non_finite:
        checkpoint_files.remove(path)
        raise NotFinite(inspection.non_finite, path, inspection.step)

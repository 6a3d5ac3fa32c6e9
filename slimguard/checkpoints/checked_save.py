"""A Saver's save, read back before it is published: only a whole and finite checkpoint stays.

The Saver's own op writes the files, and the Saver writes its state file when that op has run. In
between the checkpoint is read from the disk, every byte and every float. If it is not good, its
files are removed.

A Saver that saves a step a second time, as it does after each restart, replaces two files, and a
kill between the two leaves a truncated checkpoint as the newest. And the new one may be refused. So
the old one is kept, and published, under another name meanwhile: that is its `Spare`.
"""

import os
import time
from typing import Any, Optional, Tuple

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard.checkpoints import checkpoint_files, checkpoint_reader, state_file
from slimguard.checkpoints.checkpoint_files import reason_of, step_in_name
from slimguard.checkpoints.checkpoint_reader import Inspection
from slimguard.checkpoints.state_file import SPARE
from slimguard.graph.sessions import SessionWrapper
from slimguard.graph.single_runs import run_once
from slimguard.system.log import log

# How often to try a save while a gate may be undoing a NaN, and the seconds between two tries.
_TRIES, _PAUSE = 5, 0.05


class NotGood(Exception):
    """A checkpoint must not be published.

    Attributes:
      inspection: what was found in it.
      path: its prefix.
      step: the global step in its name, or else in the checkpoint; or None.
    """

    def __init__(self, inspection: Inspection, path: str):
        Exception.__init__(self, str(inspection))
        self.inspection = inspection
        self.path = path
        step = step_in_name(path)
        self.step = inspection.step if step is None else step


class Spare:
    """Keeps a checkpoint under another name while a new one takes its place.

    Args:
      saver: the saver, whose list of checkpoints goes into the state file.
      logdir: the folder of the checkpoints.
      latest_filename: the name of the state file in it.
    """

    def __init__(self, saver: tf1.train.Saver, logdir: str, latest_filename: str):
        self._saver = saver
        self._logdir = logdir
        self._latest_filename = latest_filename
        self._names: Optional[Tuple[str, str]] = None  # its own, and the spare's

    def make(self, path: str) -> bool:
        """Keeps the checkpoint at `path`, if there is one; publishes that if it is the newest.

        Returns:
          Whether another may take its place: not if it is good, and cannot be kept.
        """
        if self._names is not None or not checkpoint_files.files_of(path):
            return True
        spare, newest = _spare_of(path), self._newest()
        if newest == spare:  # a process was killed while it wrote over the spare
            self._names = path, spare
            return True
        checkpoint_files.remove(spare)
        try:
            checkpoint_files.link(path, spare)
            if newest == path:
                self._publish(spare, path)
        except (OSError, tf.errors.OpError) as error:  # no links there, and no room for a copy
            checkpoint_files.remove(spare)
            if not checkpoint_reader.read(path).is_good:
                return True
            log().warning('%s is there already, and is not saved again: %s', path, error)
            return False
        self._names = path, spare
        return True

    def drop(self, is_saved: bool) -> None:
        """Removes the spare; puts it back if nothing good `is_saved` in its place."""
        if self._names is None:
            return
        own, spare = self._names
        is_published = self._newest() == spare
        try:
            if not (is_saved or checkpoint_reader.read(own).is_good):
                checkpoint_files.remove(own)
                checkpoint_files.link(spare, own)
            if is_published:
                self._publish(own, own)
        except (OSError, tf.errors.OpError) as error:  # a full disk; the spare stays, published
            log().warning('%s stands in for %s: %s', spare, own, error)
            return
        checkpoint_files.remove(spare)

    def _newest(self) -> Optional[str]:
        return state_file.newest_in(self._logdir, self._latest_filename)

    def _publish(self, path: str, replaced: str) -> None:
        others = [p for p in self._saver.last_checkpoints if p != replaced]
        state_file.write(self._logdir, others + [path], self._latest_filename)


def _spare_of(path: str) -> str:
    """The spare's name of the checkpoint `path`: it ends in the same step."""
    folder, name = os.path.split(path)
    stem, dash, step = name.rpartition('-')
    return os.path.join(folder, stem + SPARE + dash + step if dash else step + SPARE)


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
            inspection = checkpoint_reader.read(tf.compat.as_str_any(written))
            if inspection.is_good:
                return written
            checkpoint_files.remove(path)
            if not tries_left:
                raise NotGood(inspection, path)
            time.sleep(_PAUSE)

    def _write(self, path: str, fetches: str, feed_dict: dict) -> Any:
        try:
            return run_once(self._session, fetches, feed_dict)
        except tf.errors.OpError as error:
            checkpoint_files.remove(path)
            log().error('checkpoint %s could not be written: %s', path, reason_of(error))
            raise

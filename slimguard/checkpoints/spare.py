"""The spare copy of a checkpoint that is saved over: it stands in while the files are replaced.

A Saver that saves a step a second time, as it does after each restart, replaces two files, and a
kill between the two leaves a truncated checkpoint as the newest. The new checkpoint may also be
refused. So the old one is kept, and published, under another name meanwhile.
"""

import os
from typing import NamedTuple, Optional

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.checkpoints import checkpoint_files, checkpoint_reader, state_file
from slimguard.checkpoints.state_file import SPARE
from slimguard.system.log import log


class _Names(NamedTuple):
    """The two names of one checkpoint: its own, and its spare's."""

    own: str
    spare: str


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
        self._names: Optional[_Names] = None

    def make(self, path: str) -> bool:
        """Keeps the checkpoint at `path`, if there is one; publishes that if it is the newest.

        Returns:
          Whether another may take its place: not if it is good, and cannot be kept.
        """
        if self._names is not None or not checkpoint_files.files_of(path):
            return True
        spare, newest = _spare_of(path), self._newest()
        if newest == spare:  # a process was killed while it wrote over the spare
            self._names = _Names(path, spare)
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
        self._names = _Names(path, spare)
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

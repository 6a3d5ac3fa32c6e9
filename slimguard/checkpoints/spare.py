"""The spare copy of a checkpoint whose step is saved again: it stands in while files are replaced.

A Saver that saves a step a second time, as it does after each restart, replaces two files, and a
kill between the two leaves a truncated checkpoint as the newest. So the old one is published under
another name meanwhile.
"""

import os
import time
from typing import NamedTuple, Optional

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.checkpoints import checkpoint_files, checkpoint_reader, state_file
from slimguard.checkpoints.state_file import SPARE
from slimguard.compat import tf_private
from slimguard.system import files
from slimguard.system.log import log


class _Names(NamedTuple):
    """The two names of one checkpoint: its own, and its spare's."""

    own: str
    spare: str


class Spare:
    """Keeps the newest checkpoint under another name while a new one takes its place.

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

    def make(self, path: str) -> None:
        """Publishes the checkpoint at `path`, if it is the newest, under its spare's name."""
        if self._names is not None or not files.exists(path + '.index'):
            return
        if state_file.newest_in(self._logdir, self._latest_filename) != path:
            return
        spare = _spare_of(path)
        checkpoint_files.remove(spare)
        try:
            checkpoint_files.link(path, spare)
            self._publish(spare, path)
        except (OSError, tf.errors.OpError) as error:  # no links there, and no room for a copy
            log().warning('%s is written over without a spare: %s', path, error)
            checkpoint_files.remove(spare)
            return
        self._names = _Names(path, spare)

    def drop(self) -> None:
        """Removes the spare again, unless the checkpoint under its own name is not good."""
        if self._names is None:
            return
        own, spare = self._names
        if state_file.newest_in(self._logdir, self._latest_filename) == spare:
            # The new one was not published. In its place may be the old one, or a truncated one.
            if not (checkpoint_reader.read(own).is_good and self._can_publish(own)):
                listed = tf_private.checkpoints_and_times(self._saver)
                kept = [each for each in listed if each[0] != own]
                self._saver.set_last_checkpoints_with_time(kept + [(spare, time.time())])
                return
        checkpoint_files.remove(spare)

    def _can_publish(self, own: str) -> bool:
        try:
            self._publish(own, own)
        except (OSError, tf.errors.OpError):  # a full disk; the spare stays published
            return False
        return True

    def _publish(self, path: str, replaced: str) -> None:
        others = [p for p in self._saver.last_checkpoints if p != replaced]
        state_file.write(self._logdir, others + [path], self._latest_filename)


def _spare_of(path: str) -> str:
    """The spare's name of the checkpoint `path`: it ends in the same step."""
    folder, name = os.path.split(path)
    stem, dash, step = name.rpartition('-')
    return os.path.join(folder, stem + SPARE + dash + step if dash else step + SPARE)

"""Going back: restores the newest finite checkpoint in a live session."""

import contextlib
import os
from typing import ContextManager

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.checkpoints import checkpoint_reader
from slimguard.checkpoints.finite_saver import FiniteSaver
from slimguard.incidents.incident import Incident


class Restorer:
    """Restores the newest finite checkpoint of a logdir, and sees to it that there is one.

    Args:
      saver: the training's own saver, so that it finds the variables it saved.
      logdir: where the checkpoints are.
    """

    def __init__(self, saver: tf1.train.Saver, logdir: str):
        self._saver = saver
        self._logdir = logdir

    def save_first(self, session) -> None:
        """Saves the state as it is, unless there is a good checkpoint already."""
        if checkpoint_reader.latest_finite_checkpoint(self._logdir) is None:
            tf.io.gfile.makedirs(self._logdir)
            step = tf1.train.get_global_step(session.graph)
            self._saver.save(session, os.path.join(self._logdir, 'model.ckpt'), global_step=step)

    def finds(self, incident: Incident) -> bool:
        """Whether there is a checkpoint to go back to; notes it in the incident."""
        incident.restored = checkpoint_reader.latest_finite_checkpoint(self._logdir)
        if incident.restored is None:
            incident.reason += '; and %s holds no good checkpoint to go back to' % self._logdir
        return incident.restored is not None

    def restore(self, session, incident: Incident) -> bool:
        """Goes back, and notes it in the incident. False if there is nothing to go back to."""
        with self._nobody_saves():  # or else what is found may be gone before it is read
            if not self.finds(incident):
                return False
            self._saver.restore(session, incident.restored)
        return True

    def _nobody_saves(self) -> ContextManager:
        is_ours = isinstance(self._saver, FiniteSaver)
        return self._saver.lock if is_ours else contextlib.ExitStack()

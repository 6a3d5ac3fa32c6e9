"""Going back: restores the newest finite checkpoint in a live session."""

import contextlib
import os
from typing import ContextManager, Iterator, Optional

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.checkpoints import checkpoint_reader
from slimguard.checkpoints.finite_saver import FiniteSaver


class Restorer:
    """Restores the newest finite checkpoint of a logdir, and sees to it that there is one.

    Args:
      saver: the training's own saver, so that it finds the variables it saved.
      logdir: where the checkpoints are.

    Attributes:
      logdir: as given.
    """

    def __init__(self, saver: tf1.train.Saver, logdir: str):
        self.logdir = logdir
        self._saver = saver

    def save_first(self, session) -> None:
        """Saves the state as it is, unless there is a good checkpoint already."""
        if checkpoint_reader.latest_finite_checkpoint(self.logdir) is None:
            tf.io.gfile.makedirs(self.logdir)
            step = tf1.train.get_global_step(session.graph)
            self._saver.save(session, os.path.join(self.logdir, 'model.ckpt'), global_step=step)

    def newest(self) -> Optional[str]:
        """The newest checkpoint that one can go back to, or None."""
        return next(self.good(), None)

    def good(self) -> Iterator[str]:
        """The checkpoints that one can go back to, the newest first; each is read when it comes."""
        return checkpoint_reader.finite_checkpoints(self.logdir)

    def restore(self, session, checkpoint: str) -> None:
        """Goes back to a checkpoint."""
        self._saver.restore(session, checkpoint)

    def nobody_saves(self) -> ContextManager:
        """While it is open, nobody saves: what is found may else be gone before it is read."""
        is_ours = isinstance(self._saver, FiniteSaver)
        return self._saver.lock if is_ours else contextlib.ExitStack()

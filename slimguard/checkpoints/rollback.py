"""Going back: restores an earlier checkpoint in a live session.

A rollback abandons the newest checkpoints. The state that it restored is then saved, under its own
step, and a restart resumes from this checkpoint. So abandoned checkpoints are known by their order:
they are older than a checkpoint of a smaller step.
"""

import contextlib
import os
from typing import Any, Collection, ContextManager, Iterator, List, Optional, Sequence

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.checkpoints import checkpoint_reader
from slimguard.checkpoints.checkpoint_files import step_in_name
from slimguard.checkpoints.finite_saver import FiniteSaver
from slimguard.graph.single_runs import run_once
from slimguard.system.log import log


class Restorer:
    """Restores the newest finite checkpoint of a logdir; `save_first` saves one if there is none.

    Args:
      saver: the training's own saver, so that it finds the variables it saved.
      logdir: where the checkpoints are.
      global_step: the global step, in which their names end; by default the graph's.

    Attributes:
      logdir: as given.
      why_not_saved: why `save` returned None, if it did.
      first: the name that `good` gives the state before the first step; None if a checkpoint holds
        it.
    """

    why_not_saved = 'a variable is not finite'
    first: Optional[str] = None

    def __init__(self, saver: tf1.train.Saver, logdir: str, global_step: Any = None):
        self.logdir = logdir
        self._saver = saver
        self._global_step = global_step

    def save_first(self, session) -> None:
        """Saves the state as it is, unless there is a good checkpoint already."""
        newest = checkpoint_reader.latest_finite_checkpoint(self.logdir)
        if newest is None:
            tf.io.gfile.makedirs(self.logdir)
            self.save(session)
        elif _differs(session, newest):
            log().warning(_OF_ANOTHER, newest)

    def before_step(self, session) -> None:
        """Call it before each step of a session, since a script may build variables in between."""

    def complete(self, session, names: Collection[str]) -> None:
        """After the variables `names` went back to a snapshot, resets those built after it."""

    def save(self, session) -> Optional[str]:
        """Saves the state as the newest checkpoint. Returns its prefix; None if not published."""
        step = self._global_step
        step = graphs.global_step(session.graph) if step is None else step
        return self._saver.save(session, os.path.join(self.logdir, 'model.ckpt'), global_step=step)

    def save_last(self, session) -> Optional[str]:
        """As `save`, before the training ends; if need be, to a place where no restart looks."""
        return self.save(session)

    def published(self) -> Optional[str]:
        """The checkpoint that a restart resumes from, or None; it is not read."""
        found = checkpoint_reader.checkpoints_in(self.logdir)
        return found[-1].path if found else None

    def newest(self) -> Optional[str]:
        """The newest checkpoint that a rollback can restore, or None."""
        return next(self.good(), None)

    def good(self) -> Iterator[str]:
        """The checkpoints that a rollback can restore; it reads each one when its turn comes.

        The newest comes first; those that a rollback has abandoned come last.
        """
        paths = [each.path for each in checkpoint_reader.checkpoints_in(self.logdir)]
        return checkpoint_reader.good_ones(those_left_last(paths))

    def restore(self, session, checkpoint: str) -> None:
        """Goes back to a checkpoint."""
        self._saver.restore(session, checkpoint)

    def nobody_saves(self) -> ContextManager:
        """While this is open, nothing saves: a save could remove a checkpoint before it is read."""
        is_ours = isinstance(self._saver, FiniteSaver)
        return self._saver.lock if is_ours else contextlib.ExitStack()


# How many values are compared, the smallest weights first.
_MOST_COMPARED = 1000


def _differs(session, checkpoint: str) -> bool:
    """Whether the smallest weights of a session differ from those in a checkpoint.

    Raises:
      tf.errors.FailedPreconditionError: if a variable is not initialized.
    """
    with session.graph.as_default():
        weights = {v.op.name: v for v in graphs.on_each_device(tf1.trainable_variables())}
    try:
        reader = tf1.train.NewCheckpointReader(checkpoint)
        shapes = reader.get_variable_to_shape_map()
        names = sorted(shapes.keys() & weights.keys(), key=lambda name: np.prod(shapes[name]))
        sizes = np.cumsum([np.prod(shapes[name]) for name in names])
        saved = {n: reader.get_tensor(n) for n, size in zip(names, sizes) if size <= _MOST_COMPARED}
    except (tf.errors.OpError, ValueError, RuntimeError):  # it has been removed meanwhile
        return False
    values = run_once(session, {name: weights[name] for name in saved})
    return any(not np.array_equal(values[name], saved[name]) for name in saved)


_OF_ANOTHER = (
    'this training does not begin with the weights of %s, and a rollback may go back to '
    'them: restore that checkpoint first, or give another logdir.'
)


def those_left_last(paths: Sequence[str]) -> List[str]:
    """Checkpoints, the newest first; those that a rollback has abandoned come last.

    Args:
      paths: the oldest first.
    """
    in_line: List[str] = []
    left: List[str] = []
    least = None
    for path in reversed(paths):
        step = step_in_name(path)
        is_left = step is not None and least is not None and step > least
        (left if is_left else in_line).append(path)
        if step is not None and not is_left:
            least = step
    return in_line + left

"""Save and restore the checkpoints of a live session, or its state before the first step.

A rollback abandons the newest checkpoints. Then the restored state is saved under its own, smaller
step, and a restart resumes from there. So a checkpoint is known to be abandoned if a newer
checkpoint has a smaller step.
"""

import contextlib
import os
from typing import Any, Collection, ContextManager, Dict, Iterable, Iterator, Optional

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.checkpoints import checkpoint_reader
from slimguard.checkpoints.finite_saver import FiniteSaver
from slimguard.checkpoints.variables import all_variables, assign, read_variables
from slimguard.graph.single_runs import run_once
from slimguard.system.log import log


class Restorer:
    """Restores the newest finite checkpoint of a logdir; `save_first` saves one if there is none.

    Args:
      saver: the training's own saver, which knows the variables in the checkpoints.
      logdir: where the checkpoints are.
      global_step: the global step, in which their names end; by default the graph's.

    Attributes:
      why_not_saved: why the last `save` returned None.
      first: the name that `good` yields for the state before the first step; None if that state is
        in a checkpoint.
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
            return
        step = self._step_in(session.graph)
        now = None if step is None else int(run_once(session, step))
        saved = checkpoint_reader.global_step_in(newest)
        if None not in (now, saved) and now != saved:
            log().warning(_OF_ANOTHER, now, newest, saved)

    def before_step(self, session) -> None:
        """Call it before each step: a restorer may have to note newly built variables."""

    def complete(self, session, names: Collection[str]) -> None:
        """Call it once a snapshot restored the variables `names`: it may reset the others."""

    def save(self, session) -> Optional[str]:
        """Saves the state as the newest checkpoint. Returns its prefix; None if not published."""
        step = self._step_in(session.graph)
        return self._saver.save(session, os.path.join(self.logdir, 'model.ckpt'), global_step=step)

    def _step_in(self, graph: tf.Graph) -> Any:
        return graphs.global_step(graph) if self._global_step is None else self._global_step

    def save_last(self, session) -> Optional[str]:
        """As `save`, when the training ends. Some restorers then save where no restart looks."""
        return self.save(session)

    def save_apart(self, session) -> Optional[str]:
        """Saves the state where no restart looks. Returns its prefix; None if nothing is published.

        It is in a folder beside the published checkpoint. No saver lists it, so none deletes it.
        """
        published = self.published()
        if published is None:
            return None
        path = os.path.join(os.path.dirname(published), 'slimguard', 'ruined.ckpt')
        tf.io.gfile.makedirs(os.path.dirname(path))
        saver = self._saver_of(published).saver_def
        run_once(session, saver.save_tensor_name, {saver.filename_tensor_name: path})
        return path

    def published(self) -> Optional[str]:
        """The checkpoint that a restart resumes from, or None; does not open it."""
        there = checkpoint_reader.checkpoints_in(self.logdir)
        return there[-1].path if there else None

    def newest(self) -> Optional[str]:
        """The newest checkpoint that a rollback can restore, or None."""
        return next(self.good(), None)

    def good(self) -> Iterator[str]:
        """Yields the checkpoints that a rollback can restore; reads each one when asked for it.

        The newest comes first; abandoned checkpoints are left out.
        """
        paths = [each.path for each in reversed(checkpoint_reader.checkpoints_in(self.logdir))]
        return those_in_line(checkpoint_reader.good_ones(paths))

    def restore(self, session, checkpoint: str) -> None:
        """Goes back to a checkpoint."""
        self._saver_of(checkpoint).restore(session, checkpoint)

    def _saver_of(self, checkpoint: str) -> tf1.train.Saver:
        return self._saver

    def nobody_saves(self) -> ContextManager:
        """Inside, nothing saves: a save could remove a checkpoint that is about to be read."""
        is_ours = isinstance(self._saver, FiniteSaver)
        return self._saver.lock if is_ours else contextlib.ExitStack()


_OF_ANOTHER = (
    'this training begins at global step %d, and the newest good checkpoint, %s, is of step %d: a '
    'rollback may go back to it. Restore it first, or give another logdir.'
)


# What the record of incidents calls the state before the first step.
FIRST = 'the state before the first step'


class FirstStateRestorer(Restorer):
    """Goes back to the state before the first step, which it keeps in memory."""

    first = FIRST

    def __init__(self):  # unlike the base class, takes no saver and no logdir
        self.logdir = 'the memory'
        self._values: Dict[str, np.ndarray] = {}
        self._version: Optional[int] = None  # the version of the graph at the last `save_first`

    def save_first(self, session) -> None:
        """Copies each initialized variable once, before the first step that finds it."""
        if session.graph.version == self._version:
            return
        variables = all_variables(session.graph)
        new = {name: each for name, each in variables.items() if name not in self._values}
        self._values.update(read_variables(session, new) if new else {})
        self._version = session.graph.version

    def before_step(self, session) -> None:
        if self._version is not None:
            self.save_first(session)

    def complete(self, session, names: Collection[str]) -> None:
        local = {each.name for each in graphs.local_in(session.graph)}  # snapshots skip these
        self._restore(session, but={*names, *local})

    def published(self) -> Optional[str]:
        return None

    def good(self) -> Iterator[str]:
        """Yields `FIRST`, for the state before the first step, if that state is finite."""
        if self._version is not None and all(
            map(checkpoint_reader.is_finite, self._values.values())
        ):
            yield FIRST

    def restore(self, session, checkpoint: str) -> None:
        self._restore(session, but=())

    def _restore(self, session, but: Collection[str]) -> None:
        variables = all_variables(session.graph)
        values = self._values.items()
        assign(session, [(variables[name], value) for name, value in values if name not in but])

    def nobody_saves(self) -> ContextManager:
        return contextlib.ExitStack()


class RankRestorer(FirstStateRestorer):
    """A `FirstStateRestorer` for several ranks, of which only one writes and reads checkpoints.

    Args:
      saver: the training's own saver, or None.
      directory: where this rank saves the restored state, for a restart; None if it does not save.
    """

    def __init__(self, saver: Optional[tf1.train.Saver], directory: Optional[str]):
        FirstStateRestorer.__init__(self)
        self._on_disk, self._saver = None, saver
        if saver is not None and directory is not None:
            self._on_disk = Restorer(saver, directory)

    def published(self) -> Optional[str]:
        return None if self._on_disk is None else self._on_disk.published()

    def save(self, session) -> Optional[str]:
        return None if self._on_disk is None else self._on_disk.save(session)


def those_in_line(good: Iterable[str]) -> Iterator[str]:
    """Takes good checkpoints, the newest first; yields those that no rollback has abandoned."""
    least: Optional[int] = None
    for path in good:
        step = checkpoint_reader.step_of(path)
        if step is None or least is None or step <= least:
            yield path
            least = least if step is None else step

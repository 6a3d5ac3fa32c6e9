"""Keeps the state before the first step in memory, for a rollback without a checkpoint."""

import contextlib
from typing import Collection, ContextManager, Dict, Iterator, Optional

import numpy as np
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.checkpoints import checkpoint_reader
from slimguard.checkpoints.rollback import Restorer
from slimguard.checkpoints.variables import all_variables, assign, read_variables

# Its name in the record.
FIRST = 'the state before the first step'


class FirstState:
    """The variables of a session as they were before the first step, in memory.

    Attributes:
      is_taken: whether there is one.
    """

    def __init__(self) -> None:
        self._values: Dict[str, np.ndarray] = {}
        self.is_taken = False
        self._version = -1

    def take(self, session) -> None:
        """Copies the initialized variables, each only at the first call that finds it.

        A script may build more variables after its first step.
        """
        self.is_taken = True
        if session.graph.version == self._version:
            return
        variables = all_variables(session.graph)
        new = {name: each for name, each in variables.items() if name not in self._values}
        self._values.update(read_variables(session, new) if new else {})
        self._version = session.graph.version

    @property
    def is_good(self) -> bool:
        """Whether there is one, and all of it is finite."""
        values = map(np.asarray, self._values.values())
        return self.is_taken and all(map(checkpoint_reader.is_finite, values))

    def restore(self, session, but: Collection[str] = ()) -> None:
        """Puts the variables back, except those named in `but`."""
        variables = all_variables(session.graph)
        values = self._values.items()
        assign(session, [(variables[name], value) for name, value in values if name not in but])


class FirstStateRestorer(Restorer):
    """Goes back to the state before the first step, which it keeps in memory."""

    first = FIRST

    def __init__(self):  # unlike the base class, takes no saver and no logdir
        self.logdir = 'the memory'
        self._first = FirstState()

    def save_first(self, session) -> None:
        """Keeps the state before the first step."""
        self._first.take(session)

    def before_step(self, session) -> None:
        if self._first.is_taken:
            self._first.take(session)

    def complete(self, session, names: Collection[str]) -> None:
        local = {each.name for each in graphs.local_in(session.graph)}  # they are in no snapshot
        self._first.restore(session, but={*names, *local})

    def published(self) -> Optional[str]:
        return None

    def good(self) -> Iterator[str]:
        """Yields `FIRST`, which stands for the state before the first step, if that is good."""
        if self._first.is_good:
            yield FIRST

    def restore(self, session, checkpoint: str) -> None:
        self._first.restore(session)

    def nobody_saves(self) -> ContextManager:
        return contextlib.ExitStack()


class RankRestorer(FirstStateRestorer):
    """The same, for one of several ranks: one rank writes checkpoints, and no other reads them.

    Args:
      saver: the training's own saver, or None.
      directory: where this rank saves, so that a restart finds the state that it went back to; None
        if it does not save.
    """

    def __init__(self, saver: Optional[tf1.train.Saver], directory: Optional[str]):
        FirstStateRestorer.__init__(self)
        self._on_disk = None
        if saver is not None and directory is not None:
            self._on_disk = Restorer(saver, directory)

    def published(self) -> Optional[str]:
        return None if self._on_disk is None else self._on_disk.published()

    def save(self, session) -> Optional[str]:
        return None if self._on_disk is None else self._on_disk.save(session)

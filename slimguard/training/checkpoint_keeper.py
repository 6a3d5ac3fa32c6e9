"""What a training does for its checkpoints, in the process that saves them: `CheckpointKeeper`."""

import contextlib
import os
from typing import Any, ContextManager, Optional

import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.checkpoints import repair
from slimguard.checkpoints.finite_saver import FiniteSaver
from slimguard.incidents.history import IS_RUINED
from slimguard.incidents.incident import Incident
from slimguard.system.log import log
from slimguard.training.occupancy import occupied

SAVED = 'the last good state is saved: %s'
NOT_SAVED = (
    'the state of the last good step is not saved, as its weights are ruined; a restart '
    'begins at %s.'
)


class CheckpointKeeper:
    """Resumes from a good checkpoint, marks the logdir as taken, and saves before an error ends it.

    Args:
      logdir: where the checkpoints are.
      saver: the training's saver.
      global_step: the global step, in which the names of checkpoints end; by default the graph's.
      bundles_in: where bundles are, and the record; by default there, too.

    Attributes:
      logdir, bundles_in: as given.
    """

    def __init__(
        self,
        logdir: str,
        saver: FiniteSaver,
        global_step: Any = None,
        bundles_in: Optional[str] = None,
    ):
        self.logdir = logdir
        self.bundles_in = bundles_in or logdir
        self._saver = saver
        self._path = os.path.join(logdir, 'model.ckpt')
        self._global_step = global_step

    def resume_from_good(self) -> None:
        """Sees to it that what is restored first is a good checkpoint."""
        repair.resume_from_good(self.logdir)

    def keeping(self) -> ContextManager[Any]:
        """Marks the logdir as taken, in its folder `slimguard`, for the time of a training."""
        is_there = self.bundles_in == self.logdir
        return occupied(self.logdir) if is_there else contextlib.ExitStack()

    def prepare(self) -> None:
        """Prepares for a thread that saves while another trains."""
        self._saver.prepare()

    def save(self, session, incident: Optional[Incident] = None) -> None:
        """Saves the last good state, before an error or an interrupt ends the training."""
        if incident is not None and not incident.held:
            return  # the bad update is in memory
        if incident is not None and IS_RUINED in incident.reason:
            newest = tf1.train.latest_checkpoint(self.logdir)
            if newest is not None:
                log().warning(NOT_SAVED, newest)
                return
        try:
            step = self._global_step
            step = graphs.global_step(session.graph) if step is None else step
            saved = self._saver.save(session, self._path, global_step=step)
            if incident is not None and saved is not None:
                log().warning(SAVED, saved)
        except Exception as error:  # whatever it is, it must not hide the incident
            log().error('the last good state could not be saved: %s', error)

    def raise_failure(self) -> None:
        """Raises what kept the last save from being written; the Supervisor drops it."""
        if self._saver.failure is not None:
            raise self._saver.failure

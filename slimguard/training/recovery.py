"""Going back to a checkpoint after an incident: this process alone, or with its job."""

from typing import Any, Callable, Optional, Sequence

import tensorflow as tf

from slimguard.checkpoints.rollback import Restorer
from slimguard.cluster.job import Job
from slimguard.incidents.incident import Incident
from slimguard.incidents.policies import Rollback
from slimguard.training.open_incident import OpenIncident


class Recovery:
    """Does what the policy `Rollback` asks for.

    Args:
      restorer: restores the newest good checkpoint.
    """

    def __init__(self, restorer: Restorer):
        self._restorer = restorer

    def go_back(self, session, handled: OpenIncident, job: Optional[Job]) -> bool:
        """Restores the newest good checkpoint. False if that cannot be; the incident says why.

        Raises:
          tf.errors.AbortedError: in a job, where all processes restore it in a new session.
        """
        if job is not None:
            if not self._job_can(handled, job):
                return False
            job.roll_back(handled.incident)
        with self._restorer.nobody_saves():
            checkpoint = self._find(handled)
            if checkpoint is not None:
                self._restorer.restore(session, checkpoint)
        return checkpoint is not None

    def _job_can(self, handled: OpenIncident, job: Job) -> bool:
        if not job.takes_part:
            handled.note_reason('; and the chief, who would go back to a checkpoint, hears nothing')
            return False
        return not job.is_chief or self._find(handled) is not None

    def _find(self, handled: OpenIncident) -> Optional[str]:
        """The checkpoint to go back to, or None; notes which it is, or that there is none."""
        checkpoint = self._restorer.newest()
        handled.note(restored=checkpoint)
        if checkpoint is None:
            logdir = self._restorer.logdir
            handled.note_reason('; and %s holds no good checkpoint to go back to' % logdir)
        return checkpoint

    def save_first(self, session) -> None:
        """Saves the state before the first step, unless there is a good checkpoint already.

        Raises:
          tf.errors.FailedPreconditionError: if a variable is not initialized.
        """
        self._restorer.save_first(session)


class Preparation:
    """Prepares a session as soon as its variables are initialized: at once, or before a step.

    A plain session's variables may be initialized after its hooks got it.

    Args:
      prepare: called with the session; raises FailedPreconditionError if it is too early.
    """

    def __init__(self, prepare: Callable[[Any], None]):
        self._prepare = prepare
        self._is_due = False

    def try_now(self, session) -> None:
        """For a new session."""
        try:
            self._prepare(session)
        except tf.errors.FailedPreconditionError:
            self._is_due = True

    def before_step(self, session) -> None:
        """Prepares the session if it was too early for that before."""
        if self._is_due:
            self._is_due = False
            self._prepare(session)


def call_on_rollback(session, incident: Incident, policies: Sequence[Any]) -> None:
    """Calls the first `on_rollback` among `policies`, once a job has gone back."""
    for policy in policies:
        if isinstance(policy, Rollback) and policy.on_rollback is not None:
            policy.on_rollback(session, incident)
            return

"""Going back to a checkpoint after an incident: this process alone, or with its job."""

from typing import Any, Optional, Sequence

from slimguard.checkpoints.rollback import Restorer
from slimguard.cluster.job import Job
from slimguard.incidents.incident import Incident
from slimguard.incidents.policies import Rollback


class Recovery:
    """Does what the policy `Rollback` asks for.

    Args:
      restorer: restores the newest good checkpoint.
    """

    def __init__(self, restorer: Restorer):
        self._restorer = restorer

    def go_back(self, session, incident: Incident, job: Optional[Job]) -> bool:
        """Restores the newest good checkpoint. False if that cannot be; the incident says why.

        Raises:
          tf.errors.AbortedError: in a job, where all processes restore it in a new session.
        """
        if job is not None:
            if not self._job_can(incident, job):
                return False
            job.roll_back(incident)
        return self._restorer.restore(session, incident)

    def _job_can(self, incident: Incident, job: Job) -> bool:
        if not job.takes_part:
            incident.reason += '; and the chief, who would go back to a checkpoint, hears nothing'
            return False
        return not job.is_chief or self._restorer.finds(incident)

    def save_first(self, session) -> None:
        """Saves the state before the first step, unless there is a good checkpoint already.

        Raises:
          tf.errors.FailedPreconditionError: if a variable is not initialized.
        """
        self._restorer.save_first(session)


def call_on_rollback(session, incident: Incident, policies: Sequence[Any]) -> None:
    """Calls the first `on_rollback` among `policies`, once a job has gone back."""
    for policy in policies:
        if isinstance(policy, Rollback) and policy.on_rollback is not None:
            policy.on_rollback(session, incident)
            return

"""What happens after an incident, in this order: decide, examine, act, record."""

from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence

import tensorflow as tf

from slimguard import gate as gates
from slimguard.cluster.job import Job
from slimguard.diagnosis.evidence import Evidence
from slimguard.incidents.incident import Incident, NanLossError
from slimguard.incidents.journal import Journal
from slimguard.incidents.policies import FallbackChain, Policy, Raise, Rollback, Stop
from slimguard.training.incident_reading import Reading
from slimguard.training.recovery import Recovery, call_on_rollback

# How much of an error's message is told in the record, in characters.
_LONGEST = 300


class Action(NamedTuple):
    """What acts on an incident: a method that a user may have overridden.

    Attributes:
      act: called with the `SessionRunContext` and the incident.
      name: what the log calls it.
      is_policy: whether it does what the policy says, and nothing else.
    """

    act: Callable[[Any, Incident], None]
    name: str
    is_policy: bool


class IncidentHandler:
    """Handles the incidents of one training.

    Args:
      policies: the policies in force.
      otherwise: the policy before the first incident.
      journal: the record of incidents.
      evidence: by gate, what examines its bad steps.
      recovery: what goes back to a checkpoint; None if there is no logdir to find one in.

    Attributes:
      failed_at: the incident whose handling ended in an error, if what is in memory is still the
        last good state; else None.
    """

    def __init__(
        self,
        policies: FallbackChain,
        otherwise: Policy,
        journal: Journal,
        evidence: Mapping[gates.Gate, Evidence],
        recovery: Optional[Recovery] = None,
    ):
        self.failed_at: Optional[Incident] = None
        self._policies = policies
        self._policy = otherwise  # that of the last incident
        self._journal = journal
        self._evidence = evidence
        self._recovery = recovery
        self._acting = ''  # the name of what is running of the user's
        self._is_to_prepare = False

    @property
    def fallbacks(self) -> Sequence[Any]:
        """The policies in force, in order."""
        return self._policies.fallbacks

    def may(self, kind: type) -> bool:
        """Whether a policy in force is of a kind."""
        return self._policies.may(kind)

    def step_was_good(self) -> None:
        """Notes that a step was no incident."""
        self._policies.step_was_good()

    def note_rollbacks(self, rollbacks: int) -> None:
        """Notes how often the job has gone back to a checkpoint."""
        self._policies.note_rollbacks(rollbacks)

    def close(self) -> None:
        """Closes the record."""
        self._journal.close()

    def handle(self, run_context, reading: Reading, action: Action) -> None:
        """Decides, examines, acts and records.

        What a callable of the user's raises leaves here once the incident is on record; as a
        RuntimeError, where a loop would take it for the end of the input.

        Args:
          run_context: the `SessionRunContext` of the run.
          reading: the incident, and what told of it.
          action: what acts on it.
        """
        incident = reading.incident
        self.failed_at = None
        self._acting = 'on_nan'
        try:
            self._decide_and_examine(run_context.session, reading, action)
            self._acting = action.name
            action.act(run_context, incident)
        except _ENDS_AS_DECIDED:
            raise
        except BaseException as error:
            self._note_failure(incident, error)
            if isinstance(error, _ENDS_QUIETLY):
                raise RuntimeError('%s raised %s' % (self._acting, _in_short(error))) from error
            raise
        finally:
            if incident.action is None:
                incident.action = 'on_nan_loss'
            self._journal.record(incident, self._acting)

    def record_failure(self, session, reading: Reading, acting: str, error: BaseException) -> None:
        """Examines and records an incident that nobody acts on: another hook's error ends the step.

        Args:
          session: the session of the run.
          reading: the incident, and what told of it.
          acting: what raised the error.
          error: the error.
        """
        self._acting = acting
        self._examine(session, reading, ends=True)
        self._note_failure(reading.incident, error)
        self._journal.record(reading.incident, acting)

    def _decide_and_examine(self, session, reading: Reading, action: Action) -> None:
        try:
            self._policy = self._policies.decide(reading.incident)
        except Exception:
            self._examine(session, reading, ends=True)
            raise
        ends = isinstance(self._policy, (Raise, Stop)) and action.is_policy
        self._examine(session, reading, ends)

    def _examine(self, session, reading: Reading, ends: bool) -> None:
        """Before anybody acts: the weights are as the bad step found them."""
        incident, gate, bad = reading
        if gate is None or gate not in self._evidence:
            return
        found = self._evidence[gate].examine(session, incident, gate.labels_of(bad), ends)
        incident.diagnosis = None if found.diagnosis is None else str(found.diagnosis)
        incident.bundle = found.bundle

    def _note_failure(self, incident: Incident, error: BaseException) -> None:
        incident.reason += '; %s raised %s' % (self._acting, _in_short(error))
        if incident.restored is None:  # else the last good state is a checkpoint already
            incident.action = 'error'
            self.failed_at = incident

    def act_by_policy(
        self, run_context, incident: Incident, job: Optional[Job], ends_job: bool
    ) -> None:
        """Does what the policy says.

        Args:
          run_context: the `SessionRunContext` of the run.
          incident: the incident, which was decided on.
          job: the part that the process takes in a job, or None.
          ends_job: whether the end of this training is that of the job.
        """
        incident.action = self._policy.action
        if incident.action == 'skip' and not incident.held:
            raise ValueError(NO_GATE % 'skip')
        if isinstance(self._policy, Rollback):
            self._roll_back(run_context.session, incident, self._policy, job)
        if job is not None and ends_job and incident.action in ('raise', 'stop'):
            job.end(incident if incident.action == 'raise' else None)
        if incident.action == 'raise':
            raise NanLossError(incident)
        if incident.action == 'stop':
            run_context.request_stop()

    def _roll_back(self, session, incident: Incident, policy: Rollback, job: Optional[Job]) -> None:
        if self._recovery is None:
            raise ValueError(NO_LOGDIR)
        if not self._recovery.go_back(session, incident, job):
            incident.action = Raise.action
        elif policy.on_rollback is not None:
            self._acting = 'on_rollback'
            policy.on_rollback(session, incident)

    def prepare(self, session, went_back: Optional[Incident]) -> None:
        """What the chief does to a session before anybody trains in it.

        Args:
          session: the new session.
          went_back: the incident that the job has gone back to a checkpoint for, or None.
        """
        if went_back is not None:
            call_on_rollback(session, went_back, [self._policy, *self.fallbacks])
        elif self._recovery is not None and self.may(Rollback):
            self._recovery.save_first(session)

    def prepare_once_initialized(self, session) -> None:
        """As `prepare`, for a session on its own: at once, or before its first step.

        A plain session's variables may be initialized between the two.
        """
        try:
            self.prepare(session, None)
        except tf.errors.FailedPreconditionError:
            self._is_to_prepare = True

    def prepare_late(self, session) -> None:
        """Before a step: prepares a session whose variables were not initialized at first."""
        if self._is_to_prepare:
            self._is_to_prepare = False
            self.prepare(session, None)


NO_GATE = (
    'on_nan=%r goes on with the next batch, but the train op has no gate: the bad update would '
    'stay in the weights. Build it with slimguard.create_train_op(), or run '
    'slimguard.guard(train_op) in its place'
)

NO_LOGDIR = (
    "on_nan='rollback' restores a checkpoint, and no logdir is given to find it in: pass "
    'logdir=... to slimguard.train(), checkpoint_dir=... to MonitoredTrainingSession, or '
    'NanLossHook(..., logdir=...) with the directory that the session saves to'
)

# What ends a step, and is no failure of the handling: the policy's own error, and what makes a
# process of a job begin a new session.
_ENDS_AS_DECIDED = (NanLossError, tf.errors.AbortedError, tf.errors.UnavailableError)

# What a loop takes for the end of the input: it would leave as if all were well.
_ENDS_QUIETLY = (StopIteration, tf.errors.OutOfRangeError)


def _in_short(error: BaseException) -> str:
    """The type of an error, and the first line of what it says."""
    said = str(error).strip().split('\n')[0]
    said = said if len(said) <= _LONGEST else said[:_LONGEST] + '...'
    return '%s: %s' % (type(error).__name__, said) if said else type(error).__name__

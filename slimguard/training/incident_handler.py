"""What happens after an incident, in this order: examine, decide, act, record."""

import contextlib
import threading
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Optional, Sequence

import tensorflow as tf

from slimguard import gate as gates
from slimguard.checkpoints.snapshots import IS_RUINED, Losses
from slimguard.cluster.job import Job
from slimguard.cluster.session_end import NEW_SESSION
from slimguard.diagnosis.evidence import Evidence, Found
from slimguard.incidents import advice
from slimguard.incidents.fallback_chain import FallbackChain
from slimguard.incidents.incident import Incident
from slimguard.incidents.journal import Journal
from slimguard.incidents.nan_loss_error import NanLossError
from slimguard.incidents.policies import (
    BATCH,
    COMES_AGAIN,
    EXPLOSION,
    Policy,
    Raise,
    Rollback,
    Skip,
)
from slimguard.system import texts
from slimguard.training.incident_reading import Reading
from slimguard.training.open_incident import OpenIncident, examine, keep
from slimguard.training.recovery import Recovery, call_on_rollback

# How many characters of an error's message the record has.
_LONGEST = 300


class Action(NamedTuple):
    """An action on an incident: a method that a user may have overridden.

    Attributes:
      act: called with the `SessionRunContext` and the incident.
      name: what the log calls it.
      is_policy: whether it applies the policy and does nothing else.
    """

    act: Callable[[Any, Incident], None]
    name: str
    is_policy: bool


class _Now(threading.local):
    """The state of one thread: several may train in one session, and meet bad steps at once."""

    def __init__(self, otherwise: Policy):
        self.handled: Optional[OpenIncident] = None
        self.policy = otherwise  # that of the last incident
        self.acting = ''  # the name of the user's callable that is running


class IncidentHandler:
    """Handles the incidents of one training.

    Args:
      policies: the policies in force.
      otherwise: the policy before the first incident.
      journal: the record of incidents.
      evidence: by gate, what examines its bad steps.
      recovery: restores earlier states; None if there is no logdir to find a checkpoint in.
      replaced: called with an incident and its new version, when more is known.
      last_words: returns what else the last line says, or ''.
    """

    def __init__(
        self,
        policies: FallbackChain,
        otherwise: Policy,
        journal: Journal,
        evidence: Mapping[gates.Gate, Evidence],
        recovery: Optional[Recovery] = None,
        replaced: Callable[[Incident, Incident], None] = lambda old, new: None,
        last_words: Callable[[], str] = lambda: '',
    ):
        self._last_words = last_words
        self._policies = policies
        self._now = _Now(otherwise)
        self._journal = journal
        self._evidence = evidence
        self._recovery = recovery
        self._losses = Losses() if recovery is None else recovery.losses
        self._replaced = replaced
        self._failed_at: Optional[OpenIncident] = None

    @property
    def fallbacks(self) -> Sequence[Any]:
        """The policies in force, in order."""
        return self._policies.fallbacks

    def may(self, kind: type) -> bool:
        """Whether a policy in force is of a kind."""
        return self._policies.may(kind)

    def take_failure(self) -> Optional[Incident]:
        """The incident whose handling failed, if the last good state is in memory; only once."""
        failed_at, self._failed_at = self._failed_at, None
        return None if failed_at is None else failed_at.incident

    def step_was_good(self, session, loss: Any) -> None:
        """Notes a step without an incident, and its loss, or None if that is not known."""
        self._policies.step_was_good()
        if self._recovery is None:
            self._losses.note(loss)
        else:
            self._recovery.step_was_good(session, loss)

    def join_job(self, rollbacks: int) -> None:
        """Notes that a session belongs to a job, and how often the job has rolled back."""
        self._policies.note_rollbacks(rollbacks)
        if self._recovery is not None:
            self._recovery.use_checkpoints_only()
            self._recovery.note_return_of_job(rollbacks)

    def close(self) -> None:
        """Closes the record, and logs the skipped batches, the rollbacks and the last words."""
        told = self._policies.tell(), self._last_words()
        self._journal.close('; '.join(filter(None, told)))

    def handle(
        self, run_context, reading: Reading, action: Action, beside: Sequence[Reading] = ()
    ) -> None:
        """Examines, decides, acts and records.

        An error of the user's callable leaves here once the incident is recorded; as a
        RuntimeError, if a loop would take it for the end of the input.

        Args:
          run_context: the `SessionRunContext` of the run.
          reading: the incident, and the values that showed it.
          action: the action on it.
          beside: the other incidents of that run: one batch, one decision.
        """
        self._failed_at = None
        self._now.acting = 'on_nan'
        others = [OpenIncident(each.incident, self._replaced) for each in beside]
        with self._handling(reading, *others) as handled:  # which records and logs it at its end
            try:
                self._examine_and_decide(run_context.session, reading, action, handled)
                for each, other in zip(beside, others):
                    asked = self._evidence_of(each), run_context.session, each, other
                    keep(*asked, examine(*asked), ends=False)
                self._now.acting = 'on_nan' if action.is_policy else action.name
                action.act(run_context, handled.incident)
            except _ENDS_AS_DECIDED as error:
                if isinstance(error, NanLossError):
                    error.logdir = self._journal.logdir
                    handled.is_told_by(error)
                raise
            except BaseException as error:
                self._note_failure(handled, error)
                if isinstance(error, _ENDS_QUIETLY):
                    said = '%s raised %s' % (self._now.acting, _in_short(error))
                    raise RuntimeError(said) from error
                raise

    def record_unseen(self, reading: Reading, goes_back: bool) -> None:
        """Records an incident that no hook saw: its batch is skipped, or the job `goes_back`."""
        with self._handling(reading) as handled:
            handled.note(action=Rollback.action if goes_back else Skip.action)
            handled.note_reason(_why_unseen(reading))
            if not goes_back:
                self._policies.step_was_skipped(is_decided=False)

    @contextlib.contextmanager
    def _handling(self, reading: Reading, *others: OpenIncident) -> Iterator[OpenIncident]:
        """A context in which an incident is handled; at its end, `others` are recorded with it."""
        before = self._now.handled
        handled = self._now.handled = OpenIncident(reading.incident, self._replaced)
        try:
            yield handled
        finally:
            self._now.handled = before
            for other in others:
                other.note(action=_action_beside(handled.incident))
                other.note_reason(_BESIDE)
            for each in (handled, *others):
                acting = self._now.acting
                told = each.incident, acting, each.cause, each.spent, each.remarks
                self._journal.record(*told, rows=each.rows)
                each.is_logged()
                if each.incident.action == Rollback.action:
                    self._policies.note_return(each.incident.learning_rate)

    def _examine_and_decide(
        self, session, reading: Reading, action: Action, handled: OpenIncident
    ) -> None:
        """Also notes the action to come, for the bundle."""
        found = Found()
        try:
            ruin = _ruin(self._recovery, reading)
            found = self._examine_ahead(session, reading, handled, action.is_policy, ruin)
            policy = self._now.policy = self._policies.decide(handled.incident, ruin, found.cause)
            handled.spent = self._policies.spent
            ruin = _ruin_at_the_end(policy, self._recovery, self._losses)
            if ruin and found.diagnosis is not None and found.diagnosis.explosion:
                ruin = '; ' + IS_RUINED  # the cause says how far the loss has grown
            handled.again = self._journal.again(handled.rows)
            handled.note_reason(handled.again + self._policies.why_not + ruin)
        except Exception as error:
            handled.note(action=_BY_SUBCLASS if isinstance(error, _ENDS_AS_DECIDED) else 'error')
            keep(self._evidence_of(reading), session, reading, handled, found, ends=True)
            raise
        handled.note(action=policy.action if action.is_policy else _BY_SUBCLASS)
        ends = action.is_policy and policy.ends
        keep(self._evidence_of(reading), session, reading, handled, found, ends)
        is_overflow = (
            handled.drew_finite and handled.kind in ('', EXPLOSION) and _is_not_finite(reading)
        )
        if isinstance(policy, Skip) and is_overflow:
            self._policies.note_overflow()

    def _examine_ahead(
        self, session, reading: Reading, handled: OpenIncident, is_policy: bool, ruin: str
    ) -> Found:
        """Examines a step as far as the decision needs, if policies and no user decide."""
        foreseen = self._policies.foresee(handled.incident, ruin) if is_policy else None
        ends = foreseen is not None and foreseen.ends
        decides = ends or isinstance(foreseen, Rollback)
        ends = ends and not self.may(Skip)
        return examine(self._evidence_of(reading), session, reading, handled, decides, ends)

    def _evidence_of(self, reading: Reading) -> Optional[Evidence]:
        return None if reading.gate is None else self._evidence.get(reading.gate)

    def _note_failure(self, handled: OpenIncident, error: BaseException) -> None:
        is_failure = not isinstance(error, KeyboardInterrupt)
        said = '; %s raised %s' % (self._now.acting, _in_short(error))
        handled.note_reason(said if is_failure else _INTERRUPTED)
        if handled.incident.restored is None:  # else the last good state is a checkpoint already
            handled.note(action='error' if is_failure else 'interrupted')
            self._failed_at = handled if is_failure else None

    def act_by_policy(
        self, run_context, incident: Incident, job: Optional[Job], ends_job: bool
    ) -> None:
        """Applies the policy that was chosen for an incident.

        Args:
          run_context: the `SessionRunContext` of the run.
          job: the process's part in a job, or None.
          ends_job: whether the end of this training ends the job.
        """
        handled = self._now.handled or OpenIncident(incident, self._replaced)
        handled.take(incident)  # a subclass may pass on an incident that says more
        incident = handled.note(action=self._now.policy.action)
        if incident.action == 'skip' and not incident.held:
            raise ValueError(_NOT_HELD % ', '.join(incident.tensors))
        if incident.action == 'skip':
            why = (handled.cause or '') + handled.again
            self._policies.step_was_skipped(why=why.lstrip('; ') or None)
        has_tried = self._policies.rollbacks or isinstance(self._now.policy, Rollback)
        if isinstance(self._now.policy, Rollback):
            incident = self._roll_back(run_context.session, handled, self._now.policy, job)
        if incident.action == 'raise' and (has_tried or _asks_for_advice(incident)):
            incident = handled.note(advice=_advice(handled, self._policies))
        if incident.action == 'raise' and incident.held and self._recovery is not None:
            self._recovery.leave_ruin(run_context.session, incident.step)
        _end(run_context, incident, job if ends_job else None)

    def _roll_back(
        self, session, handled: OpenIncident, policy: Rollback, job: Optional[Job]
    ) -> Incident:
        """Rolls back, or makes the action 'raise'. Returns the new version of the incident."""
        if self._recovery is None:
            raise ValueError(NO_LOGDIR)
        if not self._recovery.go_back(session, handled, policy, job):
            handled.spent = ''
            return handled.note(action=Raise.action)
        if policy.on_rollback is not None:
            self._now.acting = 'on_rollback'
            policy.on_rollback(session, handled.incident)
        return handled.incident

    def prepare(self, session, went_back: Optional[Incident]) -> None:
        """Prepares a session on the chief, before any process trains in it.

        Args:
          session: the new session.
          went_back: the incident for which the job has rolled back, or None.
        """
        if self._recovery is not None:
            self._recovery.prepare(session, went_back, saves=self.may(Rollback))
        if went_back is not None:
            call_on_rollback(session, went_back, [self._now.policy, *self.fallbacks])


_INTERRUPTED = '; KeyboardInterrupt (Ctrl-C) came while it was handled'
_BESIDE = '; in the same run as the incident before'


def _action_beside(acted_on: Incident) -> Optional[str]:
    """The action for another incident of the same run: one rollback serves both."""
    return Skip.action if acted_on.action == Rollback.action else acted_on.action


def _why_unseen(reading: Reading) -> str:
    if reading.gate is not None and reading.gate.is_beside:  # which a thread runs
        return '; after the last step'
    return '; in a run that went past the hooks'


def _ruin(recovery: Optional[Recovery], reading: Reading) -> str:
    """Why the weights are ruined although finite; '' if they are not, or if unknown."""
    if recovery is None:
        return ''
    if reading.is_spike:
        recovery.step_was_spike()
    return recovery.ruin()


def _is_not_finite(reading: Reading) -> bool:
    """Whether something in a step is NaN or Inf, and not only out of bounds."""
    labels = [] if reading.gate is None else reading.gate.labels_of(reading.bad)
    return any(label.kind not in ('limit', 'norm', 'rank') for label in labels)


def _advice(handled: OpenIncident, policies: FallbackChain) -> Optional[str]:
    """Advice for a training that ended in spite of rollbacks, or whose incident calls for some."""
    skips, goes_back = policies.may(Skip), policies.may(Rollback)
    if handled.bad_rows is not None:
        return advice.for_bad_data(handled.bad_rows, handled.incident.bundle, skips)
    if handled.kind == COMES_AGAIN:
        return None  # a log line said that nothing here changes it
    if handled.kind == BATCH:
        return advice.for_a_bad_batch(skips)
    if handled.incident.state_lost or handled.phase == 'variable':
        return advice.for_lost_state(goes_back)
    may_explode = handled.kind == EXPLOSION or handled.phase == 'unknown'
    if may_explode or _asks_for_advice(handled.incident):
        return advice.for_an_explosion(policies.learning_rate, handled.incident.reason)
    return None


def _asks_for_advice(incident: Incident) -> bool:
    if incident.state_lost:
        return True
    return gates.ABOVE_MAX_LOSS in incident.reason or IS_RUINED in incident.reason


def _ruin_at_the_end(policy: Any, recovery: Optional[Recovery], losses: Losses) -> str:
    """Why the state to save before 'raise' is ruined, if no earlier state is kept; else ''."""
    keeps = recovery is not None and recovery.keeps_snapshots
    ruin = '' if keeps or not isinstance(policy, Raise) else losses.ruin(is_last=True)
    return ruin and '; ' + IS_RUINED + ruin


def _end(run_context, incident: Incident, job: Optional[Job]) -> None:
    """Ends the training, and its job if it has to, if the action on an incident says so."""
    if job is not None and incident.action in ('raise', 'stop'):
        job.end(incident if incident.action == 'raise' else None)
    if incident.action == 'raise':
        raise NanLossError(incident)
    if incident.action == 'stop':
        run_context.request_stop()


NO_GATE = (
    'on_nan=%r cannot be done, as the train op has no gate: a bad update would stay in the '
    'weights. Build it with slimguard.create_train_op(), or run slimguard.guard(train_op) in its '
    'place'
)

_NOT_HELD = (
    "on_nan='skip' was asked for, but no gate looks at %s, so the update of this step was written. "
    'Pass it to slimguard.create_train_op(), or as slimguard.guard(train_op, loss=...)'
)

NO_LOGDIR = (
    "on_nan='rollback' restores a checkpoint, and no logdir is given to find it in: pass "
    'logdir=... to slimguard.train() or slimguard.watch(), checkpoint_dir=... to '
    'MonitoredTrainingSession, or NanLossHook(..., logdir=...) with the directory that the session '
    'saves to'
)

# Errors that end a step without a failure of the handler: the policy's own, and the errors after
# which a process of a job begins a new session.
_ENDS_AS_DECIDED = (NanLossError, *NEW_SESSION)

# The action where a subclass of NanLossHook decides by itself.
_BY_SUBCLASS = 'on_nan_loss'

# An error that a loop takes for the end of the input: it would leave as if all were well.
_ENDS_QUIETLY = (StopIteration, tf.errors.OutOfRangeError)


def _in_short(error: BaseException) -> str:
    """The type of an error, and the first line of its message."""
    said = texts.cut(str(error).strip().split('\n')[0], _LONGEST, '...')
    return '%s: %s' % (type(error).__name__, said) if said else type(error).__name__

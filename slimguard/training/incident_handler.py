"""What happens after an incident, in this order: examine, decide, act, record.

The decision may depend on the cause, so the examination comes first, as far as the foreseen policy
needs it. The bundle holds the decision, and the variables before any action, so it is written
between the two.
"""

import contextlib
from typing import Any, Callable, Iterator, Optional, Sequence

import tensorflow as tf

from slimguard import gate as gates
from slimguard.checkpoints.checkpoint_files import reason_of
from slimguard.checkpoints.snapshots import IS_RUINED, TAKEN_FOR_RUINED
from slimguard.cluster.job import Job
from slimguard.cluster.session_end import NEW_SESSION
from slimguard.diagnosis.diagnosis import Phase
from slimguard.diagnosis.evidence import Depth, Evidence
from slimguard.incidents import advice
from slimguard.incidents.fallback_chain import NEXT_LINE, FallbackChain
from slimguard.incidents.incident import Incident
from slimguard.incidents.incident_log import IncidentLog
from slimguard.incidents.nan_loss_error import NanLossError
from slimguard.incidents.policies import (
    BATCH,
    COMES_AGAIN,
    EXPLOSION,
    UNGUARDED,
    Policy,
    Raise,
    Rollback,
    Skip,
    Stop,
)
from slimguard.system import texts
from slimguard.training.open_incident import OpenIncident
from slimguard.training.rollback import Rollbacks
from slimguard.training.training import Training

# How many characters of an error's message go into the record.
_LONGEST = 300


class IncidentHandler:
    """Handles the incidents of one training.

    Args:
      policies: the policies in force.
      otherwise: the policy before the first incident.
      incident_log: the record of incidents.
      training: the training: its `evidence` examines bad steps; it saves before an error ends it.
      rollbacks: restores earlier states.
      ends_job: whether the end of this training ends the job.
      last_words: returns a text for the end of the last log line, or ''.

    Attributes:
      job: the process's part in a job of several processes, or None.
    """

    def __init__(
        self,
        policies: FallbackChain,
        otherwise: Policy,
        incident_log: IncidentLog,
        training: Training,
        rollbacks: Rollbacks,
        ends_job: bool = True,
        last_words: Callable[[], str] = lambda: '',
    ):
        self._policies = policies
        self._last_policy = otherwise
        self._incident_log = incident_log
        self._training = training
        self._rollbacks = rollbacks
        self._ends_job = ends_job
        self._last_words = last_words
        self.job: Optional[Job] = None
        self._is_due = False  # whether to prepare the session before its next step

    def handle(
        self,
        run_context,
        opened: OpenIncident,
        beside: Sequence[OpenIncident] = (),
        override: Optional[Callable[[Any, Incident], None]] = None,
        name: str = '',
    ) -> None:
        """Examines, decides, acts and records.

        If the user's callable raises, this raises the error once the incident is recorded. It
        raises a RuntimeError instead if a loop would take the error for the end of the input.

        Args:
          run_context: the `SessionRunContext` of the run.
          opened: the incident.
          beside: the other incidents of the same run: they share the batch and the decision.
          override: the user's method that acts on the incident; None if the policy does.
          name: what the log calls that method.
        """
        session, is_policy = run_context.session, override is None
        with self._training.saving_before_errors(session, opened):
            try:
                with self._kept_if_undecided(opened):
                    self._judge_weights(opened)
                    chain = self._policies
                    told = opened.incident, opened.ruin, opened.train_op
                    foreseen = chain.foresee(*told) if is_policy else None
                    self._examine(session, opened, self._depth_for(foreseen))
                    policy = self._decide(opened)
                opened.note(action=policy.action if is_policy else _BY_SUBCLASS)
                self._keep(opened, Depth.FULL if is_policy and policy.ends else Depth.DRAWN)
                for other in beside:
                    self._examine(session, other)
                    self._keep(other, Depth.DRAWN)
                if override is None:
                    self._act(run_context, opened)
                else:
                    opened.acting = name
                    vars(run_context)[_OPENED] = opened
                    override(run_context, opened.incident)
            except BaseException as error:
                self._note_error(opened, error)
                raise
            finally:
                self._record(opened, beside)
                if opened.incident.action == Rollback.action:
                    self._policies.note_rollback(opened.incident.learning_rate)
                    self._last_words()  # dropped: the rollback undid their step

    # Examine and decide.

    @contextlib.contextmanager
    def _kept_if_undecided(self, opened: OpenIncident) -> Iterator[None]:
        """Inside, if an error comes first, writes the incident's bundle with all that is known."""
        try:
            yield
        except Exception as error:
            opened.note(action=_BY_SUBCLASS if isinstance(error, _ENDS_AS_DECIDED) else 'error')
            self._keep(opened, Depth.FULL)
            raise

    def _judge_weights(self, opened: OpenIncident) -> None:
        """Notes whether the weights are ruined, and what shows it."""
        if opened.is_spike:
            self._rollbacks.snapshots.step_was_spike()
        opened.ruin = self._rollbacks.snapshots.ruin()

    def _depth_for(self, foreseen: Optional[Policy]) -> Depth:
        """How far to search the step for the decision; `foreseen` is None if the user decides."""
        if foreseen is None or not (foreseen.ends or isinstance(foreseen, Rollback)):
            return Depth.DRAWN
        is_sure = foreseen.ends and not self._policies.may(Skip)  # no cause changes that
        return Depth.FULL if is_sure else Depth.SHORT

    def _decide(self, opened: OpenIncident) -> Policy:
        """Chooses the policy, and notes its reasons."""
        found = opened.found
        is_explosion = found.kind == EXPLOSION and not opened.is_finite
        shows_ruin = found.diagnosis is not None and found.diagnosis.shows_ruin
        if is_explosion and shows_ruin and self._rollbacks.snapshots.is_wanted:
            # The diagnosis says what ruined the weights.
            opened.ruin = opened.ruin or TAKEN_FOR_RUINED
        is_lost = found.diagnosis is not None and found.diagnosis.phase == Phase.VARIABLE
        kind = found.kind or (UNGUARDED if is_lost else '')
        policy = self._policies.decide(opened.incident, opened.ruin, kind, opened.train_op)
        opened.policy = self._last_policy = policy
        opened.spent = self._policies.spent
        opened.again = self._incident_log.again(found.row_digests)
        opened.note_reason(opened.again + self._policies.why_not)
        if policy.ends and not self._rollbacks.snapshots.is_wanted:
            opened.note_reason(self._ruin_at_the_end(opened))
        is_overflow = found.drew_finite and kind == EXPLOSION
        if isinstance(policy, Skip) and is_overflow and not opened.is_finite:
            self._policies.note_overflow()
        return policy

    def _examine(self, session, opened: OpenIncident, depth: Depth = Depth.DRAWN) -> None:
        """Notes what made a step bad; call it before any action changes the weights."""
        evidence = self._evidence_of(opened)
        if evidence is not None:
            step = opened.incident, opened.labels
            opened.note_found(evidence.examine(session, *step, depth, opened.history))

    def _keep(self, opened: OpenIncident, depth: Depth) -> None:
        """Writes the bundle, after a search for the cause as far as `depth` asks."""
        evidence = self._evidence_of(opened)
        if evidence is not None:
            opened.note_found(evidence.keep(opened.found, opened.incident, depth))
            opened.note_reason(opened.found.why_not)

    def _evidence_of(self, opened: OpenIncident) -> Optional[Evidence]:
        return None if opened.gate is None else self._training.evidence.get(opened.gate)

    def _ruin_at_the_end(self, opened: OpenIncident) -> str:
        """Why the state to save at the end is ruined; '' if it is not ruined."""
        found, losses = opened.found, self._rollbacks.snapshots.losses
        if opened.ruin or found.diagnosis is not None and found.diagnosis.shows_ruin:
            return '; ' + IS_RUINED  # the cause says how far the loss, or a weight, has grown
        tells = opened.incident.held and found.kind in ('', EXPLOSION)
        refused = opened.incident.loss if tells else None
        ruin = losses.ruin(is_last=True, refused=refused)
        return ruin and '; ' + IS_RUINED + ruin

    # Act.

    def act_on(self, run_context, incident: Incident) -> None:
        """Applies the policy; called when the user's `on_nan_loss` calls the overridden method."""
        opened = vars(run_context).get(_OPENED) or OpenIncident(incident)
        opened.add_version(incident)  # the user may have added to the incident
        self._act(run_context, opened)

    def _act(self, run_context, opened: OpenIncident) -> None:
        """Applies the policy that was chosen for an incident."""
        policy = opened.policy or self._last_policy
        incident = opened.note(action=policy.action)
        if isinstance(policy, Skip):
            if not incident.held:
                raise ValueError(_NOT_HELD % ', '.join(incident.tensors))
            why = (opened.cause or '') + opened.again
            self._policies.step_was_skipped(why=why.lstrip('; ') or None)
        elif isinstance(policy, Rollback):
            incident = self._roll_back(run_context.session, opened, policy)
        if incident.action == Raise.action:
            incident = opened.note(advice=self._advice_on(opened) or incident.advice)
        ends = incident.action in (Raise.action, Stop.action)
        # After 'stop' the loop saves what is in memory. Before 'raise' slimguard saves; if nothing
        # rolls back, it leaves the newest checkpoint as it is.
        puts_back = incident.action == Stop.action or self._rollbacks.snapshots.is_wanted
        leaves = ends and incident.held and puts_back and self._ruin_at_the_end(opened)
        known = vars(run_context)  # another hook, or gate, of the same run may have put it back
        if leaves and not known.get(_PUT_BACK):
            known[_PUT_BACK] = self._rollbacks.leave_ruin(run_context.session, opened)
        self._training.is_put_back = bool(leaves and known[_PUT_BACK])
        ends_job = self._ends_job and ends
        if ends_job and self.job is not None:
            self.job.end(incident if incident.action == Raise.action else None)
        if incident.action == Raise.action:
            raise NanLossError(incident)
        if incident.action == Stop.action:
            run_context.request_stop()
            self._policies.note_stop()

    def _roll_back(self, session, opened: OpenIncident, policy: Rollback) -> Incident:
        """Rolls back; if that is impossible, makes the action 'raise'. Returns the incident."""
        opened.note(advice=self._advice_on(opened))
        if not self._rollbacks.roll_back(session, opened, policy, self.job):
            opened.spent = ''
            return opened.note(action=Raise.action)
        if policy.on_rollback is not None:
            opened.acting = 'on_rollback'
            policy.on_rollback(session, opened.incident)
        return opened.incident

    def _advice_on(self, opened: OpenIncident) -> Optional[str]:
        """Advice if the policies do not fit the cause, or did not help; else None."""
        incident, policies = opened.incident, self._policies
        asks = incident.state_lost or gates.ABOVE_MAX_LOSS in incident.reason
        asks = asks or IS_RUINED in incident.reason
        skips, rolls_back = policies.may(Skip), policies.may(Rollback)
        diagnosis, kind = opened.found.diagnosis, opened.found.kind
        phase = Phase.UNKNOWN if diagnosis is None else diagnosis.phase
        is_data = diagnosis is not None and diagnosis.bad_rows is not None
        if not (asks or is_data or policies.rollbacks or isinstance(opened.policy, Rollback)):
            return None
        if kind == BATCH:
            return advice.for_a_bad_batch(skips)
        if kind == COMES_AGAIN or incident.action == Rollback.action:
            return None  # the reason says what no policy can change
        if incident.state_lost or phase == Phase.VARIABLE:
            return advice.for_lost_state(rolls_back)
        if kind == EXPLOSION or phase == Phase.UNKNOWN or asks:
            is_known = diagnosis is not None and bool(diagnosis.explosion)
            return advice.for_an_explosion(policies.learning_rate, incident.reason, is_known)
        return None

    def _note_error(self, opened: OpenIncident, error: BaseException) -> None:
        """Notes the error that ends the handling; raises another one if a loop would misread it."""
        if isinstance(error, NanLossError):
            error.logdir = self._incident_log.logdir
            opened.refresh(error)
        if isinstance(error, _ENDS_AS_DECIDED):
            return
        is_failure = not isinstance(error, KeyboardInterrupt)
        failure = '%s raised %s' % (opened.acting, _in_short(error))
        opened.note_reason('; ' + failure if is_failure else _INTERRUPTED)
        if opened.incident.restored is None:  # else the last good state is a checkpoint already
            opened.note(action='error' if is_failure else 'interrupted')
            opened.spent = ''
            opened.has_failed = is_failure
        if isinstance(error, _ENDS_QUIETLY):
            raise RuntimeError(failure) from error

    # Record.

    def _record(self, opened: OpenIncident, beside: Sequence[OpenIncident] = ()) -> None:
        for other in beside:
            is_back = opened.incident.action == Rollback.action  # one rollback serves all
            other.note(action=Skip.action if is_back else opened.incident.action)
            other.note_reason(_BESIDE)
        for each in (opened, *beside):
            self._incident_log.record(
                each.incident,
                opened.acting,
                each.cause,
                each.spent,
                each.remarks,
                rows=each.found.row_digests,
            )
            each.close()

    def record_unseen(self, opened: OpenIncident, rolls_back: bool) -> None:
        """Records an incident that no hook saw: as skipped; if the job `rolls_back`, as undone."""
        opened.note(action=Rollback.action if rolls_back else Skip.action)
        gate = opened.gate
        # A run that a thread makes beside the steps may come after the last step.
        is_beside = gate is not None and gate.is_beside
        opened.note_reason(_AFTER_THE_LAST if is_beside else _PAST_THE_HOOKS)
        if not rolls_back:
            self._policies.step_was_skipped(is_decided=False)
        self._record(opened)

    def record_left(self, opened: OpenIncident, action: Optional[str]) -> None:
        """Records an incident that a run showed after one whose `action` ended its handling."""
        opened.note(action=action)
        opened.note_reason(_LEFT)
        self._record(opened)

    # A new session, and the end.

    def enter(self, session, at_once: bool) -> None:
        """Prepares a new session now, if `at_once` and initialized; else `before_step` does."""
        self._is_due = not at_once
        if at_once:
            try:
                self.prepare(session)
            except tf.errors.FailedPreconditionError:
                self._is_due = True

    def before_step(self, session) -> None:
        """Prepares the session, if `enter` could not."""
        if self._is_due:
            self._is_due = False
            try:
                self.prepare(session)
            except tf.errors.FailedPreconditionError as error:
                self._is_due = True
                raise NotInitializedError(_NOT_INITIALIZED % reason_of(error)) from None

    def prepare(self, session) -> None:
        """Prepares a session on the chief, before any process trains in it."""
        rolled_back_for = None if self.job is None else self.job.rolled_back_for
        self._rollbacks.prepare(session, rolled_back_for, saves=self._policies.may_roll_back)
        if rolled_back_for is not None:
            policies = [self._last_policy, *self._policies.fallbacks]
            calls = (each.on_rollback for each in policies if isinstance(each, Rollback))
            on_rollback = next(filter(None, calls), None)
            if on_rollback is not None:
                on_rollback(session, rolled_back_for)

    def close(self) -> None:
        """Closes the record, and logs the skipped batches, the rollbacks and the last words."""
        sentences = self._policies.tell(), self._last_words()
        self._incident_log.close(NEXT_LINE.join(filter(None, sentences)))


class NotInitializedError(tf.errors.FailedPreconditionError):
    """A variable is not initialized, but has to be saved before the first step."""

    def __init__(self, message: str):
        tf.errors.FailedPreconditionError.__init__(self, None, None, message)


_NOT_INITIALIZED = (
    'slimguard saves the state before the first step, for rollbacks, and a variable has no value '
    'yet; first run tf.compat.v1.global_variables_initializer(), or restore a checkpoint. '
    'TensorFlow says: %s'
)

_INTERRUPTED = '; KeyboardInterrupt (Ctrl-C) came while it was handled'
_BESIDE = '; in the same run as the incident before'
_LEFT = '; seen together with the incident before'
_AFTER_THE_LAST = '; after the last step'
_PAST_THE_HOOKS = '; in a run that went past the hooks'

_NOT_HELD = (
    "on_nan='skip' was asked for, but no gate checks %s, so the update of this step was written. "
    'Pass it to slimguard.create_train_op(), or as slimguard.guard(train_op, loss=...)'
)

# Errors that end a step although the handler did not fail: the error of 'raise', and the errors
# after which a process of a job begins a new session.
_ENDS_AS_DECIDED = (NanLossError, *NEW_SESSION)

# The action of an incident on which a subclass of NanLossHook decides by itself.
_BY_SUBCLASS = 'on_nan_loss'

# An error that a loop takes for the end of the input: the loop would end as if all were well.
_ENDS_QUIETLY = (StopIteration, tf.errors.OutOfRangeError)

# The attribute of a `SessionRunContext` in which `act_on` finds the incident.
_OPENED = '_slimguard_opened'
# The attribute that says whether an older state was put back in this run.
_PUT_BACK = '_slimguard_put_back'


def _in_short(error: BaseException) -> str:
    """The type of an error, and the first line of its message."""
    message = texts.cut(str(error).strip().split('\n')[0], _LONGEST, '...')
    return '%s: %s' % (type(error).__name__, message) if message else type(error).__name__

"""Going back to an earlier state after an incident: this process alone, or with its job."""

from typing import Any, Callable, Iterator, List, Optional, Sequence, Union

import tensorflow as tf

from slimguard.checkpoints.checkpoint_files import reason_of, step_in_name
from slimguard.checkpoints.rollback import Restorer
from slimguard.checkpoints.snapshots import PROBATION, Losses, Snapshot, Snapshots
from slimguard.cluster.job import Job
from slimguard.incidents.incident import Incident
from slimguard.incidents.policies import Rollback
from slimguard.system.log import log
from slimguard.training.back_off import BackOff
from slimguard.training.open_incident import OpenIncident
from slimguard.training.step_history import Histories


class Recovery:
    """Carries out the policy `Rollback`.

    A process that trains alone restores the newest trusted state, a snapshot or a checkpoint. If
    another rollback soon follows, it restores an older one, if there is any. The limits of a
    `Spike` begin anew, as after a restart: the losses of an early state are no spikes.

    The restored state is saved first, if there is a newer checkpoint; from then on a restart
    resumes from it. The factor of the learning rate is written last. So if the process is killed
    meanwhile, a restart may resume from the restored state with the old factor, but never from an
    abandoned state with the new factor.

    Args:
      restorer: restores checkpoints.
      snapshots: the states that are kept in memory.
      back_off: makes updates smaller afterwards; None if no policy asks for that.
    """

    def __init__(
        self, restorer: Restorer, snapshots: Snapshots, back_off: Optional[BackOff] = None
    ):
        self._restorer = restorer
        self._snapshots = snapshots
        self._back_off = back_off
        # The state that the last rollback restored, by its name, and its global step.
        self._went_back_to: Optional[str] = None
        self._went_back_step: Optional[int] = None
        self._limits: Optional[Histories] = None
        self._job_went_back = 0  # times

    def take_along(self, limits: Histories) -> None:
        """From now on the limits of a `Spike` begin anew after a rollback."""
        self._limits = limits

    def step_was_good(self, session, loss: Any) -> None:
        """Notes a step without an incident, and its loss or None; a snapshot may be due."""
        self._snapshots.step_was_good(session, loss)

    def step_was_spike(self) -> None:
        """Notes a step that was held because it was far out of bounds, though finite."""
        self._snapshots.step_was_spike()

    def ruin(self) -> str:
        """Why the weights are ruined although finite; '' if they are not."""
        return self._snapshots.ruin()

    @property
    def losses(self) -> Losses:
        """The losses of the good steps."""
        return self._snapshots.losses

    @property
    def keeps_snapshots(self) -> bool:
        """Whether states are kept in memory."""
        return self._snapshots.is_wanted

    def leave_ruin(self, session, step: Optional[int]) -> None:
        """Restores the newest trusted state if the weights are ruined although finite.

        The state that is saved before an error ends the training should be of use. Soon after a
        rollback it is the state that was restored.
        """
        if not self._snapshots.ruin(is_last=True):
            return
        snapshot = self._snapshots.trusted() or self._snapshots.went_back_to
        state = snapshot or self._trusted_checkpoint(step)
        if state is not None:
            self._put_back(session, state)
            log().warning(_RUINED, _name_of(state))

    def _put_back(self, session, state: Union[Snapshot, str]) -> None:
        """Gives the variables the values that they had in a state."""
        if isinstance(state, Snapshot):
            self._snapshots.restore(session, state)
            self._restorer.complete(session, state.values.keys())
        else:
            self._restorer.restore(session, state)
            self._snapshots.note_return(None)
        self._begin_limits_anew()
        self._went_back_to, self._went_back_step = _name_of(state), _step_of(state)

    def _begin_limits_anew(self) -> None:
        if self._limits is not None:
            self._limits.begin_anew()

    def note_return_of_job(self, times: int) -> None:
        """Notes how often a job has rolled back; a new session may begin with an earlier state."""
        if times > self._job_went_back:
            self._begin_limits_anew()
        self._job_went_back = times

    def use_checkpoints_only(self) -> None:
        """For a job, whose processes cannot all go back to states in memory."""
        self._snapshots.most = 0

    def go_back(self, session, handled: OpenIncident, policy: Rollback, job: Optional[Job]) -> bool:
        """Restores an earlier state. False if that cannot be; the incident says why.

        Raises:
          tf.errors.AbortedError: in a job, where all processes restore it in a new session.
          ValueError: if updates cannot be made smaller as the policy says.
        """
        by = policy.learning_rate
        back_off = None if by is None else self._require_back_off()
        if job is not None:
            if not self._job_can(handled, job):
                return False
            if back_off is not None and by is not None:
                handled.note(learning_rate=back_off.after(session, by))
            job.roll_back(handled.incident)
        with self._restorer.nobody_saves():
            is_back = self._restore(session, handled)
        if is_back and back_off is not None and by is not None:
            factor = back_off.after(session, by)
            back_off.shrink_to(session, factor)
            handled.note(learning_rate=factor)
        return is_back

    def _restore(self, session, handled: OpenIncident) -> bool:
        self._snapshots.forget_before_restart(handled.incident.step)
        state = self._choose(handled.incident.step)
        if state is None:
            handled.note_reason(_NO_CHECKPOINT % self._restorer.logdir)
            return False
        handled.note(restored=_name_of(state))
        self._put_back(session, state)
        self._leave_behind(session, handled, _step_of(state))
        return True

    def _choose(self, step: Optional[int]) -> Union[Snapshot, str, None]:
        """The state to go back to. No more checkpoints are read than have to be."""
        snapshot = self._snapshots.trusted()
        older = next(self._older_checkpoints(), None) if self._snapshots.is_soon else None
        return _newer_of(snapshot, older) or self._trusted_checkpoint(step)

    def _older_checkpoints(self) -> Iterator[str]:
        """The good checkpoints that are older than the state restored last."""
        before, step, is_past = self._went_back_to, self._went_back_step, False
        for each in self._restorer.good():  # the newest comes first
            saved_at = _step_of(each)
            if is_past or each == self._restorer.first != before:
                yield each
            elif step is not None and saved_at is not None and saved_at < step:
                yield each
            is_past = is_past or each == before

    def _trusted_checkpoint(self, step: Optional[int]) -> Optional[str]:
        """The newest that is old enough at a step; else the newest, or the oldest after a ruin.

        Soon after a rollback to a checkpoint it is the same one, if none is older.
        """
        is_soon = self._snapshots.is_soon
        found: List[str] = []
        for each in self._restorer.good():
            if not is_soon and _is_trusted(each, step):
                return each
            found.append(each)
        if is_soon and self._went_back_to in found:
            return self._went_back_to
        trusted = [each for each in found if _is_trusted(each, step)]
        if trusted or not found:
            return trusted[0] if trusted else None
        return found[-1] if self.ruin() else found[0]

    def _leave_behind(self, session, handled: OpenIncident, step: Optional[int]) -> None:
        """Saves the state, if a restart would otherwise resume from an abandoned one."""
        published, restored = self._restorer.published(), handled.incident.restored
        if published is None or published == restored:
            return
        newest = step_in_name(published)
        if newest is not None and step is not None and newest <= step:
            return
        why: Any = self._restorer.why_not_saved
        try:
            saved = self._restorer.save(session)
        except (tf.errors.OpError, OSError) as error:
            saved, why = None, error
        if saved is None:
            handled.log_after(log().error, _NOT_LEFT, restored, published, why)
        else:
            handled.log_after(log().warning, _LEFT, saved)

    def _require_back_off(self) -> BackOff:
        if self._back_off is None:
            raise ValueError(_NO_BACK_OFF)
        return self._back_off

    def _job_can(self, handled: OpenIncident, job: Job) -> bool:
        if not job.takes_part:
            handled.note_reason('; and the chief, who would go back to a checkpoint, hears nothing')
            return False
        # All processes restore the state with which a new session begins.
        if job.is_chief:
            handled.note(restored=self._restorer.newest())
        if job.is_chief and handled.incident.restored is None:
            handled.note_reason(_NO_CHECKPOINT % self._restorer.logdir)
            return False
        return True

    def prepare(self, session, went_back: Optional[Incident], saves: bool) -> None:
        """Prepares a session on the chief, before any process trains in it.

        Args:
          session: the new session.
          went_back: the incident for which the job has rolled back, or None.
          saves: whether to save the state before the first step, if there is no good checkpoint.

        Raises:
          tf.errors.FailedPreconditionError: if a variable is not initialized.
        """
        if self._back_off is not None:
            self._back_off.enter(session)
            if went_back is not None and went_back.learning_rate is not None:
                self._back_off.shrink_to(session, went_back.learning_rate)
        if saves and went_back is None:
            self._restorer.save_first(session)

    def before_step(self, session) -> None:
        """For a session whose checkpoint folder becomes known later."""
        self._restorer.before_step(session)
        if self._back_off is not None:
            self._back_off.before_step(session)


def _name_of(state: Union[Snapshot, str]) -> str:
    return state.name if isinstance(state, Snapshot) else state


def _step_of(state: Union[Snapshot, str]) -> Optional[int]:
    """The global step of a state; None if its name does not say it."""
    return state.step if isinstance(state, Snapshot) else step_in_name(state)


def _newer_of(snapshot: Optional[Snapshot], checkpoint: Optional[str]) -> Any:
    """The newer of two states; the checkpoint where that is not known."""
    if snapshot is None or checkpoint is None:
        return snapshot or checkpoint
    saved_at = step_in_name(checkpoint)
    is_newer = snapshot.step is not None and saved_at is not None and snapshot.step >= saved_at
    return snapshot if is_newer else checkpoint


def _is_trusted(checkpoint: str, step: Optional[int]) -> bool:
    """Whether a checkpoint that is named for its global step is old enough to be trusted."""
    saved_at = step_in_name(checkpoint)
    return step is not None and saved_at is not None and step - saved_at >= PROBATION


class NotInitializedError(tf.errors.FailedPreconditionError):
    """A step begins, but a variable that is saved before the first step is not initialized."""

    def __init__(self, message: str):
        tf.errors.FailedPreconditionError.__init__(self, None, None, message)


class Preparation:
    """Prepares a session as soon as its variables are initialized: at once, or before a step.

    A plain session's variables may be initialized after its hooks got it.

    Args:
      prepare: called with the session; raises FailedPreconditionError if it is too early.
    """

    def __init__(self, prepare: Callable[[Any], None]):
        self._prepare = prepare
        self._is_due = False

    def enter(self, session, at_once: bool) -> None:
        """For a new session, whose variables may not be initialized yet."""
        self._is_due = not at_once
        if at_once:
            try:
                self._prepare(session)
            except tf.errors.FailedPreconditionError:
                self._is_due = True

    def before_step(self, session) -> None:
        """Prepares the session if it was too early for that before."""
        if self._is_due:
            self._is_due = False
            try:
                self._prepare(session)
            except tf.errors.FailedPreconditionError as error:
                self._is_due = True
                raise NotInitializedError(_NOT_INITIALIZED % reason_of(error)) from None


def call_on_rollback(session, incident: Incident, policies: Sequence[Any]) -> None:
    """Calls the first `on_rollback` among `policies`, after a job has rolled back."""
    for policy in policies:
        if isinstance(policy, Rollback) and policy.on_rollback is not None:
            policy.on_rollback(session, incident)
            return


_NO_CHECKPOINT = '; and %s holds no good checkpoint to go back to'
_RUINED = 'the weights are ruined, so the variables are put back to %s.'
_LEFT = 'the state gone back to is saved as the newest: %s; a restart begins there.'
_NOT_LEFT = (
    'the state gone back to, %s, is not on disk: a restart begins at %s. Why it is not saved: %s'
)
_NOT_INITIALIZED = (
    'the state is saved before the first step, to go back to, and a variable has no value yet; run '
    'tf.compat.v1.global_variables_initializer(), or restore a checkpoint, first. TensorFlow says: '
    '%s'
)
_NO_BACK_OFF = (
    'Rollback(learning_rate=...) has to be in on_nan itself, or in a list there, so that the train '
    'op is made ready for it before the first step; a callable may then return it'
)

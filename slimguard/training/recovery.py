"""Going back to an earlier state after an incident: this process alone, or with its job."""

from typing import Any, Callable, List, Optional, Sequence

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.checkpoints.checkpoint_files import step_in_name
from slimguard.checkpoints.rollback import Restorer
from slimguard.checkpoints.save_room import reason_of
from slimguard.checkpoints.snapshots import PROBATION, Snapshot, Snapshots
from slimguard.cluster.job import Job
from slimguard.incidents.incident import Incident
from slimguard.incidents.policies import BATCH, Rollback
from slimguard.training.back_off import BackOff
from slimguard.training.open_incident import OpenIncident


class Recovery:
    """Does what the policy `Rollback` asks for.

    A process alone goes to the newest state that is trusted, be it a snapshot or a checkpoint. If
    it has to go back again soon after that, it goes to an older one, as far as there are any;
    unless data are at fault, which an older state does not mend.

    If it is killed meanwhile, it is as if it had not gone back at all: the factor of the learning
    rate is kept last. Before that the state is saved, if it leaves a newer checkpoint behind: from
    then on a restart resumes from it. So what is resumed from may be the state that a rollback went
    to, with the factor of before, but never one that it left, with the new factor.

    Args:
      restorer: restores checkpoints.
      snapshots: the states that are kept in memory.
      back_off: makes updates smaller afterwards; None where no policy asks for that.
    """

    def __init__(
        self, restorer: Restorer, snapshots: Snapshots, back_off: Optional[BackOff] = None
    ):
        self._restorer = restorer
        self._snapshots = snapshots
        self._back_off = back_off
        self._went_back_to: Optional[str] = None  # the checkpoint

    def step_was_good(self, session, loss: Any) -> None:
        """Notes a step without an incident, and its loss or None; a snapshot may be due."""
        self._snapshots.step_was_good(session, loss)

    def step_was_spike(self) -> None:
        """Notes a step that was held as it was finite and far out of bounds."""
        self._snapshots.step_was_spike()

    def ruin(self) -> str:
        """Why going on would be of no use, as the weights are finite and ruined; else ''."""
        return self._snapshots.ruin()

    @property
    def keeps_snapshots(self) -> bool:
        """Whether states are kept in memory, with the losses that tell which is good."""
        return self._snapshots.is_wanted

    def leave_ruin(self, session) -> None:
        """Restores the newest state that is trusted where the weights are finite and ruined.

        What is saved before an error ends the training is to be of use. Soon after a return it is
        the state that was returned to.
        """
        ruin = self._snapshots.ruin(is_last=True)
        if not ruin:
            return
        snapshot = self._snapshots.trusted(is_last=True) or self._snapshots.went_back_to
        name = self._went_back_to if self._snapshots.is_soon else None
        if snapshot is not None and self._can_restore(session, snapshot):
            name = snapshot.name
        elif name is not None:
            self._restorer.restore(session, name)
        if name is not None:
            tf1.logging.warning(
                'slimguard: what is saved as the last good state is %s%s.', name, ruin
            )

    def _can_restore(self, session, snapshot: Snapshot) -> bool:
        """Goes back to a snapshot, if it can be read."""
        try:
            self._snapshots.restore(session, snapshot)
        except OSError as error:
            tf1.logging.error('slimguard: %s cannot be restored: %s', snapshot.name, error)
            self._snapshots.drop()
            return False
        self._restorer.complete(session, snapshot.values.keys())
        return True

    def use_checkpoints_only(self) -> None:
        """For a job: what its processes have in memory they cannot all go back to."""
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
        newest, snapshot = None, self._snapshots.trusted()
        if handled.kind == BATCH and self._snapshots.is_soon and not self.ruin():
            newest = self._restorer.newest()
            newest = None if newest == self._restorer.first else newest  # older than a snapshot
            snapshot = _if_newer(self._snapshots.trusted(is_further=False), newest)
        if snapshot is not None and self._can_restore(session, snapshot):
            handled.note(restored=snapshot.name)
            self._leave_behind(session, handled, snapshot.step)
            return True
        checkpoint = self._noted(newest or self._pick(handled.incident.step), handled)
        if checkpoint is None:
            return False
        self._restorer.restore(session, checkpoint)
        self._snapshots.note_return(None)
        self._went_back_to = checkpoint
        self._leave_behind(session, handled, step_in_name(checkpoint))
        return True

    def _leave_behind(self, session, handled: OpenIncident, step: Optional[int]) -> None:
        """Saves the state, if a restart would else resume from one that was left."""
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
            handled.log_after(tf1.logging.error, _NOT_LEFT, restored, published, why)
        else:
            handled.log_after(tf1.logging.warning, _LEFT, restored, saved)

    def _require_back_off(self) -> BackOff:
        if self._back_off is None:
            raise ValueError(_NO_BACK_OFF)
        return self._back_off

    def _job_can(self, handled: OpenIncident, job: Job) -> bool:
        if not job.takes_part:
            handled.note_reason('; and the chief, who would go back to a checkpoint, hears nothing')
            return False
        # They all restore what a new session does.
        return not job.is_chief or self._noted(self._restorer.newest(), handled) is not None

    def _noted(self, checkpoint: Optional[str], handled: OpenIncident) -> Optional[str]:
        """The checkpoint to go back to, or None; notes which it is, or that there is none."""
        handled.note(restored=checkpoint)
        if checkpoint is None:
            logdir = self._restorer.logdir
            handled.note_reason('; and %s holds no good checkpoint to go back to' % logdir)
        return checkpoint

    def _pick(self, step: Optional[int]) -> Optional[str]:
        """The good checkpoint to go back to. No more of them are read than have to be."""
        before = self._went_back_to if self._snapshots.is_soon else None
        newer: List[str] = []
        for each in self._restorer.good():  # the newest comes first
            if before in newer or before is None and _is_trusted(each, step):
                return each
            newer.append(each)
        if before in newer:  # none is older
            return before
        trusted = [each for each in newer if _is_trusted(each, step)]
        if trusted or not newer:
            return trusted[0] if trusted else None
        return newer[-1] if self.ruin() else newer[0]

    def prepare(self, session, went_back: Optional[Incident], saves: bool) -> None:
        """What the chief does to a session before anybody trains in it.

        Args:
          session: the new session.
          went_back: the incident that the job has gone back to a checkpoint for, or None.
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
        """For a session of which it gets known later where its checkpoints are."""
        self._restorer.before_step(session)
        if self._back_off is not None:
            self._back_off.before_step(session)


def _if_newer(snapshot: Optional[Snapshot], checkpoint: Optional[str]) -> Optional[Snapshot]:
    """A snapshot, unless a checkpoint is newer, or it is not known which is."""
    if snapshot is None or checkpoint is None:
        return snapshot
    saved_at = step_in_name(checkpoint)
    if snapshot.step is None or saved_at is None or snapshot.step < saved_at:
        return None
    return snapshot


def _is_trusted(checkpoint: str, step: Optional[int]) -> bool:
    """Whether a checkpoint that is named for its global step is old enough to be trusted."""
    saved_at = step_in_name(checkpoint)
    return step is not None and saved_at is not None and step - saved_at >= PROBATION


class NotInitializedError(tf.errors.FailedPreconditionError):
    """A step is to be run, and a variable is not initialized that is saved before the first."""

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
        """For a new session, which may be run at once or not."""
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
    """Calls the first `on_rollback` among `policies`, once a job has gone back."""
    for policy in policies:
        if isinstance(policy, Rollback) and policy.on_rollback is not None:
            policy.on_rollback(session, incident)
            return


_LEFT = 'slimguard: the state gone back to, %s, is saved as the newest: %s; a restart begins there.'
_NOT_LEFT = (
    'slimguard: the state gone back to, %s, is not on disk: a restart begins at %s. Why it is not '
    'saved: %s'
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

"""Carries out the policy `Rollback`: restores an earlier state of a process or of a whole job."""

from typing import Any, Iterator, List, Optional, Union

import tensorflow as tf

from slimguard import gate as gates
from slimguard.checkpoints.checkpoint_reader import step_of
from slimguard.checkpoints.finite_saver import offer_saver
from slimguard.checkpoints.restorers import RankRestorer, Restorer
from slimguard.checkpoints.snapshots import PROBATION, TAKEN_FOR_RUINED, Snapshot, Snapshots
from slimguard.cluster.job import Job
from slimguard.incidents.fallback_chain import FallbackChain
from slimguard.incidents.incident import Incident
from slimguard.incidents.policies import Rollback
from slimguard.system.log import log
from slimguard.training.learning_rate_factor import LearningRateFactor, log_error, rate_factor_in
from slimguard.training.open_incident import OpenIncident
from slimguard.training.step_history import Histories
from slimguard.training.training import Training


class Rollbacks:
    """Carries out the policy `Rollback`.

    A process that trains alone restores the newest trusted state, a snapshot or a checkpoint. If
    another rollback soon follows, it restores an older state, if there is one. The limits of a
    `Spike` are forgotten, as by a restart: the higher losses of an early state are no spikes.

    If there is a newer checkpoint, the restored state is saved first, so that a restart resumes
    from it. The factor of the learning rate is written last. So if the process is killed in
    between, a restart may resume from the restored state with the old factor, but never from an
    abandoned state with the new factor.

    Args:
      restorer: restores checkpoints; None if there is no logdir.
      snapshots: the states that are kept in memory; by default none.
      rate_factor: makes later updates smaller; None if no policy does this.

    Attributes:
      snapshots: as given; callers note each good step and each spike there.
      limits: the limits of a `Spike`, which a rollback resets; None if there are none.
    """

    def __init__(
        self,
        restorer: Optional[Restorer] = None,
        snapshots: Optional[Snapshots] = None,
        rate_factor: Optional[LearningRateFactor] = None,
    ):
        self._restorer: Any = restorer
        self.snapshots = Snapshots() if snapshots is None else snapshots
        self._rate_factor = rate_factor
        # The name of the state that the last rollback restored, and its global step.
        self._rolled_back_to: Optional[str] = None
        self._rolled_back_step: Optional[int] = None
        self.limits: Optional[Histories] = None
        self._job_rollbacks = 0  # times

    def leave_ruin(self, session, opened: OpenIncident) -> bool:
        """Saves the ruined weights apart, and restores the newest trusted state.

        Returns False if there is no such state; then this does nothing.

        So the training ends with a useful state. Soon after a rollback, this is the state that the
        rollback restored; without a rollback in the chain, the newest checkpoint.
        """
        if self._restorer is None:
            return False
        state: Any = self.snapshots.trusted() or self.snapshots.rolled_back_to
        if state is None:
            is_wanted = self.snapshots.is_wanted
            state = self._trusted_checkpoint(opened) if is_wanted else self._restorer.newest()
        if state is not None:
            apart = self._save_apart(session)
            self._put_back(session, state)
            opened.log_after(log().warning, _PUT_BACK, apart, _name_of(state))
        return state is not None

    def _save_apart(self, session) -> str:
        """Saves ruined weights where no restart looks; returns where, in words."""
        try:
            saved = self._restorer.save_apart(session)
        except (tf.errors.OpError, OSError) as error:
            return ' (they could not be saved: %s)' % error
        return '' if saved is None else ' (they are saved apart, as %s)' % saved

    def _put_back(self, session, state: Union[Snapshot, str]) -> None:
        """Assigns the values of a state to the variables."""
        if isinstance(state, Snapshot):
            self.snapshots.restore(session, state)
            self._restorer.complete(session, state.values.keys())
        else:
            self._restorer.restore(session, state)
            self.snapshots.note_rollback(None)
        if self.limits is not None:
            self.limits.begin_anew()
        self._rolled_back_to, self._rolled_back_step = _name_of(state), _step_of(state)

    def join_job(self, rollbacks: int) -> None:
        """Adapts to a job that has rolled back `rollbacks` times.

        Keeps no snapshots, since a job's processes cannot all go back to states in memory. If the
        job rolled back again, the new session begins with an earlier state, so this resets the
        limits.
        """
        self.snapshots.most = 0
        if rollbacks > self._job_rollbacks and self.limits is not None:
            self.limits.begin_anew()
        self._job_rollbacks = rollbacks

    def roll_back(
        self, session, opened: OpenIncident, policy: Rollback, job: Optional[Job]
    ) -> bool:
        """Restores an earlier state. Returns False if that is impossible; the incident says why.

        Raises:
          tf.errors.AbortedError: in a job; all processes then restore the state in a new session.
          ValueError: if there is no logdir, or updates cannot be made smaller as the policy says.
        """
        if self._restorer is None:
            raise ValueError(NO_LOGDIR)
        rate_factor, factor = self._rate_factor, None
        if policy.learning_rate is not None:
            if rate_factor is None:
                raise ValueError(_NOT_READY)
            factor = rate_factor.after(session, policy.learning_rate)
        if job is not None:
            if not self._job_can(opened, job):
                return False
            opened.note(learning_rate=factor)
            job.roll_back(opened.incident)
        with self._restorer.nobody_saves():
            is_back = self._restore(session, opened)
        if is_back and rate_factor is not None and factor is not None:
            opened.log_after(log_error, rate_factor.shrink_to(session, factor))
            opened.note(learning_rate=factor)
        return is_back

    def _restore(self, session, opened: OpenIncident) -> bool:
        self.snapshots.forget_before_restart(opened.incident.step)
        state = self._choose(opened)
        if state is None:
            opened.note_reason(_NO_CHECKPOINT % self._restorer.logdir)
            return False
        opened.note(restored=_name_of(state))
        incident = opened.incident
        if incident.step is not None and incident.step == _step_of(state):
            opened.note_reason(_NOTHING_UNDONE * (incident.held and not incident.state_lost))
        self._put_back(session, state)
        self._leave_behind(session, opened, _step_of(state))
        return True

    def _choose(self, opened: OpenIncident) -> Union[Snapshot, str, None]:
        """The state to go back to; reads as few checkpoints as it can."""
        snapshot = self.snapshots.trusted()
        older = next(self._older_checkpoints(), None) if self.snapshots.is_soon else None
        return _newer_of(snapshot, older) or self._trusted_checkpoint(opened)

    def _older_checkpoints(self) -> Iterator[str]:
        """The good checkpoints that are older than the state restored last."""
        before, step, is_past = self._rolled_back_to, self._rolled_back_step, False
        for each in self._restorer.good():  # the newest comes first
            saved_at = _step_of(each)
            if is_past or each == self._restorer.first != before:
                yield each
            elif step is not None and saved_at is not None and saved_at < step:
                yield each
            is_past = is_past or each == before

    def _trusted_checkpoint(self, opened: OpenIncident) -> Optional[str]:
        """The newest trusted checkpoint; else the newest one, or for ruined weights the oldest.

        Soon after a rollback to a checkpoint, this is the same checkpoint. The reason says why a
        newer one was not trusted.
        """
        is_soon, step = self.snapshots.is_soon, opened.incident.step
        good: List[str] = []
        for each in self._restorer.good():
            if not is_soon and _is_trusted(each, step):
                if good and step_of(good[0]) is not None:
                    opened.note_reason(_TOO_NEW % good[0])
                return each
            good.append(each)
        if is_soon and self._rolled_back_to in good:
            return self._rolled_back_to
        trusted = [each for each in good if _is_trusted(each, step)]
        if trusted or not good:
            return trusted[0] if trusted else None
        return good[-1] if opened.ruin else good[0]

    def _leave_behind(self, session, opened: OpenIncident, step: Optional[int]) -> None:
        """Saves the restored state if a restart would otherwise resume from an abandoned state."""
        published, restored = self._restorer.published(), opened.incident.restored
        if published is None or published == restored:
            return
        newest = step_of(published)
        if newest is not None and step is not None and newest <= step:
            return
        why: Any = ''
        try:
            saved = self._restorer.save(session)
        except (tf.errors.OpError, OSError) as error:
            saved, why = None, error
        if saved is None:
            why = why or self._restorer.why_not_saved
            opened.log_after(log().error, _NOT_LEFT, restored, published, why)
        else:
            opened.log_after(log().warning, _LEFT, saved)

    def _job_can(self, opened: OpenIncident, job: Job) -> bool:
        if not job.takes_part:
            opened.note_reason(_NO_CHIEF)
            return False
        # All processes restore the state that the new session begins with.
        if job.is_chief:
            opened.note(restored=self._restorer.newest())
        if job.is_chief and opened.incident.restored is None:
            opened.note_reason(_NO_CHECKPOINT % self._restorer.logdir)
            return False
        return True

    def prepare(self, session, rolled_back_for: Optional[Incident], saves: bool) -> None:
        """Prepares a session on the chief, before any process trains in it.

        Args:
          session: the new session.
          rolled_back_for: the incident for which the job has rolled back, or None.
          saves: whether to save the state before the first step, if there is no good checkpoint.

        Raises:
          tf.errors.FailedPreconditionError: if a variable is not initialized.
        """
        if self._rate_factor is not None:
            self._rate_factor.enter(session)
            if rolled_back_for is not None and rolled_back_for.learning_rate is not None:
                log_error(self._rate_factor.shrink_to(session, rolled_back_for.learning_rate))
        if saves and rolled_back_for is None and self._restorer is not None:
            self._restorer.save_first(session)

    def before_step(self, session) -> None:
        """Call it before each step if a script may build variables or begin to save there."""
        self._restorer.before_step(session)
        if self._rate_factor is not None:
            self._rate_factor.before_step(session)


def _name_of(state: Union[Snapshot, str]) -> str:
    return state.name if isinstance(state, Snapshot) else state


def _step_of(state: Union[Snapshot, str]) -> Optional[int]:
    """The global step of a state; None if it is not known."""
    return state.step if isinstance(state, Snapshot) else step_of(state)


def _newer_of(snapshot: Optional[Snapshot], checkpoint: Optional[str]) -> Any:
    """The newer of two states; the checkpoint if a step is not known."""
    if snapshot is None or checkpoint is None:
        return snapshot or checkpoint
    saved_at = step_of(checkpoint)
    is_newer = snapshot.step is not None and saved_at is not None and snapshot.step >= saved_at
    return snapshot if is_newer else checkpoint


def _is_trusted(checkpoint: str, step: Optional[int]) -> bool:
    """Whether a checkpoint is old enough to be trusted."""
    saved_at = step_of(checkpoint)
    return step is not None and saved_at is not None and step - saved_at >= PROBATION


def rollbacks_in(
    graph: tf.Graph,
    policies: FallbackChain,
    training: Training,
    directory: Optional[str],
    is_given: bool,
    ranks: gates.Ranks,
) -> Rollbacks:
    """The `Rollbacks` of a training; if it cannot or need not go back, they restore nothing.

    Args:
      graph: the graph.
      policies: the policies in force.
      training: the training; its `saver`, or else the graph's, restores checkpoints.
      directory: where the checkpoints are; None if there are none.
      is_given: whether the user gave a logdir.
      ranks: the processes that train together.
    """
    rolls_back = policies.may_roll_back
    if ranks.are_several and not rolls_back:
        return Rollbacks()
    is_shared = training.makes_sessions and not ranks.are_several
    smaller = rate_factor_in(graph, policies, lambda: directory, is_shared, ranks)
    snapshots = Snapshots(policies.snapshots, is_shared=ranks.are_several)
    if ranks.are_several:
        return Rollbacks(RankRestorer(training.saver, directory), snapshots, smaller)
    if directory is None or not (is_given or rolls_back):
        return Rollbacks(training.checkpoints)
    restorer = Restorer(training.saver or offer_saver(graph), directory)
    return Rollbacks(restorer, snapshots, smaller)


NO_LOGDIR = (
    "on_nan='rollback' restores a checkpoint, and no logdir is given to find it in: pass "
    'logdir=... to slimguard.train() or slimguard.watch(), checkpoint_dir=... to '
    'MonitoredTrainingSession, or NanLossHook(..., logdir=...) with the directory that the session '
    'saves to'
)

_NO_CHECKPOINT = '; and %s holds no good checkpoint to go back to'
_TOO_NEW = '; %%s is not trusted yet: fewer than %d good steps followed it' % PROBATION
_NOTHING_UNDONE = '; the restored state is of the same global step, so no update was undone'
_NO_CHIEF = '; and no chief that runs slimguard was seen: it would restore the checkpoint'
_PUT_BACK = TAKEN_FOR_RUINED + '%s, so the variables are put back to %s.'
_LEFT = 'the restored state is saved as the newest checkpoint, %s; a restart begins there.'
_NOT_LEFT = (
    'the restored state, %s, is not saved, so a restart begins at %s. Why it is not saved: %s'
)
_NOT_READY = (
    'Rollback(learning_rate=...) has to be in on_nan itself, or in a list there, so that the train '
    'op is made ready for it before the first step; a callable may then return it'
)

"""The policies of a training, in order: which of them takes an incident."""

import collections
import copy
from typing import TYPE_CHECKING, Any, Callable, Deque, Iterable, List, Optional, Sequence

from slimguard.incidents.policies import BATCH, Policy, PolicyState, Raise, Rollback, Skip
from slimguard.incidents.policy_language import OnNan, fallbacks_of

if TYPE_CHECKING:  # it imports TensorFlow; the command line must not
    from slimguard.incidents.incident import Incident

# This many overflows from finite batches, within this many steps, count as an explosion even with
# good steps in between.
_OVERFLOWS, _OF_STEPS = 5, 100


class FallbackChain:
    """Policies in order: the first that applies takes an incident. If none applies, 'raise' does.

    A good step or a rollback resets the count of `Skip`, so that the chain begins with its first
    policy again. If overflows keep coming from finite batches, a chain with a rollback stops
    skipping.

    Args:
      on_nan: the user's argument; None stands for `otherwise`.
      otherwise: the policy for None, also if a callable returns None.

    Attributes:
      fallbacks: the policies and callables, in order.
      why_not: the end of the last incident's reason: which policies did not apply, and why.
      spent: how much of the last incident's policy is used up, such as ' (1 of 3 times)'.
    """

    def __init__(self, on_nan: OnNan, otherwise: Policy):
        self.why_not = self.spent = self._why_skipped = ''
        self._factor: Optional[float] = None
        self._has_stopped = False
        # What `tell` said last: how many skipped steps and rollbacks, and whether it stopped.
        self._told = 0, 0, False
        self.fallbacks = [otherwise] if on_nan is None else fallbacks_of(on_nan)
        self._otherwise = otherwise
        self._state = PolicyState()
        self._state.may_skip = self.may(Skip)
        self._overflowed_at: Deque[int] = collections.deque(maxlen=_OVERFLOWS)  # steps

    def foresee(self, incident: 'Incident', ruin: str = '', train_op: str = '') -> Optional[Policy]:
        """What `decide` would return if the cause stays unknown; None if a callable decides."""
        state = copy.copy(self._state)
        state.note_incident(incident.state_lost, self._ruin(ruin), '', train_op)
        for fallback in self.fallbacks:
            if not isinstance(fallback, Policy):
                return None
            if fallback.is_willing(state):
                return fallback
        return Raise()

    def decide(
        self, incident: 'Incident', ruin: str = '', cause: str = '', train_op: str = ''
    ) -> Policy:
        """Chooses the policy for one more incident. Exceptions of a user's callable pass through.

        Args:
          incident: the incident.
          ruin: as for `PolicyState`.
          cause: as for `PolicyState`.
          train_op: the name of the train op whose step was bad; '' if it is not known.
        """
        self.why_not = ''
        self._state.note_incident(incident.state_lost, self._ruin(ruin, cause), cause, train_op)
        policy = self._first_willing(self.fallbacks, incident) or Raise()
        self.spent = policy.spent(self._state)
        if isinstance(policy, Raise):
            self._why_skipped = ''  # the NanLossError gives the cause
        return policy

    def note_overflow(self) -> None:
        """Notes that the last decided step overflowed although its batch was finite."""
        self._overflowed_at.append(self._state.steps)

    def _ruin(self, ruin: str, cause: str = '') -> str:
        """Why not to skip: `ruin`, or an explosion; '' if no rollback here could follow."""
        explosion = self._explosion(cause)
        return (ruin or explosion) if self.may(Rollback) else ''

    def _explosion(self, cause: str) -> str:
        """Why the training seems to explode although most steps are good; '' if it does not."""
        steps = self._state.steps + 1 - min(self._overflowed_at, default=0)
        if cause == BATCH:  # a bad batch says nothing about the weights
            self._overflowed_at.clear()
        if len(self._overflowed_at) < _OVERFLOWS or steps > _OF_STEPS:
            return ''
        return _EXPLODES % (_OVERFLOWS, steps)

    def step_was_good(self, train_ops: Iterable[str] = ('',)) -> None:
        """Notes a good step of the train ops with these names."""
        self._state.note_good(train_ops)

    def step_was_skipped(self, is_decided: bool = True, why: Optional[str] = None) -> None:
        """Notes that a step was skipped.

        Args:
          is_decided: whether `decide` has counted the step already.
          why: why the step was bad; None if it was not examined.
        """
        self._why_skipped = why or self._why_skipped
        self._state.steps += not is_decided
        self._state.note_skipped()

    def note_rollback(self, factor: Optional[float] = None) -> None:
        """Notes a rollback and, if its policy has one, the factor of the learning rate."""
        self._state.note_rollback()
        self._overflowed_at.clear()
        self._factor = factor or self._factor

    def note_stop(self) -> None:
        """Notes that 'stop' ends the training."""
        self._has_stopped = True

    def tell(self) -> str:
        """In words: how many steps were skipped, how often it went back; '' if nothing is new."""
        skipped, rollbacks = self._state.skipped, self._state.rollbacks
        if (skipped, rollbacks, self._has_stopped) == self._told:
            return ''
        self._told = skipped, rollbacks, self._has_stopped
        told = []
        if skipped:
            told.append(skipped_in_words(skipped, self._state.steps, self._why_skipped))
        if rollbacks:
            times = '%d time' % rollbacks + 's'[: rollbacks > 1]
            told.append('the training went back to an earlier state ' + times)
            if self._factor is not None:
                told[-1] += '; its learning rate ends at x%g' % self._factor
        return NEXT_LINE.join(told or ["'stop' ended the training"])

    def note_job_rollbacks(self, rollbacks: int) -> None:
        """Notes how often all processes of the job went back to a checkpoint."""
        self._state.rollbacks = max(self._state.rollbacks, rollbacks)

    @property
    def snapshots(self) -> int:
        """How many snapshots the rollback policies want; for a callable alone, the default."""
        wanted = [each.snapshots for each in self.fallbacks if isinstance(each, Rollback)]
        return max(wanted or [Rollback.snapshots if self.may_roll_back else 0])

    @property
    def may_roll_back(self) -> bool:
        """Whether a policy may roll back; True for a callable: it may return any policy."""
        return self.may(Rollback) or not all(isinstance(each, Policy) for each in self.fallbacks)

    def may(self, kind: type) -> bool:
        """Whether a policy here is of a kind; those that callables return do not count."""
        return any(isinstance(each, kind) for each in self.fallbacks)

    @property
    def rollbacks(self) -> int:
        """How many times the training went back to a checkpoint."""
        return self._state.rollbacks

    @property
    def learning_rate(self) -> Optional[float]:
        """The factor of the first policy here that lowers the learning rate, or None."""
        rates = (each.learning_rate for each in self.fallbacks if isinstance(each, Rollback))
        return next((rate for rate in rates if rate is not None), None)

    def _first_willing(self, fallbacks: Sequence[Any], incident: 'Incident') -> Optional[Policy]:
        for fallback in fallbacks:
            if isinstance(fallback, Policy):
                policy = fallback if fallback.is_willing(self._state) else None
                why_not = '' if policy else fallback.why_not(self._state)
                if why_not:
                    self.why_not += "; '%s' does not apply, since %s" % (fallback, why_not)
            else:
                answer = fallback(incident)
                answer = self._otherwise if answer is None else answer
                policy = self._first_willing(_fallbacks_of_answer(fallback, answer), incident)
            if policy is not None:
                return policy
        return None


NEXT_LINE = '.\n    '  # between the sentences at the end of a training


def skipped_in_words(skipped: int, steps: int, why: str) -> str:
    """A clause: how many of the steps were skipped, and the last known cause, `why`."""
    told = '%d of %d batches %s skipped' % (skipped, steps, 'was' if skipped == 1 else 'were')
    return '%s; the last cause found: %s' % (told, why) if why else told


_EXPLODES = (
    '%d of the %d steps before it overflowed although their batches were finite, so the training '
    'seems to explode'
)


def _fallbacks_of_answer(asked: Callable, answer) -> List[Any]:
    try:
        if callable(answer) and not isinstance(answer, Policy):
            raise TypeError('expected the name of a policy, a policy object, a list, or None')
        return fallbacks_of(answer)
    except (TypeError, ValueError) as error:
        raise type(error)(
            'the on_nan callable %r returned %r: %s' % (asked, answer, error)
        ) from None

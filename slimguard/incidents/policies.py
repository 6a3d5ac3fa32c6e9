"""What happens after an incident: `Raise`, `Stop`, `Skip`, `Rollback`.

A policy answers only one question: given the training so far, does it take one more incident? The
loop that runs the training carries out the policy's action. Policies are plain values: they hold no
state, compare by their arguments, and can be used in several trainings.
"""

import collections
import dataclasses
from typing import TYPE_CHECKING, Any, Callable, ClassVar, Deque, Dict, Iterable, Optional

from slimguard.system.numbers import is_number, is_whole

if TYPE_CHECKING:  # it imports TensorFlow; the command line must not
    from slimguard.incidents.incident import Incident


# The kinds of causes that policies tell apart.
# The batch alone is at fault, whatever the weights are: the next batch may be good.
BATCH = 'batch'
# Numbers grew until they overflowed. From an older state, with a smaller learning rate, they may
# stay finite.
EXPLOSION = 'explosion'
# Neither the batch nor the weights are at fault: the same failure comes again, whatever the policy
# does.
COMES_AGAIN = 'comes again'
# Variables are at fault, not the batch: the next batch fails in the same way. An older state may be
# good.
STATE = 'state'
# A variable that the gate does not guard was not finite before the step: no batch is at fault.
UNGUARDED = 'unguarded'

# `max_ratio` is a share of this many last steps.
_LAST_STEPS = 1000
# Up to this many bad batches in a row may be chance. For more, over half of all batches would have
# to be bad.
_BY_CHANCE = 100
_TOO_MANY_BATCHES = (
    '%d bad batches%s in a row came before this one, and %d are allowed where the batch is at '
    "fault ('skip:%d' allows more)"
)


class PolicyState:
    """What policies need to know of a training.

    Attributes:
      in_a_row: the number of incidents of the same train op since its last good step or the last
        rollback, with the present one. The good steps of a GAN's other train op do not count.
      whose: the train op of the present incident, as ' of NAME'; '' if there is only one.
      rollbacks: how often the training went back, without rollbacks that failed.
      state_lost: whether variables were bad before the present incident's step.
      in_vain: whether a rollback would not mend the variables at fault, since no step was good
        after the last rollback, or after the beginning.
      good: the number of good steps since the last rollback, or since the training began.
      ruin: why finite weights count as ruined; '' if they do not, or if unknown.
      cause: the kind of the present incident's cause: `BATCH`, `EXPLOSION`, `COMES_AGAIN` or
        `STATE`; '' for any other cause, and if it is not known.
      cause_in_row: the last known cause among the incidents in a row.
      may_skip: whether a policy in force skips.
      steps: the number of steps so far.
      skipped: how many of them were skipped.
      skipped_at: the numbers of the steps skipped since the last rollback, among the last thousand.
    """

    def __init__(self):
        self.in_a_row = 0
        self.whose = ''
        self._bad_of: Dict[str, int] = {}  # by train op, its incidents in a row
        self.rollbacks = 0
        self.state_lost = False
        self.in_vain = False
        self.good = 0
        self.ruin = ''
        self.cause = self.cause_in_row = ''
        self.may_skip = False
        self.steps = 0
        self.skipped = 0
        self.skipped_at: Deque[int] = collections.deque()

    @property
    def is_chance(self) -> bool:
        """Whether the bad steps in a row may be chance: up to a hundred bad batches."""
        return self.are_batches(self.cause) and self.in_a_row <= _BY_CHANCE

    def are_batches(self, cause: str) -> bool:
        """Whether incidents with this cause mean bad batches and good weights."""
        return cause == BATCH and not self.state_lost and not self.ruin

    def note_incident(self, state_lost: bool, ruin: str, cause: str, train_op: str = '') -> None:
        """Notes the present incident."""
        before = self._bad_of.get(train_op, 0)
        self.cause_in_row = cause or (self.cause_in_row if before else '')
        self.steps += 1
        self.in_a_row = before + 1
        # A new dict: `foresee` makes a shallow copy of this object, and notes the incident there.
        self._bad_of = {**self._bad_of, train_op: self.in_a_row}
        is_one_of = train_op and len([name for name in self._bad_of if name]) > 1
        self.whose = ' of ' + train_op if is_one_of else ''
        self.state_lost, self.ruin, self.cause = state_lost or cause == STATE, ruin, cause
        # If the gate says that variables are lost, they were lost after that, and a rollback helps.
        self.in_vain = cause == STATE and not state_lost and not self.good

    def note_good(self, train_ops: Iterable[str]) -> None:
        """Notes a good step of these train ops."""
        self.steps += 1
        self.good += 1
        self._bad_of.update(dict.fromkeys(train_ops, 0))

    def note_skipped(self) -> None:
        """Notes that the last step was skipped."""
        self.skipped += 1
        self.skipped_at.append(self.steps)

    def note_rollback(self) -> None:
        """Notes that the training went back."""
        self.rollbacks += 1
        self.in_a_row = self.good = 0
        self._bad_of = dict.fromkeys(self._bad_of, 0)
        self.skipped_at.clear()

    def skipped_lately(self) -> int:
        """How many of the last thousand steps were skipped, not counting the present one."""
        while self.skipped_at and self.skipped_at[0] <= self.steps - _LAST_STEPS:
            self.skipped_at.popleft()
        return len(self.skipped_at)


@dataclasses.dataclass(unsafe_hash=True)
class Policy:
    """Base of all policies.

    Attributes:
      action: the name of its action.
      ends: whether the training ends with it.
    """

    action: ClassVar[str] = ''
    ends: ClassVar[bool] = False

    def is_willing(self, state: PolicyState) -> bool:
        """Whether this policy takes the present incident; if not, the chain asks the next one."""
        return True

    def __str__(self) -> str:
        """The policy as a user writes it for `on_nan`."""
        return self.action

    def why_not(self, state: PolicyState) -> str:
        """Why this policy does not take the present incident, as a clause; or ''."""
        return ''

    def spent(self, state: PolicyState) -> str:
        """How much of it is used up, with the present incident; '' if it has no limit."""
        return ''


@dataclasses.dataclass(unsafe_hash=True)
class Raise(Policy):
    """End the training with a `NanLossError`."""

    action = 'raise'
    ends = True


@dataclasses.dataclass(unsafe_hash=True)
class Stop(Policy):
    """End the training cleanly: hooks' `end` runs; `train` returns the last good step's loss."""

    action = 'stop'
    ends = True


@dataclasses.dataclass(unsafe_hash=True)
class Skip(Policy):
    """Continue with the next batch, until `max_consecutive` steps in a row were skipped.

    It does not skip in three cases: variables themselves are lost, so that every batch is bad; the
    weights are ruined, which is known only if a `Rollback` follows in the chain; or the diagnosis
    says that the same failure comes again, whatever the batch is.

    Args:
      max_consecutive: how many steps of one train op in a row. If the diagnosis says that the
        batch alone is at fault, the limit is a hundred, or `max_consecutive` if that is larger.
      max_ratio: the largest share of skipped steps among the last 1,000: with 0.2 the next policy
        takes over at the 201st. Above 0, and at most 1. A rollback begins a new count. Default: no
        limit.
    """

    action = 'skip'

    max_consecutive: int = 10
    max_ratio: Optional[float] = None

    def __post_init__(self):
        _require_count(self.max_consecutive, 'max_consecutive')
        _require_share(self.max_ratio, 'max_ratio')

    def is_willing(self, state: PolicyState) -> bool:
        return (
            state.in_a_row <= self._most(state, state.cause)
            and not state.state_lost
            and not state.ruin
            and state.cause != COMES_AGAIN
            and not self._has_spent(state)
        )

    def __str__(self) -> str:
        count = self.max_consecutive
        return self.action if count == Skip.max_consecutive else '%s:%d' % (self.action, count)

    def why_not(self, state: PolicyState) -> str:
        if state.cause == COMES_AGAIN or state.state_lost:
            return 'the next batch would fail in the same way'
        if self._has_spent(state):
            before = min(state.steps - 1, _LAST_STEPS - 1)
            told = state.skipped_lately(), before, self.max_ratio
            return '%d of the %d steps before were skipped, and max_ratio=%g allows no more' % told
        if state.ruin:
            return state.ruin
        most = self._most(state, state.cause)
        if state.in_a_row <= most:
            return ''
        if most > self.max_consecutive:
            return _TOO_MANY_BATCHES % (state.in_a_row - 1, state.whose, most, 2 * most)
        told = state.in_a_row - 1, state.whose, most
        return '%d bad steps%s in a row came before this one, and it allows %d' % told

    def spent(self, state: PolicyState) -> str:
        most = self._most(state, state.cause_in_row)
        what = 'batches' if state.are_batches(state.cause_in_row) else 'steps'
        told = what, state.whose, state.in_a_row, most
        return ' (bad %s%s in a row: %d, allowed: %d)' % told

    def _most(self, state: PolicyState, cause: str) -> int:
        """How many steps in a row it skips if they have this cause."""
        return max(_BY_CHANCE if state.are_batches(cause) else 0, self.max_consecutive)

    def _has_spent(self, state: PolicyState) -> bool:
        if self.max_ratio is None:
            return False
        return state.skipped_lately() + 1 > self.max_ratio * _LAST_STEPS


@dataclasses.dataclass(unsafe_hash=True)
class Rollback(Policy):
    """Restore the newest trusted state and take the next batch, at most `max_times` times.

    A state is a snapshot in memory or a finite checkpoint. It is trusted once ten good steps have
    followed it. Without a trusted state the policy restores the newest finite checkpoint. If the
    next rollback comes within twenty good steps, it restores an older state. A training without a
    checkpoint saves its state before its first step.

    It does not roll back in three cases: the diagnosis says that the same failure comes again,
    whatever the weights are; variables are at fault, and no step was good since the last rollback;
    or the chain also skips, and the diagnosis says that the batch alone is at fault.

    Args:
      max_times: how often, in one training.
      on_rollback: called as ``on_rollback(session, incident)`` once the state is restored.
      learning_rate: the factor of the learning rate after each rollback, for good: with 0.5 the
        updates after the second rollback use a quarter of the rate. It works with every optimizer
        and schedule, and stays after a restart of the training. Above 0, and at most 1. Default:
        the learning rate stays.
      snapshots: how many states to keep, as copies of all variables in memory: one is not trusted
        yet, the others are spread over the steps so far. If they would take more than half of the
        free memory, none is kept, and a log line says so. At least 2, or 0 for none. A job with
        parameter servers keeps none.
    """

    action = 'rollback'

    max_times: int = 3
    on_rollback: Optional[Callable[[Any, 'Incident'], Any]] = None
    learning_rate: Optional[float] = None
    snapshots: int = 3

    def __post_init__(self):
        _require_count(self.max_times, 'max_times')
        _require_count(self.snapshots, 'snapshots', least=0)
        if self.snapshots == 1:
            raise ValueError('snapshots must be 0 or at least 2, as one alone is never trusted')
        if self.on_rollback is not None and not callable(self.on_rollback):
            raise TypeError('on_rollback must be callable, not %r' % (self.on_rollback,))
        _require_share(self.learning_rate, 'learning_rate')

    def is_willing(self, state: PolicyState) -> bool:
        if state.cause == COMES_AGAIN or state.in_vain or state.is_chance and state.may_skip:
            return False
        return state.rollbacks < self.max_times

    def __str__(self) -> str:
        if self.learning_rate is not None:
            return '%s:%dx%g' % (self.action, self.max_times, self.learning_rate)
        count = self.max_times
        return self.action if count == Rollback.max_times else '%s:%d' % (self.action, count)

    def why_not(self, state: PolicyState) -> str:
        if state.cause == COMES_AGAIN:
            return 'an earlier state would fail in the same way'
        if state.in_vain:
            since = 'the last rollback' if state.rollbacks else 'the training began'
            return 'an earlier state would fail in the same way: no step was good since ' + since
        if state.is_chance and state.may_skip:
            return 'the batch is at fault and not the weights'
        times = 'once' if state.rollbacks == 1 else '%d times' % state.rollbacks
        return 'the training went back %s already' % times

    def spent(self, state: PolicyState) -> str:
        return ' (%d of %d times)' % (state.rollbacks + 1, self.max_times)


def _require_count(number, name: str, least: int = 1) -> None:
    if not is_whole(number):
        raise TypeError('%s must be an int, not %r' % (name, number))
    if number < least:
        raise ValueError('%s must be at least %d, not %d' % (name, least, number))


def _require_share(number, name: str) -> None:
    if number is None:
        return
    if not is_number(number):
        raise TypeError('%s must be a number above 0 and at most 1, not %r' % (name, number))
    if not 0 < number <= 1:
        raise ValueError('%s must be above 0 and at most 1, not %r' % (name, number))

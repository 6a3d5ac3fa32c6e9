"""What happens after an incident: `Raise`, `Stop`, `Skip`, `Rollback`.

A policy only answers one question: is it still willing, given how things went so far? *What* its
action means is up to who runs the training. Policies are plain values: they hold no state, compare
by what they say, and can be used in several trainings.
"""

import collections
from typing import TYPE_CHECKING, Any, Callable, Deque, Optional

from slimguard.system.numbers import is_number, is_whole

if TYPE_CHECKING:  # it imports TensorFlow, and the command line reads policies without
    from slimguard.incidents.incident import Incident


# Kinds of causes, as far as policies ask. The batch is at fault, or what a sum came to with it, and
# not the weights: the next batch may be good.
BATCH = 'batch'
# Numbers grew until they overflowed. From an older state, with a smaller rate, they may not.
EXPLOSION = 'explosion'
# Neither the batch nor the weights are: whatever is done, the same comes again.
COMES_AGAIN = 'comes again'
# Variables are, and no batch: the next batch meets the same. In an older state they may be others.
STATE = 'state'

# `max_ratio` is a share of this many last steps.
_LAST_STEPS = 1000
# So many bad batches may follow each other by chance: more than half of the steps would have to be
# bad for that.
_BY_CHANCE = 100


class PolicyState:
    """How a training went so far, as far as policies ask.

    Attributes:
      in_a_row: the number of incidents since the last good step or rollback, the present one
        included.
      rollbacks: the number of rollbacks so far.
      state_lost: whether variables were at fault already before the present incident's step.
      in_vain: whether going back does not change them, as no step was good in the newest state.
      good: the number of good steps since the last rollback, or since the training began.
      ruin: why the weights are finite and ruined; '' if they are not, or nobody knows.
      cause: the kind of the present incident's cause: `BATCH`, `EXPLOSION`, `COMES_AGAIN` or
        `STATE`; '' for any other, and if it is not known.
      may_skip: whether a policy in force skips.
      steps: the number of steps so far.
      skipped: how many of them were skipped.
      skipped_at: the numbers of those of the last thousand steps that were; none of before a
        rollback.
    """

    def __init__(self):
        self.in_a_row = 0
        self.rollbacks = 0
        self.state_lost = False
        self.in_vain = False
        self.good = 0
        self.ruin = ''
        self.cause = ''
        self.may_skip = False
        self.steps = 0
        self.skipped = 0
        self.skipped_at: Deque[int] = collections.deque()

    @property
    def is_chance(self) -> bool:
        """Whether the batch is at fault, so that bad steps in a row say nothing of the weights.

        So many of them are no chance any more.
        """
        is_sound = not self.state_lost and not self.ruin
        return self.cause == BATCH and is_sound and self.in_a_row <= _BY_CHANCE

    def note_incident(self, state_lost: bool, ruin: str, cause: str) -> None:
        """Notes the present incident."""
        self.steps += 1
        self.in_a_row += 1
        self.state_lost, self.ruin, self.cause = state_lost or cause == STATE, ruin, cause
        # Variables that a step is to write may have been lost since, and are restored.
        self.in_vain = cause == STATE and not state_lost and not self.good

    def note_skipped(self) -> None:
        """Notes that the last step was skipped."""
        self.skipped += 1
        self.skipped_at.append(self.steps)

    def skipped_lately(self) -> int:
        """How many of the last thousand steps were skipped, the present one not included."""
        while self.skipped_at and self.skipped_at[0] <= self.steps - _LAST_STEPS:
            self.skipped_at.popleft()
        return len(self.skipped_at)


class Policy:
    """Base of all policies.

    Attributes:
      action: the word for what is done.
      ends: whether the training ends with it.
    """

    action = ''
    ends = False

    def is_willing(self, state: PolicyState) -> bool:
        """Whether this policy takes the present incident; if not, the next of a chain does."""
        return True

    def why_not(self, state: PolicyState) -> str:
        """What to add to a reason, of why this policy does not take the present incident."""
        return ''

    def spent(self, state: PolicyState) -> str:
        """How much of it is spent, with the present incident; '' if there is no end to it."""
        return ''

    def __eq__(self, other) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), tuple(sorted(vars(self).items()))))

    def __repr__(self) -> str:
        said = [item for item in vars(self).items() if item[1] is not None]
        arguments = ', '.join('%s=%r' % item for item in said)
        return '%s(%s)' % (type(self).__name__, arguments)


class Raise(Policy):
    """End the training with a `NanLossError`."""

    action = 'raise'
    ends = True


class Stop(Policy):
    """End the training cleanly: hooks' `end` runs, and the last finite loss is returned."""

    action = 'stop'
    ends = True


class Skip(Policy):
    """Go on with the next batch, until `max_consecutive` steps in a row were skipped.

    It does not skip where variables themselves are lost, since every batch is bad then; nor where
    they are ruined, which is known where a `Rollback` follows in the chain; nor where the diagnosis
    says that the same comes again whatever the batch is.

    Args:
      max_consecutive: how many steps in a row. Where the diagnosis says that the batch is at fault,
        it is a hundred, as such steps say nothing of the weights; then `max_ratio` decides.
      max_ratio: how many of the last 1,000 steps, as a share: with 0.2 the 201st gives way to the
        next policy. Above 0, and at most 1. A rollback begins a new count. Default: no limit.
    """

    action = 'skip'

    def __init__(self, max_consecutive: int = 10, max_ratio: Optional[float] = None):
        self.max_consecutive = _count(max_consecutive, 'max_consecutive')
        self.max_ratio = _share(max_ratio, 'max_ratio')

    def is_willing(self, state: PolicyState) -> bool:
        return (
            (state.in_a_row <= self.max_consecutive or state.is_chance)
            and not state.state_lost
            and not state.ruin
            and state.cause != COMES_AGAIN
            and not self._has_spent(state)
        )

    def why_not(self, state: PolicyState) -> str:
        if state.cause == COMES_AGAIN:
            return '; skipping does not change that'
        if state.state_lost:
            return '; skipping does not mend that, as every batch is bad then'
        if not self._has_spent(state):
            return state.ruin or self._why_no_more(state)
        return '; %d of the %d steps before it were skipped, and max_ratio=%g allows no more' % (
            state.skipped_lately(),
            min(state.steps - 1, _LAST_STEPS - 1),
            self.max_ratio,
        )

    def spent(self, state: PolicyState) -> str:
        end = '' if state.is_chance else ' of %d' % self.max_consecutive
        return ' (%d%s in a row)' % (state.in_a_row, end)

    def _why_no_more(self, state: PolicyState) -> str:
        if state.in_a_row <= self.max_consecutive:
            return ''
        told = state.in_a_row, self.max_consecutive, 2 * self.max_consecutive
        return "; %d bad steps in a row, and 'skip' allows %d here ('skip:%d' allows more)" % told

    def _has_spent(self, state: PolicyState) -> bool:
        if self.max_ratio is None:
            return False
        return state.skipped_lately() + 1 > self.max_ratio * _LAST_STEPS


class Rollback(Policy):
    """Go back to the newest state that is trusted, and on with the next batch; `max_times` times.

    A state is trusted once ten good steps have followed it. It is one that the training keeps
    itself, unless its loss is ten times that of all before it, or a finite checkpoint; without any,
    the newest finite checkpoint. If it comes to that again within twenty good steps, an older state
    is taken. The state of a training that has written no checkpoint yet is saved ahead of its first
    step.

    It does not go back where the diagnosis says that the same comes again whatever the weights are;
    nor where variables are at fault, and no step was good since the last rollback; nor,
    in a chain that skips as well, where it says that the batch is at fault.

    Args:
      max_times: how often, in one training.
      on_rollback: called as ``on_rollback(session, incident)`` once the checkpoint is restored.
      learning_rate: what the learning rate is multiplied by after each rollback, for good: with
        0.5 the updates after the second rollback are made with a quarter of it. It holds for every
        optimizer and schedule, and for a restart of the training as well. Above 0, and at most 1.
        Default: the learning rate stays.
      snapshots: how many states are kept, as copies of all variables in memory: one that is not
        trusted yet, and others that are spread over the steps so far. None is kept if they would
        take more than half of the memory that is free; a log line says so. At least 2,
        or 0 for none. A job of several processes keeps none.
    """

    action = 'rollback'

    def __init__(
        self,
        max_times: int = 3,
        on_rollback: Optional[Callable[[Any, 'Incident'], Any]] = None,
        learning_rate: Optional[float] = None,
        snapshots: int = 3,
    ):
        self.max_times = _count(max_times, 'max_times')
        self.snapshots = _count(snapshots, 'snapshots', least=0)
        if snapshots == 1:
            raise ValueError('snapshots must be 0 or at least 2, as one alone is never trusted')
        if on_rollback is not None and not callable(on_rollback):
            raise TypeError('on_rollback must be callable, not %r' % (on_rollback,))
        self.on_rollback = on_rollback
        self.learning_rate = _share(learning_rate, 'learning_rate')

    def is_willing(self, state: PolicyState) -> bool:
        if state.cause == COMES_AGAIN or state.in_vain or state.is_chance and state.may_skip:
            return False
        return state.rollbacks < self.max_times

    def why_not(self, state: PolicyState) -> str:
        if state.cause == COMES_AGAIN:
            return '; going back does not change that'
        if state.in_vain:
            since = 'it went back' if state.rollbacks else 'the training began'
            return '; going back does not change that, as no step was good since ' + since
        if state.is_chance and state.may_skip:
            return '; going back does not help, as the batch is at fault and not the weights'
        times = 'once' if state.rollbacks == 1 else '%d times' % state.rollbacks
        told = times, self.max_times, 2 * self.max_times
        return (
            "; the training went back %s already, and 'rollback' allows %d here ('rollback:%d' "
            'allows more)' % told
        )

    def spent(self, state: PolicyState) -> str:
        return ' (%d of %d times)' % (state.rollbacks + 1, self.max_times)


def _count(number, name: str, least: int = 1) -> int:
    if not is_whole(number):
        raise TypeError('%s must be an int, not %r' % (name, number))
    if number < least:
        raise ValueError('%s must be at least %d, not %d' % (name, least, number))
    return number


def _share(number, name: str) -> Optional[float]:
    if number is None:
        return None
    if not is_number(number):
        raise TypeError('%s must be a number above 0 and at most 1, not %r' % (name, number))
    if not 0 < number <= 1:
        raise ValueError('%s must be above 0 and at most 1, not %r' % (name, number))
    return float(number)

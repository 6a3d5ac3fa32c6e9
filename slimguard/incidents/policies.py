"""What happens after an incident: `Raise`, `Stop`, `Skip`, `Rollback`, and chains of fallbacks.

A policy only answers one question: is it still willing, given how things went so far? *What* its
action means is up to who runs the training. Policies are plain values: they hold no state, compare
by what they say, and can be used in several trainings.
"""

import collections
from typing import TYPE_CHECKING, Any, Callable, Deque, List, Optional, Sequence, Union

if TYPE_CHECKING:  # it imports TensorFlow, and the command line reads policies without
    from slimguard.incidents.incident import Incident


# Of so many of its last steps a training may skip a share.
_LAST_STEPS = 1000


class PolicyState:
    """How a training went so far, as far as policies ask.

    Attributes:
      in_a_row: the number of incidents since the last good step or rollback, the present one
        included.
      rollbacks: the number of rollbacks so far.
      state_lost: whether variables were not finite already before the present incident's step.
      ruin: why the weights are finite and ruined; '' if they are not, or nobody knows.
      steps: the number of steps so far.
      skipped: how many of them were skipped.
      skipped_at: the numbers of those of the last thousand steps that were; none of before a
        rollback.
    """

    def __init__(self):
        self.in_a_row = 0
        self.rollbacks = 0
        self.state_lost = False
        self.ruin = ''
        self.steps = 0
        self.skipped = 0
        self.skipped_at: Deque[int] = collections.deque()

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
    """Base of all policies. `action` is the word for what is done."""

    action = ''

    def is_willing(self, state: PolicyState) -> bool:
        """Whether this policy takes the present incident; if not, the next of a chain does."""
        return True

    def why_not(self, state: PolicyState) -> str:
        """What to add to a reason, of why this policy does not take the present incident."""
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


class Stop(Policy):
    """End the training cleanly: hooks' `end` runs, and the last finite loss is returned."""

    action = 'stop'


class Skip(Policy):
    """Go on with the next batch, until `max_consecutive` steps in a row were skipped.

    It does not skip where the weights themselves are lost, since every batch is bad then; nor where
    they are ruined, which is known where a `Rollback` follows in the chain.

    Args:
      max_consecutive: how many steps in a row.
      max_ratio: how many of the last 1,000 steps, as a share: with 0.2 the 201st gives way to the
        next policy. Above 0, and at most 1. A rollback begins a new count. Default: no limit.
    """

    action = 'skip'

    def __init__(self, max_consecutive: int = 10, max_ratio: Optional[float] = None):
        self.max_consecutive = _count(max_consecutive, 'max_consecutive')
        self.max_ratio = _share(max_ratio, 'max_ratio')

    def is_willing(self, state: PolicyState) -> bool:
        return (
            state.in_a_row <= self.max_consecutive
            and not state.state_lost
            and not state.ruin
            and not self._has_spent(state)
        )

    def why_not(self, state: PolicyState) -> str:
        if not self._has_spent(state):
            return state.ruin
        return '; %d of the %d steps before it were skipped, and max_ratio=%g allows no more' % (
            state.skipped_lately(),
            min(state.steps - 1, _LAST_STEPS - 1),
            self.max_ratio,
        )

    def _has_spent(self, state: PolicyState) -> bool:
        if self.max_ratio is None:
            return False
        return state.skipped_lately() + 1 > self.max_ratio * _LAST_STEPS


class Rollback(Policy):
    """Go back to the newest state that is trusted, and on with the next batch; `max_times` times.

    A state is trusted once ten good steps have followed it, and if its loss is no ten times that of
    all before it. It is one that the training keeps itself, or a finite checkpoint; without any,
    the newest finite checkpoint. If it comes to that again within twenty good steps, an older state
    is taken. The state of a training that has written no checkpoint yet is saved ahead of its first
    step.

    Args:
      max_times: how often, in one training.
      on_rollback: called as ``on_rollback(session, incident)`` once the checkpoint is restored.
      learning_rate: what the learning rate is multiplied by after each rollback, for good: with
        0.5 the updates after the second rollback are made with a quarter of it. It holds for every
        optimizer and schedule, and for a restart of the training as well. Above 0, and at most 1.
        Default: the learning rate stays.
      snapshots: how many states are kept at most, in memory, or on disk where that is short. They
        are copies of all variables, at a pace that takes a hundredth of the time: one that is not
        trusted yet, and the others each kept eight times as long as the one after it. At least 2,
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
        return state.rollbacks < self.max_times


def _count(number, name: str, least: int = 1) -> int:
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError('%s must be an int, not %r' % (name, number))
    if number < least:
        raise ValueError('%s must be at least %d, not %d' % (name, least, number))
    return number


def _share(number, name: str) -> Optional[float]:
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise TypeError('%s must be a number above 0 and at most 1, not %r' % (name, number))
    if not 0 < number <= 1:
        raise ValueError('%s must be above 0 and at most 1, not %r' % (name, number))
    return float(number)


_BY_NAME = {'raise': Raise, 'stop': Stop, 'skip': Skip, 'rollback': Rollback}
_EXAMPLE = 'skip:5,rollback:3x0.5,raise'

OnNan = Union[None, str, Policy, Callable[['Incident'], Any], Sequence[Any]]


def fallbacks_of(on_nan: OnNan) -> List[Any]:
    """The policies and callables that an `on_nan` argument stands for, in order.

    A str is read by `parse_chain`.

    Raises:
      ValueError: for an unknown name, a number that does not fit, or an empty list.
      TypeError: for anything that is no name, policy, callable or list of them.
    """
    if isinstance(on_nan, (list, tuple)):
        if not on_nan:
            raise ValueError('on_nan is an empty list; name at least one policy, like "raise"')
        return [fallback for item in on_nan for fallback in fallbacks_of(item)]
    if isinstance(on_nan, Policy):
        return [on_nan]
    if isinstance(on_nan, str):
        try:
            return list(parse_chain(on_nan))
        except UnknownPolicyError as error:
            raise ValueError(
                'unknown policy on_nan=%r; expected one of %s, several in turn like %r, a policy '
                'object like slimguard.Skip(max_consecutive=10), a callable, or a list of these'
                % (error.name, ', '.join(map(repr, _BY_NAME)), _EXAMPLE)
            ) from None
        except ValueError as error:
            raise ValueError('on_nan has %s' % error) from None
    if isinstance(on_nan, type) and issubclass(on_nan, Policy):
        raise TypeError('on_nan=%s is a class; pass %s()' % (on_nan.__name__, on_nan.__name__))
    if callable(on_nan):
        return [on_nan]
    raise TypeError(
        'on_nan must be the name of a policy, a policy object, a callable or a list of these, '
        'not %r' % (on_nan,)
    )


class UnknownPolicyError(ValueError):
    """A text names no policy; `name` is what stands in its place. It speaks of no Python."""

    def __init__(self, name: str):
        names = list(_BY_NAME)
        expected = '%s or %s, or several in turn, such as %s' % (
            ', '.join(names[:-1]),
            names[-1],
            _EXAMPLE,
        )
        ValueError.__init__(self, 'unknown policy %r; expected %s' % (name, expected))
        self.name = name


def parse_chain(text: str) -> List[Policy]:
    """The policies that a text stands for: a name, or several with commas between.

    It means the same in Python, on the command line and in a flag. `skip` and `rollback` may have a
    number, as in ``skip:5``, and `rollback` what the learning rate is multiplied by, as in
    ``rollback:3x0.5``.

    Raises:
      ValueError: for an unknown name, or a number that does not fit. It tells of the text only,
        and not of an argument or option, which the caller knows.
    """
    return [_parse_fallback(each.strip()) for each in text.split(',')]


def _parse_fallback(text: str) -> Policy:
    name, colon, number = (part.strip() for part in text.partition(':'))
    if name not in _BY_NAME:
        raise UnknownPolicyError(name)
    kind = _BY_NAME[name]
    if not colon:
        return kind()
    if kind not in (Skip, Rollback):
        raise ValueError('%r: %s takes no number' % (text, name))
    number, times, factor = (part.strip() for part in number.partition('x'))
    if not number.isdigit():
        raise ValueError('%r: expected a number after the colon, as in %s:5' % (text, name))
    if not int(number):
        raise ValueError('%r: expected a number of at least 1, as in %s:5' % (text, name))
    if not times:
        return kind(int(number))
    if kind is not Rollback:
        raise ValueError('%r: only rollback takes a factor, as in rollback:3x0.5' % text)
    try:
        return Rollback(int(number), learning_rate=float(factor))
    except ValueError:
        raise ValueError(
            '%r: expected what to multiply the learning rate by after the x, above 0 and at most '
            '1, as in rollback:3x0.5' % text
        ) from None


def _fallbacks_of_answer(asked: Callable, answer) -> List[Any]:
    try:
        if callable(answer) and not isinstance(answer, Policy):
            raise TypeError('expected the name of a policy, a policy object, a list, or None')
        return fallbacks_of(answer)
    except (TypeError, ValueError) as error:
        raise type(error)(
            'the on_nan callable %r returned %r: %s' % (asked, answer, error)
        ) from None


class FallbackChain:
    """Policies in order: the first that is willing takes an incident, and after the last comes
    raise.

    A good step sets `Skip` back, and so does a rollback: the chain begins with its first again.

    Args:
      on_nan: what the user said; None stands for `otherwise`.
      otherwise: the policy for None, also when a callable returns it.

    Attributes:
      fallbacks: the policies and callables, in order.
      why_not: what to add to the reason of the last incident: why policies gave way.
    """

    def __init__(self, on_nan: OnNan, otherwise: Policy):
        self.why_not = ''
        self._told = 0  # how many were skipped, when that was last told
        self.fallbacks = [otherwise] if on_nan is None else fallbacks_of(on_nan)
        self._otherwise = otherwise
        self._state = PolicyState()

    def decide(self, incident: 'Incident', ruin: str = '') -> Policy:
        """The policy that takes one more incident. A callable's own exceptions pass through.

        Args:
          incident: the incident.
          ruin: as for `PolicyState`.
        """
        self.why_not = ''
        self._state.steps += 1
        self._state.in_a_row += 1
        self._state.state_lost = incident.state_lost
        self._state.ruin = ruin
        policy = self._first_willing(self.fallbacks, incident) or Raise()
        if isinstance(policy, Rollback):
            self._state.rollbacks += 1
            self._state.in_a_row = 0
            self._state.skipped_at.clear()
        return policy

    def step_was_good(self) -> None:
        self._state.steps += 1
        self._state.in_a_row = 0

    def step_was_skipped(self, is_decided: bool = True) -> None:
        """Notes that a step was skipped: that of the last decision, or one that nobody decided."""
        self._state.steps += not is_decided
        self._state.note_skipped()

    def tell_skipped(self) -> str:
        """How many steps were skipped, of how many; empty if that is no news."""
        skipped = self._state.skipped
        if skipped == self._told:
            return ''
        self._told = skipped
        return '%d of %d batches were skipped' % (skipped, self._state.steps)

    def note_rollbacks(self, rollbacks: int) -> None:
        """Notes how often others went back to a checkpoint, and this training with them."""
        self._state.rollbacks = max(self._state.rollbacks, rollbacks)

    @property
    def snapshots(self) -> int:
        """How many snapshots a rollback wants. What a callable may return is not known ahead."""
        return max([each.snapshots for each in self.fallbacks if isinstance(each, Rollback)] or [0])

    def may(self, kind: type) -> bool:
        """Whether a policy here is of a kind. A callable's answer is not known ahead."""
        return any(isinstance(each, kind) for each in self.fallbacks)

    @property
    def rollbacks(self) -> int:
        """How many times the training went back to a checkpoint."""
        return self._state.rollbacks

    @property
    def learning_rate(self) -> Optional[float]:
        """What the first policy here that lowers the learning rate multiplies it by, or None."""
        rates = (each.learning_rate for each in self.fallbacks if isinstance(each, Rollback))
        return next((rate for rate in rates if rate is not None), None)

    def _first_willing(self, fallbacks: Sequence[Any], incident: 'Incident') -> Optional[Policy]:
        for fallback in fallbacks:
            if isinstance(fallback, Policy):
                policy = fallback if fallback.is_willing(self._state) else None
                if policy is None:
                    self.why_not += fallback.why_not(self._state)
            else:
                answer = fallback(incident)
                answer = self._otherwise if answer is None else answer
                policy = self._first_willing(_fallbacks_of_answer(fallback, answer), incident)
            if policy is not None:
                return policy
        return None

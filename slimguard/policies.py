"""What happens after an incident: :class:`Raise`, :class:`Stop`, :class:`Skip`, and ladders.

A policy only answers one question: is it still willing, given how things went so far? *What* its
action means is up to who runs the training. Policies are plain values: they hold no state, compare
by what they say, and can be used in several trainings.
"""

from typing import TYPE_CHECKING, Any, Callable, List, Optional, Sequence, Union

if TYPE_CHECKING:  # it imports TensorFlow, and the command line reads policies without
    from slimguard.incident import Incident


class Record:
    """How a training went so far, as far as policies ask.

    Attributes:
      in_a_row: the number of incidents since the last good step, the present one included.
    """

    def __init__(self):
        self.in_a_row = 0


class Policy:
    """Base of all policies. `action` is the word for what is done."""

    action = ''

    def is_willing(self, record: Record) -> bool:
        """Whether this policy takes the present incident; if not, the next of a ladder does."""
        return True

    def __eq__(self, other) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), tuple(sorted(vars(self).items()))))

    def __repr__(self) -> str:
        arguments = ', '.join('%s=%r' % item for item in vars(self).items())
        return '%s(%s)' % (type(self).__name__, arguments)


class Raise(Policy):
    """End the training with a `NanLossError`."""

    action = 'raise'


class Stop(Policy):
    """End the training cleanly: hooks' `end` runs, and the last finite loss is returned."""

    action = 'stop'


class Skip(Policy):
    """Go on with the next batch, until `max_consecutive` steps in a row were skipped."""

    action = 'skip'

    def __init__(self, max_consecutive: int = 10):
        if isinstance(max_consecutive, bool) or not isinstance(max_consecutive, int):
            raise TypeError('max_consecutive must be an int, not %r' % (max_consecutive,))
        if max_consecutive < 1:
            raise ValueError('max_consecutive must be at least 1, not %d' % max_consecutive)
        self.max_consecutive = max_consecutive

    def is_willing(self, record: Record) -> bool:
        return record.in_a_row <= self.max_consecutive


_BY_NAME = {'raise': Raise, 'stop': Stop, 'skip': Skip}

OnNan = Union[None, str, Policy, Callable[['Incident'], Any], Sequence[Any]]


def rungs_of(on_nan: OnNan) -> List[Any]:
    """The policies and callables that an `on_nan` argument stands for, in order.

    Raises:
      ValueError: for an unknown name or an empty list.
      TypeError: for anything that is no name, policy, callable or list of them.
    """
    if isinstance(on_nan, (list, tuple)):
        if not on_nan:
            raise ValueError('on_nan is an empty list; name at least one policy, like "raise"')
        return [rung for item in on_nan for rung in rungs_of(item)]
    if isinstance(on_nan, Policy):
        return [on_nan]
    if isinstance(on_nan, str):
        if on_nan == 'rollback':
            raise ValueError(
                'on_nan="rollback" is not in this version of slimguard yet; '
                'use "raise", "stop" or "skip"'
            )
        if on_nan not in _BY_NAME:
            raise ValueError(
                'unknown policy on_nan=%r; expected one of %s, a policy object like '
                'slimguard.Skip(max_consecutive=10), a callable, or a list of these'
                % (on_nan, ', '.join(repr(name) for name in _BY_NAME))
            )
        return [_BY_NAME[on_nan]()]
    if isinstance(on_nan, type) and issubclass(on_nan, Policy):
        raise TypeError('on_nan=%s is a class; pass %s()' % (on_nan.__name__, on_nan.__name__))
    if callable(on_nan):
        return [on_nan]
    raise TypeError(
        'on_nan must be the name of a policy, a policy object, a callable or a list of these, '
        'not %r' % (on_nan,)
    )


class Ladder:
    """Policies in order: the first that is willing takes an incident, and after the last comes
    raise.

    A good step sets `Skip` back, so a ladder begins at its top again when things went well.

    Args:
      on_nan: what the user said; None stands for `otherwise`.
      otherwise: the policy for None, also when a callable returns it.
    """

    def __init__(self, on_nan: OnNan, otherwise: Policy):
        self.rungs = [otherwise] if on_nan is None else rungs_of(on_nan)
        self._otherwise = otherwise
        self._record = Record()

    def decide(self, incident: 'Incident') -> str:
        """The action for one more incident. A callable's own exceptions pass through."""
        self._record.in_a_row += 1
        return self._climb(self.rungs, incident) or Raise.action

    def step_was_good(self) -> None:
        self._record.in_a_row = 0

    def may_skip(self) -> bool:
        """Whether a policy here skips. What a callable returns is not known ahead."""
        return any(isinstance(rung, Skip) for rung in self.rungs)

    def _climb(self, rungs: Sequence[Any], incident: 'Incident') -> Optional[str]:
        for rung in rungs:
            if isinstance(rung, Policy):
                action = rung.action if rung.is_willing(self._record) else None
            else:
                answer = rung(incident)
                answer = self._otherwise if answer is None else answer
                if callable(answer) and not isinstance(answer, Policy):
                    raise TypeError(
                        'the on_nan callable %r returned %r; expected the name of a policy, '
                        'a policy object, a list of these, or None' % (rung, answer)
                    )
                action = self._climb(rungs_of(answer), incident)
            if action is not None:
                return action
        return None

"""Which states of a training are kept: :class:`KeptBySteps` decides by the count of its good steps.

It asks no clock, so a busy machine keeps the same states as an idle one, and a rollback goes to the
same state on both.
"""

from typing import Any, Callable, List

# A state is trusted after this many good steps; the next one is kept after as many at the earliest.
PROBATION = 10
# The next one is kept after an eighth of the steps so far, if more; after so many steps at most.
_SHARE, _MOST_STEPS = 8, 200
# Reading this many bytes takes a step's time at most. A state of N times as many is kept N times
# less often; but a state is kept each time that the number of steps has doubled.
_BYTES = 32 << 20


class KeptBySteps:
    """States of a training, spread over its steps so far; the older they are, the fewer.

    Args:
      most: how many are kept.

    Attributes:
      states: the newest first. Each has a `taken_at`, the number of good steps until then.
    """

    def __init__(self, most: int):
        self.states: List[Any] = []
        self._most = most
        self._due = 0

    def is_due(self, good: int) -> bool:
        """Whether to keep the state after this many good steps."""
        return good >= self._due

    def add(self, state: Any, size: int = 0) -> None:
        """Keeps the present state, of `size` bytes; another may be dropped for it."""
        self.states.insert(0, state)
        self._due = state.taken_at + steps_to_next(state.taken_at, size)
        if len(self.states) > self._most:
            del self.states[self._one_too_many()]

    def _one_too_many(self) -> int:
        """The number of the state to drop: the ages of its neighbours have the smallest ratio.

        So ages grow as powers do. The start of the training is the neighbour of the oldest. The
        newest two stay: one is on probation, and one is the newest that is trusted.
        """
        taken_at = [each.taken_at for each in self.states] + [0]
        ages = [taken_at[0] - each for each in taken_at]
        older = range(2, len(self.states))
        return min(older, key=lambda n: ages[n + 1] / ages[n - 1], default=1)

    def keep_only(self, is_kept: Callable[[Any], bool]) -> None:
        """After a return: drops all states but those that `is_kept`; the next step's is kept."""
        self.states = [each for each in self.states if is_kept(each)]
        self._due = 0


def steps_to_next(good: int, size: int) -> int:
    """How many good steps after a state the next one is kept.

    Args:
      good: how many good steps there had been when it was kept.
      size: its bytes.
    """
    times = max(1.0, size / _BYTES)
    wanted = min(max(good / _SHARE, PROBATION * times), _MOST_STEPS * times)
    return int(max(PROBATION, min(good, wanted)))

"""Limits how often a message is logged: the first ones, then one in so many seconds."""

import time
from typing import Callable, Optional

# The default for lines that may come with each step.
SECONDS = 10.0


class Rate:
    """Decides which lines of a kind go to the log, and counts those that do not.

    Args:
      first: how many lines are always logged.
      seconds: after those, one line in so many seconds is logged; None for none.
      clock: a monotonic clock, in seconds.

    Attributes:
      held_back: how many lines were held back since the last one that was logged.
    """

    def __init__(
        self,
        first: int = 1,
        seconds: Optional[float] = SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.held_back = 0
        self._first, self._seconds, self._clock = first, seconds, clock
        self._count = 0
        self._spoke = 0.0

    def is_due(self, must: bool = False) -> bool:
        """Whether to log this line, always if it `must`. If so, append `told` to the line."""
        self._count += 1
        now = self._clock()
        if not must and self._count > self._first and not self._is_time(now):
            self.held_back += 1
            return False
        self._spoke = now
        return True

    def told(self) -> str:
        """The end of a logged line: how many lines were held back before it; '' for none."""
        held_back, self.held_back = self.held_back, 0
        return ' (%d more not shown)' % held_back if held_back else ''

    def _is_time(self, now: float) -> bool:
        return self._seconds is not None and now - self._spoke >= self._seconds

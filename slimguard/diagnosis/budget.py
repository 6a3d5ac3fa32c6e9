"""How long the search for a cause may take while the training goes on.

A session run cannot be interrupted, and the first run of a large graph spends most of its time on
preparing it. So the time of a search is estimated beforehand, from the step's ops and the bytes of
its tensors. If it is too long, there is no search, and `replay` can search the bundle later.
"""

import collections
import time
from typing import Callable, Deque

from slimguard import graph as graphs
from slimguard.diagnosis.capture import Capture
from slimguard.diagnosis.rerun import bytes_of

# Measured on two cores: a step of ResNet-50, and of a detector with 10,000 ops.
_SECONDS_AN_OP = 5e-4
_SECONDS_A_BYTE = 4e-9
# A search may take this many seconds, or as long as this many steps, whichever is longer.
_SECONDS, _STEPS = 1.0, 20


def seconds_for(step_seconds: float) -> float:
    """How long a search may take, in seconds, where a step takes `step_seconds`."""
    return max(_SECONDS, _STEPS * step_seconds)


class Estimate:
    """Estimates how long a search through a captured step takes. Sizes are counted once.

    Args:
      capture: the `Capture`.
    """

    def __init__(self, capture: Capture):
        self._capture = capture
        self._bytes = -1

    def is_within(self, seconds: float, rows: int) -> bool:
        """Whether a search takes no longer than `seconds`; `rows` is the size of the batch."""
        ops = self._capture.ops
        left = seconds - len(ops) * _SECONDS_AN_OP
        if left < 0:
            return False
        if self._bytes < 0:
            floats = (t for op in ops for t in op.outputs if graphs.is_float(t))
            self._bytes = sum(bytes_of(tensor, rows) for tensor in floats)
        return self._bytes * _SECONDS_A_BYTE <= left


class Pace:
    """The time of a step: the shortest of the last ones, since a save or summary lengthens some.

    Args:
      clock: a monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self._ends: Deque[float] = collections.deque(maxlen=_STEPS)

    def note_step(self) -> None:
        """Notes that a step has ended."""
        self._ends.append(self._clock())

    @property
    def seconds(self) -> float:
        """The seconds that a step takes; 0 while that is not known."""
        ends = list(self._ends)
        return min((after - before for before, after in zip(ends, ends[1:])), default=0.0)

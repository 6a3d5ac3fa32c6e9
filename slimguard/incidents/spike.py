"""`Spike`: when a step's loss or gradient norm is far above the last good steps' median.

Imports no TensorFlow: the command line reads a spike without it.
"""

import bisect
import collections
import dataclasses
import math
from typing import Any, Deque, List, Optional, Union

from slimguard.system.numbers import is_number, is_whole

# A number may be this many times as far above the median as the upper quartile is, on a logarithmic
# scale.
_QUARTILES = 10
_LARGEST_RATIO = 1e30  # its tenth power, 1e300, still fits in a float
# The limit from that distance is at most this many times the largest median. If this were 1, there
# would be 8 to 37 false alarms in 10,000 good steps of benchmarks/spikes.py where losses come near
# zero.
_MOST_TIMES_LARGEST = 10
# Without a `Spike`, a number is reported if it is _FAR_BEYOND times all earlier ones. It also has
# to be _FAR_BEYOND times _NEAR_ZERO: with rare rewards, the loss is near zero until the first
# reward. In the _FIRST steps it has to be _FAR_BEYOND times 1.
_FAR_BEYOND, _FIRST, _NEAR_ZERO = 1e4, 10, 1e-3


@dataclasses.dataclass(frozen=True)
class Spike:
    """A step is an incident if its loss or gradient norm is far above that of the last good steps.

    The limit is a multiple of the median of the last `window` good steps. One limit is for the
    absolute value of the loss, the other for the norm of all gradients as the optimizer takes them
    (after any clipping). The gate compares before anything is written. It holds no loss far below
    0.

    * A value that was once typical is no spike: the limit never falls below the largest median so
      far.
    * If the last good steps differ much, as when a loss is near zero and some batches are hard, the
      limit is higher. It grows with the distance of their upper quartile from their median, up to
      ten times the largest median so far.
    * With fewer than `warmup` good steps the multiple is larger: with a `warmup` of 20 it is twenty
      times as large after the first step, and shrinks from there. The first step has no limit.
    * Held steps do not count. A new process begins with no steps.

    Args:
      loss: the multiple for the loss, above 1; None for no limit.
      gradient_norm: the multiple for the norm of the gradients, above 1; None for no limit.
      window: how many good steps the median covers, at least 2.
      warmup: how many good steps a reliable median needs; at least 1, at most `window`.

    Raises:
      ValueError: if an argument is out of these bounds.
    """

    loss: Optional[float] = 10.0
    gradient_norm: Optional[float] = 100.0
    window: int = 100
    warmup: int = 20

    def __post_init__(self):
        for name in ('loss', 'gradient_norm'):
            multiple = getattr(self, name)
            if multiple is not None and not (is_number(multiple) and 1 < multiple < math.inf):
                raise ValueError(
                    '%s of a Spike is a multiple of a median, a finite number above 1, or None; '
                    'not %r' % (name, multiple)
                )
        if self.loss is None and self.gradient_norm is None:
            raise ValueError('a Spike looks at something: loss or gradient_norm must be a number')
        if not is_whole(self.window) or self.window < 2:
            raise ValueError(
                'window of a Spike is a number of steps, at least 2, not %r' % (self.window,)
            )
        if not is_whole(self.warmup) or not 1 <= self.warmup <= self.window:
            raise ValueError(
                'warmup of a Spike is a number of steps, from 1 to its window of %d, not %r'
                % (self.window, self.warmup)
            )


# The type of arguments that take a `Spike`.
AnySpike = Union[Spike, bool, str, None]


def as_spike(spike: Any, name: str = 'spike') -> Optional[Spike]:
    """The `Spike` of a user's argument.

    Args:
      spike: a `Spike`, None or False for none, True for the defaults, or a text such as
        ``'loss=10,gradient_norm=100'``, with any of the arguments of `Spike`, or ``'default'``.
      name: the argument's name for error messages; '' if the caller adds it.

    Raises:
      ValueError: if it is none of these.
    """
    if spike is None or spike is False:
        return None
    if spike is True:
        spike = Spike()
    if isinstance(spike, str):
        try:
            spike = _parsed(spike)
        except ValueError as error:
            raise ValueError('%s: %s' % (name, error) if name else str(error)) from None
    if not isinstance(spike, Spike):
        raise ValueError(
            '%s must be a slimguard.Spike, such as slimguard.Spike(loss=10, gradient_norm=100), '
            'True for its defaults, or None, not %r' % (name, spike)
        )
    return spike


def _parsed(text: str) -> Spike:
    if text.strip() == 'default':
        return Spike()
    arguments = {}
    for item in text.split(','):
        key, equals, value = (part.strip() for part in item.partition('='))
        key = key.replace('-', '_')
        if key not in _NAMES or not equals or key in arguments:
            raise ValueError(
                'expected something like loss=10,gradient_norm=100,window=100,warmup=20, '
                'each at most once, or default, not %r' % text
            )
        kind = int if key in ('window', 'warmup') else float
        try:
            arguments[key] = None if value.lower() == 'none' else kind(value)
        except ValueError:
            raise ValueError('%s must be a number, not %r' % (key, value)) from None
    return Spike(**arguments)


_NAMES = [field.name for field in dataclasses.fields(Spike)]


class Level:
    """The usual level of one number of a step: the absolute values of the last good steps.

    Args:
      window: how many steps.
      warmup: how many steps a reliable median needs.

    Attributes:
      median: the median of the window; None before the first step.
    """

    def __init__(self, window: int, warmup: int):
        self.median: Optional[float] = None
        self._warmup = warmup
        self._last: Deque[float] = collections.deque(maxlen=window)
        self._sorted: List[float] = []
        self._largest_median = 0.0

    def __len__(self) -> int:
        return len(self._last)

    def add(self, value: float) -> None:
        """Notes the number of a good step; a number that is not finite is ignored."""
        value = abs(value)
        if not math.isfinite(value):
            return
        last, ordered = self._last, self._sorted
        if len(last) == last.maxlen:
            del ordered[bisect.bisect_left(ordered, last[0])]
        last.append(value)
        bisect.insort(ordered, value)
        self.median = median = _median(ordered)
        if len(ordered) >= self._warmup and median > self._largest_median:
            self._largest_median = median

    def clear(self) -> None:
        """Forgets all numbers."""
        self.median = None
        self._last.clear()
        self._sorted = []
        self._largest_median = 0.0

    def limit(self, multiple: Optional[float]) -> float:
        """The largest number that is no spike; Inf if no number is one."""
        if multiple is None or not self.median:
            return math.inf
        early = max(1.0, self._warmup / len(self))
        limit = max(multiple * early * self.median, self._largest_median)
        return max(limit, min(self._of_spread(), _MOST_TIMES_LARGEST * self._largest_median))

    def _of_spread(self) -> float:
        """A limit that numbers with the same spread as the last steps hardly ever exceed.

        If the logarithms have a normal distribution, the limit is 6.7 standard deviations above the
        median.
        """
        assert self.median
        quartile = self._sorted[(3 * len(self._sorted)) // 4]
        return self.median * min(quartile / self.median, _LARGEST_RATIO) ** _QUARTILES


class Largest:
    """Keeps the largest number of all good steps, and finds a number far beyond it.

    In the healthy trainings of benchmarks/spikes.py no number was twice as large as all before it.
    """

    def __init__(self) -> None:
        self.count = 0
        self._largest = 0.0

    def add(self, value: float) -> float:
        """Notes a number. Returns its multiple of the largest before, or 0 if it is not far above.

        Args:
          value: at least 0, or NaN if it is not known.
        """
        self.count += 1
        if not value > self._largest:
            return 0.0
        before, self._largest = self._largest, value
        # A single loss may be near zero by chance, and so may all losses of the first steps.
        floor = max(before, 1.0 if self.count <= _FIRST else _NEAR_ZERO)
        return value / before if before and value > _FAR_BEYOND * floor else 0.0


def _median(ordered: List[float]) -> float:
    count = len(ordered)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2

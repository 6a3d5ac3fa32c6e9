"""`Spike`: when a step is far out of what the last good steps were, and what is known of those.

Imports no TensorFlow: the command line reads it without.
"""

import bisect
import collections
import dataclasses
import math
from typing import Any, Deque, List, Optional, Union

from slimguard.system.numbers import is_number, is_whole

# How far above the median a number may be, as a multiple of the distance of the upper quartile;
# both in logarithms.
_QUARTILES = 10
_LARGEST_RATIO = 1e30  # its tenth power, 1e300, still fits in a float
# And at most so many times the largest median. With 1 there are 8 to 37 false alarms in 10,000 good
# steps of benchmarks/spikes.py where losses come near zero.
_MOST_TIMES_LARGEST = 10
# A number that is so many times all before it is told of, also where nothing is held. Of so many
# first steps it has to be as many times 1 as well.
_FAR_BEYOND, _FIRST = 1e4, 10


@dataclasses.dataclass(frozen=True)
class Spike:
    """A step is an incident if its loss or gradient norm is far above that of the last good steps.

    What is compared is a multiple of the median of the last `window` good steps: of the absolute
    values of the loss, and of the norm of all gradients as the optimizer takes them (clipped, if
    they are clipped). The gate compares before anything is written.

    * A value that the training's typical step once had is no spike: the limit never falls below the
      largest median so far.
    * Where the last good steps differ much from each other, as when a loss is near zero and some
      batches are hard, the limit is higher: by the distance of their upper quartile from their
      median, and up to ten times the largest median so far.
    * With fewer than `warmup` good steps the multiple is larger: twenty times after the first step
      where `warmup` is 20, then less and less. The very first step has no limit.
    * Steps that were held do not count, and a new process begins anew.

    Args:
      loss: the multiple for the loss, above 1; None not to look at it.
      gradient_norm: the multiple for the norm of the gradients, above 1; None not to look at it.
      window: how many good steps, at least 2.
      warmup: how many good steps make a median that is relied on; at least 1, at most `window`.

    Raises:
      ValueError: if an argument is none of these.
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


# What users give where a `Spike` is taken.
AnySpike = Union[Spike, bool, str, None]


def as_spike(spike: Any, name: str = 'spike') -> Optional[Spike]:
    """A `Spike` of what a user gives: one, None, True for the defaults, or a text.

    Args:
      spike: what is given; a text is of the form ``'loss=10,gradient_norm=100'``, with any of the
        arguments of `Spike`, and ``'default'`` for none of them.
      name: what the user calls it; '' where somebody else says it.

    Raises:
      ValueError: if it is nothing of the kind.
    """
    if spike is None or spike is False:
        return None
    if spike is True:
        spike = Spike()
    if isinstance(spike, str):
        spike = _parsed(spike, name)
    if not isinstance(spike, Spike):
        raise ValueError(
            '%s must be a slimguard.Spike, such as slimguard.Spike(loss=10, gradient_norm=100), '
            'True for its defaults, or None, not %r' % (name, spike)
        )
    return spike


def _parsed(text: str, name: str) -> Spike:
    if text.strip() == 'default':
        return Spike()
    said = {}
    for item in text.split(','):
        key, equals, value = (part.strip() for part in item.partition('='))
        key = key.replace('-', '_')
        if key not in _NAMES or not equals or key in said:
            raise ValueError(
                '%sexpected something like loss=10,gradient_norm=100,window=100,warmup=20, '
                'each at most once, or default, not %r' % (_said(name), text)
            )
        said[key] = _value(key, value, name)
    try:
        return Spike(**said)
    except ValueError as error:
        raise ValueError('%s%s' % (_said(name), error)) from None


def _value(key: str, value: str, name: str) -> Any:
    if value.lower() == 'none':
        return None
    try:
        return int(value) if key in ('window', 'warmup') else float(value)
    except ValueError:
        raise ValueError('%s%s must be a number, not %r' % (_said(name), key, value)) from None


def _said(name: str) -> str:
    """The name of what was given, before what is wrong with it; argparse says it itself."""
    return name + ': ' if name else ''


_NAMES = [field.name for field in dataclasses.fields(Spike)]


class Level:
    """What is usual for one number of a step: of the last good steps, by absolute value.

    Args:
      window: of so many steps.
      warmup: so many make a median that is relied on.

    Attributes:
      median: that of the window; None before the first step.
    """

    def __init__(self, window: int, warmup: int):
        self.median: Optional[float] = None
        self._warmup = warmup
        self._last: Deque[float] = collections.deque(maxlen=window)
        self._sorted: List[float] = []
        self._largest_median = 0.0

    def __len__(self) -> int:
        return len(self._last)

    def note(self, value: float) -> None:
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

    def memory(self) -> Any:
        """What it is made of, for `go_back`."""
        return tuple(self._last), self._largest_median

    def go_back(self, memory: Any) -> None:
        """Is again as it was when `memory` was made; None stands for the beginning."""
        last, self._largest_median = ((), 0.0) if memory is None else memory
        self._last.clear()
        self._last.extend(last)
        self._sorted = sorted(last)
        self.median = _median(self._sorted) if last else None

    def limit(self, multiple: Optional[float]) -> float:
        """The largest number that is no spike; Inf where nothing is."""
        if multiple is None or not self.median:
            return math.inf
        early = max(1.0, self._warmup / len(self))
        limit = max(multiple * early * self.median, self._largest_median)
        return max(limit, min(self._of_spread(), _MOST_TIMES_LARGEST * self._largest_median))

    def _of_spread(self) -> float:
        """What numbers that differ as much as the last ones hardly ever exceed.

        For numbers with a normal logarithm it is 6.7 standard deviations above the median.
        """
        assert self.median
        quartile = self._sorted[(3 * len(self._sorted)) // 4]
        return self.median * min(quartile / self.median, _LARGEST_RATIO) ** _QUARTILES


class Largest:
    """The largest number of all good steps, and when one is far beyond those before it.

    In the healthy trainings of benchmarks/spikes.py none was twice as large as all before it.
    """

    def __init__(self) -> None:
        self.count = 0
        self._largest = 0.0

    def note(self, value: float) -> float:
        """Notes a number; returns how many times the largest it is, if that is far; else 0.

        Args:
          value: at least 0, or NaN if it is not known.
        """
        self.count += 1
        if not value > self._largest:
            return 0.0
        before, self._largest = self._largest, value
        # A loss may be near zero by chance, and of the first steps all may be.
        floor = max(before, 1.0) if self.count <= _FIRST else before
        return value / before if before and value > _FAR_BEYOND * floor else 0.0


def _median(ordered: List[float]) -> float:
    count = len(ordered)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2

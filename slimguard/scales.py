"""Scales of charts: from a value to its place, and the ticks with their labels."""

import math
from typing import Callable, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np


class Scale(NamedTuple):
    """A scale.

    Attributes:
      place: gives the place of a value, from 0 to 1 along the axis.
      ticks: values, and what to write at them.
      is_log: whether it is logarithmic.
    """

    place: Callable[[float], float]
    ticks: List[Tuple[float, str]]
    is_log: bool = False

    def __call__(self, value: float) -> float:
        return self.place(value)


def scale_of(
    values: Sequence[float], kind: str = 'auto', whole: bool = False, padded: bool = True
) -> Scale:
    """A scale for finite values.

    Args:
      values: at least one.
      kind: 'linear', or 'auto' for a logarithmic one where the values are positive and go over
        more than two orders of magnitude.
      whole: whether ticks are at whole numbers only.
      padded: whether there is room beside the values; else the least is at 0, the largest at 1.
    """
    low, high = float(np.min(values)), float(np.max(values))
    if kind == 'auto' and low > 0 and high / low > 100:
        return _logarithmic(math.log10(low), math.log10(high))
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        middle = max(abs(low) * 0.1, 0.5)
        low, high = low - middle, high + middle
    elif padded:
        # In halves: the difference of two large numbers may be none any more.
        room = high * 0.04 - low * 0.04
        low, high = max(low - room, -1.7e308), min(high + room, 1.7e308)
    ticks = [(t, _label(t)) for t in _linear_ticks(low, high, whole)]
    half = high / 2 - low / 2
    return Scale(lambda value: (value / 2 - low / 2) / half, ticks)


def _logarithmic(low: float, high: float) -> Scale:
    room = 0.04 * (high - low)
    low, high = low - room, high + room
    every = max(1, math.ceil((high - low) / 6))
    exponents = range(math.floor(low), math.ceil(high) + 1)
    # Few powers of ten are too few for ticks.
    factors = (1, 2, 5) if high - low < 3 else (1,)
    values = [f * 10.0**e for e in exponents if e % every == 0 for f in factors]
    ticks = [(v, _label(v)) for v in values if low <= math.log10(v) <= high]
    return Scale(lambda value: (math.log10(value) - low) / (high - low), ticks, True)


def magnitudes(values: Iterable[Optional[float]]) -> Scale:
    """A scale that is logarithmic on both sides of 0, for the finite ones among the values."""
    found = [abs(v) for v in values if v is not None and math.isfinite(v)]
    positive = [v for v in found if v > 0] or [1.0]
    top = math.ceil(math.log10(max(positive)) - 1e-9)
    # Eight orders of magnitude on each side are drawn to tell apart; what is smaller is near 0.
    bottom = max(math.floor(math.log10(min(positive))), min(top, 2) - 8)
    bottom = min(bottom, top - 1)
    decades = top - bottom

    def place(value: float) -> float:
        if value == 0:
            return 0.5
        distance = min(max((math.log10(abs(value)) - bottom) / decades, 0.0), 1.0)
        return 0.5 + math.copysign(0.5, value) * distance

    every = max(1, math.ceil(decades / 3))
    exponents = range(top, bottom, -every)
    ticks = [(0.0, '0')]
    for exponent in exponents:
        for sign in (-1, 1):
            ticks.append((sign * 10.0 ** min(exponent, 308), _power(sign, exponent)))
    return Scale(place, ticks, True)


def _power(sign: int, exponent: int) -> str:
    minus = '\N{MINUS SIGN}' if sign < 0 else ''
    if -2 <= exponent <= 3:
        return minus + '%g' % 10.0**exponent
    return minus + '10' + str(exponent).translate(_SUPERSCRIPTS)


_SUPERSCRIPTS = str.maketrans(
    '-0123456789',
    '\N{SUPERSCRIPT MINUS}\N{SUPERSCRIPT ZERO}\N{SUPERSCRIPT ONE}\N{SUPERSCRIPT TWO}'
    '\N{SUPERSCRIPT THREE}\N{SUPERSCRIPT FOUR}\N{SUPERSCRIPT FIVE}\N{SUPERSCRIPT SIX}'
    '\N{SUPERSCRIPT SEVEN}\N{SUPERSCRIPT EIGHT}\N{SUPERSCRIPT NINE}',
)


def _linear_ticks(low: float, high: float, whole: bool, about: int = 6) -> List[float]:
    rough = high / about - low / about
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(m * size for m in (1, 2, 2.5, 5, 10) if m * size >= rough * 0.999)
    if whole:
        step = max(1.0, float(math.ceil(step)))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [n * step for n in range(first, last + 1)][:20]


def _label(value: float) -> str:
    if value and not 1e-4 <= abs(value) < 1e6:
        mantissa, _, exponent = ('%.2g' % value if abs(value) < 1 else '%.3g' % value).partition(
            'e'
        )
        if exponent:
            power = '10' + str(int(exponent)).translate(_SUPERSCRIPTS)
            return power if mantissa == '1' else '%s\N{MULTIPLICATION SIGN}%s' % (mantissa, power)
    return ('%.10g' % value).replace('-', '\N{MINUS SIGN}')

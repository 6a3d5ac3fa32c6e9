"""Scales of charts: from a value to its place, and the ticks with their labels.

They hold for all finite floats: differences may be larger than any float, and steps between ticks
smaller. So places are computed of values brought near 1 by a power of two, which is exact, and
ticks of decimals, which have no such ends.
"""

import decimal
import math
from decimal import Decimal
from typing import Callable, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

_DIGITS = decimal.Context(prec=60)


class Scale(NamedTuple):
    """A scale.

    Attributes:
      place: gives the place of a value, from 0 to 1 along the axis.
      ticks: values, the smaller first, and what to write at them.
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
    if kind == 'auto' and low > 0 and math.log10(high) - math.log10(low) > 2:
        return _logarithmic(math.log10(low), math.log10(high))
    return _linear(low, high, whole, padded)


def _linear(low: float, high: float, whole: bool, padded: bool) -> Scale:
    # A power of two that leaves differences finite, and above the smallest floats.
    power = math.frexp(max(abs(low), abs(high)))[1]
    low, high = math.ldexp(low, -power), math.ldexp(high, -power)
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        room = 0.1 * abs(low) or 0.5
        low, high = low - room, high + room
    elif padded:
        room = 0.04 * (high - low)
        low, high = low - room, high + room
    ticks = _labelled(_linear_ticks(low, high, power, whole))
    return Scale(lambda value: (math.ldexp(value, -power) - low) / (high - low), ticks)


def _logarithmic(low: float, high: float) -> Scale:
    room = 0.04 * (high - low)
    low, high = low - room, high + room
    every = max(1, math.ceil((high - low) / 6))
    exponents = range(math.floor(low), math.ceil(high) + 1)
    # Few powers of ten are too few for ticks.
    factors = (1, 2, 5) if high - low < 3 else (1,)
    ticks = [Decimal(f).scaleb(e) for e in exponents if e % every == 0 for f in factors]
    ticks = [tick for tick in ticks if low <= _log10(tick) <= high]
    return Scale(lambda value: (math.log10(value) - low) / (high - low), _labelled(ticks), True)


def _log10(tick: Decimal) -> float:
    return float(tick.log10(_DIGITS))


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
    # No float is as large as 10**309, and none as small as 10**-324.
    exponents = [e for e in range(top, bottom, -every) if -324 < e < 309]
    ticks = [(sign * 10.0**e, _power(sign, e)) for sign in (-1, 1) for e in exponents]
    return Scale(place, sorted([(0.0, '0'), *ticks]), True)


def _power(sign: int, exponent: int) -> str:
    return (_MINUS if sign < 0 else '') + power_of_ten(exponent)


def power_of_ten(exponent: int) -> str:
    """10**exponent, for people."""
    if -2 <= exponent <= 3:
        return '%g' % 10.0**exponent
    return '10' + str(exponent).translate(_SUPERSCRIPTS)


_MINUS = '\N{MINUS SIGN}'
_SUPERSCRIPTS = str.maketrans(
    '-0123456789',
    '\N{SUPERSCRIPT MINUS}\N{SUPERSCRIPT ZERO}\N{SUPERSCRIPT ONE}\N{SUPERSCRIPT TWO}'
    '\N{SUPERSCRIPT THREE}\N{SUPERSCRIPT FOUR}\N{SUPERSCRIPT FIVE}\N{SUPERSCRIPT SIX}'
    '\N{SUPERSCRIPT SEVEN}\N{SUPERSCRIPT EIGHT}\N{SUPERSCRIPT NINE}',
)


def _linear_ticks(
    low: float, high: float, power: int, whole: bool, about: int = 6
) -> List[Decimal]:
    """Ticks between low * 2**power and high * 2**power."""
    with decimal.localcontext(_DIGITS):
        least, largest = (Decimal(end) * Decimal(2) ** power for end in (low, high))
        rough = (largest - least) / about
        size = Decimal(1).scaleb(rough.adjusted())
        factors = (Decimal(m) for m in ('1', '2', '2.5', '5', '10'))
        step = next(m * size for m in factors if m * size >= rough * Decimal('0.999'))
        if whole:
            step = max(Decimal(1), step.to_integral_value(decimal.ROUND_CEILING))
        first = (least / step).to_integral_value(decimal.ROUND_CEILING)
        ticks = (step * (first + number) for number in range(20))
        return [tick for tick in ticks if tick <= largest]


def _labelled(ticks: Iterable[Decimal]) -> List[Tuple[float, str]]:
    """Ticks as floats, and their labels; without those that no float is close to."""
    found: List[Tuple[float, Decimal]] = []
    for tick in ticks:
        value = float(tick)
        if math.isfinite(value) and abs(Decimal(value) - tick) <= abs(tick) / 20:
            if not found or found[-1][0] < value:
                found.append((value, tick))
    # Steps of a long training are written out, as a table has them.
    is_long = any(len(tick.normalize(_DIGITS).as_tuple().digits) > 4 for _, tick in found)
    largest = 12 if is_long else 6
    return [(value, _label(tick, largest)) for value, tick in found]


def _label(tick: Decimal, largest: int) -> str:
    """All digits of a tick: it has few, unless it takes many to tell it from the next one.

    From 10**largest on it is written with a power of ten.
    """
    if not tick:
        return '0'
    shortest = tick.normalize(_DIGITS)
    sign, digits, _ = shortest.as_tuple()
    minus, exponent = _MINUS if sign else '', shortest.adjusted()
    if -4 <= exponent < largest:
        return minus + format(abs(tick).normalize(_DIGITS), 'f')
    power = '10' + str(exponent).translate(_SUPERSCRIPTS)
    if digits == (1,):
        return minus + power
    first, rest = str(digits[0]), ''.join(map(str, digits[1:]))
    mantissa = '%s.%s' % (first, rest) if rest else first
    return '%s%s\N{MULTIPLICATION SIGN}%s' % (minus, mantissa, power)

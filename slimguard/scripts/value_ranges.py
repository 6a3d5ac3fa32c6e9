"""Between which numbers a value is that a script multiplies by: `range_of`."""

import math
from typing import Callable, Dict, Iterable, Sequence, Tuple

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.scripts.risky_ops import DEPTH

Range = Tuple[float, float]

# What is fed, held by a variable, counted or computed in some other way is taken for a decay or a
# rate. It is no proof: what is said of it is a hint.
_RATE = (0.0, 1.0)


def range_of(tensor: tf.Tensor, depth: int = DEPTH) -> Range:
    """The least and the largest number in a tensor, by what it is made of."""
    number = graphs.constant_scalar(tensor)
    if number is not None:
        return number, number
    lowest, largest = graphs.lowest_constant(tensor), graphs.largest_constant(tensor)
    if lowest is not None and largest is not None:
        return lowest, largest
    op = tensor.op
    made = _RANGES.get(op.type)
    if made is None or depth == 0:
        return _RATE
    inputs = [each for each in op.inputs if graphs.is_float(each) or op.type in _OF_COUNTS]
    return made([range_of(each, depth - 1) for each in inputs] or [_RATE])


def times(first: Range, second: Range) -> Range:
    """The range of a product."""
    return hull((0.0, 0.0) if 0.0 in (a, b) else (a * b, a * b) for a in first for b in second)


def inverse(given: Range) -> Range:
    """The range of one divided by a number."""
    low, high = given
    if low <= 0.0 <= high:
        return (0.0, math.inf) if low == 0.0 else (-math.inf, math.inf)
    return 1.0 / high, 1.0 / low


def hull(given: Iterable[Range]) -> Range:
    """The range of what is in one of some ranges."""
    lows, highs = zip(*given)
    return min(lows), max(highs)


def added(given: Sequence[Range]) -> Range:
    """The range of a sum."""
    return sum(low for low, _ in given), sum(high for _, high in given)


def negative(given: Range) -> Range:
    """The range of what is negated."""
    return -given[1], -given[0]


def _each(function: Callable[[float], float]) -> Callable[[Sequence[Range]], Range]:
    """The range of a function that never falls, of one argument."""

    def of(given: Sequence[Range]) -> Range:
        low, high = given[0]
        return function(low), function(high)

    return of


def _exponential(number: float) -> float:
    return math.exp(min(number, 700.0))


def _root(number: float) -> float:
    return math.sqrt(max(number, 0.0))


def _power(given: Sequence[Range]) -> Range:
    bases, exponents = given
    if bases[0] < 0:
        return _RATE
    if bases[1] == 0:
        return 0.0, 0.0
    ends = [(base, power) for base in bases for power in exponents if base > 0 or power > 0]
    return hull((base**power, base**power) for base, power in ends)


def _square(given: Sequence[Range]) -> Range:
    low, high = times(given[0], given[0])
    return max(low, 0.0), high


def _size(given: Sequence[Range]) -> Range:
    return 0.0, max(map(abs, given[0]))


_RANGES: Dict[str, Callable[[Sequence[Range]], Range]] = {
    'Sub': lambda given: added([given[0], negative(given[1])]),
    'Neg': lambda given: negative(given[0]),
    'Mul': lambda given: times(*given),
    'RealDiv': lambda given: times(given[0], inverse(given[1])),
    'Div': lambda given: times(given[0], inverse(given[1])),
    'Reciprocal': lambda given: inverse(given[0]),
    'Minimum': lambda given: (min(a[0] for a in given), min(a[1] for a in given)),
    'Maximum': lambda given: (max(a[0] for a in given), max(a[1] for a in given)),
    'Pow': _power,
    'Square': _square,
    'Abs': _size,
    'Exp': _each(_exponential),
    'Sqrt': _each(_root),
    'Relu': _each(lambda number: max(number, 0.0)),
    'Tanh': lambda given: (-1.0, 1.0),
    **dict.fromkeys(['Add', 'AddV2', 'AddN', 'AssignAdd'], added),
    'Cast': lambda given: given[0],
    **dict.fromkeys(['Select', 'SelectV2', 'Merge', 'ConcatV2', 'Pack'], hull),
    **dict.fromkeys(
        'Identity Switch Enter Exit Reshape ExpandDims Squeeze StopGradient Mean Max Min Tile '
        'Transpose Gather GatherV2 StridedSlice Slice'.split(),
        lambda given: given[0],
    ),
}
_OF_COUNTS = frozenset('Add AddV2 AddN AssignAdd Sub Mul Cast Maximum Minimum'.split())

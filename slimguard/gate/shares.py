"""How often variables are in the values that are computed after gated writes."""

import math
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.gate import square_sums
from slimguard.gate.finite_arithmetic import least_divisor
from slimguard.gate.signs import Signs
from slimguard.gate.step_graph import StepGraph
from slimguard.graph import key

_Interval = Tuple[float, float]


class Share(NamedTuple):
    """How often something is in a value: between `low` and `high` times.

    Attributes:
      divided: whether it is there once more, divided by what is small, if that stays above zero.
    """

    low: float
    high: float
    divided: bool = False

    @property
    def most(self) -> float:
        return max(abs(self.low), abs(self.high))


# By variable; of None, it is how often there is something that was checked before the update.
Shares = Dict[Optional[tf.Operation], Share]

NO_SHARE = Share(0.0, 0.0)
_ONCE = Share(1.0, 1.0)
_EITHER_WAY = Share(-1.0, 1.0)
_DIVIDED = Share(0.0, 0.0, True)
_MINUS_ONE = (-1.0, -1.0)
_UNKNOWN = (-math.inf, math.inf)
ROUNDING = 1e-6  # of what adds up to one


class Sizes(NamedTuple):
    """The sizes of numbers of a dtype.

    Attributes:
      checked: what passes the fast path is smaller.
      added: what is smaller leaves the largest numbers of the dtype as they are.
      largest: the largest number.
    """

    checked: float
    added: float
    largest: float


_ADDED_AND_LARGEST = {
    tf.float16: (16.0, 65504.0),
    tf.float64: (1e290, 1e308),
    tf.complex128: (1e290, 1e308),
}


def sizes_of(dtype: tf.DType) -> Sizes:
    found = _ADDED_AND_LARGEST.get(dtype.base_dtype, (1e30, 1e38))
    return Sizes(square_sums.largest_of(dtype), *found)


class UnknownGrowth(Exception):
    """It cannot be told before the update whether a value is finite."""


def total_of(shares: Shares) -> float:
    """How often all variables together are there."""
    return sum(share.most for of, share in shares.items() if of is not None)


class SharesOfVariables:
    """How often variables are in the values that are computed after gated writes.

    Attributes:
      scalars: the variables that others are multiplied by.
    """

    def __init__(self, writes: Sequence[tf.Operation], gated: Set[tf.Operation], step: StepGraph):
        self.scalars: Dict[tf.Operation, None] = {}
        self._gated = gated
        self._step = step
        self._signs = Signs(writes, step, self._size)
        self._known: Dict[Tuple[tf.Operation, int], Shares] = {}
        self._sizes: Dict[Tuple[tf.Operation, int], _Interval] = {}
        self._factors: List[tf.Tensor] = []  # those that are not constant, for each product
        self._end: Optional[int] = None

    def total_at_ends(self, write: tf.Operation, variable: tf.Operation) -> float:
        """How often all variables together are in what a write makes, by its one factor's ends.

        ``x - (x - y) * s`` is a mean of both if `s` is between zero and one, and the shares of both
        are never the largest at once. A sum of sizes of what is linear is largest at an end.
        """
        self.written_by(write, variable)
        if len(self._factors) != 1:
            return math.inf
        totals = []
        for end in (0, 1):
            self._end = end
            totals.append(total_of(self.written_by(write, variable)))
        self._end = None
        return max(totals)

    def between(self) -> float:
        """How often all variables together are in any float16 that `written_by` has seen last.

        A difference of weights soon overflows there, and an average is computed of that. In the
        other dtypes it takes weights that are larger than half of the largest number.
        """
        halves = [
            total_of(shares)
            for (op, index), shares in self._known.items()
            if op.outputs[index].dtype.base_dtype == tf.float16
        ]
        return max(halves, default=0.0)

    def written_by(self, write: tf.Operation, variable: tf.Operation) -> Shares:
        """What a write makes of variables, that which it writes included.

        Raises:
          UnknownGrowth: if that cannot be told.
        """
        self._known.clear()
        self._factors.clear()
        values = [self._step.resolve(each.tensor) for each in graphs.values_of(write)]
        own: Shares = {variable: _ONCE}
        # What is made ahead of the update is checked as it is.
        late = [self._of(value) for value in values if value.op in self._gated]
        if graphs.is_apply(write):
            entering = [each for shares in late for each in shares if each is not None]
            return _sum([dict.fromkeys(entering, _DIVIDED), own])
        found = _sum(late)
        if 'Scatter' in write.type:
            found = _either_way(found)
        if 'Sub' in write.type:
            found = _times(found, _MINUS_ONE)
        return _sum([own, found]) if graphs.changes_value(write) else found

    def _of(self, tensor: tf.Tensor) -> Shares:
        of = key(tensor)
        if of not in self._known:
            self._known[of] = self._find(tensor)
        return self._known[of]

    def _find(self, tensor: tf.Tensor) -> Shares:
        op = tensor.op
        variable = graphs.variable_read(tensor)
        if variable is not None:  # or a reference to it, from a write
            return {variable: _EITHER_WAY if 'Gather' in op.type else _ONCE}
        if op not in self._gated:
            return {None: _ONCE}
        if op.type == 'Const':
            return {None: _of_constant(tensor)}
        inputs = [self._step.resolve(each) for each in op.inputs]
        if op.type == 'Mul':
            return self._product(*inputs)
        if op.type == 'RealDiv':
            return self._quotient(*inputs)
        given = [self._of(each) for each in inputs if graphs.is_float(each)]
        if op.type == 'Cast' and not _is_wider(tensor.dtype, inputs[0].dtype):
            raise UnknownGrowth()
        if op.type in ('Identity', 'Cast', 'Add', 'AddV2', 'AddN'):
            return _sum(given)
        if op.type == 'Neg':
            return _times(given[0], _MINUS_ONE)
        if op.type == 'Sub':
            return _sum([given[0], _times(given[1], _MINUS_ONE)])
        if op.type in ('Minimum', 'Maximum'):
            return _either_way(_largest(given))
        if op.type in ('Reshape', 'ExpandDims', 'Gather', 'GatherV2'):
            return _either_way(_sum(given))  # elements at other places may be of other signs
        if op.type == 'Sqrt' and self._signs.is_not_negative(inputs[0]):
            # The root of a large value is smaller, and the root of a value below one is below one.
            return {of: _widened(share) for of, share in _either_way(given[0]).items()}
        raise UnknownGrowth()

    def _product(self, first: tf.Tensor, second: tf.Tensor) -> Shares:
        if second.shape.rank != 0 or (first.shape.rank == 0 and not _is_known(self._size(second))):
            first, second = second, first
        size = self._size(second)
        if not _is_known(size):  # a scalar that may be as large as a variable
            raise UnknownGrowth()
        if size[0] != size[1]:
            self._factors.append(second)
            size = size if self._end is None else (size[self._end], size[self._end])
        return _times(self._of(first), size)

    def _quotient(self, first: tf.Tensor, second: tf.Tensor) -> Shares:
        """By what stays away from zero; the larger that is, the less is left."""
        if not self._signs.has_roots(second):
            raise UnknownGrowth()
        found: Shares = {each: _DIVIDED for each in self._of(first) if each is not None}
        checked = self._of(first).get(None)
        if checked is not None:
            largest = checked.most / least_divisor(second)
            found[None] = Share(-largest, largest)
        return found

    def _size(self, tensor: tf.Tensor) -> _Interval:
        """Between which numbers a scalar is."""
        of = key(tensor)
        if of not in self._sizes:
            self._sizes[of] = self._find_size(tensor)
        return self._sizes[of]

    def _find_size(self, tensor: tf.Tensor) -> _Interval:
        value = graphs.constant_scalar(tensor)
        if value is not None:
            return value, value
        op = tensor.op
        checked = sizes_of(tensor.dtype).checked
        otherwise = _UNKNOWN if op in self._gated else (-checked, checked)
        variable = graphs.variable_read(tensor)
        if variable is not None:
            if op not in self._gated:
                self.scalars[variable] = None
            return otherwise
        inputs = [self._step.resolve(each) for each in op.inputs]
        if op.type == 'Cast' and inputs[0].dtype.base_dtype.is_integer:
            return 0.0, math.inf  # a count
        if op.type in ('Identity', 'Cast'):
            return self._size(inputs[0])
        if op.type not in _ARITHMETIC:
            return otherwise
        low, high = _ARITHMETIC[op.type](*map(self._size, inputs))
        return max(low, otherwise[0]), min(high, otherwise[1])


def _of_constant(tensor: tf.Tensor) -> Share:
    largest = graphs.largest_constant(tensor)
    if largest is None or not math.isfinite(largest):
        raise UnknownGrowth()
    share = largest / sizes_of(tensor.dtype).checked
    return Share(-share, share)


def _is_wider(dtype: tf.DType, than: tf.DType) -> bool:
    """Whether what is finite in one dtype is finite in the other."""
    largest = dtype.real_dtype.max
    if not (than.is_floating or than.is_complex):
        return largest > 1e20
    return largest >= than.real_dtype.max


def _is_known(interval: _Interval) -> bool:
    return all(map(math.isfinite, interval))


def _bounds(numbers: Iterable[float]) -> _Interval:
    numbers = list(numbers)
    return _UNKNOWN if any(map(math.isnan, numbers)) else (min(numbers), max(numbers))


def _quotients(first: _Interval, second: _Interval) -> _Interval:
    if second[0] <= 0 or first[0] < 0:
        return _UNKNOWN
    return first[0] / second[1], first[1] / second[0]


# What moving averages compute their decay with: `min(0.99, (1 + n) / (10 + n))`, and 1 minus that.
_ARITHMETIC = {
    'Add': lambda a, b: _bounds((a[0] + b[0], a[1] + b[1])),
    'AddV2': lambda a, b: _bounds((a[0] + b[0], a[1] + b[1])),
    'Sub': lambda a, b: _bounds((a[0] - b[1], a[1] - b[0])),
    'Mul': lambda a, b: _bounds(x * y for x in a for y in b),
    'RealDiv': _quotients,
    'Minimum': lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    'Maximum': lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
}


def _sum(given: Sequence[Shares]) -> Shares:
    found: Shares = {}
    for shares in given:
        for of, share in shares.items():
            before = found.get(of, NO_SHARE)
            low, high = before.low + share.low, before.high + share.high
            found[of] = Share(low, high, before.divided or share.divided)
    return found


def _times(shares: Shares, factor: _Interval) -> Shares:
    return {
        of: share._replace(**dict(zip(('low', 'high'), _ARITHMETIC['Mul'](share[:2], factor))))
        for of, share in shares.items()
    }


def _largest(given: Sequence[Shares]) -> Shares:
    found: Shares = {}
    for shares in map(_either_way, given):
        for of, share in shares.items():
            before = found.get(of, NO_SHARE)
            most = max(before.most, share.most)
            found[of] = Share(-most, most, before.divided or share.divided)
    return found


def _either_way(shares: Shares) -> Shares:
    return {of: share._replace(low=-share.most, high=share.most) for of, share in shares.items()}


def _widened(share: Share) -> Share:
    return share._replace(low=min(share.low, -1.0), high=max(share.high, 1.0))

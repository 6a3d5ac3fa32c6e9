"""Which variables a train op may make grow from step to step, however small its gradients are.

Adding what is small leaves a large number as it is, and an average is never above what it is of: so
a variable that begins finite stays finite. But ``m.assign(m * 10)`` after the update, an average
with a decay of 10 or a loss scale that is doubled end in an Inf. Here it is found by how much a
variable enters its own next value, also by way of others. Of those that may grow the fast path
looks at the value before the update (builder.py).
"""

import math
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.gate.step_graph import StepGraph
from slimguard.graph import key

_Interval = Tuple[float, float]
_Shares = Dict[tf.Operation, _Interval]  # by variable, how often it is in a value

_ONCE = (1.0, 1.0)
_UNKNOWN = (-math.inf, math.inf)
# A scalar that is made ahead of the update is checked there, and smaller than this.
_CHECKED = (-2e14, 2e14)
# All that grows is smaller than 2e14 before the update on the fast path, and this times as large
# behind it at most.
_MOST_GROWTH = 1e23
_ROUNDING = 1e-6  # of what adds up to one


class _Write(NamedTuple):
    """What one write makes of variables."""

    variable: tf.Operation
    shares: _Shares


def find_growing(
    writes: Sequence[tf.Operation], gated: Set[tf.Operation], step: StepGraph
) -> Optional[List[tf.Operation]]:
    """The variables that have to be small before the update, or None if that is not enough.

    Args:
      writes: the gated writes, but for those that are judged afterwards.
      gated: the gated ops.
      step: the ops of the step.
    """
    shares = _SharesOfVariables(gated, step)
    found = [
        _Write(variable, shares.written_by(write, variable))
        for write in writes
        for variable in step.writes.variables(write)
        if graphs.is_float_variable(variable)
    ]
    enters: Dict[tf.Operation, Set[tf.Operation]] = {}
    for write in found:
        for variable in write.shares:
            enters.setdefault(variable, set()).add(write.variable)
    growing: List[tf.Operation] = []
    growth = 1.0
    for write in found:
        returning = [v for v in write.shares if v in _reached(write.variable, enters)]
        total = sum(max(map(abs, write.shares[variable])) for variable in returning)
        if total > 1 + _ROUNDING:
            growth *= total
            growing += returning
    if growth > _MOST_GROWTH:
        return None
    return list(dict.fromkeys(growing + (list(shares.scalars) if growing else [])))


def _reached(
    variable: tf.Operation, enters: Dict[tf.Operation, Set[tf.Operation]]
) -> Set[tf.Operation]:
    """The variables that a variable enters, itself included, also by way of others."""
    reached, waiting = {variable}, [variable]
    while waiting:
        new = enters.get(waiting.pop(), set()) - reached
        reached |= new
        waiting.extend(new)
    return reached


class _SharesOfVariables:
    """How often variables are in the values that are computed after gated writes.

    Attributes:
      scalars: the variables that others are multiplied by.
    """

    def __init__(self, gated: Set[tf.Operation], step: StepGraph):
        self.scalars: Dict[tf.Operation, None] = {}
        self._gated = gated
        self._step = step
        self._known: Dict[Tuple[tf.Operation, int], _Shares] = {}
        self._sizes: Dict[Tuple[tf.Operation, int], _Interval] = {}

    def written_by(self, write: tf.Operation, variable: tf.Operation) -> _Shares:
        """What a write makes of variables, that which it writes included."""
        values = [self._step.resolve(each.tensor) for each in graphs.values_of(write)]
        # What is made ahead of the update is checked as it is.
        late = [self._of(value) for value in values if value.op in self._gated]
        if graphs.is_apply(write):
            found = {each: _UNKNOWN for shares in late for each in shares}
            return _sum([found, {variable: _ONCE}])
        found = _sum(late)
        if 'Scatter' in write.type:
            found = _either_way(found)
        if not graphs.changes_value(write):
            return found
        return _sum(
            [{variable: _ONCE}, _times(found, (-1.0, -1.0) if 'Sub' in write.type else _ONCE)]
        )

    def _of(self, tensor: tf.Tensor) -> _Shares:
        of = key(tensor)
        if of not in self._known:
            self._known[of] = self._find(tensor)
        return self._known[of]

    def _find(self, tensor: tf.Tensor) -> _Shares:
        op = tensor.op
        variable = graphs.variable_read(tensor)
        if variable is not None:  # or a reference to it, from a write
            is_part = 'Gather' in op.type
            return {variable: (-1.0, 1.0) if is_part else _ONCE}
        if op not in self._gated:
            return {}
        inputs = [self._step.resolve(each) for each in op.inputs]
        if op.type in ('Mul', 'RealDiv'):
            return self._product(op.type, *inputs)
        given = [self._of(each) for each in inputs if graphs.is_float(each)]
        if op.type in ('Identity', 'Cast', 'Add', 'AddV2', 'AddN'):
            return _sum(given)
        if op.type == 'Neg':
            return _times(given[0], (-1.0, -1.0))
        if op.type == 'Sub':
            return _sum([given[0], _times(given[1], (-1.0, -1.0))])
        if op.type in ('Minimum', 'Maximum'):
            return _either_way(_largest(given))
        if op.type in ('Sqrt', 'Reshape', 'ExpandDims', 'Gather', 'GatherV2'):
            # The root of what is large is smaller; elements at other places may be of other signs.
            return {v: _widened(share) for v, share in _either_way(_sum(given)).items()}
        return {v: _UNKNOWN for v in _sum(given)}

    def _product(self, kind: str, first: tf.Tensor, second: tf.Tensor) -> _Shares:
        if kind == 'RealDiv':  # by what stays away from zero; the larger that is, the less is left
            return {v: _UNKNOWN for v in self._of(first)}
        if second.shape.rank != 0 or (first.shape.rank == 0 and not _is_known(self._size(second))):
            first, second = second, first
        found = _times(self._of(first), self._size(second))
        if not _is_known(self._size(second)):  # a scalar that may be as large as a variable
            found = _sum([found, dict.fromkeys(self._of(second), _UNKNOWN)])
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
        otherwise = _UNKNOWN if op in self._gated else _CHECKED
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


def _sum(given: Sequence[_Shares]) -> _Shares:
    found: _Shares = {}
    for shares in given:
        for variable, (low, high) in shares.items():
            before = found.get(variable, (0.0, 0.0))
            found[variable] = before[0] + low, before[1] + high
    return found


def _times(shares: _Shares, factor: _Interval) -> _Shares:
    return {v: _ARITHMETIC['Mul'](share, factor) for v, share in shares.items()}


def _largest(given: Sequence[_Shares]) -> _Shares:
    found: _Shares = {}
    for shares in map(_either_way, given):
        for variable, share in shares.items():
            found[variable] = max(found.get(variable, (0.0, 0.0)), share, key=max)
    return found


def _either_way(shares: _Shares) -> _Shares:
    return {v: (-max(map(abs, share)), max(map(abs, share))) for v, share in shares.items()}


def _widened(share: _Interval) -> _Interval:
    return min(share[0], -1.0), max(share[1], 1.0)

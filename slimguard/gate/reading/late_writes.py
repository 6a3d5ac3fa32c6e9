"""Finds which late values of a step stay finite, and which need a trial.

A *late* value is computed after a gated write, so it cannot be checked before that write. But the
values that it is computed from can be checked. :class:`LateValues` follows a late value back to
these, through ops that make finite numbers from finite ones unless a sum overflows.

Some writes of late values are known to stay finite, in any number of steps:

* copies, clipped or not, multiples by a number between zero and one, and averages: none is larger
  than the largest of its variables, so none can grow to Inf;
* constants, and sums with checked values, which leave a large number as it is;
* Adam's update of the rows that were looked up, ``w.assign_sub(rate * m / (sqrt(v) + epsilon))``:
  the step itself has computed `m` from checked values, and `v` is never below zero. Without this
  rule each step of an embedding would be a trial, and take 1.5 times as long.

Any other late write makes the step a trial. So does a write that reads a variable that the step
does not write, since another run may write anything to it; and a sum in float16, whose range is
small. In other dtypes variables are assumed to be smaller than half of the largest number, so that
a difference of two is finite.
"""

import math
import re
from typing import Dict, List, Optional, Sequence, Set, Tuple

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.gate.reading.kernels import Beginnings, Range
from slimguard.gate.reading.step_graph import StepGraph
from slimguard.graph import key

_ASSIGNS = re.compile(r'Assign(VariableOp)?$')
_ADDS = re.compile(r'(Resource)?(Assign|Scatter(Nd)?)(Add|Sub)(VariableOp)?$')
_SUMS = frozenset('Add AddV2'.split())
_GATHERS = frozenset('Gather GatherV2 ResourceGather'.split())
_ROWS = re.compile(r'(Resource)?ScatterUpdate$')
_ROUNDING = 2e-7  # the rounding error of weights that add up to one
_LARGEST_CONSTANT = 1e6
# Checked values divided by this or more can be added any number of times without overflow.
_LEAST_EPSILON = 1e-12
_KEEP_FINITE = frozenset(
    'Identity ReadVariableOp Const Cast Sub Add AddV2 AddN Neg Minimum Maximum Sqrt Reshape '
    'ExpandDims Gather GatherV2 ResourceGather NoOp'.split()
)


class LateValues:
    """Follows late values back to values that are not late.

    Attributes:
      ops: the gated ops; their outputs are late.
    """

    def __init__(self, step: StepGraph, gated: Set[tf.Operation]):
        self.ops = gated
        self._step = step

    def __contains__(self, tensor: tf.Tensor) -> bool:
        return tensor.op in self.ops

    def sources_of(self, tensor: tf.Tensor) -> Optional[List[tf.Tensor]]:
        """The tensors whose check shows that `tensor` is finite; None if no such check is enough.

        For a tensor that is not late, the tensor itself; else the tensors that it is made of.
        """
        if tensor not in self:
            return [tensor]
        found: List[tf.Tensor] = []
        seen: Set[tf.Operation] = set()
        waiting = [tensor]
        while waiting:
            current = waiting.pop()
            op = current.op
            if current not in self:
                if graphs.is_float(current) and not graphs.is_variable_read(op):
                    found.append(current)
                continue
            if op in seen:
                continue
            seen.add(op)
            if op in self._step.writes or graphs.is_variable_read(op):
                continue  # a variable, after a write that has its own checks
            if graphs.loop_around(op) is not None or not keeps_finite(op):
                return None
            waiting.extend(self._step.resolve(t) for t in op.inputs)
        return found


def keeps_finite(op: tf.Operation) -> bool:
    """Whether finite inputs give finite results, unless a sum overflows."""
    if op.type == 'Mul':
        return any(t.shape.rank == 0 for t in op.inputs)
    if op.type == 'RealDiv':
        return stays_away_from_zero(op.inputs[1])
    return op.type in _KEEP_FINITE


def stays_away_from_zero(tensor: tf.Tensor) -> bool:
    """Whether a divisor is `sqrt(x) + epsilon`, `epsilon + n` or `1 - c**n` for 0 <= c < 1."""
    op = tensor.op
    if op.type in ('Add', 'AddV2'):
        constants = [graphs.constant_scalar(t) for t in op.inputs]
        others = [t.op for t, c in zip(op.inputs, constants) if c is None]
        positive = any(c is not None and c > 0 for c in constants)
        return positive and all(op.type == 'Sqrt' or _is_count(op) for op in others)
    if op.type == 'Sub' and graphs.constant_scalar(op.inputs[0]) == 1.0:
        power = op.inputs[1].op
        base = graphs.constant_scalar(power.inputs[0]) if power.type == 'Pow' else None
        return base is not None and 0 <= base < 1
    return False


def _is_count(op: tf.Operation) -> bool:
    return op.type == 'Cast' and op.inputs[0].dtype.base_dtype.is_integer


def find_ranges(
    writes: Sequence[tf.Operation], step: StepGraph, late: LateValues
) -> Optional[List[Range]]:
    """The ranges of factors in which the late ones of `writes` stay finite; None if unknown.

    Args:
      writes: the gated writes, without those that are judged after the update.
      late: tells which values are late.
    """
    known = _LateWrites(step, late)
    return known.ranges if all(map(known.stays_finite, writes)) else None


class _LateWrites:
    """The late writes of one step.

    Attributes:
      ranges: the ranges of factors, for the writes that were found to stay finite.
    """

    def __init__(self, step: StepGraph, late: LateValues):
        self.ranges: List[Range] = []
        self._step = step
        self._late = late
        self._writes: Dict[tf.Operation, List[tf.Operation]] = {}
        for write in step.writing:
            for variable in step.writes.variables(write):
                self._writes.setdefault(variable, []).append(write)
        self._beginnings = Beginnings(step.graph)
        self._never_negative: Dict[tf.Operation, bool] = {}  # of variables

    def stays_finite(self, write: tf.Operation) -> bool:
        """Whether a write is known to stay finite in any number of steps, if it began finite."""
        values = [value for value in self._values_of(write) if value in self._late]
        if len(values) != 1:
            return not values  # a value that is not late is checked before the update
        if _ASSIGNS.match(write.type):
            return self._weight_of(values[0]) <= 1 + _ROUNDING
        return bool(_ADDS.match(write.type)) and (
            self._is_average(write, values[0])
            or self._weight_of(values[0]) == 0
            or self._is_quotient(values[0])
        )

    def _values_of(self, write: tf.Operation) -> List[tf.Tensor]:
        return [self._step.source_of(each.tensor) for each in graphs.values_of(write)]

    def _inputs_of(self, tensor: tf.Tensor) -> List[tf.Tensor]:
        return [self._step.source_of(each) for each in tensor.op.inputs]

    def _both_ways(self, tensor: tf.Tensor) -> Sequence[Tuple[tf.Tensor, tf.Tensor]]:
        first, second = self._inputs_of(tensor)
        return (first, second), (second, first)

    def _weight_of(self, tensor: tf.Tensor) -> float:
        """An upper bound of a value, in multiples of its largest variable; Inf if none is known."""
        variable = _variable_read(tensor)
        if variable is not None:
            return 1.0 if variable in self._writes else math.inf
        if tensor not in self._late:
            return 0.0  # the step checks, before the update, that the value is small
        if tensor.op.type == 'Const':
            largest = graphs.largest_constant(tensor)
            most = 2.0 if tensor.dtype.base_dtype == tf.float16 else _LARGEST_CONSTANT
            return 0.0 if largest is not None and largest <= most else math.inf
        if tensor.op.type == 'Mul':
            for value, factor in self._both_ways(tensor):
                if self._is_share(factor):
                    weight, constant = self._weight_of(value), graphs.constant_scalar(factor)
                    if constant is None or weight == math.inf:
                        return weight
                    return weight * constant
        if tensor.op.type in ('Minimum', 'Maximum'):
            return max(map(self._weight_of, self._inputs_of(tensor)))
        if tensor.op.type in _SUMS and tensor.dtype.base_dtype != tf.float16:
            total = sum(map(self._weight_of, self._inputs_of(tensor)))
            return total if total <= 2 else math.inf  # the sum itself may overflow
        return math.inf

    def _is_average(self, write: tf.Operation, value: tf.Tensor) -> bool:
        """Whether a write is ``m.assign_sub((m - w) * share)``, or adds ``(w - m) * share``."""
        variables = self._step.writes.variables(write)
        if 'Scatter' in write.type or len(self._writes[variables[0]]) > 1:
            return False  # its variable may change between the read and the write
        if value.op.type != 'Mul' or value.dtype.base_dtype == tf.float16:
            return False
        for difference, share in self._both_ways(value):
            if difference.op.type == 'Sub' and self._is_share(share):
                own, other = self._inputs_of(difference)[:: 1 if 'Sub' in write.type else -1]
                return _variable_read(own) is variables[0] and self._weight_of(other) <= 1
        return False

    def _is_share(self, factor: tf.Tensor) -> bool:
        """Whether a scalar lies between zero and one; adds a range if each step must compare it."""
        if factor.shape.rank != 0 or not factor.dtype.base_dtype.is_floating:
            return False
        constant = graphs.constant_scalar(factor)
        if constant is not None:
            return 0 <= constant <= 1
        op, inputs = factor.op, self._inputs_of(factor)
        if op.type == 'Sub' and graphs.constant_scalar(inputs[0]) == 1.0:
            return self._is_share(inputs[1])  # one minus a decay
        if factor in self._late:
            if op.type == 'Minimum':  # of a decay and a number that is smaller in the first steps
                return self._is_share(inputs[0]) and self._is_never_negative(inputs[1])
            return op.type == 'Cast' and self._is_share(inputs[0])
        if graphs.variable_read(factor) in self._writes:
            return False  # it may be written before its use
        self.ranges.append(Range(factor, 0.0, 1.0))
        return True

    def _is_quotient(self, value: tf.Tensor) -> bool:
        """Whether a value is a checked value divided by ``sqrt(v) + epsilon``."""
        if value.op.type != 'RealDiv' or value.dtype.base_dtype == tf.float16:
            return False
        dividend, divisor = self._inputs_of(value)
        if dividend.op.type == 'Mul' and dividend in self._late:
            factors = self._both_ways(dividend)
            dividend = next((one for one, rate in factors if self._is_share(rate)), dividend)
        if divisor.op.type not in _SUMS or not self._is_checked(dividend):
            return False
        for root, epsilon in self._both_ways(divisor):
            least = graphs.constant_scalar(epsilon)
            if root.op.type == 'Sqrt' and least is not None and least >= _LEAST_EPSILON:
                return self._is_never_negative(root.op.inputs[0])
        return False

    def _is_checked(self, tensor: tf.Tensor) -> bool:
        """Whether a tensor is checked, or reads a variable that this step made of checked values.

        In the second case the step assigns all elements of the variable, or the rows of `tensor`,
        before the read, and it assigns and adds nothing but checked values.
        """
        if tensor not in self._late:
            return True
        source, rows = tensor, None
        if tensor.op.type in _GATHERS:
            source, indices, *axis = self._inputs_of(tensor)
            rows = key(indices)
            if axis and graphs.constant_scalar(axis[0]) != 0:
                return False
        variable = graphs.variable_behind(source) or _variable_read(source)
        assigns = []
        for write in self._writes[variable] if variable in self._writes else ():
            if _ASSIGNS.match(write.type) or (
                _ROWS.match(write.type) and key(write.inputs[1]) == rows
            ):
                assigns.append(write)
            elif not _ADDS.match(write.type):
                return False
            if write not in self._late.ops or any(v in self._late for v in self._values_of(write)):
                return False
        late_ops = self._late.ops
        before = graphs.ancestors(
            [tensor.op], lambda op: late_ops.intersection(self._step.needs(op))
        )
        return not set(before).isdisjoint(assigns)

    def _is_never_negative(self, tensor: tf.Tensor) -> bool:
        tensor = self._step.source_of(tensor)
        variable = graphs.variable_read(tensor)
        if variable is not None:
            return self._is_variable_never_negative(variable)
        lowest = graphs.lowest_constant(tensor)
        if lowest is not None:
            return lowest >= 0
        op, inputs = tensor.op, self._inputs_of(tensor)
        if op.type == 'Mul' and key(inputs[0]) == key(inputs[1]):
            return True
        if op.type == 'RealDiv':
            return stays_away_from_zero(inputs[1]) and self._is_never_negative(inputs[0])
        if op.type == 'Cast' and inputs[0].dtype.base_dtype.is_integer:
            return True  # a count
        if op.type == 'Mul' or op.type in _SUMS:
            return all(map(self._is_never_negative, inputs))
        if op.type in _GATHERS or op.type in ('Cast', 'UnsortedSegmentSum'):
            return self._is_never_negative(inputs[0])
        return op.type == 'Square' or (op.type == 'Sub' and self._is_share(tensor))

    def _is_variable_never_negative(self, variable: tf.Operation) -> bool:
        """Whether a variable's initial value and all values written to it are at least 0."""
        if variable not in self._never_negative:
            self._never_negative[variable] = True
            lowest = self._beginnings.lowest_of(variable)
            writes = self._writes.get(variable, [])
            self._never_negative[variable] = (
                lowest is not None
                and lowest >= 0
                and bool(writes)
                and all(map(self._keeps_sign, writes))
            )
        return self._never_negative[variable]

    def _keeps_sign(self, write: tf.Operation) -> bool:
        is_known = _ASSIGNS.match(write.type) or _ROWS.match(write.type) or _ADDS.match(write.type)
        if not is_known or 'Sub' in write.type:
            return False
        return all(map(self._is_never_negative, self._values_of(write)))


def _variable_read(tensor: tf.Tensor) -> Optional[tf.Operation]:
    """The variable that a tensor reads as a whole; None if it reads only rows."""
    return None if tensor.op.type in _GATHERS else graphs.variable_read(tensor)

"""Updates that make a variable larger each time they are run, until it is Inf: `grows`."""

import math
import re
from typing import Dict, Iterable, Sequence

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.graph import key
from slimguard.scripts.risky_ops import DEPTH, data_of, is_constant
from slimguard.scripts.value_ranges import Range, added, hull, inverse, negative, range_of, times

_ROUNDING = 1e-6
_DEEPEST = 100  # ops in a row, for Python's stack


def grows(write: tf.Operation, variable: tf.Operation, sources: Sequence[tf.Operation]) -> bool:
    """Whether a variable that a run writes overflows by itself if that is run often enough.

    It does so if it becomes a multiple of itself, or a power, or if an exponential enters that
    nothing bounds. A number that is fed, or held by another variable, is taken for a decay or a
    rate, between zero and one.

    Args:
      write: the op that writes it.
      variable: the op of the variable.
      sources: the ops that what is written is computed by.
    """
    if any(map(_may_explode, sources)):
        return True
    own = _Own(variable, sources)
    clips = (op for op in sources if op.type in ('Minimum', 'ClipByValue'))
    if any(own.is_in(op) and _is_bounded(op.outputs[0]) for op in clips):
        return False
    try:
        low, high = own.written_by(write)
    except _Unknown:
        return own.is_power(sources)
    return max(abs(low), abs(high)) > 1 + _ROUNDING


class _Unknown(Exception):
    """What is written is no multiple of the variable, as far as can be told."""


class _Own:
    """How often a variable is in what is computed of it.

    Args:
      variable: the op of the variable.
      sources: the ops that what is written is computed by, each after what it needs.
    """

    def __init__(self, variable: tf.Operation, sources: Sequence[tf.Operation]):
        self._variable = variable
        self._known: Dict = {}
        self._depth = 0
        self._holders = {variable}
        for op in sources:
            if not self._holders.isdisjoint(_large_of(op)):
                self._holders.add(op)

    def is_in(self, op: tf.Operation) -> bool:
        """Whether the numbers of the variable are in what an op makes, and may be large there."""
        return op in self._holders

    def written_by(self, write: tf.Operation) -> Range:
        """How often the variable is in what a write makes of it.

        Raises:
          _Unknown: if that cannot be told.
        """
        values = [each.tensor for each in graphs.values_of(write)]
        if not values:
            raise _Unknown()
        value = values[-1]
        if 'Mul' in write.type or 'Div' in write.type:
            factor = range_of(value)
            return inverse(factor) if 'Div' in write.type else factor
        share = self._share(value)
        if not graphs.changes_value(write) or _SETS_A_PART.search(write.type):
            return share
        return added([(1.0, 1.0), negative(share) if 'Sub' in write.type else share])

    def is_power(self, sources: Sequence[tf.Operation]) -> bool:
        """Whether the variable becomes a power of itself, and nothing makes that smaller again."""
        if any(_MAKES_SMALLER.match(op.type) for op in sources):
            return False
        return any(
            op.type in _POWERS
            and all(self.is_in(each.op) for each in op.inputs[: 1 if op.type == 'Pow' else 2])
            for op in sources
        )

    def _share(self, tensor: tf.Tensor) -> Range:
        of = key(tensor)
        if of not in self._known:
            if self._depth == _DEEPEST:
                raise _Unknown()
            self._depth += 1
            self._known[of] = self._find(tensor)
            self._depth -= 1
        return self._known[of]

    def _find(self, tensor: tf.Tensor) -> Range:
        op = tensor.op
        if not self.is_in(op):
            return 0.0, 0.0
        # In a branch it is read by way of a switch.
        if graphs.variable_read(tensor) is self._variable or op.type in _READS:
            return 1.0, 1.0
        inputs = [each for each in op.inputs if graphs.is_float(each)]
        if op.type in ('Add', 'AddV2', 'AddN'):
            return added([self._share(each) for each in inputs])
        if op.type == 'Sub':
            return added([self._share(inputs[0]), negative(self._share(inputs[1]))])
        if op.type == 'Neg':
            return negative(self._share(inputs[0]))
        if op.type in ('Mul', 'RealDiv', 'Div'):
            return self._product(op)
        if op.type in _ONE_OF:
            return hull(self._share(each) for each in inputs)
        if op.type in _PASSES_ON:
            return self._share(inputs[0])
        if op.type in _MOVES:
            low, high = self._share(inputs[0])
            return -max(-low, high), max(-low, high)
        if op.type in graphs.CALLS:
            return -math.inf, math.inf  # it may do anything with it
        raise _Unknown()

    def _product(self, op: tf.Operation) -> Range:
        first, second = op.inputs
        if op.type == 'Mul' and self.is_in(second.op):
            first, second = second, first
        if self.is_in(second.op):
            raise _Unknown()
        factor = range_of(second)
        return times(self._share(first), factor if op.type == 'Mul' else inverse(factor))


def _may_explode(op: tf.Operation) -> bool:
    """Whether an op takes an exponential of what may be large."""
    if op.type == 'Pow':
        base, exponent = op.inputs
        largest = graphs.largest_constant(base)
        # Such as a decay by the number of the step, which may be made of constants.
        is_decay = is_constant(base) and (largest is None or largest <= 1)
        return not (is_decay or graphs.lowest_constant(exponent) is not None)
    return op.type in _EXPONENTIALS and not _is_bounded(op.inputs[0])


def _is_bounded(tensor: tf.Tensor, above: bool = True, depth: int = DEPTH) -> bool:
    """Whether a tensor is plainly bounded above, or below: clipped, say, or a negated square."""
    op = tensor.op
    if op.type in _BOUNDED or graphs.lowest_constant(tensor) is not None:
        return True
    if op.type in _NOT_NEGATIVE:
        return not above
    if depth == 0:
        return False

    def is_so(given: tf.Tensor, is_above: bool = above) -> bool:
        return _is_bounded(given, is_above, depth - 1)

    if op.type == 'Identity':
        return is_so(op.inputs[0])
    if op.type == 'Neg':
        return is_so(op.inputs[0], not above)
    if op.type in ('Minimum', 'Maximum'):
        return (any if (op.type == 'Minimum') == above else all)(map(is_so, op.inputs))
    if op.type in ('Add', 'AddV2'):
        return all(map(is_so, op.inputs))
    if op.type == 'Sub':
        first, second = op.inputs
        if above and _is_maximum(second):  # as a softmax is made
            return True
        return is_so(first) and is_so(second, not above)
    if op.type in ('Mul', 'RealDiv'):
        for value, factor in (op.inputs, reversed(op.inputs)):
            lowest = graphs.lowest_constant(factor)
            if lowest is not None:
                return is_so(value, above == (lowest >= 0))
    return False


def _is_maximum(tensor: tf.Tensor, depth: int = DEPTH) -> bool:
    """Whether a tensor is the maximum of another, or what stands in for one that is not finite."""
    op = tensor.op
    if op.type == 'Max' or depth == 0:
        return op.type == 'Max'
    through = {'Select': 1, 'SelectV2': 1}.get(op.type, 0 if op.type in _PASSES_ON else None)
    passed_on = [] if through is None else list(op.inputs)[through:]
    return any(_is_maximum(each, depth - 1) for each in passed_on)


def _large_of(op: tf.Operation) -> Iterable[tf.Operation]:
    """As `data_of`, but for what is never large, such as a comparison, whatever it is made of."""
    is_kept = any(each.dtype.base_dtype == tf.resource for each in op.outputs)
    is_number = is_kept or any(map(graphs.is_float, op.outputs))
    return data_of(op) if is_number and op.type not in _BOUNDED else []


_EXPONENTIALS = frozenset('Exp Expm1 Sinh Cosh'.split())
_BOUNDED = frozenset('Sigmoid Tanh Sin Cos Erf Softmax LogSoftmax ClipByValue Qr Svd Sign'.split())
_NOT_NEGATIVE = frozenset('Square Abs Exp Softplus Relu Sqrt SquaredDifference'.split())
_POWERS = frozenset('Square Mul Pow MatMul BatchMatMul BatchMatMulV2'.split())
_MAKES_SMALLER = re.compile(
    r'Sqrt$|Rsqrt$|Log|RealDiv$|Reciprocal$|Minimum$|ClipByValue$|Sigmoid$|Tanh$|Softmax$'
)
_READS = frozenset(['ReadVariableOp', 'ResourceGather'])
_SETS_A_PART = re.compile(r'Update$|StridedSliceAssign$')
_ONE_OF = frozenset('Merge RefMerge Select SelectV2 Minimum Maximum ConcatV2 Pack'.split())
_PASSES_ON = frozenset(
    'Identity RefIdentity Switch RefSwitch Enter RefEnter Exit Reshape ExpandDims Squeeze Cast '
    'Tile StopGradient Relu Pad StridedSlice Slice'.split()
)
_MOVES = frozenset(
    'Abs Transpose Gather GatherV2 GatherNd TopKV2 Mean Max Min LeakyRelu ReverseV2'.split()
)

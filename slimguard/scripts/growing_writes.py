"""Updates that make a variable larger each time they are run, until it is Inf: `grows`."""

import re
from typing import Iterable, Sequence

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.gate.shares import ROUNDING, SharesOfVariables, UnknownGrowth
from slimguard.gate.step_graph import StepGraph
from slimguard.scripts.risky_ops import data_of, is_constant


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
    if any(op.type in ('Minimum', 'ClipByValue') and _is_bounded(op.outputs[0]) for op in sources):
        return False
    step = StepGraph(write, None, {})
    shares = SharesOfVariables([write], set(step.order), step, otherwise=(0.0, 1.0))
    try:
        share = shares.written_by(write, variable).get(variable)
    except UnknownGrowth:
        return _is_power(variable, sources)
    return share is not None and share.most > 1 + ROUNDING


def _may_explode(op: tf.Operation) -> bool:
    """Whether an op takes an exponential of what may be large."""
    if op.type == 'Pow':
        base, exponent = op.inputs
        largest = graphs.largest_constant(base)
        # Such as a decay by the number of the step, which may be made of constants.
        is_decay = is_constant(base) and (largest is None or largest <= 1)
        return not (is_decay or graphs.lowest_constant(exponent) is not None)
    return op.type in _EXPONENTIALS and not _is_bounded(op.inputs[0])


def _is_bounded(tensor: tf.Tensor, above: bool = True) -> bool:
    """Whether a tensor is plainly bounded above, or below: clipped, say, or a negated square."""
    op = tensor.op
    if op.type in _BOUNDED or graphs.lowest_constant(tensor) is not None:
        return True
    if op.type in _NOT_NEGATIVE:
        return not above
    if op.type == 'Identity':
        return _is_bounded(op.inputs[0], above)
    if op.type == 'Neg':
        return _is_bounded(op.inputs[0], not above)
    if op.type in ('Minimum', 'Maximum'):
        is_enough = any if (op.type == 'Minimum') == above else all
        return is_enough(_is_bounded(each, above) for each in op.inputs)
    if op.type in ('Add', 'AddV2'):
        return all(_is_bounded(each, above) for each in op.inputs)
    if op.type == 'Sub':
        first, second = op.inputs
        if above and _is_maximum(second):  # as a softmax is made
            return True
        return _is_bounded(first, above) and _is_bounded(second, not above)
    if op.type in ('Mul', 'RealDiv'):
        for value, factor in (op.inputs, reversed(op.inputs)):
            lowest = graphs.lowest_constant(factor)
            if lowest is not None:
                return _is_bounded(value, above == (lowest >= 0))
    return False


def _is_maximum(tensor: tf.Tensor) -> bool:
    """Whether a tensor is the maximum of another, or what stands in for one that is not finite."""
    op = tensor.op
    if op.type in ('Identity', 'StopGradient', 'Reshape', 'ExpandDims', 'Squeeze'):
        return _is_maximum(op.inputs[0])
    return op.type == 'Max' or (
        op.type in ('Select', 'SelectV2') and any(map(_is_maximum, list(op.inputs)[1:]))
    )


def _is_power(variable: tf.Operation, sources: Sequence[tf.Operation]) -> bool:
    """Whether a variable becomes a power of itself, and nothing makes that smaller again."""
    if any(_MAKES_SMALLER.match(op.type) for op in sources):
        return False
    return any(
        op.type in _POWERS
        and all(
            variable in graphs.ancestors([each.op], needs=_large_of)
            for each in op.inputs[: 1 if op.type == 'Pow' else 2]
        )
        for op in sources
    )


def _large_of(op: tf.Operation) -> Iterable[tf.Operation]:
    """As `data_of`, but for what is never large, such as a comparison, whatever it is made of."""
    is_number = any(map(graphs.is_float, op.outputs)) or op.type in graphs.VARIABLES
    return data_of(op) if is_number and op.type not in _BOUNDED else []


_EXPONENTIALS = frozenset('Exp Expm1 Sinh Cosh'.split())
_BOUNDED = frozenset('Sigmoid Tanh Sin Cos Erf Softmax LogSoftmax ClipByValue Qr Svd Sign'.split())
_NOT_NEGATIVE = frozenset('Square Abs Exp Softplus Relu Sqrt SquaredDifference'.split())
_POWERS = frozenset('Square Mul Pow MatMul BatchMatMul BatchMatMulV2'.split())
_MAKES_SMALLER = re.compile(
    r'Sqrt$|Rsqrt$|Log|RealDiv$|Reciprocal$|Minimum$|ClipByValue$|Sigmoid$|Tanh$|Softmax$'
)

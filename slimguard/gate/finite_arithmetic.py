"""Ops that make finite numbers of finite numbers, unless a sum of them overflows.

A value that is computed after a gated write need not be checked if it is made of variables and
checked values by these ops alone. The overflow by adding is found by the finite check after the
update. Moving averages of weights are computed so, and Adam's sparse update.
"""

import tensorflow as tf

from slimguard import graph as graphs

_KEEP_FINITE = frozenset(
    'Identity ReadVariableOp Const Cast Sub Add AddV2 AddN Neg Minimum Maximum Sqrt Reshape '
    'ExpandDims Gather GatherV2 ResourceGather NoOp'.split()
)


def keeps_finite(op: tf.Operation) -> bool:
    """Whether what `op` returns is finite if its inputs are, but for sums that overflow."""
    return op.type in _KEEP_FINITE or _is_safe_product(op)


def _is_safe_product(op: tf.Operation) -> bool:
    """Whether `op` scales by a scalar, or divides by what is never zero."""
    if op.type == 'Mul':
        return any(t.shape.rank == 0 for t in op.inputs)
    return op.type == 'RealDiv' and stays_away_from_zero(op.inputs[1])


def stays_away_from_zero(tensor: tf.Tensor) -> bool:
    """Whether a divisor is `sqrt(x) + epsilon`, `epsilon + n` or `1 - c**n` for 0 <= c < 1."""
    op = tensor.op
    if op.type in ('Add', 'AddV2'):
        constants = [graphs.constant_scalar(t) for t in op.inputs]
        others = [t for t, c in zip(op.inputs, constants) if c is None]
        positive = any(c is not None and c > 0 for c in constants)
        return positive and all(_is_not_negative(t) for t in others)
    if op.type == 'Sub' and graphs.constant_scalar(op.inputs[0]) == 1.0:
        power = op.inputs[1].op
        base = graphs.constant_scalar(power.inputs[0]) if power.type == 'Pow' else None
        return base is not None and 0 <= base < 1
    return False


def least_divisor(tensor: tf.Tensor) -> float:
    """What a divisor that stays away from zero is not below."""
    constants = [graphs.constant_scalar(t) for t in tensor.op.inputs]
    if tensor.op.type == 'Sub':
        base = graphs.constant_scalar(tensor.op.inputs[1].op.inputs[0])
        assert base is not None, 'it is one minus a power'
        return 1.0 - base
    return max(c for c in constants if c is not None)


def _is_not_negative(tensor: tf.Tensor) -> bool:
    op = tensor.op
    return op.type == 'Sqrt' or (op.type == 'Cast' and op.inputs[0].dtype.base_dtype.is_integer)

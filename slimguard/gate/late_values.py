"""Late values: they are computed after a gated write, so they cannot be checked before it.

The values that they are computed from can be. :class:`LateValues` follows a late value back to
these, as long as the ops in between make finite numbers of finite ones, but for sums that overflow.
"""

from typing import List, Optional, Set

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.gate.step_graph import StepGraph

_KEEP_FINITE = frozenset(
    'Identity ReadVariableOp Const Cast Sub Add AddV2 AddN Neg Minimum Maximum Sqrt Reshape '
    'ExpandDims Gather GatherV2 ResourceGather NoOp'.split()
)


class LateValues:
    """Follows late values back to values that are not late.

    Args:
      step: the ops of the step.
      gated: the gated ops among them.

    Attributes:
      ops: as `gated`; their outputs are late.
    """

    def __init__(self, step: StepGraph, gated: Set[tf.Operation]):
        self.ops = gated
        self._step = step

    def __contains__(self, tensor: tf.Tensor) -> bool:
        return tensor.op in self.ops

    def sources_of(self, tensor: tf.Tensor) -> Optional[List[tf.Tensor]]:
        """The tensors to check so that `tensor` is finite, or None if that is not enough.

        For a tensor that is not late, the tensor itself. For a late one, those it is made of.
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
    """Whether the results of `op` are finite if its inputs are, but for sums that overflow."""
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

"""What is not below zero after the update, so that its root is a number.

The second moments of optimizers that are written in Python: they begin at zero, are made smaller,
and squares are added.
"""

from typing import Callable, Dict, Optional, Sequence, Set, Tuple

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.gate.beginnings import Beginnings
from slimguard.gate.finite_arithmetic import stays_away_from_zero
from slimguard.gate.step_graph import StepGraph
from slimguard.graph import key

_ALWAYS = frozenset('Square Abs Sqrt Relu Exp'.split())
_IF_ALL_ARE = frozenset('Add AddV2 AddN Minimum'.split())
_IF_THE_FIRST_IS = frozenset(
    'Identity Cast Reshape ExpandDims Gather GatherV2 UnsortedSegmentSum'.split()
)


class Signs:
    """Says of tensors of a step that they are not below zero, where that is known.

    Args:
      writes: the gated writes, but for those that are judged afterwards.
      step: the ops of the step.
      size: between which numbers a scalar is.
    """

    def __init__(
        self,
        writes: Sequence[tf.Operation],
        step: StepGraph,
        size: Callable[[tf.Tensor], Tuple[float, float]],
    ):
        self._step = step
        self._size = size
        self._beginnings = Beginnings(step.graph)
        self._writes: Dict[tf.Operation, Set[tf.Operation]] = {}
        for write in step.writing:
            for variable in step.writes.variables(write):
                self._writes.setdefault(variable, set()).add(write)
        self._judged = set(writes)
        self._known: Dict[tf.Operation, bool] = {}  # of variables

    def has_roots(self, divisor: tf.Tensor) -> bool:
        """Whether all roots in a divisor that stays away from zero are of no negative number."""
        op = divisor.op
        if op.type == 'Sqrt':
            return self.is_not_negative(self._step.resolve(op.inputs[0]))
        return all(map(self.has_roots, op.inputs)) if op.type in ('Add', 'AddV2') else True

    def is_not_negative(self, tensor: tf.Tensor) -> bool:
        """Whether it is known that no element of a tensor is below zero."""
        variable = graphs.variable_read(tensor)
        if variable is not None:
            return self._is_variable_not_negative(variable)
        lowest = graphs.lowest_constant(tensor)
        if lowest is not None:
            return lowest >= 0
        if tensor.shape.rank == 0 and self._size(tensor)[0] >= 0:
            return True
        op = tensor.op
        inputs = [self._step.resolve(each) for each in op.inputs]
        if op.type == 'Mul':
            is_square = key(inputs[0]) == key(inputs[1])
            return is_square or all(map(self.is_not_negative, inputs))
        if op.type == 'RealDiv':
            return stays_away_from_zero(inputs[1]) and self.is_not_negative(inputs[0])
        if op.type == 'Maximum':
            return any(map(self.is_not_negative, inputs))
        if op.type in _IF_ALL_ARE:
            return all(map(self.is_not_negative, inputs))
        return op.type in _ALWAYS or (
            op.type in _IF_THE_FIRST_IS and self.is_not_negative(inputs[0])
        )

    def _is_variable_not_negative(self, variable: tf.Operation) -> bool:
        if variable not in self._known:
            self._known[variable] = True  # what is written may be made of the value before
            lowest: Optional[float] = self._beginnings.lowest_of(variable)
            begins = lowest is not None and lowest >= 0
            writes = self._writes.get(variable, ())
            self._known[variable] = begins and all(map(self._keeps_sign, writes))
        return self._known[variable]

    def _keeps_sign(self, write: tf.Operation) -> bool:
        if write not in self._judged or graphs.is_apply(write) or 'Sub' in write.type:
            return False
        values = [self._step.resolve(each.tensor) for each in graphs.values_of(write)]
        return all(map(self.is_not_negative, values))

"""What to check before the update so that a value computed after it is known to be finite."""

from typing import List, Optional, Set

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.gate.finite_arithmetic import keeps_finite
from slimguard.gate.step_graph import StepGraph


class Sources:
    """Follows values that depend on gated writes back to values that do not."""

    def __init__(self, step: StepGraph, gated: Set[tf.Operation]):
        self._step = step
        self._gated = gated

    def is_late(self, tensor: tf.Tensor) -> bool:
        """Whether a tensor is there only after a gated write."""
        return tensor.op in self._gated

    def of(self, tensor: tf.Tensor) -> Optional[List[tf.Tensor]]:
        """The tensors to check so that `tensor` is finite, or None if that is not enough.

        For a tensor that does not depend on a gated write, the tensor itself. For one that does,
        what it is made of, if all ops in between keep finite numbers finite.
        """
        if tensor.op not in self._gated:
            return [tensor]
        found: List[tf.Tensor] = []
        seen: Set[tf.Operation] = set()
        waiting = [tensor]
        while waiting:
            current = waiting.pop()
            op = current.op
            if op not in self._gated:
                if graphs.is_float(current) and not graphs.is_variable_read(op):
                    found.append(current)
                continue
            if op in seen:
                continue
            seen.add(op)
            if op in self._step.writes or graphs.is_variable_read(op):
                continue  # the variable itself, after a write that has a check of its own
            if graphs.loop_around(op) is not None or not keeps_finite(op):
                return None
            waiting.extend(self._step.resolve(t) for t in op.inputs)
        return found

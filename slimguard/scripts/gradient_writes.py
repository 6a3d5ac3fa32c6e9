"""Updates that no optimizer made, such as ``w.assign_sub(rate * gradient)``: `GradientWrites`."""

from typing import List, Set

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.compat import tf_private


class GradientWrites:
    """Finds the ops of a graph that write what was computed of a gradient.

    Gradients that are summed up in a run of their own are written so, too, and so is what an
    optimizer writes.
    """

    def __init__(self, graph: tf.Graph):
        self._graph = graph
        self._looked_at = 0  # so many ops, in the order they were made
        self._of_gradients: Set[tf.Operation] = set()
        self._found: Set[tf.Operation] = set()
        self._untold: List[tf.Operation] = []

    def all(self) -> Set[tf.Operation]:
        """Those that there are now."""
        self._look()
        return self._found

    def new(self) -> List[tf.Operation]:
        """Those that `new` has not returned yet."""
        self._look()
        untold, self._untold = self._untold, []
        return untold

    def _look(self) -> None:
        ops = self._graph.get_operations()[self._looked_at :]
        self._looked_at += len(ops)
        writes = graphs.Writes(self._graph)
        found = [op for op in ops if self._is_of_gradient(op) and writes.variables(op)]
        found = [op for op in found if not op.name.startswith(graphs.OURS)]
        self._found.update(found)
        self._untold += found

    def _is_of_gradient(self, op: tf.Operation) -> bool:
        is_one = tf_private.op_that_was_differentiated(op) is not None
        if is_one or any(tensor.op in self._of_gradients for tensor in op.inputs):
            self._of_gradients.add(op)
            return True
        return False

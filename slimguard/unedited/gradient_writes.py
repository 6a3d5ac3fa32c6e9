"""Updates that no optimizer made, such as ``w.assign_sub(rate * gradient)``: `GradientWrites`.

What `tf.gradients` makes knows the op that it is the gradient of. What a `tf.GradientTape` makes
does not, nor what is made inside a function: such updates are guarded as whatever else a script
computes (:mod:`slimguard.unedited.own_updates`).
"""

from typing import Iterable, List, Sequence, Set, Tuple

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.compat import tf_private
from slimguard.graph import TrainOp
from slimguard.graph.control_flow import SWITCHES


class GradientWrites:
    """Finds the ops of a graph that write values computed from a gradient.

    This includes gradients that are summed up in a run of their own, and the writes of an
    optimizer.
    """

    def __init__(self, graph: tf.Graph):
        self._graph = graph
        self._looked_at = 0  # so many ops, in the order they were made
        self._of_gradients = _OfGradients()
        self._found: Set[tf.Operation] = set()
        self._untold: List[tf.Operation] = []

    def all(self) -> Set[tf.Operation]:
        """All such writes that exist now."""
        self._look()
        return self._found

    def new(self) -> List[tf.Operation]:
        """The writes that `new` has not returned yet."""
        self._look()
        untold, self._untold = self._untold, []
        return untold

    def only_sums_before(self, value: tf.Tensor) -> bool:
        """Whether a value is computed after gradients are added up, in a run that trains nothing.

        A gate would take such a value for a loss, and the sums for a part of the forward pass.
        """
        while value.op.type == 'Identity':
            value = value.op.inputs[0]
        found = self.all().intersection(graphs.ancestors([value.op]))
        writes = graphs.Writes(self._graph)
        written = {variable for op in found for variable in writes.variables(op)}
        trains = any(map(graphs.is_apply, found)) or written & graphs.trainable_in(self._graph)
        return bool(found) and not trains

    def _look(self) -> None:
        ops = self._graph.get_operations()[self._looked_at :]
        self._looked_at += len(ops)
        writes = graphs.Writes(self._graph)
        reached = self._of_gradients.add_all(ops)
        found = [op for op in reached if writes.variables(op)]
        found = [op for op in found if not op.name.startswith(graphs.OURS)]
        found.sort(key=tf_private.number_of)
        self._found.update(found)
        self._untold += found


def join_written_by_hand(
    found: Iterable[Tuple[List[TrainOp], Set[tf.Operation]]], by_hand: Set[tf.Operation]
) -> List[List[TrainOp]]:
    """The elements, grouped as in `found`; but all updates that no optimizer made share one group.

    A sum of gradients, or a hand-written descent, makes one step in several writes: all of them are
    made, or none.

    Args:
      found: elements of one run, with the updates that they need.
      by_hand: writes of gradients that are no optimizer's updates.
    """
    joined: List[TrainOp] = []
    groups = [joined]
    for elements, updates in found:
        if updates <= by_hand and not any(map(graphs.is_apply, updates)):
            joined += elements
        else:
            groups.append(elements)
    return [elements for elements in groups if elements]


class _OfGradients:
    """The ops of a graph that make a gradient, or compute something from one."""

    def __init__(self) -> None:
        self._known: Set[tf.Operation] = set()

    def add_all(self, ops: Iterable[tf.Operation]) -> List[tf.Operation]:
        """Notes the ops among `ops`, in the order they were made, that are such; returns them.

        Older ops may become such with them. An op in a branch or a loop is older than the Switch or
        Enter that gives it its inputs, which is put in between once the op exists; the same holds
        for the back edge of a loop.
        """
        added: List[tf.Operation] = []
        for op in ops:
            if op not in self._known and self._is_one(op):
                self._add(op, added)
        return added

    def _is_one(self, op: tf.Operation) -> bool:
        if tf_private.op_that_was_differentiated(op) is not None:
            return True
        return any(tensor.op in self._known for tensor in _data_of(op))

    def _add(self, op: tf.Operation, added: List[tf.Operation]) -> None:
        waiting = [op]
        while waiting:
            op = waiting.pop()
            if op not in self._known:
                self._known.add(op)
                added.append(op)
                waiting += [taker for output in op.outputs for taker in _takers(output)]


def _data_of(op: tf.Operation) -> Sequence[tf.Tensor]:
    """An op's inputs, but not the condition of a Switch, which is part of no value."""
    # To count the outputs is quicker than to ask for the type, and this is asked of every op.
    return op.inputs[:1] if len(op.outputs) == 2 and op.type in SWITCHES else op.inputs


def _takers(tensor: tf.Tensor) -> List[tf.Operation]:
    """The ops that compute something from a tensor.

    Lists are left out: differentiating a loop gives it empty lists for values that the gradient
      needs. They do not make the loop's results gradients.
    """
    if tensor.dtype in (tf.variant, tf.resource):
        return []
    wanted = graphs.key(tensor)
    return [op for op in tensor.consumers() if wanted in map(graphs.key, _data_of(op))]

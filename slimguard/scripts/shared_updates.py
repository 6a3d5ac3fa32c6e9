"""Which of the elements fetched in a run train, and which of those need the same updates."""

from typing import Any, List, Optional, Sequence, Set, Tuple

import tensorflow as tf

from slimguard import gate as gates
from slimguard import graph as graphs
from slimguard.graph import TrainOp, key, op_of
from slimguard.scripts.gradient_writes import GradientWrites, join_written_by_hand
from slimguard.scripts.optimizer_notes import OptimizerNotes


class SharedUpdates:
    """Finds what trains in one graph.

    Args:
      graph: the graph.
      notes: what the optimizers have made.
      gradient_writes: the updates that are written by hand.
    """

    def __init__(self, graph: tf.Graph, notes: OptimizerNotes, gradient_writes: GradientWrites):
        self._graph = graph
        self._notes = notes
        self._gradient_writes = gradient_writes

    def by_update(
        self, elements: Sequence[TrainOp], fed: Sequence[tf.Tensor] = ()
    ) -> List[List[TrainOp]]:
        """The elements that train; in one list, those that one gate is to be of.

        Args:
          elements: what a run fetches.
          fed: the tensors computed within the step that it feeds.
        """
        found: List[Tuple[List[TrainOp], Set[tf.Operation]]] = []  # with the updates that they need
        for element in each_once(elements):
            op = _op_to_search(element)
            if op is None or graphs.is_enqueue(op):
                continue
            updates = self._updates_in(op, fed)
            if not updates:
                continue
            apart = [group for group in found if not group[1] & updates]
            shared = [group for group in found if group[1] & updates]
            joined = [each for group in shared for each in group[0]] + [element]
            found = apart + [(joined, updates.union(*(group[1] for group in shared)))]
        noted = set(map(op_of, self._notes.updates(self._graph)))
        return join_written_by_hand(found, self._gradient_writes.all() - noted)

    def _updates_in(self, op: tf.Operation, fed: Sequence[tf.Tensor]) -> Set[tf.Operation]:
        noted = set(map(op_of, self._notes.updates(self._graph))) | self._gradient_writes.all()
        writes = graphs.Writes(self._graph) if self._notes.has_functions(self._graph) else None
        return {
            needed
            for needed in graphs.ancestors_beyond(fed, [op])
            if graphs.is_apply(needed)
            or needed in noted
            # An If, a While, a call: the update may be in its function.
            or (writes is not None and needed in writes and writes.calls(needed))
        }


def _op_to_search(element: TrainOp) -> Optional[tf.Operation]:
    """Where to look for what an element updates; None if it is one of ours that guards nothing."""
    if gates.gate_of(element) is not None:
        return op_of(element)
    original = gates.original_of(element)
    if original is element and op_of(element).name.startswith(graphs.OURS):
        return None
    return op_of(original)


def each_once(elements: Sequence[TrainOp]) -> List[TrainOp]:
    """The elements, each once."""
    return list({element_key(each): each for each in elements}.values())


def element_key(element: TrainOp) -> Any:
    return element if isinstance(element, tf.Operation) else key(element)

"""Finds the fetched elements of a run that train, and groups those that need a common gate.

`ends_of` guesses, before any run, which ops around an update a script will fetch.
"""

import collections
from typing import Any, Callable, Iterator, List, Optional, Sequence, Set, Tuple

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard import graph as graphs
from slimguard.compat import tf_private
from slimguard.gate.arguments import is_made_inside
from slimguard.gate.gate import through_gates
from slimguard.graph import TrainOp, key, op_of
from slimguard.unedited.optimizer_notes import OptimizerNotes


class SharedUpdates:
    """Finds and groups the fetched elements that train, in one graph.

    Args:
      graph: the graph.
      notes: the results of the optimizers.
    """

    def __init__(self, graph: tf.Graph, notes: OptimizerNotes):
        self._graph = graph
        self._notes = notes

    def by_update(
        self, elements: Sequence[TrainOp], fed: Sequence[tf.Tensor] = ()
    ) -> List[List[TrainOp]]:
        """The elements that train, in lists; elements of one list need the same update.

        Args:
          elements: what a run fetches.
          fed: the computed tensors that the run feeds, see `inner_feeds`.
        """
        known = set(map(op_of, self._notes.updates(self._graph)))
        known.update(self._notes.writes_of_gradients(self._graph))
        by_hand = set(self._notes.written_by_hand(self._graph))
        training: List[Tuple[List[TrainOp], Set[Any]]] = []
        for element, needed in self._needed_by(elements, fed):
            updates = self._updates_in(needed, known)
            if updates and updates <= by_hand:
                # A sum of gradients, or a hand-written descent, is one step with several writes:
                # all of these are made, or none.
                updates = {_BY_HAND, *updates}
            if updates:
                training.append(([element], updates))
        return _sharing(training)

    def join(
        self,
        groups: Sequence[List[TrainOp]],
        elements: Sequence[TrainOp],
        fed: Sequence[tf.Tensor],
        gated_writes: Callable[[Sequence[TrainOp]], Set[tf.Operation]],
    ) -> List[List[TrainOp]]:
        """The same groups; each also has all elements that make, or wait for, a write of its gate.

        A gate runs clones of the writes it holds back. If a run also fetched the original of such a
        write, the write would bypass the gate. Examples are an average that the train op also
        updates, a loss that waits for a write, and a counter that two train ops share. So the gate
        gets these elements, too.

        Args:
          groups: lists of elements; each list gets one gate.
          elements: what a run fetches.
          fed: as for `by_update`.
          gated_writes: returns the writes that a gate of some elements runs clones of.
        """
        writes = graphs.Writes(self._graph)
        written = {
            element_key(element): {op for op in needed if op in writes}
            for element, needed in self._needed_by(elements, fed)
        }
        grouped = {element_key(each) for group in groups for each in group}
        rest = [[each] for each in each_once(elements) if element_key(each) not in grouped]
        some = [*groups, *rest]
        made = [set().union(*(written.get(element_key(e), ()) for e in each)) for each in some]
        times = collections.Counter(write for each in made for write in each)
        gated: Set[tf.Operation] = set()
        for group, own in zip(groups, made):
            if any(times[write] > 1 for write in own):  # else the group shares no write
                gated |= gated_writes(group)
        # A group's other writes belong to a forward pass; its gate undoes them.
        forward = set().union(*made[: len(groups)]) - gated
        joined = _sharing([(each, own - forward) for each, own in zip(some, made)])
        return [each for each in joined if element_key(each[0]) in grouped]

    def _needed_by(
        self, elements: Sequence[TrainOp], fed: Sequence[tf.Tensor]
    ) -> Iterator[Tuple[TrainOp, List[tf.Operation]]]:
        """Yields each element once, with the ops that a run of it needs."""
        needs = through_gates(self._graph, fed)
        for element in each_once(elements):
            op = _op_to_search(element)
            if op is not None and not graphs.is_enqueue(op):
                yield element, graphs.ancestors([op], needs)

    def _updates_in(
        self, needed: Sequence[tf.Operation], known: Set[tf.Operation]
    ) -> Set[tf.Operation]:
        writes = graphs.Writes(self._graph) if self._notes.has_functions(self._graph) else None
        return {
            op
            for op in needed
            if graphs.is_apply(op)
            or op in known
            # The update may be in the function of an If, a While or a call.
            or (writes is not None and op in writes and writes.calls(op))
        }


_BY_HAND = object()


def _sharing(given: Sequence[Tuple[List[TrainOp], Set[Any]]]) -> List[List[TrainOp]]:
    """Joins the lists of elements whose sets overlap, directly or through other sets."""
    groups: List[Tuple[List[TrainOp], Set[Any]]] = []
    for elements, items in given:
        numbers = [n for n, (_, others) in enumerate(groups) if not others.isdisjoint(items)]
        place = numbers[0] if numbers else len(groups)
        same = [*(groups[n] for n in numbers), (elements, items)]
        groups = [each for n, each in enumerate(groups) if n not in numbers]
        together = [element for each, _ in same for element in each]
        groups.insert(place, (together, set().union(*(items for _, items in same))))
    return [elements for elements, _ in groups]


def _op_to_search(element: TrainOp) -> Optional[tf.Operation]:
    """The op to search for an element's updates; None if it is our own and no guarded train op."""
    original = gates.original_of(element)
    if original is element and is_ours(element):
        return None
    return op_of(original)


def is_ours(element: TrainOp) -> bool:
    """Whether slimguard made an element."""
    return op_of(element).name.startswith(graphs.OURS)


def each_once(elements: Sequence[TrainOp]) -> List[TrainOp]:
    """The elements, each once."""
    return list({element_key(each): each for each in elements}.values())


def element_key(element: TrainOp) -> Any:
    return element if isinstance(element, tf.Operation) else key(element)


# How many ops that are built around an update are guarded before any of them runs.
_MOST_ENDS = 4


def ends_of(update: TrainOp) -> List[TrainOp]:
    """The ops around an update that a script may have built to fetch; if many, only the update."""
    wanted = {op_of(e): e for e in op_of(update).graph.get_collection(tf1.GraphKeys.TRAIN_OP)}
    seen = {op_of(update)}
    waiting = [op_of(update)]
    ends: List[TrainOp] = []
    while waiting:
        op = waiting.pop()
        after = [taker for tensor in op.outputs for taker in tensor.consumers()]
        after += tf_private.ops_waiting_for(op)
        after = [each for each in after if not each.name.startswith(graphs.OURS)]
        # No enqueue op: a queue runner's thread runs it. In this way the chief of a
        # SyncReplicasOptimizer makes its update, and then enqueues the tokens that the workers wait
        # for. A gate around the enqueue op would hold the tokens back, so the update is guarded
        # with the workers' train op.
        if (not after or op in wanted) and not graphs.is_enqueue(op):
            is_value = op.type in ('Identity', 'CheckNumerics') and op not in wanted
            ends.append(op.outputs[0] if is_value else wanted.get(op, op))
        waiting.extend(each for each in after if each not in seen)
        seen.update(after)
    if len(ends) > _MOST_ENDS:  # each resource write has a read that few scripts fetch
        ends = [each for each in ends if not graphs.is_variable_read(op_of(each))]
    if len(ends) <= _MOST_ENDS:
        return ends
    return [] if is_made_inside(update) else [update]

"""Feeds within a step: what lies behind a tensor that is fed does not run for it.

A script may feed any tensor: features in the place of what computes them, a
`placeholder_with_default` in the place of the next batch. In such a run a session leaves out what
the tensor is computed from, and so has a guard to.
"""

from typing import Any, Dict, List, Sequence, Tuple

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.diagnosis.draws import Draws
from slimguard.graph import TrainOp, key, op_of
from slimguard.training.fetch_structures import fetched_elements

# A script that makes what it feeds by, such as names, anew each time has no use for them.
_MOST_KNOWN = 1000


class InnerFeeds:
    """Finds, in what the runs on one graph feed, the tensors that a step computes itself."""

    def __init__(self, graph: tf.Graph):
        self.graph = graph
        # By the ids of what is fed, which is kept so that nothing else gets them.
        self._known: Dict[Tuple[int, ...], Tuple[Tuple[tf.Tensor, ...], List[Any]]] = {}

    def of(self, feed_dict: Any) -> Tuple[tf.Tensor, ...]:
        """Those of the tensors fed which are no input: each is computed, or has something behind.

        Args:
          feed_dict: as a session takes it.
        """
        if not feed_dict or not isinstance(feed_dict, dict):
            return ()
        asked = tuple(map(id, feed_dict))
        known = self._known.get(asked)
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            fed = list(feed_dict)
            known = self._known[asked] = tuple(filter(self._is_inner, self._tensors(fed))), fed
        return known[0]

    def _tensors(self, fed: List[Any]) -> List[tf.Tensor]:
        elements = fetched_elements(fed, self.graph)
        return [each for each in elements if isinstance(each, tf.Tensor)]

    def _is_inner(self, tensor: tf.Tensor) -> bool:
        if tensor.op.type == 'Placeholder':
            return False
        behind = graphs.ancestors([tensor.op])
        draws, writes = Draws(self.graph, behind), graphs.Writes(self.graph)
        if tensor.op not in draws or tensor.op in writes:
            return True
        return any(op in draws or op in writes for op in behind if op is not tensor.op)


def are_taken(fed: Sequence[tf.Tensor], elements: Sequence[TrainOp]) -> bool:
    """Whether a run of `elements` takes one of the tensors that are fed."""
    roots = [op_of(each) for each in not_fed(elements, fed)]
    taken = {key(t) for op in graphs.ancestors_beyond(fed, roots) for t in op.inputs}
    return not taken.isdisjoint(map(key, fed))


def not_fed(elements: Sequence[TrainOp], fed: Sequence[tf.Tensor]) -> List[TrainOp]:
    """Those of the elements that are fetched which a run computes, and is not fed."""
    keys = {key(tensor) for tensor in fed}
    return [e for e in elements if isinstance(e, tf.Operation) or key(e) not in keys]

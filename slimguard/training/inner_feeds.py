"""Feeds within a step: what lies behind a tensor that is fed does not run, and draws nothing.

A script may feed any tensor: features in the place of what computes them, a
`placeholder_with_default` in the place of the next batch. In such a run a session leaves out what
the tensor is computed from, and so has a guard to.
"""

from typing import Any, Dict, List, Sequence, Tuple

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.diagnosis.draws import Draws
from slimguard.graph import TrainOp, op_of
from slimguard.training.fetch_structures import fetched_elements

# A script that makes what it feeds by, such as names, anew each time has no use for them.
_MOST_KNOWN = 1000


class InnerFeeds:
    """Finds, in what the runs on one graph feed, the tensors behind which something is drawn."""

    def __init__(self, graph: tf.Graph):
        self.graph = graph
        # By the ids of what is fed, which is kept so that nothing else gets them.
        self._known: Dict[Tuple[int, ...], Tuple[Tuple[tf.Tensor, ...], List[Any]]] = {}

    def of(self, feed_dict: Any) -> Tuple[tf.Tensor, ...]:
        """The tensors behind which something is drawn; `feed_dict` is as a session takes it."""
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
        behind = graphs.ancestors(list(graphs.needs(tensor.op)))
        draws = Draws(self.graph, behind)
        return any(op in draws for op in behind)


def spares_draws(fed: Sequence[tf.Tensor], elements: Sequence[TrainOp]) -> bool:
    """Whether feeding some tensors spares a run of `elements` something that it would draw."""
    roots = [op_of(each) for each in elements]
    everything = graphs.ancestors(roots)
    left_out = set(everything) - set(graphs.ancestors_beyond(fed, roots)) - {t.op for t in fed}
    draws = Draws(everything[0].graph, everything) if left_out else ()
    return any(op in draws for op in left_out)

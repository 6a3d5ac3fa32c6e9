"""Runs that come again, told apart by what they fetch, and by what they feed within a step.

A script may feed any tensor: features in the place of what computes them, a
`placeholder_with_default` in the place of the next batch. In such a run a session leaves out what
the tensor is computed from, and so has a guard to: :func:`inner_feeds`.
"""

from typing import Any, Callable, Dict, Hashable, List, Sequence, Tuple

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.diagnosis.draws import Draws
from slimguard.graph import TrainOp, key, op_of
from slimguard.training.fetch_structures import fetched_elements, key_of, map_fetches

# If a loop makes its fetches or feeds anew for each step, remembering them is of no use.
_MOST_KNOWN = 1000

_KEPT_AS = '_slimguard_inner_feeds'


class RunKinds:
    """Remembers results for runs that come again: the same fetches, the same computed feeds."""

    def __init__(self) -> None:
        # With a copy of the fetches, so that no other object gets the ids in the key.
        self._known: Dict[Any, Tuple[Any, Any]] = {}

    def of(
        self,
        make: Callable[..., Any],
        fetches: Any,
        fed: Sequence[tf.Tensor] = (),
        *more: Hashable,
        asked: Any = None,
    ) -> Any:
        """The result of `make(fetches, fed, *more)` for the first such run.

        Args:
          make: called for the first such run; no reference to it is kept.
          fetches: what is fetched, of any structure.
          fed: the feeds within, see `inner_feeds`.
          *more: other values that identify the kind.
          asked: a key that identifies `fetches`; None to identify them by their parts.
        """
        asked = key_of(fetches) if asked is None else asked
        asked = (asked, *map(key, fed), *more) if fed or more else asked
        known = self._known.get(asked)
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            kept = map_fetches(fetches, lambda fetch: fetch)
            known = self._known[asked] = make(kept, fed, *more), kept
        return known[0]


def inner_feeds(graph: tf.Graph, feed_dict: Any) -> Sequence[tf.Tensor]:
    """The fed tensors that are not inputs: tensors that the graph computes.

    Args:
      graph: the graph of the session.
      feed_dict: as a session takes it.
    """
    if not feed_dict or not isinstance(feed_dict, dict):
        return ()
    # By the ids of the fed tensors, which are kept so that no other object gets them.
    memory = getattr(graph, _KEPT_AS, None)
    if memory is None:
        memory = {}
        setattr(graph, _KEPT_AS, memory)
    asked = tuple(map(id, feed_dict))
    known = memory.get(asked)
    if known is None:
        if len(memory) >= _MOST_KNOWN:
            memory.clear()
        fed = fetched_elements(list(feed_dict), graph)
        inner = [each for each in fed if isinstance(each, tf.Tensor) and _is_inner(each, graph)]
        known = memory[asked] = inner, list(feed_dict)
    return known[0]


def _is_inner(tensor: tf.Tensor, graph: tf.Graph) -> bool:
    if tensor.op.type == 'Placeholder':
        return False
    behind = graphs.ancestors([tensor.op])
    draws, writes = Draws(graph, behind), graphs.Writes(graph)
    if tensor.op not in draws or tensor.op in writes:
        return True
    return any(op in draws or op in writes for op in behind if op is not tensor.op)


def are_taken(fed: Sequence[tf.Tensor], elements: Sequence[TrainOp]) -> bool:
    """Whether a run of `elements` takes one of the tensors that are fed."""
    roots = [op_of(each) for each in not_fed(elements, fed)]
    taken = {key(t) for op in graphs.ancestors_beyond(fed, roots) for t in op.inputs}
    return not taken.isdisjoint(map(key, fed))


def not_fed(elements: Sequence[TrainOp], fed: Sequence[tf.Tensor]) -> List[TrainOp]:
    """The fetched elements that a run computes rather than gets fed."""
    keys = {key(tensor) for tensor in fed}
    return [e for e in elements if isinstance(e, tf.Operation) or key(e) not in keys]

"""Structures of fetches and feeds, and a cache of results for them.

A run may fetch any nested structure: the functions here take it apart and rebuild it. A run may
also feed any tensor: features in place of the ops that compute them, or a
`placeholder_with_default` in place of the next batch. Then the session does not run the ops behind
the fed tensor, and the guard must not run them either: :func:`inner_feeds` finds such tensors.
"""

import collections.abc
import copy
from typing import Any, Callable, Dict, Hashable, Iterator, List, Optional, Sequence, Tuple

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.diagnosis.draws import Draws
from slimguard.graph import TrainOp, key, op_of


def parts_of(fetches) -> Optional[Tuple[List[Any], Callable[[Any], Any]]]:
    """The parts of a structure, and a function that rebuilds it from new parts; None for one fetch.

    The structures are those that `Session.run` knows. A session returns values in structures of the
    same types, but a plain list for any kind of list.
    """
    kind: Any = type(fetches)
    if isinstance(fetches, list):
        return fetches, list
    if isinstance(fetches, tuple):
        return list(fetches), getattr(kind, '_make', kind)  # _make: of a namedtuple
    if isinstance(fetches, collections.abc.MutableMapping):
        names = list(fetches)

        def filled(parts):
            copied = copy.copy(fetches)  # a defaultdict, for example, needs more than its items
            for name, part in zip(names, parts):
                copied[name] = part
            return copied

        return [fetches[name] for name in names], filled
    if isinstance(fetches, collections.abc.Mapping):
        return list(fetches.values()), lambda parts: kind(dict(zip(fetches, parts)))
    if hasattr(kind, '__attrs_attrs__'):  # `attr.s` has decorated the class
        values = [getattr(fetches, field.name) for field in kind.__attrs_attrs__]
        return values, lambda parts: kind(*parts)
    return None


# A session fetches each of these as several tensors.
_COMPOSITE = (tf.SparseTensor, tf.IndexedSlices, tf.RaggedTensor)


def map_fetches(fetches, replace: Callable[[Any], Any]):
    """`fetches` with each single fetch replaced; a run returns values in the same structure."""
    structure = parts_of(fetches)
    if structure is not None:
        parts, make = structure
        return make([map_fetches(each, replace) for each in parts])
    if isinstance(fetches, _COMPOSITE):
        return tf.nest.map_structure(replace, fetches, expand_composites=True)
    return replace(fetches)


def fetched_elements(fetches, graph: tf.Graph) -> list:
    """The Tensors and Operations in a `fetches` argument of `Session.run`, of any structure."""
    elements = []
    for fetch in leaves(fetches):
        try:
            elements.append(graph.as_graph_element(fetch))
        except (TypeError, ValueError, KeyError):
            continue  # the session will raise its own error
    return elements


def leaves(fetches) -> Iterator[Any]:
    """The single fetches in a structure of fetches, or the values in a structure of values."""
    structure = parts_of(fetches)
    if structure is not None:
        for each in structure[0]:
            yield from leaves(each)
    elif isinstance(fetches, tf.SparseTensor):
        # Not `tf.nest`: on TensorFlow 1.15 it reads the shape, and then no run may feed the tensor.
        yield from (fetches.indices, fetches.values, fetches.dense_shape)
    else:
        yield from tf.nest.flatten(fetches, expand_composites=True)


_ELEMENTS = (tf.Tensor, tf.Operation)


def key_of(fetches):
    """A hashable key for `fetches`, equal for the same objects in the same structure."""
    kind = type(fetches)
    if issubclass(kind, _ELEMENTS):  # the usual case first: the checks below are slow
        return id(fetches)
    if isinstance(fetches, (list, tuple)):
        return (kind,) + tuple([key_of(fetch) for fetch in fetches])
    if isinstance(fetches, collections.abc.Mapping):
        return (kind, *fetches, *[key_of(fetch) for fetch in fetches.values()])
    structure = parts_of(fetches)
    if structure is not None:
        return (kind,) + tuple([key_of(fetch) for fetch in structure[0]])
    return fetches if kind is str else id(fetches)


# Caches are cleared at this size: a loop may make new fetches or feeds in each step.
_MOST_KNOWN = 1000

_KEPT_AS = '_slimguard_inner_feeds'


class RunKinds:
    """A cache of results by kind of run, that is, by its fetches and its computed feeds."""

    def __init__(self) -> None:
        # Each with a copy of its fetches: while they exist, no other object gets the ids in the
        # key.
        self._known: Dict[Any, Tuple[Any, Any]] = {}

    def of(
        self,
        make: Callable[..., Any],
        fetches: Any,
        fed: Sequence[tf.Tensor] = (),
        *more: Hashable,
        asked: Any = None,
    ) -> Any:
        """The result of `make(fetches, fed, *more)`, called for the first run of each kind only.

        Args:
          make: called for the first run of a kind; not kept.
          fetches: what is fetched, of any structure.
          fed: the computed feeds, see `inner_feeds`.
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
    """The fed tensors that are no inputs of the graph: other ops would compute their values.

    Args:
      graph: the graph of the session.
      feed_dict: as a session takes it.
    """
    if not feed_dict or not isinstance(feed_dict, dict):
        return ()
    # By the ids of the fed tensors. Keep the tensors, so that no other object gets their ids.
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
    """Whether a run of `elements` reads one of the fed tensors."""
    roots = [op_of(each) for each in not_fed(elements, fed)]
    taken = {key(t) for op in graphs.ancestors_beyond(fed, roots) for t in op.inputs}
    return not taken.isdisjoint(map(key, fed))


def not_fed(elements: Sequence[TrainOp], fed: Sequence[tf.Tensor]) -> List[TrainOp]:
    """The fetched elements that a run computes, without those that it feeds."""
    keys = {key(tensor) for tensor in fed}
    return [e for e in elements if isinstance(e, tf.Operation) or key(e) not in keys]

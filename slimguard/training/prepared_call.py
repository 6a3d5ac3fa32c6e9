"""A `session.run` prepared once: fixed fetches and feeds, and how to split the result by hook.

A session keeps nothing of a run from one to the next: each time it takes `fetches` apart, feeds
by name, and puts the values together. On a small model that takes as long as the step. So a run
that comes again is prepared once and called by handle after that: :class:`PreparedCall`.
"""

import collections
import collections.abc
import operator
from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy as np
import tensorflow as tf

from slimguard.graph.fixed_runs import fixed_run
from slimguard.training.fetch_structures import attrs_values, is_attrs

# Each takes an executor of its own in the session, and its memory.
MOST_CALLS = 16


class PreparedCall:
    """A run that was prepared: what to fetch and to feed is settled, and what hooks get of it."""

    @classmethod
    def of(
        cls,
        session,
        own: Sequence[tf.Tensor],
        targets: Sequence[tf.Operation],
        fetches: dict,
        feeds: dict,
    ) -> Optional['PreparedCall']:
        """A prepared run, or None if it takes the session itself to understand what is asked.

        Args:
          session: a `tf.compat.v1.Session`.
          own: the tensors to fetch for ourselves.
          targets: what to run besides.
          fetches: by hook, what else to fetch.
          feeds: what is fed; the values are not looked at.
        """
        if not all(isinstance(tensor, tf.Tensor) for tensor in feeds):
            return None
        wanted = _Wanted(session.graph, fed=[tensor.name for tensor in feeds])
        try:
            wanted.reader(list(own))
            wanted.reader(list(targets))
            readers = {hook: wanted.reader(fetch) for hook, fetch in fetches.items()}
        except (TypeError, ValueError, KeyError):
            return None
        return cls(session, len(own), wanted, readers, fetches, feeds)

    def __init__(self, session, own, wanted, readers, fetches, feeds):
        self._own = own
        self._readers = list(readers.items())
        self._feeds = [_Feed(tensor) for tensor in feeds]
        self._kept = fetches, feeds  # so that no other object gets the ids in `key_of`
        self._run = fixed_run(
            session, [tensor.name for tensor in feeds], wanted.tensors, wanted.operations
        )

    def values_of(self, feeds: dict) -> Optional[list]:
        """The values as a prepared run takes them; None if the session has to convert one."""
        if not feeds:
            return []
        values = [feed.ready(value) for feed, value in zip(self._feeds, feeds.values())]
        return None if any(value is None for value in values) else values

    def __call__(self, feed_values: Sequence[np.ndarray]):
        """Our own values, and by hook those of its fetches."""
        values = self._run(*feed_values)
        return values[: self._own], {hook: read(values) for hook, read in self._readers}


class PreparedCalls:
    """What is prepared in one session, by what is asked of it: `MOST_CALLS` kinds at most."""

    def __init__(self) -> None:
        self._prepared: Dict[Any, Any] = {}

    def of(self, asked: Any, prepare: Callable[..., Any], *args: Any) -> Any:
        """What `prepare` returned, of `args`, when this was asked for first.

        None where the session has to see to the run: there are too many kinds, or TensorFlow
        refuses this one, which the session says in the words of a run.
        """
        if asked in self._prepared:
            return self._prepared[asked]
        if len(self._prepared) >= MOST_CALLS:
            return None
        self._prepared[asked] = None
        try:
            self._prepared[asked] = prepare(*args)
        except tf.errors.OpError:
            pass
        return self._prepared[asked]

    def clear(self) -> None:
        self._prepared.clear()


class _Wanted:
    """The tensors and operations of a run, each once."""

    def __init__(self, graph: tf.Graph, fed: Sequence[str]):
        self._graph = graph
        self._fed = fed
        self.tensors: List[str] = []
        self.operations: List[str] = []

    def reader(self, fetches) -> Callable[[list], Any]:
        """Takes the values of `fetches` out of those of all tensors, in the same structure.

        Raises:
          TypeError, ValueError, KeyError: if there is more to it than we know.
        """
        kind = type(fetches)
        if kind in (list, tuple) or _is_namedtuple(kind):
            parts = [self.reader(fetch) for fetch in fetches]
            make: Callable[[list], Any] = getattr(kind, '_make', kind)  # that of a namedtuple
            return lambda values: make([part(values) for part in parts])
        if kind in (dict, collections.OrderedDict):
            named = [(name, self.reader(fetch)) for name, fetch in fetches.items()]
            return lambda values: kind([(name, part(values)) for name, part in named])
        element = self._graph.as_graph_element(fetches)
        if isinstance(element, tf.Operation):
            self.operations.append(element.name)
            return lambda values: None
        if element.name in self._fed or not self._graph.is_fetchable(element):
            raise ValueError(element.name)
        if element.name not in self.tensors:
            self.tensors.append(element.name)
        return operator.itemgetter(self.tensors.index(element.name))


class _Feed:
    """A tensor that is fed."""

    def __init__(self, tensor: tf.Tensor):
        self._dtype = tensor.dtype
        self._numpy = np.dtype(tensor.dtype.as_numpy_dtype)
        self._shape = tensor.shape
        self._fits: Optional[tuple] = None

    def ready(self, value: Any) -> Optional[np.ndarray]:
        """`value` as it is fed; None if the session has to see to it."""
        array: Any = value
        if not isinstance(value, np.ndarray) or value.dtype != self._numpy:
            array = self._converted(value)
            if array is None:
                return None
        if array.shape != self._fits:
            if not self._shape.is_compatible_with(array.shape):
                return None
            self._fits = array.shape
        return array

    def _converted(self, value: Any) -> Optional[np.ndarray]:
        """The array that a session makes of numbers; None if it makes none, or takes them for more.

        What a session refuses it is to refuse in its own words.
        """
        if self._numpy.kind not in 'biuf' or not isinstance(value, _NUMBERS):
            return None
        try:
            array = np.asarray(value, self._numpy)
        except Exception:
            return None
        return None if isinstance(value, int) and array != value else array


_NUMBERS = (bool, int, float, list, np.ndarray, np.generic)


def are_ready(feeds: dict) -> bool:
    """Whether a prepared run takes these values for these tensors, as `PreparedCall.values_of`."""
    return all(
        isinstance(tensor, tf.Tensor) and _Feed(tensor).ready(value) is not None
        for tensor, value in feeds.items()
    )


_ELEMENTS = (tf.Tensor, tf.Operation)


def key_of(fetches):
    """A key for `fetches`: the same for the same things in the same structure."""
    kind = type(fetches)
    if issubclass(kind, _ELEMENTS):  # most often; the others take a while to ask for
        return id(fetches)
    if isinstance(fetches, (list, tuple)):
        return (kind,) + tuple([key_of(fetch) for fetch in fetches])
    if isinstance(fetches, collections.abc.Mapping):
        return kind, tuple(fetches), tuple([key_of(fetch) for fetch in fetches.values()])
    if is_attrs(fetches):
        return (kind,) + tuple([key_of(fetch) for fetch in attrs_values(fetches)])
    return fetches if kind is str else id(fetches)


def _is_namedtuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, '_fields')

"""`session.run` prepared once for each kind of run, and called by handle: :class:`PreparedRuns`.

In each run, a session takes the fetches apart, feeds by name, and puts the values together. On a
small model this takes as long as the step. Here the first run of a kind is prepared, and later runs
call its handle, which gives the same values and errors in less time. Fetches and feeds that only
the session can interpret go to the session.
"""

import collections
import functools
import operator
import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.compat import tf_callers, tf_private
from slimguard.graph.sessions import REPLACES
from slimguard.graph.single_runs import fixed_run
from slimguard.training.fetch_structures import key_of, map_fetches, parts_of
from slimguard.training.hook_calls import HookFetches

# The most kinds to prepare: each takes memory for an executor in the session.
MOST_KINDS = 16

# Looking it up in TensorFlow's module at each run would take longer.
_Session = tf1.Session

_NO_FEEDS: Dict[tf.Tensor, Any] = {}


def run_of_session(session, fetches, feed_dict, options, run_metadata) -> Any:
    """Calls `session.run` without the arguments that are None: a user's class may not have them."""
    given = {'options': options, 'run_metadata': run_metadata}
    given = {name: value for name, value in given.items() if value is not None}
    return session.run(fetches, feed_dict, **given)


# Cached, since each run asks.
_is_tensorflows = functools.lru_cache(8)(tf_callers.is_method_of_sessions)


def has_own_run(session, run: Any = None) -> bool:
    """Whether a session is not wrapped and has TensorFlow's `run`: a profiler replaces it."""
    is_of_class = type(session) is _Session and 'run' not in vars(session)
    return is_of_class and _is_tensorflows(run or _Session.run)


def has_own_run_instrumented(session) -> bool:
    """As `has_own_run`; also True for the `run` of `instrument`, which passes on watched steps."""
    return has_own_run(session, getattr(_Session.run, REPLACES, None))


class PreparedRuns:
    """Makes the runs of one session, by prepared calls where possible.

    It holds no reference to the session, so the session may hold this object. Several threads may
    call it.

    Args:
      run: called like `run_of_session` for runs that cannot be prepared: with options, with feeds
        that are no tensors or whose values need a conversion, with structures that are not Python's
        own; runs that TensorFlow refuses; and all kinds beyond MOST_KINDS.
      prepares: whether a prepared call may replace a session's own call.
    """

    def __init__(
        self,
        run: Callable[..., Any] = run_of_session,
        prepares: Callable[[Any], bool] = has_own_run,
    ):
        self._run = run
        self._prepares = prepares
        self._known: Dict[Any, Optional[_PreparedRun]] = {}

    def run(
        self, session, fetches, feed_dict=None, options=None, run_metadata=None, key: Any = None
    ) -> Any:
        """As `tf.compat.v1.Session.run`.

        Args:
          session, fetches, feed_dict, options, run_metadata: as for `tf.compat.v1.Session.run`.
          key: identifies `fetches`; None to identify them by their parts.
        """
        feeds = feed_dict or _NO_FEEDS
        asks = options is not None and options.ByteSize()
        clears = run_metadata is not None and run_metadata.ByteSize()
        is_plain = not asks and not clears and type(feeds) is dict
        if is_plain and self._prepares(session) and not tf_private.is_closed(session):
            asked = key_of(fetches) if key is None else key
            asked = (asked, *map(id, feeds)) if feeds else asked
            known = self._known.get(asked, _UNKNOWN)
            if known is _UNKNOWN:
                known = self._prepare(asked, session, fetches, feeds)
            if known is not None:
                values = known.values_of(feeds) if feeds else ()
                if values is not None:
                    return known(values)
        return self._run(session, fetches, feed_dict, options, run_metadata)

    def clear(self) -> None:
        """Forgets all that is prepared."""
        self._known.clear()

    def _prepare(self, asked, session, fetches, feeds: dict) -> Optional['_PreparedRun']:
        if len(self._known) >= MOST_KINDS:
            return None
        self._known[asked] = None  # do not try again to prepare this run
        try:
            self._known[asked] = _PreparedRun(session, fetches, feeds)
        except (TypeError, ValueError, KeyError, tf.errors.OpError):
            pass  # the session raises its own error for such a run
        return self._known[asked]


_UNKNOWN: Any = object()


class _PreparedRun:
    """A prepared run: its fetches and feeds, and the structure of its results.

    Raises:
      TypeError, ValueError, KeyError: if only the session can interpret the fetches or feeds.
      tf.errors.OpError: if TensorFlow refuses it.
    """

    def __init__(self, session, fetches, feeds: dict):
        graph = session.graph
        if not all(isinstance(tensor, tf.Tensor) for tensor in feeds):
            raise TypeError(feeds)
        self._feeds = [_Feed(tensor) for tensor in feeds]
        if self.values_of(feeds) is None:
            raise ValueError(feeds)
        names = [tensor.name for tensor in feeds]
        tensors: List[str] = []
        targets: List[str] = []

        def place(fetch) -> int:
            """The index of a fetch's value among all values; an operation has the last index."""
            element = graph.as_graph_element(fetch)
            if isinstance(element, tf.Operation):
                targets.append(element.name)
                return -1
            if element.name in names or not graph.is_fetchable(element):
                raise ValueError(element.name)
            if element.name not in tensors:
                tensors.append(element.name)
            return tensors.index(element.name)

        # A copy, since lists may change. While it exists, no other object gets its ids.
        self._kept = map_fetches(fetches, lambda fetch: fetch), list(feeds)
        self._read = _reader(self._kept[0], place)
        self._run = fixed_run(session, names, tensors, targets)

    def values_of(self, feeds: dict) -> Optional[list]:
        """The values as a prepared run takes them; None if the session has to convert a value."""
        values = [feed.ready(value) for feed, value in zip(self._feeds, feeds.values())]
        return None if any(value is None for value in values) else values

    def __call__(self, feed_values: Sequence[np.ndarray]) -> Any:
        """The values of the fetches, in their structure."""
        values = self._run(*feed_values)
        values.append(None)  # the value of operations
        return self._read(values)


def _reader(fetches, place: Callable[[Any], int]) -> Callable[[list], Any]:
    """A function that picks the values of `fetches` from all values, in the same structure."""
    kind = type(fetches)
    is_known = kind in (list, tuple, dict, collections.OrderedDict) or _is_namedtuple(kind)
    structure = parts_of(fetches) if is_known else None
    if structure is None:
        return operator.itemgetter(place(fetches))
    parts, make = structure
    if len(parts) > 1 and not any(map(parts_of, parts)):
        take = operator.itemgetter(*map(place, parts))
        return take if kind is tuple else lambda values: make(take(values))
    readers = [_reader(part, place) for part in parts]
    return lambda values: make([read(values) for read in readers])


def _is_namedtuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, '_fields')


class _Feed:
    """A tensor that is fed."""

    def __init__(self, tensor: tf.Tensor):
        self._numpy = np.dtype(tensor.dtype.as_numpy_dtype)
        self._shape = tensor.shape
        self._fits: Optional[tuple] = None

    def ready(self, value: Any) -> Optional[np.ndarray]:
        """`value` as an array to feed; None if the session has to convert it."""
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
        """The array that a session would make of numbers; None for anything else.

        The session then converts the value, or raises its own error.
        """
        if self._numpy.kind not in 'biuf' or not isinstance(value, _NUMBERS):
            return None
        try:
            array = np.asarray(value, self._numpy)
        except Exception:
            return None
        return None if isinstance(value, int) and array != value else array


_NUMBERS = (bool, int, float, list, np.ndarray, np.generic)


# In place of a session's own `run`.


def prepare_steps(session) -> Callable[[], None]:
    """Makes a session use prepared calls for the steps that hooks watch.

    In every step a `MonitoredSession` calls its session's `run` with the same fetches, which
    include those of hooks, and with empty options.

    `HookFetches` checks the fetches of hooks first. Sessions of other classes than TensorFlow's
    own, and sessions whose `run` was replaced, stay as they are. In a cluster no run is prepared.

    Args:
      session: the session that hooks get when it is made.

    Returns:
      A function that restores the session's own `run`.
    """
    of_class = tf1.Session.run
    if type(session) is not tf1.Session or 'run' in vars(session):
        return lambda: None
    is_local = session.sess_str in ('', b'')
    prepares = is_local and tf_callers.is_method_of_sessions(of_class)
    here = weakref.ref(session)  # weak, since the session holds this function

    def run_by_class(session, *args):
        return tf1.Session.run(session, *args)  # looked up now: a profiler may replace it

    def is_own(session) -> bool:
        return prepares and tf1.Session.run is of_class

    steps, hook_fetches = PreparedRuns(run_by_class, is_own), HookFetches(session.graph)

    def run(fetches, feed_dict=None, options=None, run_metadata=None):
        if not _is_step(fetches):
            return run_by_class(here(), fetches, feed_dict, options, run_metadata)
        asked = key_of(fetches)
        hook_fetches.require_gated(fetches, feed_dict, asked)
        return steps.run(here(), fetches, feed_dict, options, run_metadata, asked)

    def end() -> None:
        session = here()
        if session is not None and vars(session).get('run') is run:
            del session.run
        steps.clear()

    session.run = run
    return end


def _is_step(fetches: Any) -> bool:
    """Whether a `MonitoredSession` makes this run as a step that also fetches for hooks."""
    return type(fetches) is dict and any(isinstance(k, tf1.train.SessionRunHook) for k in fetches)

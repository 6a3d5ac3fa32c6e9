"""The fast step: all that a step of slim's asks of a session, in one prepared call.

slim's `train_step` runs the session three times: for the step, and to ask whether to log and to
stop. :class:`FastStep` runs it once, and fetches what these are decided from: the loss, the global
step after the update, and the gate's flags. What hooks ask for joins the same call.

A session keeps nothing of a run from one to the next: each time it takes `fetches` apart, feeds
by name, and puts the values together. On a small model that takes as long as the step. So a run
that comes again is prepared once (:class:`_Call`) and called by handle after that.
"""

import collections
import operator
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1
from tensorflow.core.protobuf import config_pb2

from slimguard import gate as gates
from slimguard.graph import TrainOp, key
from slimguard.training.gate_watcher import GateWatcher
from slimguard.training.hook_fetches import Requests
from slimguard.training.watched_run import incident_of

# Runs that differ in what hooks fetch are prepared apart, up to this number of them. Each takes
# an executor of its own in the session, and its memory.
_MOST_CALLS = 16


class Done(NamedTuple):
    """What is known of a step once it is done."""

    loss: Any
    step: int  # the global step after it
    stop_requested: bool  # by a hook


class FastStep:
    """Runs steps of one train op in one session, with hooks.

    Use :meth:`of` to make one. Hooks get what they get in a `MonitoredSession`, except that a
    `GateWatcher` whose `before_run` and `after_run` are its own is not called for good steps: this
    looks at the gate's flags for it.
    """

    @classmethod
    def of(
        cls,
        session,
        hooks: Sequence[tf1.train.SessionRunHook],
        train_op: TrainOp,
        global_step,
    ) -> Optional['FastStep']:
        """A fast step, or None where it would not do what slim's step does."""
        if not _is_as_tensorflow_made_it(session) or not isinstance(train_op, tf.Tensor):
            return None
        gate = gates.gate_of(train_op)
        if gate is None or gate.step is None:
            return None
        if global_step is not tf1.train.get_global_step(session.graph):
            return None
        return cls(session, hooks, gate, global_step)

    def __init__(self, session, hooks, gate: gates.Gate, global_step):
        self._session = session
        self._hooks = hooks
        self._gate = gate
        self._args = tf1.train.SessionRunArgs([gate.train_op, global_step])
        context = self._context()
        watchers = [hook for hook in hooks if isinstance(hook, GateWatcher)]
        if not all(watcher.only_looks_at(gate, context) for watcher in watchers):
            watchers = []
        self._watchers: List[GateWatcher] = watchers
        asking = [hook for hook in hooks if hook not in watchers]
        self._asking = [hook for hook in asking if _has(hook, 'before_run')]
        self._looking = [hook for hook in asking if _has(hook, 'after_run')]
        # Somebody watches: nothing is to be announced by the graph, and nothing to be fed for that.
        self._own = [gate.quiet.train_op, gate.quiet.step, gate.quiet.bad]
        if gate.loss is not None and not _is_value_of(gate.quiet.train_op, gate.loss):
            self._own.append(gate.loss)
        evidence = [w.evidence[gate] for w in watchers if gate in w.evidence]
        self._targets = [one.fetch for one in dict.fromkeys(evidence)]
        self._calls: Dict[Any, Optional[_Call]] = {}
        self._max_loss: Optional[float] = None
        self._forget()

    def run(self) -> Done:
        """Runs a step, and calls the hooks as a `MonitoredSession` does."""
        if self._watchers and self._watchers[0].max_loss != self._max_loss:
            self._forget()  # it is fed
        context = requests = None
        if self._asking or self._looking:
            context = self._context()
            requests = Requests(self._asking, context)
        metadata = tf1.RunMetadata() if self._looking else None
        if requests is None or not (requests.fetches or requests.feeds or requests.run_options):
            own, results = self._plain(self._plain_values)
        else:
            own, results = self._run_with(requests, metadata)
        loss, step, bad = own[:3]
        if self._watchers and np.count_nonzero(bad):
            context = context or self._context()
            for hook in self._hooks:
                if hook in self._watchers:
                    hook.handle(context, self._incident(own), self._gate, bad)
                elif hook in self._looking:
                    _show([hook], context, requests, results, metadata)
        else:
            for watcher in self._watchers:
                watcher.step_was_good()
            if self._looking:
                _show(self._looking, context, requests, results, metadata)
        return Done(loss, int(step), context is not None and context.stop_requested)

    def _context(self) -> tf1.train.SessionRunContext:
        return tf1.train.SessionRunContext(self._args, self._session)

    def _forget(self) -> None:
        feeds = {}
        if self._watchers:
            self._max_loss = self._watchers[0].max_loss
            feeds = self._watchers[0].limits_of(self._gate)
        self._feeds = feeds
        self._calls.clear()
        self._plain = _Call.of(self._session, self._own, self._targets, {}, feeds)
        self._plain_values = self._plain.values_of(feeds)

    def _run_with(self, requests: Requests, metadata):
        """The values of our own fetches, and by hook those of its fetches."""
        # Checks for clashes too.
        feeds = requests.feeds_with(self._feeds) or {}
        if requests.run_options is None:
            call = self._call_for(requests, feeds)
            values = None if call is None else call.values_of(feeds)
            if values is not None:
                return call(values)
        fetches = [self._own, self._targets] + list(requests.fetches.values())
        own, _, *results = self._session.run(fetches, feeds, requests.run_options, metadata)
        return own, dict(zip(requests.fetches, results))

    def _call_for(self, requests: Requests, feeds: dict) -> Optional['_Call']:
        asked = tuple([(id(hook), _key_of(f)) for hook, f in requests.fetches.items()])
        asked += tuple(map(id, feeds))
        if asked not in self._calls:
            if len(self._calls) >= _MOST_CALLS:
                return None
            self._calls[asked] = _Call.of(
                self._session, self._own, self._targets, requests.fetches, feeds
            )
        return self._calls[asked]

    def _incident(self, own):
        loss, step, bad = own[:3]
        if self._gate.loss is None:
            loss = None
        return incident_of(self._gate, bad, step, own[3] if len(own) > 3 else loss)


class _Call:
    """A run that was prepared: what to fetch and to feed is settled, and what hooks get of it."""

    @classmethod
    def of(
        cls,
        session,
        own: Sequence[tf.Tensor],
        targets: Sequence[tf.Operation],
        fetches: dict,
        feeds: dict,
    ):
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
        self._kept = fetches, feeds  # so that no other object gets the ids in `_key_of`
        options = config_pb2.CallableOptions(
            feed=[tensor.name for tensor in feeds], fetch=wanted.tensors, target=wanted.operations
        )
        # `make_callable` is the public name; but that feeds by way of `run`, and takes longer to
        # put a list together than this takes to call. What errors look like is `_do_call`'s.
        self._session = session
        self._handle = session._do_call(session._make_callable_from_options, options)

    def values_of(self, feeds: dict) -> Optional[list]:
        """The values as a prepared run takes them; None if the session has to convert one."""
        values = [feed.ready(value) for feed, value in zip(self._feeds, feeds.values())]
        return None if any(value is None for value in values) else values

    def __call__(self, feed_values: Sequence[np.ndarray]):
        """Our own values, and by hook those of its fetches."""
        values = self._session._do_call(self._handle, *feed_values)
        return values[: self._own], {hook: read(values) for hook, read in self._readers}


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
            make = kind._make if _is_namedtuple(kind) else kind
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

    def ready(self, value) -> Optional[np.ndarray]:
        """`value`, if it is what is fed as it is, or a scalar that is easily made so."""
        if isinstance(value, bool) and self._dtype == tf.bool:
            value = np.array(value)
        elif isinstance(value, float) and self._dtype.is_floating:
            value = np.array(value, self._numpy)
        if not isinstance(value, np.ndarray) or value.dtype != self._numpy:
            return None
        if value.shape != self._fits:
            if not self._shape.is_compatible_with(value.shape):
                return None
            self._fits = value.shape
        return value


def _show(hooks, context, requests: Requests, results: dict, metadata) -> None:
    nothing = tf1.train.SessionRunValues(None, requests.options, metadata)
    for hook in hooks:
        fetched = hook in results
        hook.after_run(context, nothing._replace(results=results[hook]) if fetched else nothing)


def _key_of(fetches):
    """A key for `fetches`: the same for the same things in the same structure."""
    kind = type(fetches)
    if kind in (list, tuple) or _is_namedtuple(kind):
        return (kind,) + tuple([_key_of(fetch) for fetch in fetches])
    if kind in (dict, collections.OrderedDict):
        return kind, tuple(fetches), tuple([_key_of(fetch) for fetch in fetches.values()])
    return fetches if kind is str else id(fetches)


def _is_namedtuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, '_fields')


def _is_as_tensorflow_made_it(session) -> bool:
    """Whether nobody wraps the session or replaced its `run` (TensorFlow's own profiler does)."""
    if type(session) is not tf1.Session or 'run' in vars(session):
        return False
    run = getattr(tf1.Session.run, '__code__', None)
    return run is not None and run.co_filename == tf1.Session.close.__code__.co_filename


def _has(hook, name: str) -> bool:
    """Whether a hook does something in a call; what it inherits does nothing."""
    return getattr(getattr(hook, name), '__func__', None) is not getattr(
        tf1.train.SessionRunHook, name
    )


def _is_value_of(train_op: tf.Tensor, loss: tf.Tensor) -> bool:
    return train_op.op.type == 'Identity' and key(train_op.op.inputs[0]) == key(loss)

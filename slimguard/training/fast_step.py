"""The fast step: all that a step of slim's asks of a session, in one prepared call.

slim's `train_step` runs the session three times: for the step, and to ask whether to log and to
stop. :class:`FastStep` runs it once, and fetches what these are decided from: the loss, the global
step after the update, and the gate's flags. The fetches of hooks join the same call. A run that
comes again is prepared once: see :class:`PreparedCall`.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard import graph as graphs
from slimguard.compat import tf_callers
from slimguard.graph import TrainOp, key, op_of
from slimguard.graph.sessions import REPLACES
from slimguard.incidents.history import Entry
from slimguard.training.gate_watcher import GateWatcher
from slimguard.training.hook_fetches import Requests
from slimguard.training.incident_reading import Reading
from slimguard.training.prepared_call import PreparedCall, PreparedCalls, key_of
from slimguard.training.step_history import StepHistory, reading_of
from slimguard.training.watched_run import limits_of, take_untold
from slimguard.training.watchers import after_run_of, watchers_after


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
        if global_step is not graphs.global_step(session.graph):
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
        for watcher in watchers:
            watcher.before_step(session)
        asking = [hook for hook in hooks if hook not in watchers]
        self._asking = [hook for hook in asking if _has(hook, 'before_run')]
        self._looking = [hook for hook in asking if _has(hook, 'after_run')]
        # Somebody watches: nothing is to be announced by the graph, and nothing to be fed for that.
        self._own = [gate.quiet.train_op, gate.quiet.step, gate.quiet.bad]
        self._loss_at: Optional[int] = None if gate.loss is None else 0
        if gate.loss is not None and not _is_value_of(gate.quiet.train_op, gate.loss):
            self._loss_at = len(self._own)
            self._own.append(gate.loss)
        self._measures_at = len(self._own)
        self._histories: Dict[GateWatcher, StepHistory] = {}
        for watcher in watchers:
            history = watcher.histories.of(gate)
            if history is not None:
                self._histories[watcher] = history
        if self._histories:
            self._own.append(gate.measures.vector)
        evidence = dict.fromkeys(watcher.evidence_of(gate) for watcher in watchers)
        self._targets = [each.fetch for each in evidence if each is not None]
        self._beside = gate.beside if watchers else ()
        self._beside_at = len(self._own)
        self._own += [each.quiet_count for each in self._beside]
        self._calls = PreparedCalls()  # runs that differ in what hooks fetch
        self._max_loss: Optional[float] = None
        self._has_moving_limits = any(each.spike for each in self._histories.values())
        self._forget()

    def run(self) -> Done:
        """Runs a step, and calls the hooks as a `MonitoredSession` does."""
        if self._watchers and self._watchers[0].max_loss != self._max_loss:
            self._forget()  # it is fed
        elif self._has_moving_limits:
            self._feeds = self._limits()
            self._plain_values = self._plain.values_of(self._feeds)
        asked = self._ask() if self._asking or self._looking else None
        if asked is None or asked.is_nothing:
            assert self._plain_values is not None  # they are floats
            own, results = self._plain(self._plain_values)
        else:
            own, results = self._run_with(asked)
        values = self._values_of(own)
        is_bad = values.is_bad
        entry: Optional[Entry] = None
        if self._histories:
            entry = values.step, not is_bad, own[self._measures_at]
        context = None if asked is None else asked.context
        if self._watchers and is_bad:
            context = context or self._context()
            self._tell_of_incident(context, values, entry, asked, results)
        else:
            for watcher in self._watchers:
                if entry is not None and watcher in self._histories:
                    self._histories[watcher].note_good(entry)
                watcher.step_was_good(self._session, values.loss)
            if asked is not None and self._looking:
                _show(self._looking, asked, results)
        if self._beside and any(own[self._beside_at :]):
            context = context or self._context()
            self._tell_of_threads(context)
        return Done(own[0], int(values.step), context is not None and context.stop_requested)

    def _ask(self) -> '_Asked':
        context = self._context()
        requests = Requests(self._asking, context)
        return _Asked(context, requests, tf1.RunMetadata() if self._looking else None)

    def _tell_of_incident(
        self,
        context,
        values: gates.Told,
        entry: Optional[Entry],
        asked: Optional['_Asked'],
        results: dict,
    ) -> None:
        for number, hook in enumerate(self._hooks):
            if hook in self._watchers:
                hook.handle(context, self._reading_for(hook, values, entry))
            elif asked is not None and hook in self._looking:
                try:
                    _show([hook], asked, results)
                except BaseException as error:
                    for later in watchers_after(self._hooks, number):
                        reading = self._reading_for(later, values, entry)
                        later.record_failure(context, reading, after_run_of(hook), error)
                    raise

    def _tell_of_threads(self, context) -> None:
        for each in self._beside:
            for reading in take_untold(each.gate, self._session):
                for watcher in self._watchers:
                    watcher.handle(context, reading)

    def _reading_for(
        self, watcher: GateWatcher, values: gates.Told, entry: Optional[Entry]
    ) -> Reading:
        history = self._histories.get(watcher)
        return reading_of(self._gate, values, history, entry, self._max_loss)

    def _context(self) -> tf1.train.SessionRunContext:
        return tf1.train.SessionRunContext(self._args, self._session)

    def _forget(self) -> None:
        if self._watchers:
            self._max_loss = self._watchers[0].max_loss
        self._feeds = self._limits()
        self._calls.clear()
        plain = PreparedCall.of(self._session, self._own, self._targets, {}, self._feeds)
        assert plain is not None  # all of them are tensors
        self._plain = plain
        self._plain_values = plain.values_of(self._feeds)

    def _limits(self) -> dict:
        """What is fed: the limits, as the watcher that comes first has them."""
        if not self._watchers:
            return {}
        first = self._watchers[0]
        return limits_of(self._gate, self._max_loss, self._histories.get(first))

    def _run_with(self, asked: '_Asked'):
        """The values of our own fetches, and by hook those of its fetches."""
        _, requests, metadata = asked
        # Checks for clashes too.
        feeds = requests.feeds_with(self._feeds) or {}
        if requests.run_options is None:
            call = self._call_for(requests, feeds)
            values = None if call is None else call.values_of(feeds)
            if call is not None and values is not None:
                return call(values)
        fetches = [self._own, self._targets] + list(requests.fetches.values())
        own, _, *results = self._session.run(fetches, feeds, requests.run_options, metadata)
        return own, dict(zip(requests.fetches, results))

    def _call_for(self, requests: Requests, feeds: dict) -> Optional[PreparedCall]:
        asked = tuple([(id(hook), key_of(f)) for hook, f in requests.fetches.items()])
        asked += tuple(map(id, feeds))
        wanted = self._session, self._own, self._targets, requests.fetches, feeds
        return self._calls.of(asked, PreparedCall.of, *wanted)

    def _values_of(self, own) -> gates.Told:
        _, step, bad = own[:3]
        return gates.Told(bad, step, None if self._loss_at is None else own[self._loss_at])


class _Asked(NamedTuple):
    """What the hooks asked for in one step."""

    context: Any
    requests: Requests
    metadata: Optional[tf1.RunMetadata]

    @property
    def is_nothing(self) -> bool:
        requests = self.requests
        return not (requests.fetches or requests.feeds or requests.run_options)


def _show(hooks, asked: _Asked, results: dict) -> None:
    nothing = tf1.train.SessionRunValues._make([None, asked.requests.options, asked.metadata])
    for hook in hooks:
        values = nothing._replace(results=results[hook]) if hook in results else nothing
        hook.after_run(asked.context, values)


def _is_as_tensorflow_made_it(session) -> bool:
    """Whether nobody wraps the session or replaced its `run` (TensorFlow's own profiler does).

    What `instrument` puts in its place lets a step pass that is watched.
    """
    if type(session) is not tf1.Session or 'run' in vars(session):
        return False
    run = getattr(tf1.Session.run, REPLACES, tf1.Session.run)
    return tf_callers.is_method_of_sessions(run)


def _has(hook, name: str) -> bool:
    """Whether a hook does something in a call; what it inherits does nothing."""
    return getattr(getattr(hook, name), '__func__', None) is not getattr(
        tf1.train.SessionRunHook, name
    )


def _is_value_of(train_op: TrainOp, loss: tf.Tensor) -> bool:
    op = op_of(train_op)
    return op.type == 'Identity' and key(op.inputs[0]) == key(loss)

"""A session that calls hooks around each step, as a `MonitoredSession` does: `HookedSession`."""

import functools
from typing import Any, Callable, Dict, Optional, Sequence

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard import graph as graphs
from slimguard.graph import TrainOp, op_of
from slimguard.graph.sessions import SessionWrapper, callable_of
from slimguard.training.fetch_structures import fetched_elements, key_of, map_fetches
from slimguard.training.run_kinds import RunKinds
from slimguard.training.watched_run import HookFetches
from slimguard.training.watchers import tell_in_order, watchers_in


class HookedSession(SessionWrapper):
    """A session that calls hooks around runs of train ops, as a `MonitoredSession` does.

    Everything else (`graph`, `make_callable`, ...) is that of the session it wraps.

    Args:
      session: the `tf.compat.v1.Session` to wrap, or a wrapper of one.
      hooks: the `SessionRunHook`s, whose `begin` was called.
      train_op: a train op whose runs are steps. The runs of every guarded train op, and of any op
        that runs an optimizer, are steps, too.
      before_other_run: called before each run that is no step, or None.

    Attributes:
      stop_requested: whether a hook asked to stop.
    """

    def __init__(
        self,
        session,
        hooks: Sequence[tf1.train.SessionRunHook],
        train_op: Optional[TrainOp] = None,
        before_other_run: Optional[Callable[[], None]] = None,
    ):
        SessionWrapper.__init__(self, session)
        self._hooks = list(hooks)
        self._hook_fetches = HookFetches(session.graph)
        self._has_others = len(watchers_in(hooks)) < len(hooks)
        self._train_op = train_op
        self._kinds = RunKinds()
        self._before_other_run = before_other_run
        self.stop_requested = False

    def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        """As `tf.compat.v1.Session.run`."""
        gated = self._gated(fetches)
        if gated is None:
            if self._before_other_run is not None:
                self._before_other_run()
            return SessionWrapper.run(self, fetches, feed_dict, options, run_metadata)
        args = tf1.train.SessionRunArgs(gated, feed_dict)
        return self._run_hooked(args, gated, feed_dict, options, run_metadata)

    def make_callable(self, fetches, feed_list=None, accept_options=False):
        """As `tf.compat.v1.Session.make_callable`; what it returns runs steps as `run` does."""
        elements = fetched_elements(fetches, self.graph)
        # A QueueRunner's thread runs the op that fills a queue; no hook may raise or stop there.
        fills_queue = any(graphs.is_enqueue(op_of(each)) for each in elements)
        if fills_queue or self._gated(fetches) is None:
            return self._session.make_callable(fetches, feed_list, accept_options)
        return callable_of(self.run, fetches, feed_list)

    def _run_hooked(
        self, args: tf1.train.SessionRunArgs, fetches, feed_dict, options, run_metadata
    ):
        """Runs a step. Hooks see `args`; the session runs `fetches`."""
        context = tf1.train.SessionRunContext(args, self._session)
        calls = HookCalls(self._hooks, context, options)
        feeds = calls.feeds_with(feed_dict)
        given = calls.run_options, run_metadata
        run_metadata = run_metadata or tf1.RunMetadata()
        if calls.run_options is not None:
            given = calls.run_options, run_metadata
        # As a MonitoredSession asks. Such a step is prepared: see prepared_runs.py.
        both = {'loop': fetches, **calls.fetches}
        if self._has_others:
            self._hook_fetches.require_gated(both, feeds, key_of(both))
        results = SessionWrapper.run(self, both, feeds, *given)
        seen = functools.partial(calls.values_for, results=results, run_metadata=run_metadata)
        tell_in_order(
            self._hooks,
            lambda hook: hook.after_run(context, seen(hook)),
            lambda later, *why: later.after_run_failed(context, seen(later), *why),
        )
        self.note_stop(context.stop_requested)
        return results['loop']

    def note_stop(self, is_asked: bool) -> None:
        """Notes whether a hook asked to stop in a step."""
        self.stop_requested = self.stop_requested or is_asked

    def _gated(self, fetches) -> Any:
        """The fetches of a step, through the gates that exist by now; None for any other run."""
        return self._kinds.of(self._as_step, fetches, (), len(gates.gates_of(self.graph)))

    def _as_step(self, fetches, *_: Any) -> Any:
        elements = fetched_elements(fetches, self.graph)
        if not any(self._trains(op_of(element)) for element in elements):
            return None
        known = gates.gates_of(self.graph)

        def through_gate(fetch):
            # A step function may hold on to the train op that was given before it was guarded.
            is_op = isinstance(fetch, (tf.Tensor, tf.Operation))
            gate = known.get(op_of(fetch).name) if is_op else None
            return fetch if gate is None else gate.train_op

        return map_fetches(fetches, through_gate)

    def _trains(self, op: tf.Operation) -> bool:
        if op.name in gates.gates_of(self.graph):
            return True
        if self._train_op is not None and op is op_of(self._train_op):
            return True
        return any(graphs.is_apply(needed) for needed in graphs.ancestors([op]))


class HookCalls:
    """The calls of hooks around one run, as in a `MonitoredSession`; calls `before_run` at once.

    Args:
      hooks: the hooks, in order.
      context: the `SessionRunContext` of the run.
      options: the caller's `RunOptions`, or None. The options of the hooks are merged into them.

    Attributes:
      fetches: by hook, its fetches, of any structure.
      feeds: the feeds of the hooks.
      options: the `RunOptions` of the run.

    Raises:
      RuntimeError: if two hooks feed the same tensor.
    """

    def __init__(
        self,
        hooks: Sequence[tf1.train.SessionRunHook],
        context: tf1.train.SessionRunContext,
        options: Optional[tf1.RunOptions] = None,
    ):
        self.fetches: Dict[tf1.train.SessionRunHook, Any] = {}
        self.feeds: Dict[Any, Any] = {}
        self.options = options or tf1.RunOptions()
        for hook in hooks:
            request = hook.before_run(context)
            if request is not None:
                self._add(hook, request)

    @property
    def run_options(self) -> Optional[tf1.RunOptions]:
        """The options, or None if they say nothing: a run with options takes longer."""
        return self.options if self.options.ByteSize() else None

    def feeds_with(self, user_feeds: Optional[dict]) -> Optional[dict]:
        """The feeds of hooks and caller together; RuntimeError for a tensor that both feed."""
        if not self.feeds:
            return user_feeds
        if not user_feeds:
            return self.feeds
        _require_apart(user_feeds, self.feeds, 'Same tensor is fed by a SessionRunHook and user.')
        return {**self.feeds, **user_feeds}

    def values_for(
        self, hook, results: Dict[Any, Any], run_metadata: Optional[tf1.RunMetadata]
    ) -> tf1.train.SessionRunValues:
        """The values that the `after_run` of a hook gets, out of those of all hooks."""
        # By `_make`: what an Estimator imports on TensorFlow 2 warns of a call of the class.
        given = results.get(hook), self.options, run_metadata
        return tf1.train.SessionRunValues._make(given)

    def _add(self, hook, request: tf1.train.SessionRunArgs) -> None:
        if request.fetches is not None:
            self.fetches[hook] = request.fetches
        if request.feed_dict:
            _require_apart(self.feeds, request.feed_dict, 'Same tensor is fed by two hooks.')
            self.feeds.update(request.feed_dict)
        if request.options:
            _merge(self.options, request.options)


def _require_apart(feeds: dict, others: dict, words: str) -> None:
    both = set(feeds) & set(others)
    if both:
        # TensorFlow's words, which users may look for.
        raise RuntimeError('%s Conflict(s): %s' % (words, list(both)))


def _merge(options: tf1.RunOptions, more: tf1.RunOptions) -> None:
    options.trace_level = max(options.trace_level, more.trace_level)
    options.timeout_in_ms = max(options.timeout_in_ms, more.timeout_in_ms)
    options.inter_op_thread_pool = max(options.inter_op_thread_pool, more.inter_op_thread_pool)
    options.output_partition_graphs |= more.output_partition_graphs
    options.report_tensor_allocations_upon_oom |= more.report_tensor_allocations_upon_oom
    debug, more_debug = options.debug_options, more.debug_options
    debug.debug_tensor_watch_opts.extend(more_debug.debug_tensor_watch_opts)
    debug.reset_disk_byte_usage |= more_debug.reset_disk_byte_usage

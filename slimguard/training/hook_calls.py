"""Calls the hooks of a user around one run, and checks what they fetch.

HookCalls    calls them as a `MonitoredSession` does
HookFetches  refuses hooks' fetches that would make a write bypass its gate
"""

from typing import Any, Dict, Mapping, Optional, Sequence, Set

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.gate.written_beside import refuse_around
from slimguard.training.fetch_structures import RunKinds, fetched_elements, inner_feeds
from slimguard.training.watched_runs import gates_run_by


class HookCalls:
    """Calls hooks around one run, as a `MonitoredSession` does; `before_run` in its constructor.

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
        """The options, or None if none is set: a run with options takes longer."""
        return self.options if self.options.ByteSize() else None

    def feeds_with(self, user_feeds: Optional[dict]) -> Optional[dict]:
        """The feeds of hooks and caller; raises RuntimeError for a tensor that both feed."""
        if not self.feeds:
            return user_feeds
        if not user_feeds:
            return self.feeds
        _require_apart(user_feeds, self.feeds, 'Same tensor is fed by a SessionRunHook and user.')
        return {**self.feeds, **user_feeds}

    def values_for(
        self, hook, results: Dict[Any, Any], run_metadata: Optional[tf1.RunMetadata]
    ) -> tf1.train.SessionRunValues:
        """The values for a hook's `after_run`, picked from the values for all hooks."""
        # `_make`, since calling the class warns once TensorFlow 2 has imported its Estimators.
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
        # Users may look for TensorFlow's own words.
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


class HookFetches:
    """Refuses a step if a fetch of a hook would run a write around its gate.

    Args:
      graph: the graph of the session.
    """

    def __init__(self, graph: tf.Graph):
        self._graph = graph
        self._named: Set[str] = set()  # variables that the log has named
        self._kinds = RunKinds()

    def require_gated(
        self, fetches: Mapping[Any, Any], feed_dict: Any, asked: Any, of_loop: Any = ()
    ) -> None:
        """Checks a step before its run.

        Args:
          fetches: the fetches by hook; a str is the key of the loop's own fetches.
          feed_dict: the feeds of the loop and the hooks.
          asked: a key that identifies these fetches.
          of_loop: other fetches of the loop.

        Raises:
          OutsideTheGateError: as `refuse_around`; it also names the hook.
        """
        fed = inner_feeds(self._graph, feed_dict)
        self._kinds.of(self._look, [dict(fetches), of_loop], fed, asked=asked)

    def _look(self, both: list, fed: Sequence[tf.Tensor]) -> bool:
        run_gates = gates_run_by(fetched_elements(both, self._graph), self._graph)
        for hook in both[0] if run_gates else ():
            if not isinstance(hook, str):
                own = fetched_elements(both[0][hook], self._graph)
                refuse_around(own, run_gates, fed, self._named, type(hook).__name__)
        return True

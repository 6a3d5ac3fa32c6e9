"""What hooks ask for in a run, merged as a `MonitoredSession` merges it: :class:`Requests`."""

from typing import Any, Dict, Optional, Sequence

import tensorflow.compat.v1 as tf1


class Requests:
    """What the hooks' `before_run` asked for in one run.

    Args:
      hooks: the hooks, in order.
      context: the `SessionRunContext` of the run.
      options: the caller's `RunOptions`, or None. The options of the hooks are merged into them.

    Attributes:
      fetches: by hook, what it fetches, of any structure.
      feeds: what the hooks feed.
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
        self._says_something = options is not None
        for hook in hooks:
            request = hook.before_run(context)
            if request is not None:
                self._add(hook, request)

    @property
    def run_options(self) -> Optional[tf1.RunOptions]:
        """The options, or None if they say nothing: a run with options takes longer."""
        return self.options if self._says_something else None

    def feeds_with(self, user_feeds: Optional[dict]) -> Optional[dict]:
        """What hooks and the caller feed together; a tensor fed by both is a RuntimeError."""
        if not self.feeds:
            return user_feeds
        if not user_feeds:
            return self.feeds
        _require_apart(user_feeds, self.feeds, 'Same tensor is fed by a SessionRunHook and user.')
        return {**self.feeds, **user_feeds}

    def _add(self, hook, request: tf1.train.SessionRunArgs) -> None:
        if request.fetches is not None:
            self.fetches[hook] = request.fetches
        if request.feed_dict:
            _require_apart(self.feeds, request.feed_dict, 'Same tensor is fed by two hooks.')
            self.feeds.update(request.feed_dict)
        if request.options:
            _merge(self.options, request.options)
            self._says_something = self._says_something or request.options != tf1.RunOptions()


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

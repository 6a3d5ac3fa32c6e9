"""A session that calls hooks around each step, as a `MonitoredSession` does: `HookedSession`.

All our loops run a step by :class:`HookedStep`: slim's loop, a watched session, the session of an
unedited script.
"""

import functools
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard import graph as graphs
from slimguard.graph import TrainOp, key, op_of
from slimguard.graph.sessions import SessionWrapper, callable_of
from slimguard.training.fetch_structures import (
    RunKinds,
    fetched_elements,
    inner_feeds,
    key_of,
    map_fetches,
)
from slimguard.training.gate_watcher import GateWatcher
from slimguard.training.hook_calls import HookCalls, HookFetches
from slimguard.training.prepared_runs import PreparedRuns, has_own_run
from slimguard.training.watched_runs import Run


class HookedSession(SessionWrapper):
    """A session that calls hooks around runs of train ops, as a `MonitoredSession` does.

    Code that runs one step again and again, as slim's loop does, takes `prepared_step` instead of
    `run`. All other attributes (`graph`, `make_callable`, ...) are those of the wrapped session.

    Args:
      session: the `tf.compat.v1.Session` to wrap, or a wrapper of one.
      hooks: the `SessionRunHook`s, whose `begin` was called.
      train_op: a train op whose runs are steps. Runs of any guarded train op, and of any op that
        runs an optimizer, are steps, too.
      before_other_run: called before each run that is no step, or None.
      prepares: as for `PreparedRuns`.

    Attributes:
      stop_requested: whether a hook asked to stop.
    """

    def __init__(
        self,
        session,
        hooks: Sequence[tf1.train.SessionRunHook],
        train_op: Optional[TrainOp] = None,
        before_other_run: Optional[Callable[[], None]] = None,
        prepares: Callable[[Any], bool] = has_own_run,
    ):
        SessionWrapper.__init__(self, session)
        self._hooks = list(hooks)
        self._runs = PreparedRuns(prepares=prepares)
        self._hook_fetches = HookFetches(session.graph)
        self._train_op = train_op
        self._kinds = RunKinds()
        self._before_other_run = before_other_run
        self.stop_requested = False

    def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        """As `tf.compat.v1.Session.run`."""
        step = self._step_of(fetches)
        if step is None:
            if self._before_other_run is not None:
                self._before_other_run()
            return SessionWrapper.run(self, fetches, feed_dict, options, run_metadata)
        return self._run_step(step, feed_dict, options, run_metadata, shows_feeds=True)

    def prepared_step(self, fetches, as_asked: Sequence[TrainOp]) -> Callable[[], Any]:
        """A function that runs a step and returns the values of `fetches`.

        Args:
          fetches: the fetches of the run.
          as_asked: the fetches that hooks see in `original_args`.
        """
        args = tf1.train.SessionRunArgs(as_asked)
        return functools.partial(self._run_step, self._make_step(args, fetches))

    def _make_step(self, args: tf1.train.SessionRunArgs, fetches: Any = None) -> 'HookedStep':
        asked = self._session, self._runs, self._hooks, args
        return HookedStep(*asked, self._hook_fetches, fetches)

    def _run_step(self, step: 'HookedStep', *given, **more) -> Any:
        values, is_asked = step.run(*given, **more)
        self.stop_requested = self.stop_requested or is_asked
        return values

    def make_callable(self, fetches, feed_list=None, accept_options=False):
        """As `tf.compat.v1.Session.make_callable`; the result runs steps as `run` does."""
        elements = fetched_elements(fetches, self.graph)
        # A QueueRunner's thread runs the op that fills a queue; hooks must not raise or stop in it.
        fills_queue = any(graphs.is_enqueue(op_of(each)) for each in elements)
        if fills_queue or self._step_of(fetches) is None:
            return self._session.make_callable(fetches, feed_list, accept_options)
        return callable_of(self.run, fetches, feed_list)

    def _step_of(self, fetches) -> Optional['HookedStep']:
        """The step with these fetches, with the gates made so far; None if they are no step."""
        return self._kinds.of(self._as_step, fetches, (), len(gates.gates_of(self.graph)))

    def _as_step(self, fetches, *_: Any) -> Optional['HookedStep']:
        elements = fetched_elements(fetches, self.graph)
        if not any(self._trains(op_of(element)) for element in elements):
            return None
        known = gates.gates_of(self.graph)

        def through_gate(fetch):
            # A user's step function may still fetch the original train op.
            is_op = isinstance(fetch, (tf.Tensor, tf.Operation))
            gate = known.get(op_of(fetch).name) if is_op else None
            return fetch if gate is None else gate.train_op

        args = tf1.train.SessionRunArgs(map_fetches(fetches, through_gate))
        return self._make_step(args)

    def _trains(self, op: tf.Operation) -> bool:
        if op.name in gates.gates_of(self.graph):
            return True
        if self._train_op is not None and op is op_of(self._train_op):
            return True
        return any(graphs.is_apply(needed) for needed in graphs.ancestors([op]))


# Each step makes one; looking up the class in TensorFlow's module would take longer.
_Context = tf1.train.SessionRunContext


class HookedStep:
    """Runs the steps of one kind, with hooks, in one session.

    Hooks get the calls that a `MonitoredSession` makes. A `GateWatcher` has the same fetches in
    every step of a kind, so they are determined once.

    Args:
      session: the session.
      runs: makes the runs in the session.
      hooks: the hooks.
      args: the `SessionRunArgs` that hooks see.
      hook_fetches: checks what hooks fetch; None if all of them are watchers.
      fetches: what the loop fetches; None for the fetches of `args`.
    """

    def __init__(
        self,
        session,
        runs: PreparedRuns,
        hooks: Sequence[tf1.train.SessionRunHook],
        args: tf1.train.SessionRunArgs,
        hook_fetches: Optional[HookFetches] = None,
        fetches: Any = None,
    ):
        self._session = session
        self._runs = runs
        self._hooks = hooks
        self._args = args
        self._fetches = args.fetches if fetches is None else fetches
        self._watchers = [hook for hook in hooks if is_plain_watcher(hook)]
        others = [hook for hook in hooks if hook not in self._watchers]
        self._asking = [hook for hook in others if _has(hook, 'before_run')]
        self._looking = [hook for hook in others if _has(hook, 'after_run')]
        self._hook_fetches = hook_fetches
        self._watched: Dict[Any, _Watched] = {}  # by the computed tensors that are fed

    def run(
        self, feed_dict=None, options=None, run_metadata=None, shows_feeds: bool = False
    ) -> Tuple[Any, bool]:
        """Runs a step, and calls the hooks; the arguments are those of `Session.run`.

        Args:
          shows_feeds: whether hooks see `feed_dict`.

        Returns:
          The values of what the loop fetches, and whether a hook asked to stop.
        """
        args, inner = self._args, ()
        if feed_dict and shows_feeds:
            args = args._replace(feed_dict=feed_dict)
            inner = tuple(map(key, inner_feeds(self._session.graph, feed_dict)))
        context = _Context(args, self._session)
        watched = self._watched.get(inner)
        if watched is None:
            watched = self._watched[inner] = _Watched(self._fetches, self._watchers, context)
        feeds = feed_dict
        for watcher, run, _ in watched.runs:
            asked = watcher.ask(context, run)
            if asked is not None and asked.feed_dict:
                feeds = {**(feeds or {}), **asked.feed_dict}
        if self._asking or self._looking:
            return self._run_with_others(context, watched, feeds, options, run_metadata)
        given = feeds, options, run_metadata, watched
        values, *watched_values = self._values(watched, watched.fetches, *given)
        for watcher, run, place in watched.runs:
            watcher.take_values(context, run, watched_values[place])
        return values, context.stop_requested

    def _run_with_others(
        self, context, watched: '_Watched', feeds, options, run_metadata
    ) -> Tuple[Any, bool]:
        calls = HookCalls(self._asking, context, options)
        feeds, options = calls.feeds_with(feeds), calls.run_options
        run_metadata = run_metadata or tf1.RunMetadata()
        fetches, asked = (*watched.fetches, calls.fetches), (watched, key_of(calls.fetches))
        if calls.fetches and self._hook_fetches is not None:
            of_loop = context.original_args.fetches
            self._hook_fetches.require_gated(calls.fetches, feeds, asked, of_loop)
        given = feeds, options, run_metadata, asked
        values, *watched_values, of_hooks = self._values(watched, fetches, *given)
        places = {watcher: (run, place) for watcher, run, place in watched.runs}

        def tell(hook) -> None:
            if hook in places:
                run, place = places[hook]
                hook.take_values(context, run, watched_values[place])
            elif hook in self._looking:
                hook.after_run(context, calls.values_for(hook, of_hooks, run_metadata))

        self._tell_all(tell)
        return values, context.stop_requested

    def _values(self, watched: '_Watched', fetches, *given) -> Any:
        try:
            return self._runs.run(self._session, fetches, *given)
        except tf.errors.InvalidArgumentError:
            # A check in the model itself has ended the step, perhaps after the gate stored its
            # report. The error reports the bad values; the next step must not report them again.
            for _, run, _ in watched.runs:
                if run is not None:
                    run.forget(self._session)
            raise

    def _tell_all(self, tell: Callable[[Any], None]) -> None:
        """Calls `tell` for each hook, in order. If one raises, later watchers are still told."""
        for number, hook in enumerate(self._hooks):
            try:
                tell(hook)
            except BaseException:
                if hook not in self._watchers:
                    for later in self._hooks[number + 1 :]:
                        if later in self._watchers:
                            tell(later)
                raise


class _Watched:
    """The fetches of all watchers in one kind of run.

    Attributes:
      runs: for each watcher: the watcher, its `Run` (None if this is no step of its training), and
        the slice of its values among the values of all watchers.
      fetches: what the loop fetches, then what all watchers fetch.
    """

    def __init__(self, fetches: Any, watchers: List[GateWatcher], context):
        self.runs: List[Tuple[GateWatcher, Optional[Run], slice]] = []
        asked: List[tf.Tensor] = []
        for watcher in watchers:
            run = watcher.runs.run_for(context)
            more = [] if run is None else run.fetches
            self.runs.append((watcher, run, slice(len(asked), len(asked) + len(more))))
            asked += more
        self.fetches = (fetches, *asked)


def is_plain_watcher(hook) -> bool:
    """Whether a hook is a `GateWatcher` that overrides neither `before_run` nor `after_run`."""
    mine = [getattr(getattr(hook, name), '__func__', None) for name in ('before_run', 'after_run')]
    return mine == [GateWatcher.before_run, GateWatcher.after_run]


def _has(hook, name: str) -> bool:
    """Whether a hook overrides a method; the base class's methods do nothing."""
    return getattr(getattr(hook, name), '__func__', None) is not getattr(
        tf1.train.SessionRunHook, name
    )

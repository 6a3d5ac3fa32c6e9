"""A step of a gate with all that its watchers look at, in one call: :class:`GateStep`."""

import functools
from typing import Any, Callable, List, NamedTuple, Optional, Sequence

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard.graph import key, op_of
from slimguard.incidents.history import Entry
from slimguard.training.fetch_structures import key_of
from slimguard.training.gate_watcher import GateWatcher
from slimguard.training.hooked_session import HookCalls
from slimguard.training.incident_reading import Reading
from slimguard.training.prepared_runs import PreparedRuns
from slimguard.training.step_history import reading_of
from slimguard.training.watched_run import HookFetches, limits_of, take_untold
from slimguard.training.watchers import tell_in_order


class Done(NamedTuple):
    """The results of a step.

    Attributes:
      values: the values that the loop fetched.
      told: the values that the gate reported.
      stop_requested: whether a hook asked to stop.
    """

    values: Any
    told: gates.Told
    stop_requested: bool


class GateStep:
    """Runs the steps of one gate in one session, with hooks.

    Hooks get the same calls as in a `MonitoredSession`, with one exception: a `GateWatcher` that
      only looks at the gate is not called for good steps, since this object reads the gate's flags
      for it.

    Args:
      session: the session.
      runs: makes the runs in the session.
      gate: the gate.
      hooks: the hooks.
      args: the `SessionRunArgs` that hooks see.
      fetches: the loop's fetches, of any structure, with `gate.quiet.train_op` in place of the
        train op: hooks watch, so the graph need not print or raise.
    """

    def __init__(
        self,
        session,
        runs: PreparedRuns,
        gate: gates.Gate,
        hooks: Sequence[tf1.train.SessionRunHook],
        args: tf1.train.SessionRunArgs,
        fetches: Any,
    ):
        self._session = session
        self._runs = runs
        self._gate = gate
        self._hooks = hooks
        self._hook_fetches = HookFetches(session.graph)
        self._args = args
        watchers = [hook for hook in hooks if isinstance(hook, GateWatcher)]
        if not all(watcher.only_looks_at(gate, self._context()) for watcher in watchers):
            watchers = []
        self._watchers: List[GateWatcher] = watchers
        others = [hook for hook in hooks if hook not in watchers]
        self._asking = [hook for hook in others if _has(hook, 'before_run')]
        self._looking = [hook for hook in others if _has(hook, 'after_run')]
        self._histories = {watcher: watcher.histories.of(gate) for watcher in watchers}
        histories = [each for each in self._histories.values() if each is not None]
        self._has_moving_limits = any(each.spike for each in histories)
        quiet, loss = gate.quiet, gate.loss
        if loss is not None and _is_value_of(quiet.train_op, loss):
            loss = quiet.train_op
        nothing = op_of(quiet.train_op)  # the value of an operation is None
        wanted = quiet.bad, quiet.step, loss, gate.measures.vector if histories else None
        own = [nothing if each is None else each for each in wanted]
        self._beside = gate.beside if watchers else ()
        for each in self._beside:
            each.gate.untold.watch(session)
        counts = [each.quiet_count for each in self._beside]
        evidence = dict.fromkeys(watcher.evidence_of(gate) for watcher in watchers)
        targets = [each.fetch for each in evidence if each is not None]
        # A tuple of single fetches is the quickest to read.
        self._fetches = (*own, fetches, *counts, *targets)

    def run(self, feed_dict=None, options=None, run_metadata=None) -> Done:
        """Runs a step, and calls the hooks; the arguments are those of `Session.run`."""
        for watcher in self._watchers:
            watcher.before_step(self._session)
        max_loss = self._watchers[0].max_loss_now if self._watchers else None
        feeds, fetches, asked = feed_dict, self._fetches, self
        context = calls = seen = entry = None
        if max_loss is not None or self._has_moving_limits:
            history = self._histories[self._watchers[0]]
            feeds = {**(feed_dict or {}), **limits_of(self._gate, max_loss, history)}
        if self._asking or self._looking:
            context = self._context()
            calls = HookCalls(self._asking, context, options)
            feeds, options = calls.feeds_with(feeds), calls.run_options
            run_metadata = run_metadata or tf1.RunMetadata()
            if calls.fetches:
                fetches = (*fetches, calls.fetches)
                asked = self, key_of(calls.fetches)
                of_loop = self._args.fetches
                self._hook_fetches.require_gated(calls.fetches, feeds, asked, of_loop)
        given = feeds, options, run_metadata, asked
        found = self._runs.run(self._session, fetches, *given)
        bad, step, loss, measures, values, *counts = found
        told = gates.Told(bad, step, loss)
        is_bad = told.is_bad
        if measures is not None:
            entry = step, not is_bad, measures
        if calls is not None:
            results = counts.pop() if calls.fetches else {}
            seen = functools.partial(calls.values_for, results=results, run_metadata=run_metadata)
        if is_bad and self._watchers:
            read = functools.partial(self._reading_for, told, entry, max_loss)
            context = context or self._context()
            self._tell_of_incident(context, read, seen)
        else:
            for watcher, history in self._histories.items():
                if history is not None and entry is not None:
                    history.note_good(entry)
                watcher.step_was_good(self._session, told.loss)
            if seen is not None:
                for hook in self._looking:
                    hook.after_run(context, seen(hook))
        if self._beside and any(counts):
            context = context or self._context()
            self._tell_of_threads(context)
        return Done(values, told, context is not None and context.stop_requested)

    def _tell_of_incident(
        self,
        context,
        read: Callable[[GateWatcher], Reading],
        seen: Optional[Callable[[Any], tf1.train.SessionRunValues]],
    ) -> None:
        def tell(hook) -> None:
            if hook in self._watchers:
                hook.handle(context, read(hook))
            elif seen is not None and hook in self._looking:
                hook.after_run(context, seen(hook))

        def tell_of_failure(watcher: GateWatcher, acting: str, error: BaseException) -> None:
            watcher.record_failure(context, read(watcher), acting, error)

        tell_in_order(self._hooks, tell, tell_of_failure)

    def _tell_of_threads(self, context) -> None:
        for each in self._beside:
            for reading in take_untold(each.gate, self._session):
                for watcher in self._watchers:
                    watcher.handle(context, reading)

    def _reading_for(
        self,
        told: gates.Told,
        entry: Optional[Entry],
        max_loss: Optional[float],
        watcher: GateWatcher,
    ) -> Reading:
        return reading_of(self._gate, told, self._histories.get(watcher), entry, max_loss)

    def _context(self) -> tf1.train.SessionRunContext:
        return tf1.train.SessionRunContext(self._args, self._session)


def _has(hook, name: str) -> bool:
    """Whether a hook overrides a method; the inherited methods do nothing."""
    return getattr(getattr(hook, name), '__func__', None) is not getattr(
        tf1.train.SessionRunHook, name
    )


def _is_value_of(train_op: Any, loss: tf.Tensor) -> bool:
    op = op_of(train_op)
    return op.type == 'Identity' and key(op.inputs[0]) == key(loss)

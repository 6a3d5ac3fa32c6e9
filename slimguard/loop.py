"""Runs `SessionRunHook`s inside the loop of `slim.learning.train`, which takes none.

slim's loop asks for two things that can be replaced: a wrapper around its session, and the
function that does a step. :class:`HookedSession` is the first: it behaves as the session it wraps,
and calls hooks for runs of a train op only, so that slim's own small runs (is it time to stop? to
log?) cost what they did. :class:`HookedSteps` is the second.
"""

import time
from typing import Any, Callable, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

from slimguard import gate as gates
from slimguard.hooks import GateWatcher, fetched_elements
from slimguard.incident import Incident, NanLossError
from slimguard.plan import TrainOp, op_of

tf1 = tf.compat.v1

# What TensorFlow's Saver and Supervisor take for a session. It has no public name.
_SessionInterface = next(c for c in tf1.Session.__mro__ if c.__name__ == 'SessionInterface')

_CHECKS = ('CheckNumerics', 'CheckNumericsV2')


class HookedSession(_SessionInterface):
    """A session that calls hooks around runs of train ops, as a `MonitoredSession` does.

    Everything else (`graph`, `close`, `make_callable`, ...) is that of the session it wraps.

    Args:
      session: the `tf.compat.v1.Session` to wrap, or a wrapper of one.
      hooks: the `SessionRunHook`s.
      train_op: the train op; its runs, and those of every guarded train op, are steps.

    Attributes:
      stop_requested: whether a hook asked to stop.
    """

    def __init__(self, session, hooks: Sequence[tf1.train.SessionRunHook], train_op: TrainOp):
        self._session = session
        self._hooks = list(hooks)
        self._train_op = train_op
        self.stop_requested = False

    def __getattr__(self, name):
        return getattr(self._session, name)

    @property
    def graph(self):
        return self._session.graph

    @property
    def sess_str(self):
        return self._session.sess_str

    def partial_run_setup(self, fetches, feeds=None):
        return self._session.partial_run_setup(fetches, feeds)

    def partial_run(self, handle, fetches, feed_dict=None):
        return self._session.partial_run(handle, fetches, feed_dict)

    def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        """As `tf.compat.v1.Session.run`."""
        if not self._is_step(fetches):
            return self._session.run(fetches, feed_dict, options, run_metadata)
        context = tf1.train.SessionRunContext(
            tf1.train.SessionRunArgs(fetches, feed_dict), self._session
        )
        # The caller's under a key that no hook can be.
        all_fetches = {None: self._through_gates(fetches)}
        options = options or tf1.RunOptions()
        feeds = self._before_run(context, all_fetches, feed_dict, options)
        run_metadata = run_metadata or tf1.RunMetadata()
        keys = list(all_fetches)
        values = self._session.run(
            [all_fetches[key] for key in keys], feeds, options, run_metadata
        )
        results = dict(zip(keys, values))
        for hook in self._hooks:
            hook.after_run(
                context,
                tf1.train.SessionRunValues(
                    results=results.get(hook), options=options, run_metadata=run_metadata
                ),
            )
        self.stop_requested = self.stop_requested or context.stop_requested
        return results[None]

    def _before_run(self, context, all_fetches, user_feeds, options) -> Optional[dict]:
        feeds = dict(user_feeds or {})
        fed_by_user = set(feeds)
        for hook in self._hooks:
            request = hook.before_run(context)
            if request is None:
                continue
            if request.fetches is not None:
                all_fetches[hook] = request.fetches
            for tensor, value in (request.feed_dict or {}).items():
                if tensor in feeds:
                    other = 'the caller' if tensor in fed_by_user else 'another hook'
                    raise RuntimeError(
                        'the same tensor is fed by a hook and by %s: %r' % (other, tensor)
                    )
                feeds[tensor] = value
            if request.options:
                _merge_options(options, request.options)
        return feeds or None

    def _is_step(self, fetches) -> bool:
        graph = self._session.graph
        return any(
            op_of(element) is op_of(self._train_op)
            or op_of(element).name in gates.gates_of(graph)
            for element in fetched_elements(fetches, graph)
        )

    def _through_gates(self, fetches):
        """`fetches`, with the guarded train op wherever the one it was made from is asked for.

        A step function may hold on to the train op that it was given before it was guarded.
        """
        if isinstance(fetches, (tf.Tensor, tf.Operation)):
            gate = gates.gates_of(self._session.graph).get(op_of(fetches).name)
            return gate.train_op if gate is not None else fetches
        if isinstance(fetches, dict):
            return type(fetches)((k, self._through_gates(v)) for k, v in fetches.items())
        if type(fetches) in (list, tuple):
            return type(fetches)(self._through_gates(fetch) for fetch in fetches)
        return fetches


def _merge_options(options, more) -> None:
    options.trace_level = max(options.trace_level, more.trace_level)
    options.timeout_in_ms = max(options.timeout_in_ms, more.timeout_in_ms)
    options.inter_op_thread_pool = max(options.inter_op_thread_pool, more.inter_op_thread_pool)
    options.output_partition_graphs |= more.output_partition_graphs
    options.report_tensor_allocations_upon_oom |= more.report_tensor_allocations_upon_oom
    options.debug_options.debug_tensor_watch_opts.extend(
        more.debug_options.debug_tensor_watch_opts
    )


class HookedSteps:
    """The step function and the session wrapper to hand to `slim.learning.train`.

    Args:
      train_step_fn: the user's step function, or slim's.
      session_wrapper: the user's session wrapper, or None.
      hooks: the hooks, whose `begin` was called.
      watcher: the hook that handles a numeric check that raised.
      train_op: the guarded train op.
      save: called with the session and the incident before a `NanLossError` leaves the loop;
        None to save nothing.
    """

    def __init__(
        self,
        train_step_fn: Callable,
        session_wrapper: Optional[Callable],
        hooks: Sequence[tf1.train.SessionRunHook],
        watcher: GateWatcher,
        train_op: TrainOp,
        save: Optional[Callable[[Any, Incident], None]],
    ):
        self._train_step_fn = train_step_fn
        self._session_wrapper = session_wrapper
        self._hooks = hooks
        self._watcher = watcher
        self._train_op = train_op
        self._save = save
        self._last_finite_loss = None  # type: Any
        self.coordinator = tf1.train.Coordinator()

    def wrap(self, session) -> HookedSession:
        """The session wrapper: slim calls it for every session it makes."""
        for hook in self._hooks:
            hook.after_create_session(session, self.coordinator)
        if self._session_wrapper is not None:
            session = self._session_wrapper(session)
        return HookedSession(session, self._hooks, self._train_op)

    def step(self, session, train_op, global_step, train_step_kwargs) -> Tuple[Any, bool]:
        """The step function. Returns the loss, the last finite one if this one is not, and
        whether to stop."""
        try:
            loss, should_stop = self._try_step(session, train_op, global_step, train_step_kwargs)
        except NanLossError as error:
            if self._save is not None:
                self._save(session, error.incident)
            raise
        except tf.errors.OutOfRangeError:
            self._end(session)
            raise
        except StopIteration:
            loss, should_stop = self._last_finite_loss, True
        if loss is not None and np.all(np.isfinite(loss)):
            self._last_finite_loss = loss
        elif self._last_finite_loss is not None:
            loss = self._last_finite_loss
        if should_stop or session.stop_requested or self.coordinator.should_stop():
            self._end(session)
            should_stop = True
        return loss, should_stop

    def _try_step(self, session, train_op, global_step, train_step_kwargs) -> Tuple[Any, bool]:
        try:
            return self._train_step_fn(session, train_op, global_step, train_step_kwargs)
        except tf.errors.InvalidArgumentError as error:
            if isinstance(error, NanLossError):
                raise
            incident = self._incident_of(error, session, global_step)
            if incident is None:
                raise
            context = tf1.train.SessionRunContext(
                tf1.train.SessionRunArgs(train_op), session
            )
            self._watcher.handle(context, incident)
            session.stop_requested = session.stop_requested or context.stop_requested
            return self._last_finite_loss, False

    def _incident_of(self, error, session, global_step) -> Optional[Incident]:
        """The incident behind a numeric check that raised; None for any other error."""
        labels = gates.labels_in(error.message)
        if labels:
            finding = gates.explain(labels)
        elif error.op is not None and error.op.type in _CHECKS:
            checked = error.op.inputs[0].op.name
            said = tf.compat.as_str(error.op.get_attr('message'))
            finding = gates.Finding((checked,), 'not finite: %s (%s)' % (checked, said), False)
        else:
            return None
        return Incident(
            step=int(session.run(global_step)),
            loss=None,
            reason=finding.reason,
            tensors=finding.tensors,
            strategy='check_numerics',
            time=time.time(),
            state_lost=finding.state_lost,
        )

    def _end(self, session) -> None:
        for hook in self._hooks:
            hook.end(session)

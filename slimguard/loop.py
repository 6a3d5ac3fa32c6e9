"""Runs `SessionRunHook`s inside the loop of `slim.learning.train`, which takes none.

slim's loop asks for two things that can be replaced: a wrapper around its session, and the
function that does a step. :class:`HookedSession` is the first: it behaves as the session it wraps,
and calls hooks for runs of a train op only, so that slim's own small runs (is it time to stop? to
log?) cost what they did. :class:`HookedSteps` is the second.
"""

import contextlib
import time
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import tensorflow as tf

from slimguard import gate as gates
from slimguard import graphs
from slimguard.hooks import GateWatcher, fetched_elements, with_watcher
from slimguard.incident import Incident, NanLossError
from slimguard.plan import TrainOp, op_of
from slimguard.policies import OnNan

tf1 = tf.compat.v1

# What TensorFlow's Saver and Supervisor take for a session. It has no public name.
_SessionInterface = next(c for c in tf1.Session.__mro__ if c.__name__ == 'SessionInterface')

_CHECKS = ('CheckNumerics', 'CheckNumericsV2')


class HookedSession(_SessionInterface):
    """A session that calls hooks around runs of train ops, as a `MonitoredSession` does.

    Everything else (`graph`, `make_callable`, ...) is that of the session it wraps.

    Args:
      session: the `tf.compat.v1.Session` to wrap, or a wrapper of one.
      hooks: the `SessionRunHook`s, whose `begin` was called.
      train_op: a train op whose runs are steps. Those of every guarded train op are, and of any
        op that runs an optimizer.

    Attributes:
      stop_requested: whether a hook asked to stop.
    """

    def __init__(
        self,
        session,
        hooks: Sequence[tf1.train.SessionRunHook],
        train_op: Optional[TrainOp] = None,
    ):
        self._session = session
        self._hooks = list(hooks)
        self._train_op = train_op
        self._steps: Dict[Tuple[str, ...], bool] = {}
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

    def as_default(self):
        """As `tf.compat.v1.Session.as_default`, so that `eval()` and `run()` of ops come here."""
        return tf1.Session.as_default(self)

    def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        """As `tf.compat.v1.Session.run`."""
        if not self._is_step(fetches):
            return self._session.run(fetches, feed_dict, options, run_metadata)
        context = tf1.train.SessionRunContext(
            tf1.train.SessionRunArgs(fetches, feed_dict), self._session
        )
        # The caller's under a key that no hook can be.
        all_fetches = {None: self._through_gates(fetches)}
        given = options, run_metadata
        options = options or tf1.RunOptions()
        run_metadata = run_metadata or tf1.RunMetadata()
        feeds = self._before_run(context, all_fetches, feed_dict, options)
        if options != tf1.RunOptions():
            given = options, run_metadata
        keys = list(all_fetches)
        # Options that say nothing would cost each step their way through the session.
        values = self._session.run([all_fetches[key] for key in keys], feeds, *given)
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
        elements = fetched_elements(fetches, self.graph)
        names = tuple(element.name for element in elements)
        if names not in self._steps:
            self._steps[names] = any(self._trains(op_of(element)) for element in elements)
        return self._steps[names]

    def _trains(self, op: tf.Operation) -> bool:
        if op.name in gates.gates_of(self.graph):
            return True
        if self._train_op is not None and op is op_of(self._train_op):
            return True
        return any(graphs.is_apply(needed) for needed in graphs.ancestors([op]))

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


class WatchedSession(HookedSession):
    """What `watch` returns: a `HookedSession` with an end."""

    def __init__(self, session, hooks: Sequence[tf1.train.SessionRunHook]):
        HookedSession.__init__(self, session, hooks)
        self._ended = False
        self._contexts = contextlib.ExitStack()

    def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        """As `tf.compat.v1.Session.run`; a step after a hook asked to stop is a RuntimeError."""
        if self.stop_requested and self._is_step(fetches):
            raise RuntimeError(
                'a hook has asked to stop, and this would be one more step; loop with '
                '"while not session.should_stop()"'
            )
        return HookedSession.run(self, fetches, feed_dict, options, run_metadata)

    def should_stop(self) -> bool:
        """Whether a hook asked to stop, as `MonitoredSession.should_stop` says."""
        return self.stop_requested

    def close(self):
        """Calls the hooks' `end` and closes the session."""
        if not self._ended:
            self._ended = True
            for hook in self._hooks:
                hook.end(self._session)
        self._session.close()

    def __enter__(self):
        self._contexts.enter_context(self.graph.as_default())
        self._contexts.enter_context(self.as_default())
        return self

    def __exit__(self, error_type, error, traceback):
        clean = error_type is None or issubclass(
            error_type, (tf.errors.OutOfRangeError, StopIteration)
        )
        self._ended = self._ended or not clean
        try:
            self.close()
        finally:
            self._contexts.close()


def watch(
    session: tf1.Session,
    hooks: Sequence[tf1.train.SessionRunHook] = (),
    on_nan: OnNan = None,
    max_loss: Optional[float] = None,
    logdir: Optional[str] = None,
) -> WatchedSession:
    """Gives a plain session hooks and policies.

    The returned session behaves as the given one, and calls the hooks for runs of a train op only:
    of a guarded one, or any op that runs an optimizer. Other runs are as they were.

        with tf.compat.v1.Session() as session:
            session = slimguard.watch(session, on_nan='skip')
            session.run(tf.compat.v1.global_variables_initializer())
            while not session.should_stop():
                session.run(train_op, feed_dict={...})

    The hooks' `end` is called when the returned session is closed, or left as a context manager.

    Args:
      session: a `tf.compat.v1.Session`, new or in use.
      hooks: `SessionRunHook`s. A `NanLossHook` among them decides what happens after a bad step.
      on_nan: what happens after a bad step where no `NanLossHook` says; see `NanLossHook`.
      max_loss: a larger loss is a bad step too; a positive finite number. Default: no limit.
      logdir: where the record of incidents goes, and where a rollback finds its checkpoints.

    Raises:
      TypeError: if `session` is no session.
      ValueError: if `on_nan` or `max_loss` is not what is expected, or disagrees with a hook.
    """
    if not isinstance(session, _SessionInterface):
        raise TypeError(
            'session must be a tf.compat.v1.Session, not %r; a MonitoredSession takes the hook '
            'itself: hooks=[slimguard.NanLossHook(loss)]' % (session,)
        )
    hooks, _ = with_watcher(hooks, on_nan, max_loss, logdir)
    coordinator = tf1.train.Coordinator()
    with session.graph.as_default():
        for hook in hooks:
            hook.begin()
    for hook in hooks:
        hook.after_create_session(session, coordinator)
    return WatchedSession(session, hooks)


def _merge_options(options, more) -> None:
    options.trace_level = max(options.trace_level, more.trace_level)
    options.timeout_in_ms = max(options.timeout_in_ms, more.timeout_in_ms)
    options.inter_op_thread_pool = max(options.inter_op_thread_pool, more.inter_op_thread_pool)
    options.output_partition_graphs |= more.output_partition_graphs
    options.report_tensor_allocations_upon_oom |= more.report_tensor_allocations_upon_oom
    options.debug_options.debug_tensor_watch_opts.extend(more.debug_options.debug_tensor_watch_opts)


class HookedSteps:
    """The step function and the session wrapper to hand to `slim.learning.train`.

    Args:
      train_step_fn: the user's step function, or slim's.
      session_wrapper: the user's session wrapper, or None.
      hooks: the hooks, whose `begin` was called.
      watcher: the hook that handles a numeric check that raised.
      train_op: the guarded train op.
      save: called with the session and the incident before a `NanLossError` leaves the loop, and
        with None before a KeyboardInterrupt or SystemExit does; None to save nothing.
    """

    def __init__(
        self,
        train_step_fn: Callable,
        session_wrapper: Optional[Callable],
        hooks: Sequence[tf1.train.SessionRunHook],
        watcher: GateWatcher,
        train_op: TrainOp,
        save: Optional[Callable[[Any, Optional[Incident]], None]],
    ):
        self._train_step_fn = train_step_fn
        self._session_wrapper = session_wrapper
        self._hooks = hooks
        self._watcher = watcher
        self._train_op = train_op
        self._save = save
        self._last_good_loss = float('nan')  # type: Any
        self._traces: Dict[str, int] = {}
        self.coordinator = tf1.train.Coordinator()

    def wrap(self, session) -> HookedSession:
        """The session wrapper: slim calls it for every session it makes."""
        for hook in self._hooks:
            hook.after_create_session(session, self.coordinator)
        if self._session_wrapper is not None:
            session = self._session_wrapper(session)
        return HookedSession(session, self._hooks, self._train_op)

    def step(self, session, train_op, global_step, train_step_kwargs) -> Tuple[Any, bool]:
        """The step function. Returns the loss of the last good step, and whether to stop."""
        incidents = len(self._watcher.incidents)
        if 'should_trace' in train_step_kwargs and 'summary_writer' in train_step_kwargs:
            train_step_kwargs = dict(
                train_step_kwargs,
                summary_writer=_TraceWriter(train_step_kwargs['summary_writer'], self._traces),
            )
        try:
            loss, should_stop = self._try_step(session, train_op, global_step, train_step_kwargs)
        except NanLossError as error:
            if self._save is not None:
                self._save(session, error.incident)
            raise
        except (KeyboardInterrupt, SystemExit):
            if self._save is not None:
                self._save(session, None)
            raise
        except tf.errors.OutOfRangeError:
            self._end(session)
            raise
        except StopIteration:
            loss, should_stop = self._last_good_loss, True
        if len(self._watcher.incidents) > incidents:
            loss = self._last_good_loss
        else:
            self._last_good_loss = loss
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
            context = tf1.train.SessionRunContext(tf1.train.SessionRunArgs(train_op), session)
            self._watcher.handle(context, incident)
            session.stop_requested = session.stop_requested or context.stop_requested
            return self._last_good_loss, False

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


class _TraceWriter:
    """A summary writer that takes two traces of one global step.

    slim names a trace by the step and a writer refuses a name it has; but a held step leaves the
    global step where it was.
    """

    def __init__(self, writer, traces: Dict[str, int]):
        self._writer = writer
        self._traces = traces

    def __getattr__(self, name):
        return getattr(self._writer, name)

    def add_run_metadata(self, run_metadata, tag, global_step=None):
        self._traces[tag] = self._traces.get(tag, 0) + 1
        if self._traces[tag] > 1:
            tag = '%s (%d)' % (tag, self._traces[tag])
        self._writer.add_run_metadata(run_metadata, tag, global_step)

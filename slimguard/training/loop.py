"""Runs `SessionRunHook`s inside the loop of `slim.learning.train`, which takes none.

slim's loop asks for two things that can be replaced: a wrapper around its session, and the
function that does a step. :class:`HookedSession` is the first: it behaves as the session it wraps,
and calls hooks for runs of a train op only, so that slim's own small runs (is it time to stop? to
log?) cost what they did. :class:`HookedSteps` is the second.
"""

import contextlib
import functools
import math
import sys
import time
from typing import Any, Callable, Dict, Iterator, NamedTuple, Optional, Sequence, Tuple

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard import graph as graphs
from slimguard.cluster.session_end import as_aborted
from slimguard.graph import TrainOp, op_of
from slimguard.graph.sessions import SessionInterface, SessionWrapper
from slimguard.incidents.incident import Incident, NanLossError
from slimguard.incidents.policies import OnNan
from slimguard.system import files
from slimguard.training.fast_step import FastStep
from slimguard.training.gate_watcher import GateWatcher, with_watcher
from slimguard.training.hook_fetches import Requests
from slimguard.training.progress import Progress
from slimguard.training.watched_run import fetched_elements

_CHECKS = ('CheckNumerics', 'CheckNumericsV2')


class HookedSession(SessionWrapper):
    """A session that calls hooks around runs of train ops, as a `MonitoredSession` does.

    Everything else (`graph`, `make_callable`, ...) is that of the session it wraps.

    Args:
      session: the `tf.compat.v1.Session` to wrap, or a wrapper of one.
      hooks: the `SessionRunHook`s, whose `begin` was called.
      train_op: a train op whose runs are steps. Those of every guarded train op are, and of any
        op that runs an optimizer.

    Attributes:
      stop_requested: whether a hook asked to stop.
      before_other_run: called before each run that is no step, or None.
    """

    def __init__(
        self,
        session,
        hooks: Sequence[tf1.train.SessionRunHook],
        train_op: Optional[TrainOp] = None,
    ):
        SessionWrapper.__init__(self, session)
        self._hooks = list(hooks)
        self._train_op = train_op
        self._steps: Dict[Tuple[str, ...], bool] = {}
        self.stop_requested = False
        self.before_other_run: Optional[Callable[[], None]] = None

    def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        """As `tf.compat.v1.Session.run`."""
        if not self._is_step(fetches):
            if self.before_other_run is not None:
                self.before_other_run()
            return self._session.run(fetches, feed_dict, options, run_metadata)
        context = tf1.train.SessionRunContext(
            tf1.train.SessionRunArgs(fetches, feed_dict), self._session
        )
        requests = Requests(self._hooks, context, options)
        feeds = requests.feeds_with(feed_dict)
        given = requests.run_options, run_metadata
        run_metadata = run_metadata or tf1.RunMetadata()
        if requests.run_options is not None:
            given = requests.run_options, run_metadata
        all_fetches = [self._through_gates(fetches)] + list(requests.fetches.values())
        mine, *others = self._session.run(all_fetches, feeds, *given)
        results = dict(zip(requests.fetches, others))
        for hook in self._hooks:
            hook.after_run(
                context,
                tf1.train.SessionRunValues(results.get(hook), requests.options, run_metadata),
            )
        self.stop_requested = self.stop_requested or context.stop_requested
        return mine

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

    def __init__(self, session, hooks: Sequence[tf1.train.SessionRunHook], coordinator):
        HookedSession.__init__(self, session, hooks)
        self._coordinator = coordinator
        self._ended = False
        self._contexts = contextlib.ExitStack()

    def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        """As `tf.compat.v1.Session.run`; a step after a hook asked to stop is a RuntimeError."""
        if self.should_stop() and self._is_step(fetches):
            raise RuntimeError(
                'a hook has asked to stop, and this would be one more step; loop with '
                '"while not session.should_stop()"'
            )
        return HookedSession.run(self, fetches, feed_dict, options, run_metadata)

    def should_stop(self) -> bool:
        """Whether a hook asked to stop, as `MonitoredSession.should_stop` says."""
        return self.stop_requested or self._coordinator.should_stop()

    def close(self):
        """Calls the hooks' `end`, joins their threads, and closes the session.

        An error that a thread of theirs reported to the coordinator is raised.
        """
        try:
            if not self._ended:
                self._ended = True
                for hook in self._hooks:
                    hook.end(self._session)
        finally:
            self._coordinator.request_stop()
            try:
                if not self._coordinator.joined:
                    self._coordinator.join(ignore_live_threads=True)
            finally:
                self._session.close()

    def __enter__(self):
        self._contexts.enter_context(self.graph.as_default())
        self._contexts.enter_context(self.as_default())
        return self

    def __exit__(self, error_type, error, traceback):
        clean = error_type in (None, tf.errors.OutOfRangeError, StopIteration)
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
    logdir: Optional[files.Path] = None,
) -> WatchedSession:
    """Gives a plain session hooks and policies.

    The returned session behaves as the given one, and calls the hooks for runs of a train op only:
    of a guarded one, or any op that runs an optimizer. Other runs are as they were.

        with tf.compat.v1.Session() as session:
            session = slimguard.watch(session, on_nan='skip')
            session.run(tf.compat.v1.global_variables_initializer())
            while not session.should_stop():
                session.run(train_op, feed_dict={...})

    The hooks' `end` is called when the returned session is closed, or left as a context manager
    without an error (the end of the input is none, nor is StopIteration).

    Args:
      session: a `tf.compat.v1.Session`, new or in use.
      hooks: `SessionRunHook`s. A `NanLossHook` among them decides what happens after a bad step.
      on_nan: what happens after a bad step where no `NanLossHook` says; see `NanLossHook`.
      max_loss: a larger loss is a bad step too; a positive finite number. Default: no limit.
      logdir: where the record of incidents goes, and where a rollback finds its checkpoints: a
        str, bytes or `os.PathLike`. A relative one is read here.

    Raises:
      TypeError: if `session` is no session.
      ValueError: if `on_nan` or `max_loss` is not what is expected, or disagrees with a hook.
    """
    if not isinstance(session, SessionInterface):
        raise TypeError(
            'session must be a tf.compat.v1.Session, not %r; a MonitoredSession takes the hook '
            'itself: hooks=[slimguard.NanLossHook(loss)]' % (session,)
        )
    hooks, watcher = with_watcher(hooks, on_nan, max_loss, logdir)
    watcher.is_alone = True  # nobody makes its session anew
    # As a MonitoredSession's: what a thread reports is raised, whatever it is.
    coordinator = tf1.train.Coordinator(clean_stop_exception_types=[])
    with session.graph.as_default():
        for hook in hooks:
            hook.begin()
    for hook in hooks:
        hook.after_create_session(session, coordinator)
    return WatchedSession(session, hooks, coordinator)


class Schedule(NamedTuple):
    """When slim's own `train_step` stops, logs and traces, by global step; None for never."""

    number_of_steps: Optional[int]
    log_every_n_steps: Optional[int]
    trace_every_n_steps: Optional[int]


class HookedSteps:
    """The step function and the session wrapper to hand to `slim.learning.train`.

    Args:
      train_step_fn: the user's step function, or slim's.
      session_wrapper: the user's session wrapper, or None.
      hooks: the hooks, whose `begin` was called.
      watcher: the hook that handles a numeric check that raised.
      train_op: the guarded train op.
      save: called with the session and the incident before a `NanLossError` leaves the loop, and
        with the session and None before a KeyboardInterrupt or SystemExit does; None to save
        nothing.
      schedule: what slim's own `train_step` is to do; None for any other step function, which
        sees to it itself.
      progress: where to show how the training goes, or None.
      before_session: called before slim makes a session, other than the first.

    Attributes:
      coordinator: the coordinator of the training, which hooks get: the Supervisor's own, once
        there is a session.
    """

    def __init__(
        self,
        train_step_fn: Callable,
        session_wrapper: Optional[Callable],
        hooks: Sequence[tf1.train.SessionRunHook],
        watcher: GateWatcher,
        train_op: TrainOp,
        save: Optional[Callable[[Any, Optional[Incident]], None]],
        schedule: Optional[Schedule] = None,
        progress: Optional[Progress] = None,
        before_session: Callable[[], None] = lambda: None,
    ):
        self._before_session = before_session
        self._train_step_fn = train_step_fn
        self._session_wrapper = session_wrapper
        self._hooks = hooks
        self._watcher = watcher
        self._retried = _Retried(watcher)
        self._train_op = train_op
        self._save = save
        self._schedule = schedule
        self._progress = progress
        self._loss: Any = None
        self._traces: Dict[str, int] = {}
        self._stop_asked = False
        self._swallowed: Optional[tf.errors.OutOfRangeError] = None
        self.coordinator = tf1.train.Coordinator()
        self._begin_session(None)

    def request_stop(self) -> None:
        """Ends the training after the step that runs, if any, as a hook's `request_stop` does.

        It takes no lock, so a signal handler may call it.
        """
        self._stop_asked = True

    def raise_swallowed(self) -> None:
        """Raises the OutOfRangeError of a hook that did not come from a step.

        slim takes any for the end of the input, and returns; a `MonitoredSession` raises it.
        """
        if self._swallowed is not None:
            raise self._swallowed

    def wrap(self, session) -> HookedSession:
        """The session wrapper: slim calls it for every session it makes."""
        self._begin_session(session)
        if self._session_wrapper is not None:
            self._runs_in = self._session_wrapper(session)
        hooked = HookedSession(self._runs_in, self._hooks, self._train_op)
        supervisor = _supervisor_that_calls()
        if supervisor is not None:
            self.coordinator = supervisor.coord
            self._take_reins(supervisor, hooked)
        with self._not_the_end_of_the_input(), self._retried:
            for hook in self._hooks:
                hook.after_create_session(session, self.coordinator)
        if self._watcher.job is not None:
            hooked.before_other_run = self._wait_no_longer
        return hooked

    def step(self, session, train_op, global_step, train_step_kwargs) -> Tuple[Any, bool]:
        """The step function. Returns the loss of the last good step, and whether to stop."""
        session.before_other_run = None
        incidents = self._watcher.incident_count
        try:
            if self._stop_asked or self.coordinator.should_stop():
                self._raise_what_peers_said()
                self._end()
                return self._loss, True
            with self._retried:
                loss, should_stop = self._try_step(
                    session, train_op, global_step, train_step_kwargs
                )
        except NanLossError as error:
            self._save_before(error.incident)
            raise
        except (KeyboardInterrupt, SystemExit):
            self._save_before(None)
            raise
        except tf.errors.OutOfRangeError:
            self._end()
            raise
        except StopIteration:
            loss, should_stop = self._loss, True
        except Exception:
            for hook in self._hooks:
                if isinstance(hook, GateWatcher) and hook.failed_at is not None:
                    self._save_before(hook.failed_at)
                    hook.failed_at = None
            raise
        if self._watcher.incident_count > incidents:
            self._step_before = None  # a policy may have set the step back
            loss = math.nan if self._loss is None else self._loss
        self._loss = loss
        should_stop = should_stop or session.stop_requested or self._stop_asked
        if self._progress is not None and (should_stop or self._progress.is_due()):
            self._progress.show(self._step_now(global_step), loss, self._watcher.incident_count)
        if should_stop:
            self._end()
        return loss, should_stop

    def _take_reins(self, supervisor: tf1.train.Supervisor, session) -> None:
        # slim asks before each step. It must not leave its loop but by way of `step`, or else the
        # hooks' `end` is not called where a thread asked to stop.
        supervisor.should_stop = self._has_ended
        # The hooks of a MonitoredSession find its queues running. slim starts them next, and those
        # that ran dry must not be started twice.
        start = functools.partial(type(supervisor).start_queue_runners, supervisor)
        threads = start(session)

        def start_more(session, queue_runners=None):
            return threads if queue_runners is None else start(session, queue_runners)

        supervisor.start_queue_runners = start_more
        prepare = functools.partial(type(supervisor).prepare_or_wait_for_session, supervisor)

        def prepare_again(*args, **kwargs):
            with self._retried:
                self._before_session()
                return prepare(*args, **kwargs)

        supervisor.prepare_or_wait_for_session = prepare_again

    def _begin_session(self, session) -> None:
        self._session = self._runs_in = session
        self._fast: Optional[FastStep] = None
        self._may_be_fast = self._schedule is not None
        self._step_before: Optional[int] = None
        self._ended = False

    # In a cluster.

    def _raise_what_peers_said(self) -> None:
        if self._watcher.job is None:
            return
        with self._retried:
            try:
                self.coordinator.raise_requested_exception()
            except (tf.errors.AbortedError, tf.errors.UnavailableError, NanLossError):
                raise
            except Exception:
                pass  # slim raises it when it joins the threads

    def _wait_no_longer(self) -> None:
        """Ends slim's wait for the step to start at, which knows no other end."""
        if self.coordinator.should_stop():
            raise tf.errors.OutOfRangeError(None, None, 'the job has ended')

    def _has_ended(self) -> bool:
        return self._ended

    def _end(self) -> None:
        self._ended = True
        with self._not_the_end_of_the_input():
            for hook in self._hooks:
                hook.end(self._session)

    @contextlib.contextmanager
    def _not_the_end_of_the_input(self) -> Iterator[None]:
        try:
            yield
        except tf.errors.OutOfRangeError as error:
            self._swallowed = error
            raise

    def _save_before(self, incident: Optional[Incident]) -> None:
        if self._save is not None:
            self._save(self._session, incident)

    def _try_step(self, session, train_op, global_step, train_step_kwargs) -> Tuple[Any, bool]:
        try:
            if self._may_be_fast and self._fast is None:
                self._fast = FastStep.of(self._runs_in, self._hooks, train_op, global_step)
                self._may_be_fast = self._fast is not None
            if self._fast is None or self._is_time_to_trace(global_step, train_step_kwargs):
                self._step_before = None
                kwargs = self._with_trace_writer(train_step_kwargs)
                return self._train_step_fn(session, train_op, global_step, kwargs)
            return self._fast_step(session)
        except tf.errors.InvalidArgumentError as error:
            if isinstance(error, NanLossError):
                raise
            incident = self._incident_of(error, global_step)
            if incident is None:
                raise
            args = tf1.train.SessionRunArgs(train_op)
            context = tf1.train.SessionRunContext(args, self._session)
            self._watcher.handle(context, incident)
            session.stop_requested = session.stop_requested or context.stop_requested
            return self._loss, False

    def _fast_step(self, session: HookedSession) -> Tuple[Any, bool]:
        """What slim's `train_step` does, in one call."""
        start = time.time()
        done = self._fast.run()
        elapsed = time.time() - start
        self._step_before = done.step
        session.stop_requested = session.stop_requested or done.stop_requested
        number_of_steps, log_every, _ = self._schedule
        if log_every and done.step % log_every == 0:
            tf1.logging.info(
                'global step %d: loss = %.4f (%.3f sec/step)', done.step, done.loss, elapsed
            )
        return done.loss, number_of_steps is not None and done.step >= number_of_steps

    def _is_time_to_trace(self, global_step, train_step_kwargs) -> bool:
        every = self._schedule.trace_every_n_steps
        if not every or 'should_trace' not in train_step_kwargs:
            return False
        return self._step_now(global_step) % every == 0

    def _step_now(self, global_step) -> int:
        if self._step_before is None:
            self._step_before = int(self._session.run(global_step))
        return self._step_before

    def _with_trace_writer(self, train_step_kwargs):
        if 'should_trace' not in train_step_kwargs or 'summary_writer' not in train_step_kwargs:
            return train_step_kwargs
        writer = _TraceWriter(train_step_kwargs['summary_writer'], self._traces)
        return dict(train_step_kwargs, summary_writer=writer)

    def _incident_of(self, error, global_step) -> Optional[Incident]:
        """The incident behind a numeric check that raised; None for any other error."""
        labels = gates.labels_in(error.message)
        if labels:
            finding = gates.explain(labels)
        elif error.op is not None and error.op.type in _CHECKS:
            checked = error.op.inputs[0].op.name
            said = tf.compat.as_str(error.op.get_attr('message'))
            finding = gates.Verdict((checked,), 'not finite: %s (%s)' % (checked, said), False)
        else:
            return None
        return Incident(
            step=int(self._session.run(global_step)),
            loss=None,
            reason=finding.reason,
            tensors=finding.tensors,
            strategy='check_numerics',
            time=time.time(),
            state_lost=finding.state_lost,
        )


class _Retried:
    """Lets slim make a new session where a process of the job is gone, however that shows.

    It is around each step, and `contextlib` would take a microsecond of that.
    """

    def __init__(self, watcher: GateWatcher):
        self._watcher = watcher

    def __enter__(self):
        return self

    def __exit__(self, error_type, error, traceback):
        if isinstance(error, tf.errors.UnavailableError) and self._watcher.job is not None:
            raise as_aborted(error) from error


def _supervisor_that_calls() -> Optional[tf1.train.Supervisor]:
    """The Supervisor of the slim.learning.train that calls us, or None.

    slim makes it and hands it to nobody, so it is looked for among the variables of the callers.
    """
    frame = sys._getframe(1)
    while frame is not None:
        for value in frame.f_locals.values():
            if issubclass(type(value), tf1.train.Supervisor):
                return value
        frame = frame.f_back
    return None


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

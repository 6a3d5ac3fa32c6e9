"""Runs `SessionRunHook`s inside the loop of `slim.learning.train`, which does not take hooks.

slim's loop asks for two things that can be replaced, and :class:`SlimLoop` gives both: a wrapper
around its session, and the function that does a step. The wrapper is a `HookedSession`: it behaves
as the session it wraps, and calls hooks only for runs of a train op, so that slim's own small runs
(is it time to stop? to log?) are not slower. :class:`StepRunner` does a step, in one run if it can,
else by slim's function or the user's. Four methods of slim's Supervisor are replaced, so that it
does what a `MonitoredSession` does.
"""

import contextlib
import functools
import math
import time
from typing import Any, Callable, Iterator, NamedTuple, Optional, Sequence, Tuple

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard import graph as graphs
from slimguard.checkpoints.step_turn import StepTurn
from slimguard.cluster.session_end import NEW_SESSION, as_aborted
from slimguard.compat import tf_callers, tf_private
from slimguard.graph import TrainOp
from slimguard.incidents.nan_loss_error import NanLossError
from slimguard.training.gate_watcher import GateWatcher
from slimguard.training.hooked_session import HookedSession
from slimguard.training.open_incident import of_error
from slimguard.training.prepared_runs import has_own_run_instrumented
from slimguard.training.training import Training


class Schedule(NamedTuple):
    """When slim's own `train_step` stops, logs and traces, by global step; None for never."""

    number_of_steps: Optional[int]
    log_every_n_steps: Optional[int]
    trace_every_n_steps: Optional[int]


class SlimLoop:
    """The step function and the session wrapper that `slim.learning.train` gets.

    Args:
      make_runner: makes the `StepRunner` of a session; takes its last three arguments.
      session_wrapper: the user's session wrapper, or None.
      hooks: the hooks; their `begin` was called before the first session.
      watcher: the hook that handles the error of a numeric check.
      train_op: the guarded train op.
      training: saves before an error or an interrupt leaves the loop; its signals may ask the
        training to end, as a hook's `request_stop` does.
      before_session: called before slim makes another session.
      note_session: called with each session, once its variables have values.
      turn: the turns between the loop and the threads that save; None without such threads.
      summary_op: the summary op that the Supervisor runs between two steps instead of its own; or
        None.

    Attributes:
      coordinator: the coordinator that hooks get: the Supervisor's own, once there is a session.
    """

    def __init__(
        self,
        make_runner: Callable[..., 'StepRunner'],
        session_wrapper: Optional[Callable],
        hooks: Sequence[tf1.train.SessionRunHook],
        watcher: GateWatcher,
        train_op: TrainOp,
        training: Training,
        before_session: Callable[[], None] = lambda: None,
        note_session: Callable[[Any], None] = lambda session: None,
        turn: Optional[StepTurn] = None,
        summary_op: Optional[tf.Tensor] = None,
    ):
        self._make_runner = make_runner
        self._session_wrapper = session_wrapper
        self._hooks = tuple(hooks)
        self._watcher = watcher
        self._retried = _Retried(watcher)
        self._train_op = train_op
        self._training = training
        self._before_session = before_session
        self._signals = training.signals
        self._signals.begin_step()  # no `end_step`: slim's loop asks before each step
        self._note_session = note_session
        self._turn, self._summary_op = turn, summary_op
        self._loss: Any = None
        self._swallowed: Optional[tf.errors.OutOfRangeError] = None
        self.coordinator = tf1.train.Coordinator()
        self._begin_session(None)

    def raise_swallowed(self) -> None:
        """Raises the OutOfRangeError that a hook raised outside a step, if any.

        slim would take it for the end of the input, and return; a `MonitoredSession` raises it.
        """
        if self._swallowed is not None:
            raise self._swallowed

    def wrap(self, session) -> HookedSession:
        """The session wrapper: slim calls it for every session it makes."""
        runs_in = self._begin_session(session)
        asked = self._hooks, self._train_op, self._wait_no_longer, has_own_run_instrumented
        hooked = HookedSession(runs_in, *asked)
        supervisor = tf_callers.supervisor_that_calls()
        if supervisor is not None:
            self.coordinator = supervisor.coord
            self._take_reins(supervisor, hooked)
        with self._not_the_end_of_the_input(), self._retried:
            for hook in self._hooks:
                hook.after_create_session(session, self.coordinator)
            self._note_session(session)
        self._waits_to_start = self._watcher.job is not None
        if supervisor is not None and self._turn is not None:
            self._take_turns(supervisor, hooked, self._turn)
        return hooked

    def step(self, session, train_op, global_step, train_step_kwargs) -> Tuple[Any, bool]:
        """The step function. Returns the loss of the last good step, and whether to stop."""
        self._waits_to_start = False
        incidents = self._watcher.incident_count
        try:
            if self._signals.is_asked or self.coordinator.should_stop():
                self._raise_what_peers_said()
                self._end()
                return self._loss, True
            with self._retried:
                loss, should_stop = self._try_step(
                    session, train_op, global_step, train_step_kwargs
                )
        except StopIteration:
            loss, should_stop = self._loss, True
        except BaseException as error:
            self._leave_by(error)
            raise
        if self._watcher.incident_count > incidents:
            self._runner.forget_step()  # a policy may have set the global step back
            loss = math.nan if self._loss is None else self._loss
        self._loss = loss
        should_stop = should_stop or session.stop_requested or self._signals.is_asked
        self._show_progress(global_step, should_stop)
        if should_stop:
            self._end()
        return loss, should_stop

    def _begin_session(self, session) -> Any:
        """Returns the session in which steps run, in the user's wrapper."""
        runs_in = session
        self._session = session
        self._waits_to_start = self._ended = False
        if session is not None:
            self._signals.watch(session)
            if self._session_wrapper is not None:
                runs_in = self._session_wrapper(session)
        self._runner = self._make_runner(session, runs_in, self._training)
        return runs_in

    def _try_step(
        self, session: HookedSession, train_op, global_step, train_step_kwargs
    ) -> Tuple[Any, bool]:
        try:
            return self._runner.run(session, train_op, global_step, train_step_kwargs)
        except tf.errors.InvalidArgumentError as error:
            if isinstance(error, NanLossError):
                raise
            step = functools.partial(self._runner.read_step, global_step)
            opened = of_error(error, step)
            if opened is None:
                raise
            args = tf1.train.SessionRunArgs(train_op)
            context = tf1.train.SessionRunContext(args, self._session)
            self._watcher.handle(context, opened)
            session.stop_requested = session.stop_requested or context.stop_requested
            return self._loss, False

    def _show_progress(self, global_step, must: bool) -> None:
        progress = self._training.progress
        if progress is not None and (must or progress.is_due()):
            step = self._runner.step_now(global_step)
            progress.show(step, self._loss, self._watcher.incident_count)

    # slim's Supervisor.

    def _take_reins(self, supervisor: tf1.train.Supervisor, session: HookedSession) -> None:
        """Replaces the methods that slim calls on its Supervisor, once there is a session."""
        # slim asks before each step. It must leave its loop only from within a step: otherwise, if
        # a thread asked to stop, the hooks' `end` would not be called.
        tf_private.replace_method(supervisor, 'should_stop', lambda: self._ended)
        # In a MonitoredSession queue runners start before the hooks are called; slim starts them
        # later. So start them here if a hook may need them; not otherwise, since a run waits for
        # threads that begin to fill queues. Then slim's own start must do nothing, or queues that
        # ran dry would start twice.
        threads: Any = None
        if _need_queues(self._hooks, session):
            threads = type(supervisor).start_queue_runners(supervisor, session)

        def start_more(session, queue_runners=None):
            is_done = threads is not None and queue_runners is None
            return threads if is_done else start(session, queue_runners)

        start = tf_private.replace_method(supervisor, 'start_queue_runners', start_more)

        def prepare_again(*args, **kwargs):
            with self._retried:
                self._before_session()
                return prepare(*args, **kwargs)

        prepare = tf_private.replace_method(
            supervisor, 'prepare_or_wait_for_session', prepare_again
        )

    def _take_turns(
        self, supervisor: tf1.train.Supervisor, session: HookedSession, turn: StepTurn
    ) -> None:
        """Makes a Supervisor wait for threads that save, and write summaries between two steps."""

        def stop_at_last(*args, **kwargs):
            supervisor.request_stop()
            turn.wait_for_savers()  # a Supervisor joins them for two minutes only
            return stop(*args, **kwargs)

        stop = tf_private.replace_method(supervisor, 'stop', stop_at_last)

        def summarize_once():
            with turn.no_step():  # the run may write and restore values: no step may see them
                summary, step = session.run([self._summary_op, supervisor.global_step])
            tf1.logging.info('Recording summary at step %s.', step)
            supervisor.summary_writer.add_summary(summary, step)

        writes = supervisor.save_summaries_secs and supervisor.summary_writer
        if self._summary_op is not None and writes:
            supervisor.loop(supervisor.save_summaries_secs, summarize_once)

    # How it ends.

    def _leave_by(self, error: BaseException) -> None:
        """Saves and cleans up before an error leaves the loop."""
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            self._training.save(self._session)
        elif isinstance(error, tf.errors.OutOfRangeError):
            self._end()
        elif isinstance(error, Exception):
            self._training.save_before(error, self._session)

    def _end(self) -> None:
        self._ended = True
        self._signals.tell_saving()
        save = functools.partial(self._training.save, self._session)
        with _saved_all_the_same(save), self._not_the_end_of_the_input():
            for hook in self._hooks:
                hook.end(self._session)

    @contextlib.contextmanager
    def _not_the_end_of_the_input(self) -> Iterator[None]:
        try:
            yield
        except tf.errors.OutOfRangeError as error:
            self._swallowed = error
            raise

    # In a cluster.

    def _raise_what_peers_said(self) -> None:
        if self._watcher.job is None:
            return
        with self._retried:
            try:
                self.coordinator.raise_requested_exception()
            except (NanLossError, *NEW_SESSION):
                raise
            except Exception:
                pass  # slim raises the error when it joins the threads

    def _wait_no_longer(self) -> None:
        """Ends slim's wait for the start step when the job ends: it would never come."""
        if self._waits_to_start and self.coordinator.should_stop():
            raise tf.errors.OutOfRangeError(None, None, 'the job has ended')


def _need_queues(hooks: Sequence[tf1.train.SessionRunHook], session) -> bool:
    """Whether some hook may need a queue in `after_create_session`.

    In a job, a worker's hook waits in it for tokens from the chief's queue.
    """
    known = tf1.train.SessionRunHook.after_create_session, GateWatcher.after_create_session
    theirs = [type(hook).after_create_session for hook in hooks]
    return bool(session.sess_str) or any(method not in known for method in theirs)


class _Retried:
    """Turns an UnavailableError of a job into an AbortedError, for which slim makes a new session.

    A class, because each step uses it, and `contextlib` would add a microsecond.
    """

    def __init__(self, watcher: GateWatcher):
        self._watcher = watcher

    def __enter__(self):
        return self

    def __exit__(self, error_type, error, traceback):
        if isinstance(error, tf.errors.UnavailableError) and self._watcher.job is not None:
            raise as_aborted(error) from error


@contextlib.contextmanager
def _saved_all_the_same(save: Callable[[], None]) -> Iterator[None]:
    """Saves if an error is raised at the end of a training; slim itself would not save."""
    try:
        yield
    except NEW_SESSION:  # the old session has nothing to save
        raise
    except BaseException:
        save()
        raise


class StepRunner:
    """Runs steps in one session.

    Args:
      train_step_fn: the user's step function, or slim's.
      schedule: when slim's own `train_step` stops, logs and traces; None for other step functions,
        which decide for themselves.
      session: the session that slim made.
      runs_in: the same session, in the user's wrapper if there is one.
      training: the `Training`; it has the global step after the last watched step.
    """

    def __init__(
        self,
        train_step_fn: Callable,
        schedule: Optional[Schedule],
        session,
        runs_in,
        training: Training,
    ):
        self._session = session
        self._runs_in = runs_in
        self._train_step_fn = train_step_fn
        self._schedule = schedule  # also None if slim's step takes more than one run
        self._in_one_run: Optional[Callable[[], Any]] = None
        self._training = training
        self._step_before: Optional[int] = None

    def run(
        self, session: HookedSession, train_op, global_step, train_step_kwargs
    ) -> Tuple[Any, bool]:
        """Runs a step. Returns its loss, and whether the step function asks to stop."""
        if self._schedule is not None and self._in_one_run is None:
            self._in_one_run = self._prepare(session, train_op, global_step)
            self._schedule = self._schedule if self._in_one_run else None
        schedule, run = self._schedule, self._in_one_run
        if schedule is not None and run is not None:
            if not self._traces_now(schedule, global_step, train_step_kwargs):
                return self._run_once(run, schedule, global_step)
        self._step_before = None
        kwargs = train_step_kwargs
        if 'should_trace' in kwargs and 'summary_writer' in kwargs:
            kwargs = dict(kwargs, summary_writer=_TraceWriter(kwargs['summary_writer']))
        return self._train_step_fn(session, train_op, global_step, kwargs)

    def step_now(self, global_step) -> int:
        """The global step; reads it from the session only if no step has returned it."""
        if self._step_before is None:
            self._step_before = self.read_step(global_step)
        return self._step_before

    def read_step(self, global_step) -> int:
        """The global step, read from the session."""
        return int(self._session.run(global_step))

    def forget_step(self) -> None:
        """Call it when the global step may have been set back."""
        self._step_before = None

    def _prepare(self, session: HookedSession, train_op, global_step) -> Any:
        """A function that does slim's step in one run; None if the step takes more runs."""
        gate = gates.gate_of(train_op) if isinstance(train_op, tf.Tensor) else None
        if gate is None or gate.step is None or not has_own_run_instrumented(self._runs_in):
            return None
        if global_step is not graphs.global_step(self._runs_in.graph):
            return None
        return session.prepared_step(gate.train_op, [gate.train_op, global_step])

    def _run_once(
        self, run: Callable[[], Any], schedule: Schedule, global_step
    ) -> Tuple[Any, bool]:
        """Does what slim's `train_step` does: runs the step, and decides about logs and the end."""
        start = time.time()
        loss = run()
        elapsed = time.time() - start
        self._step_before = self._training.step
        step = self.step_now(global_step)
        number_of_steps, log_every, _ = schedule
        if log_every and step % log_every == 0:
            tf1.logging.info('global step %d: loss = %.4f (%.3f sec/step)', step, loss, elapsed)
        return loss, number_of_steps is not None and step >= number_of_steps

    def _traces_now(self, schedule: Schedule, global_step, train_step_kwargs) -> bool:
        every = schedule.trace_every_n_steps
        if not every or 'should_trace' not in train_step_kwargs:
            return False
        return self.step_now(global_step) % every == 0


class _TraceWriter:
    """A summary writer that keeps the first of several traces of one global step.

    slim names a trace by the global step after the traced step. After a bad step the global step is
    the same, so the next trace has the same name, and a writer refuses it.
    """

    def __init__(self, writer):
        self._writer = writer

    def __getattr__(self, name):
        return getattr(self._writer, name)

    def add_run_metadata(self, run_metadata, tag, global_step=None):
        with contextlib.suppress(ValueError):
            self._writer.add_run_metadata(run_metadata, tag, global_step)

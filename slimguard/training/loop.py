"""Runs `SessionRunHook`s inside the loop of `slim.learning.train`, which takes none.

slim's loop asks for two things that can be replaced, and :class:`SlimLoop` gives both: a wrapper
around its session, and the function that does a step. The wrapper is a `HookedSession`: it behaves
as the session it wraps, and calls hooks for runs of a train op only, so that slim's own small runs
(is it time to stop? to log?) cost what they did.
"""

import contextlib
import functools
import math
from typing import Any, Callable, Iterator, Optional, Sequence, Tuple

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.checkpoints.step_turn import StepTurn
from slimguard.cluster.session_end import NEW_SESSION, as_aborted
from slimguard.compat import tf_callers
from slimguard.graph import TrainOp
from slimguard.incidents.nan_loss_error import NanLossError
from slimguard.training.gate_watcher import GateWatcher
from slimguard.training.hooked_session import HookedSession
from slimguard.training.prepared_runs import has_own_run_instrumented
from slimguard.training.step_runner import Schedule, StepRunner
from slimguard.training.supervisor import summarize, take_reins, wait_before_stop
from slimguard.training.training import Training
from slimguard.training.watched_run import of_error


class SlimLoop:
    """The step function and the session wrapper to hand to `slim.learning.train`.

    Args:
      train_step_fn: the user's step function, or slim's.
      session_wrapper: the user's session wrapper, or None.
      hooks: the hooks, whose `begin` was called before the first session.
      watcher: the hook that handles a numeric check that raised.
      train_op: the guarded train op.
      training: saves before an error or an interrupt leaves the loop; its signals may ask the
        training to end, as a hook's `request_stop` does.
      schedule: when slim's own `train_step` stops, logs and traces; None for any other step
        function, which does so itself.
      before_session: called before slim makes a session, other than the first.
      note_session: called with each session, once its variables have values.
      turn: the turns between the loop and the threads that save; None without such threads.
      summary_op: the summary op that the Supervisor runs between two steps in place of its own; or
        None.

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
        training: Training,
        schedule: Optional[Schedule] = None,
        before_session: Callable[[], None] = lambda: None,
        note_session: Callable[[Any], None] = lambda session: None,
        turn: Optional[StepTurn] = None,
        summary_op: Optional[tf.Tensor] = None,
    ):
        self._train_step_fn = train_step_fn
        self._session_wrapper = session_wrapper
        self._hooks = tuple(hooks)
        self._watcher = watcher
        self._retried = _Retried(watcher)
        self._train_op = train_op
        self._training = training
        self._schedule = schedule
        self._before_session = before_session
        self._signals = training.signals
        self._signals.begin_step()  # and no end: slim's loop asks ahead of each step
        self._note_session = note_session
        self._turn, self._summary_op = turn, summary_op
        self._loss: Any = None
        self._swallowed: Optional[tf.errors.OutOfRangeError] = None
        self.coordinator = tf1.train.Coordinator()
        self._begin_session(None)

    def raise_swallowed(self) -> None:
        """Raises the OutOfRangeError of a hook that did not come from a step.

        slim takes any for the end of the input, and returns; a `MonitoredSession` raises it.
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
            reins = self._has_ended, self._before_session, self._retried
            take_reins(supervisor, hooked, *reins, _need_queues(self._hooks, session))
        with self._not_the_end_of_the_input(), self._retried:
            for hook in self._hooks:
                hook.after_create_session(session, self.coordinator)
            self._note_session(session)
        self._waits_to_start = self._watcher.job is not None
        if supervisor is not None and self._turn is not None:
            wait_before_stop(supervisor, self._turn.wait_for_savers)
            if self._summary_op is not None:
                summarize(supervisor, hooked, self._summary_op, self._turn.no_step)
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
            self._runner.forget_step()  # a policy may have set the step back
            loss = math.nan if self._loss is None else self._loss
        self._loss = loss
        should_stop = should_stop or session.stop_requested or self._signals.is_asked
        self._show_progress(global_step, should_stop)
        if should_stop:
            self._end()
        return loss, should_stop

    def _begin_session(self, session) -> Any:
        """Returns the session in which steps run, as the user's wrapper wraps it."""
        runs_in = session
        self._session = session
        self._waits_to_start = self._ended = False
        if session is not None:
            self._signals.watch(session)
            if self._session_wrapper is not None:
                runs_in = self._session_wrapper(session)
        asked = self._train_step_fn, self._schedule, self._training
        self._runner = StepRunner(session, runs_in, *asked)
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
            reading = of_error(error, step)
            if reading is None:
                raise
            args = tf1.train.SessionRunArgs(train_op)
            context = tf1.train.SessionRunContext(args, self._session)
            self._watcher.handle(context, reading)
            session.stop_requested = session.stop_requested or context.stop_requested
            return self._loss, False

    def _show_progress(self, global_step, must: bool) -> None:
        progress = self._training.progress
        if progress is not None and (must or progress.is_due()):
            step = self._runner.step_now(global_step)
            progress.show(step, self._loss, self._watcher.incident_count)

    # How it ends.

    def _leave_by(self, error: BaseException) -> None:
        """Saves and cleans up before an error leaves the loop."""
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            self._training.save(self._session)
        elif isinstance(error, tf.errors.OutOfRangeError):
            self._end()
        elif isinstance(error, Exception):
            self._training.save_before(error, self._session)

    def _has_ended(self) -> bool:
        return self._ended

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
                pass  # slim raises it when it joins the threads

    def _wait_no_longer(self) -> None:
        """Ends slim's wait for the start step when the job ends: slim would wait for ever."""
        if self._waits_to_start and self.coordinator.should_stop():
            raise tf.errors.OutOfRangeError(None, None, 'the job has ended')


def _need_queues(hooks: Sequence[tf1.train.SessionRunHook], session) -> bool:
    """Whether some hook may ask a new session for input from a queue.

    In a job a worker waits there for tokens from the chief's queue.
    """
    known = tf1.train.SessionRunHook.after_create_session, GateWatcher.after_create_session
    theirs = [type(hook).after_create_session for hook in hooks]
    return bool(session.sess_str) or any(method not in known for method in theirs)


class _Retried:
    """Lets slim make a new session if a process of the job is gone, whatever the error.

    It is around each step, where `contextlib` would add a microsecond.
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
    """Saves if an error is raised at the end of a training; slim would save nothing."""
    try:
        yield
    except NEW_SESSION:  # there is nothing to save in the old one
        raise
    except BaseException:
        save()
        raise

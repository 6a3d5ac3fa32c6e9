"""One step of slim's loop: in one run where it can, else by the step function."""

import contextlib
import time
from typing import Any, Callable, NamedTuple, Optional, Tuple

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard import graph as graphs
from slimguard.training.hooked_session import HookedSession
from slimguard.training.prepared_runs import has_own_run_instrumented
from slimguard.training.training import Training


class Schedule(NamedTuple):
    """When slim's own `train_step` stops, logs and traces, by global step; None for never.

    A `StepRunner` that is given one may do a step in one run, as it knows what slim's would do.
    """

    number_of_steps: Optional[int]
    log_every_n_steps: Optional[int]
    trace_every_n_steps: Optional[int]


class StepRunner:
    """Runs steps in one session.

    Args:
      session: the session that slim made.
      runs_in: the session as the user's wrapper wrapped it, or the same.
      train_step_fn: the user's step function, or slim's.
      schedule: when slim's own `train_step` stops, logs and traces; None for any other step
        function, which does so itself.
      training: what its watchers know of the last step.
    """

    def __init__(
        self,
        session,
        runs_in,
        train_step_fn: Callable,
        schedule: Optional[Schedule],
        training: Training,
    ):
        self._session = session
        self._runs_in = runs_in
        self._train_step_fn = train_step_fn
        self._schedule = schedule  # None also where one run would not do what slim's step does
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
        """The global step, read from the session only if no step has returned it."""
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
        """What runs a step in one run; None where it would not do what slim's step does."""
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

    slim names a trace by the global step after it, where a bad step leaves it, and a writer refuses
    a name that it has.
    """

    def __init__(self, writer):
        self._writer = writer

    def __getattr__(self, name):
        return getattr(self._writer, name)

    def add_run_metadata(self, run_metadata, tag, global_step=None):
        with contextlib.suppress(ValueError):
            self._writer.add_run_metadata(run_metadata, tag, global_step)

"""One step of slim's loop: by the fast step where it can, else by the step function."""

import time
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf1

from slimguard.training.fast_step import FastStep
from slimguard.training.hooked_session import HookedSession


class Schedule(NamedTuple):
    """When slim's own `train_step` stops, logs and traces, by global step; None for never.

    A `StepRunner` that is given one may take the fast step, as it knows what slim's step would do.
    """

    number_of_steps: Optional[int]
    log_every_n_steps: Optional[int]
    trace_every_n_steps: Optional[int]


class StepRunner:
    """Runs steps in one session.

    Args:
      session: the session that slim made.
      runs_in: what the user's session wrapper made of it, or the same.
      hooks: the hooks.
      train_step_fn: the user's step function, or slim's.
      schedule: what slim's own `train_step` is to do; None for any other step function, which
        sees to it itself.
      traces: by tag, how many traces were written; it outlives the session.
    """

    def __init__(
        self,
        session,
        runs_in,
        hooks: Sequence[tf1.train.SessionRunHook],
        train_step_fn: Callable,
        schedule: Optional[Schedule],
        traces: Dict[str, int],
    ):
        self._session = session
        self._runs_in = runs_in
        self._hooks = hooks
        self._train_step_fn = train_step_fn
        self._schedule = schedule  # None also where the fast step would not do what slim's does
        self._traces = traces
        self._fast: Optional[FastStep] = None
        self._step_before: Optional[int] = None

    def run(
        self, session: HookedSession, train_op, global_step, train_step_kwargs
    ) -> Tuple[Any, bool]:
        """Runs a step. Returns its loss, and whether to stop by the step function's word."""
        schedule = self._schedule
        if schedule is not None:
            fast = self._fast or self._fast_step(train_op, global_step)
            if fast is not None and not self._traces_now(schedule, global_step, train_step_kwargs):
                return self._run_fast(fast, schedule, session)
        self._step_before = None
        kwargs = self._with_trace_writer(train_step_kwargs)
        return self._train_step_fn(session, train_op, global_step, kwargs)

    def step_now(self, global_step) -> int:
        """The global step, which is asked for only where no step told it."""
        if self._step_before is None:
            self._step_before = self.read_step(global_step)
        return self._step_before

    def read_step(self, global_step) -> int:
        """The global step, as the session says."""
        return int(self._session.run(global_step))

    def forget_step(self) -> None:
        """For when the global step may have been set back."""
        self._step_before = None

    def _fast_step(self, train_op, global_step) -> Optional[FastStep]:
        self._fast = FastStep.of(self._runs_in, self._hooks, train_op, global_step)
        if self._fast is None:
            self._schedule = None
        return self._fast

    def _run_fast(
        self, fast: FastStep, schedule: Schedule, session: HookedSession
    ) -> Tuple[Any, bool]:
        """What slim's `train_step` does, in one call."""
        start = time.time()
        done = fast.run()
        elapsed = time.time() - start
        self._step_before = done.step
        session.note_stop(done.stop_requested)
        number_of_steps, log_every, _ = schedule
        if log_every and done.step % log_every == 0:
            tf1.logging.info(
                'global step %d: loss = %.4f (%.3f sec/step)', done.step, done.loss, elapsed
            )
        return done.loss, number_of_steps is not None and done.step >= number_of_steps

    def _traces_now(self, schedule: Schedule, global_step, train_step_kwargs) -> bool:
        every = schedule.trace_every_n_steps
        if not every or 'should_trace' not in train_step_kwargs:
            return False
        return self.step_now(global_step) % every == 0

    def _with_trace_writer(self, train_step_kwargs):
        if 'should_trace' not in train_step_kwargs or 'summary_writer' not in train_step_kwargs:
            return train_step_kwargs
        writer = _TraceWriter(train_step_kwargs['summary_writer'], self._traces)
        return dict(train_step_kwargs, summary_writer=writer)


class _TraceWriter:
    """A summary writer that takes two traces of one global step.

    slim names a trace by the step and a writer refuses a name it has; but a gated step leaves the
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

"""One step of slim's loop: in one prepared call where it can, else by the step function."""

import time
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard import graph as graphs
from slimguard.compat import tf_callers
from slimguard.graph.sessions import REPLACES
from slimguard.training.gate_step import GateStep
from slimguard.training.hooked_session import HookedSession
from slimguard.training.prepared_runs import PreparedRuns


class Schedule(NamedTuple):
    """When slim's own `train_step` stops, logs and traces, by global step; None for never.

    With a `Schedule` a `StepRunner` can make a step in one call, since it knows what slim's step
    does.
    """

    number_of_steps: Optional[int]
    log_every_n_steps: Optional[int]
    trace_every_n_steps: Optional[int]


class StepRunner:
    """Runs steps in one session.

    Args:
      session: the session that slim made.
      runs_in: the session as the user's wrapper wrapped it, or the same.
      hooks: the hooks.
      train_step_fn: the user's step function, or slim's.
      schedule: when slim's own `train_step` stops, logs and traces; None for any other step
        function, which does so itself.
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
        self._schedule = schedule  # None also if a single call cannot do what slim's step does
        self._traces = traces
        self._in_one_call: Optional[GateStep] = None
        self._step_before: Optional[int] = None

    def run(
        self, session: HookedSession, train_op, global_step, train_step_kwargs
    ) -> Tuple[Any, bool]:
        """Runs a step. Returns its loss, and whether the step function asks to stop."""
        schedule, in_one_call = self._schedule, self._in_one_call
        if schedule is not None and in_one_call is None:
            in_one_call = self._in_one_call = self._prepare(train_op, global_step)
        if schedule is None or in_one_call is None:
            self._schedule = None
        elif not self._traces_now(schedule, global_step, train_step_kwargs):
            return self._run_in_one_call(in_one_call, schedule, session)
        self._step_before = None
        kwargs = self._with_trace_writer(train_step_kwargs)
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

    def _prepare(self, train_op, global_step) -> Optional[GateStep]:
        """Makes steps in one call; None if one call cannot do what slim's step does."""
        gate = gates.gate_of(train_op) if isinstance(train_op, tf.Tensor) else None
        if gate is None or gate.step is None or not _is_as_tensorflow_made_it(self._runs_in):
            return None
        if global_step is not graphs.global_step(self._runs_in.graph):
            return None
        args = tf1.train.SessionRunArgs([gate.train_op, global_step])
        asked = self._runs_in, PreparedRuns(), gate, self._hooks, args
        return GateStep(*asked, gate.quiet.train_op)

    def _run_in_one_call(
        self, in_one_call: GateStep, schedule: Schedule, session: HookedSession
    ) -> Tuple[Any, bool]:
        """Does what slim's `train_step` does: runs the step, and decides about logs and the end."""
        start = time.time()
        loss, told, stop_requested = in_one_call.run()
        elapsed = time.time() - start
        self._step_before = step = int(told.step)
        session.note_stop(stop_requested)
        number_of_steps, log_every, _ = schedule
        if log_every and step % log_every == 0:
            tf1.logging.info('global step %d: loss = %.4f (%.3f sec/step)', step, loss, elapsed)
        return loss, number_of_steps is not None and step >= number_of_steps

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


def _is_as_tensorflow_made_it(session) -> bool:
    """Whether nobody wraps the session or replaced its `run` (TensorFlow's own profiler does).

    The replacement that `instrument` makes passes on a step that is watched.
    """
    if type(session) is not tf1.Session or 'run' in vars(session):
        return False
    run = getattr(tf1.Session.run, REPLACES, tf1.Session.run)
    return tf_callers.is_method_of_sessions(run)


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

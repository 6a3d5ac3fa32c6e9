"""A session of a script, with what watches its steps: :class:`ScriptSession`."""

import threading
import weakref
from typing import Any, Callable, Dict, Optional

import tensorflow.compat.v1 as tf1

from slimguard.checkpoints.step_turn import in_turn
from slimguard.compat import tf_callers
from slimguard.graph.sessions import OWN_WORK, SessionWrapper
from slimguard.system.log import log
from slimguard.training.gate_step import GateStep
from slimguard.training.hooked_session import HookedSession
from slimguard.training.prepared_runs import MOST_KINDS, PreparedRuns, run_of_session
from slimguard.training.stop_signals import is_main_thread
from slimguard.unedited.script_watcher import ScriptWatcher, is_of_incident, stop_error
from slimguard.unedited.train_steps import GuardedStep


class ScriptSession(HookedSession):
    """A session of the script, whose steps a `ScriptWatcher` watches.

    Attributes:
      training: does the work of the training besides its steps.
    """

    def __init__(self, session, run: Callable, watcher: ScriptWatcher):
        HookedSession.__init__(self, _OfTensorFlow(session, run), [watcher])
        self._watcher = watcher
        self.training = watcher.training
        # If other code has replaced the session's `run`, that code must stay in use.
        is_own = tf_callers.is_method_of_sessions(run)
        self._runs = PreparedRuns(run_of_session, MOST_KINDS if is_own else 0)
        self._gate_steps: Dict[GuardedStep, Optional[GateStep]] = {}
        with session.graph.as_default():
            watcher.begin()
        watcher.after_create_session(self._session, tf1.train.Coordinator())
        watcher.runs.watch(self._session)

    def run_step(self, session, step: GuardedStep, feed_dict, options, run_metadata) -> Any:
        """Runs a step behind its gates when it has the turn, and lets the policy act.

        Returns:
          The values that the script fetched.
        """
        try:
            with OWN_WORK:
                run = in_turn(self._run_step, session.graph, trains=bool(step.names))
                return run(step, feed_dict, options, run_metadata)
        except Exception as error:
            if is_of_incident(error) and not is_main_thread():
                log().warning(_IN_A_THREAD, threading.current_thread().name)
            raise

    def _run_step(self, step: GuardedStep, *given):
        if step not in self._gate_steps:
            self._gate_steps[step] = self._gate_step(step)
        gate_step = self._gate_steps[step]
        if gate_step is None:
            mine, _ = self._run_hooked(step.args, step.args.fetches, *given)
        else:
            mine, _, stop_requested = gate_step.run(*given)
            self.note_stop(stop_requested)
        if self.stop_requested:
            self.stop_requested = False  # for a loop that continues all the same
            raise stop_error(self._watcher.incidents[-1])
        return mine

    def _gate_step(self, step: GuardedStep) -> Optional[GateStep]:
        """The `GateStep` that runs a step of one gate; None if the watcher has to be asked."""
        context = tf1.train.SessionRunContext(step.args, self._session)
        if step.quiet is None or not self._watcher.only_looks_at(step.gates[0], context):
            return None
        asked = self._session, self._runs, step.gates[0], [self._watcher]
        return GateStep(*asked, step.args, step.quiet)

    def release(self) -> None:
        """Stops watching."""
        self._watcher.end(self._session)


_IN_A_THREAD = (
    'this ends a run in thread %r, and nothing in other threads. Unless it is caught '
    'there, as by a tf.train.Coordinator, that thread ends and the others go on, or wait for it. '
    'Out of a tf.py_func it comes as an UnknownError of the run around it.'
)


class _OfTensorFlow(SessionWrapper):
    """A session of the script, with TensorFlow's own `run`.

    A subclass in the script may have a `run` of its own, which has been called already.
    """

    def __init__(self, session, run: Callable):
        # A proxy, because the session is the weak key under which this object is kept.
        SessionWrapper.__init__(self, weakref.proxy(session))
        self._run = run

    def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        return self._run(self._session, fetches, feed_dict, options, run_metadata)

"""A session of a script, with what watches its steps: :class:`ScriptSession`."""

import threading
import weakref
from typing import Any, Callable, Dict

import tensorflow.compat.v1 as tf1

from slimguard.checkpoints.step_turn import in_turn
from slimguard.compat import tf_callers
from slimguard.graph.sessions import OWN_WORK, SessionWrapper
from slimguard.system.log import log
from slimguard.training.hooked_session import HookedStep
from slimguard.training.prepared_runs import PreparedRuns
from slimguard.training.stop_signals import is_main_thread
from slimguard.unedited.script_watcher import ScriptWatcher, is_of_incident, stop_error
from slimguard.unedited.train_steps import GuardedStep


class ScriptSession:
    """A session of the script, and what watches its steps.

    Attributes:
      training: what is done for the training besides its steps.
    """

    def __init__(self, session, run: Callable, watcher: ScriptWatcher):
        self._session = _OfTensorFlow(session, run)
        self._watcher = watcher
        self.training = watcher.training
        # What replaced a session's `run` is not to be gone past.
        is_own = tf_callers.is_method_of_sessions(run)
        self._runs = PreparedRuns(prepares=lambda session: is_own)
        self._steps: Dict[GuardedStep, HookedStep] = {}
        with session.graph.as_default():
            watcher.begin()
        watcher.after_create_session(self._session, tf1.train.Coordinator())
        watcher.runs.watch(self._session)

    def run_step(self, session, step: GuardedStep, feed_dict, options, run_metadata) -> Any:
        """Runs a step behind its gates, in its turn, and lets the policy act.

        Returns:
          What the script fetched.
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
        known = self._steps.get(step)
        if known is None:
            asked = self._session, self._runs, [self._watcher], step.args
            known = self._steps[step] = HookedStep(*asked)
        (mine, _), is_asked = known.run(*given)
        if is_asked:  # for a loop that goes on all the same
            raise stop_error(self._watcher.incidents[-1])
        return mine

    def release(self) -> None:
        """No longer watches."""
        self._watcher.end(self._session)


_IN_A_THREAD = (
    'this ends a run in thread %r, and nothing in other threads. Unless it is caught '
    'there, as by a tf.train.Coordinator, that thread ends and the others go on, or wait for it. '
    'Out of a tf.py_func it comes as an UnknownError of the run around it.'
)


class _OfTensorFlow(SessionWrapper):
    """A session of the script, with TensorFlow's own `run`.

    A subclass of the script's may have another, which has been called already.
    """

    def __init__(self, session, run: Callable):
        # Not the session itself: it is what this is kept by.
        SessionWrapper.__init__(self, weakref.proxy(session))
        self._run = run

    def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        return self._run(self._session, fetches, feed_dict, options, run_metadata)

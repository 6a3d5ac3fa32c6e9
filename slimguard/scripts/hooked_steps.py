"""A session of a script, with what watches its steps: :class:`HookedSteps`."""

import threading
import weakref
from typing import Any, Callable, NamedTuple, Optional

import tensorflow.compat.v1 as tf1

from slimguard.checkpoints.step_turn import in_turn
from slimguard.compat import tf_callers
from slimguard.graph.sessions import OWN_WORK, SessionWrapper
from slimguard.scripts.patches import kept_already, kept_on
from slimguard.scripts.prepared_steps import Done, PreparedSteps
from slimguard.scripts.script_watcher import ScriptWatcher, is_of_incident, stop_error
from slimguard.scripts.train_steps import Step
from slimguard.system.log import log
from slimguard.training.hooked_session import HookedSession
from slimguard.training.signal_watch import is_main_thread
from slimguard.training.step_history import reading_of


class Known(NamedTuple):
    """A step that a session has run, and can run again without looking for train ops.

    Attributes:
      by: the `GuardedSessions` that guards it.
      fetches: what the script fetches.
      step: the step.
      hooked: runs it.
    """

    by: Any
    fetches: Any
    step: Step
    hooked: 'HookedSteps'

    def run(self, session, feed_dict, options, run_metadata) -> Any:
        """Runs the step, in its turn; returns what the script fetched."""
        with OWN_WORK:
            run = in_turn(self.hooked.run_step, session.graph, trains=bool(self.step.names))
            return run(session, self.step, feed_dict, options, run_metadata)


# A script that makes what it fetches anew for each step has no use for them.
_MOST_KNOWN = 16


def known_step(session, fetches: Any, by: Any) -> Optional[Known]:
    """The known step for a run of `fetches`, if this session has run it since the graph changed."""
    steps = kept_already(session, 'known_steps')
    known, version = (steps or {}).get(id(fetches), _NOTHING_KNOWN)
    if known is None or known.by is not by or version != session.graph.version:
        return None
    return known


_NOTHING_KNOWN = None, -1


def note_known(session, known: Known, version: int) -> None:
    """Notes a step that `known_step` is to know again.

    Args:
      session: the session that runs it.
      known: the step; of a tensor or an operation, as a list may be another one next time.
      version: that of the graph when all in it was guarded.
    """
    steps = kept_on(session, 'known_steps', dict)
    if len(steps) >= _MOST_KNOWN:
        steps.clear()
    steps[id(known.fetches)] = known, version


class HookedSteps(HookedSession):
    """A session of the script, and what watches its steps."""

    def __init__(self, session, run: Callable, watcher: ScriptWatcher):
        HookedSession.__init__(self, _OfTensorFlow(session, run), [watcher])
        self._watcher = watcher
        # What replaced a session's `run` is not to be gone past.
        is_own = tf_callers.is_method_of_sessions(run)
        self._prepared = PreparedSteps(watcher) if is_own else None
        with session.graph.as_default():
            watcher.begin()
        watcher.after_create_session(self._session, tf1.train.Coordinator())

    def run_step(self, session, step: Step, feed_dict, options, run_metadata):
        """Runs a step behind its gates, and lets the policy act."""
        try:
            return self._run_step(session, step, feed_dict, options, run_metadata)
        except Exception as error:
            if is_of_incident(error) and not is_main_thread():
                log().warning(_IN_A_THREAD, threading.current_thread().name)
            raise

    def _run_step(self, session, step: Step, feed_dict, options, run_metadata):
        done = None
        if self._prepared is not None and options is None and run_metadata is None:
            self._watcher.before_step(session)
            done = self._prepared.run(session, step, feed_dict)
        if done is None:
            fetches = step.args.fetches
            mine, _ = self._run_hooked(step.args, fetches, feed_dict, options, run_metadata)
        else:
            self._tell(step, done)
            mine = done.values
        if self.stop_requested:
            self.stop_requested = False  # for a loop that goes on all the same
            raise stop_error(self._watcher.incidents[-1])
        return mine

    def release(self) -> None:
        """No longer watches."""
        self._watcher.end(self._session)

    def _tell(self, step: Step, done: Done) -> None:
        """Tells the watcher of a step that ran without asking it."""
        if not done.is_bad:
            if done.history is not None and done.entry is not None:
                done.history.note_good(done.entry)
            self._watcher.step_was_good(self._session, done.told.loss)
            return
        context = tf1.train.SessionRunContext(step.args, self._session)
        reading = reading_of(done.gate, done.told, done.history, done.entry)
        self._watcher.handle(context, reading)
        self.note_stop(context.stop_requested)


_IN_A_THREAD = (
    'slimguard: this ends a run in thread %r, and nothing in other threads. Unless it is caught '
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

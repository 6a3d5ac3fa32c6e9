"""Watches the steps of a session, and acts on bad steps, in a script that does not use slimguard.

ScriptSession   runs the steps of the session
ScriptWatcher   does for the session what a `NanLossHook` does
"""

import threading
import weakref
from typing import Any, Callable, Dict, Optional, Sequence

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.checkpoints.snapshots import Snapshots
from slimguard.checkpoints.step_turn import in_turn
from slimguard.compat import tf_callers
from slimguard.graph.sessions import OWN_WORK, SessionWrapper
from slimguard.incidents.fallback_chain import FallbackChain
from slimguard.incidents.incident import Incident
from slimguard.incidents.policy_language import OnNan
from slimguard.system import terminal
from slimguard.system.log import log
from slimguard.system.signals import is_main_thread
from slimguard.training.gate_watcher import GateWatcher
from slimguard.training.hooked_session import HookedStep
from slimguard.training.learning_rate_factor import rate_factor_in
from slimguard.training.open_incident import OpenIncident
from slimguard.training.prepared_runs import PreparedRuns
from slimguard.training.rollback import Rollbacks
from slimguard.training.training import Training
from slimguard.training.watched_runs import Run
from slimguard.unedited.ending import Account, after_stop
from slimguard.unedited.script_files import ScriptFiles, folder_of
from slimguard.unedited.train_steps import GuardedStep


def stop_error(incident: Incident) -> tf.errors.OutOfRangeError:
    """The error by which 'stop' ends a loop that does not ask: the same as at an input's end.

    A MonitoredSession accepts exactly this type.
    """
    message = 'slimguard: the training is stopped, as on_nan says: %s' % incident
    error: Any = tf.errors.OutOfRangeError(None, None, message)
    error.incident = incident
    return error


def is_of_incident(error: BaseException) -> bool:
    """Whether an incident, not the input, ended a run, by `NanLossError` or `stop_error`."""
    return hasattr(error, 'incident')


def end_at_stop(files: ScriptFiles, run: Callable[..., Any], *args: Any) -> Any:
    """Calls `run(*args)`. If 'stop' ends the call, says so on stderr and returns None.

    Args:
      files: where the script saves.
      run: the code of the script.
      *args: its arguments.
    """
    try:
        return run(*args)
    except Exception as error:
        is_stop = isinstance(error, tf.errors.OutOfRangeError) and is_of_incident(error)
        if not is_stop:  # the end of an input, or a failure
            raise
    terminal.complain(after_stop(files.newest))


class ScriptWatcher(GateWatcher):
    """The `NanLossHook` of one session of a script.

    Args:
      on_nan: what happens after a bad step.
      training: the training, whose evidence may grow.
      script_files: where the script keeps its checkpoints.
      seen: the account of the trainings.

    Attributes:
      training, seen: as given.
      recorded_in: the logdir with the record; None while there is none.
    """

    _guards_beside = True

    def __init__(
        self,
        on_nan: OnNan,
        training: Training,
        script_files: ScriptFiles,
        seen: Account,
    ):
        self._files = script_files
        self.training, self.seen = training, seen
        self.recorded_in: Optional[str] = None
        self._acting = threading.RLock()  # several threads may train in one session
        GateWatcher.__init__(self, on_nan, settings=training.settings)
        self.join(training)

    def begin(self):
        GateWatcher.begin(self)
        self.histories.spike_in_words = 'spike=True, or --spike=default of run,'
        self.histories.note_jump = self.seen.note_jump

    def _look_around(self) -> tf_callers.CallingSession:
        # Do not look at the callers: on older Pythons this would keep the script's variables alive,
        # such as its session.
        return tf_callers.CallingSession([], None, [], False)

    def _find_directory(self, policies: FallbackChain, dirs: Sequence[str]) -> None:
        """Returns None: the directory is known only later, see `_keep_record`."""

    def _make_rollbacks(self, graph: tf.Graph, policies: FallbackChain) -> Rollbacks:
        smaller = rate_factor_in(graph, policies, lambda: folder_of(graph), False, self._ranks)
        snapshots = Snapshots(policies.snapshots, is_shared=self._ranks.are_several)
        assert self.training.checkpoints is not None
        return Rollbacks(self.training.checkpoints, snapshots, smaller)

    def ask(self, run_context, run: Optional[Run]) -> Optional[tf1.train.SessionRunArgs]:
        asked = GateWatcher.ask(self, run_context, run)
        # By now it may be known where the script saves.
        self._rollbacks.before_step(run_context.session)
        return asked

    def step_was_good(self, session, loss: Any, train_ops: Sequence[str]) -> None:
        if self.recorded_in is None and self._files.is_settled(session.graph):
            with self._acting:
                self._keep_record(session.graph)  # an empty record shows that there is a guard
        GateWatcher.step_was_good(self, session, loss, train_ops)

    def _keep_record(self, graph: tf.Graph) -> Optional[str]:
        """Makes the record unless it exists; returns its logdir. Only the first rank keeps one."""
        if self.recorded_in is None and not self._ranks.rank:
            self.recorded_in = self._files.logdir_for_record(graph)
            self._incident_log.keep_in(self.recorded_in)
        return self.recorded_in

    def end(self, session):
        self._policies.tell()  # dropped: the last line of `run` is about all sessions
        self.histories.take_last_words()  # dropped, too
        GateWatcher.end(self, session)

    def handle(self, run_context, opened: OpenIncident, *beside: OpenIncident) -> None:
        with self._acting:
            logdir = self._keep_record(run_context.session.graph)
            for each in list(self.training.evidence.values()):  # another thread may add to them
                if logdir is not None:
                    each.keep_in(logdir)
            missing = self._incident_log.missing
            try:
                GateWatcher.handle(self, run_context, opened, *beside)
            finally:
                together = self.incidents[-1 - len(beside) :]
                self.seen.note_incidents(together, logdir, self._incident_log.missing - missing)


class ScriptSession:
    """A session of the script; a `ScriptWatcher` watches its steps.

    Args:
      session, run: the session, and TensorFlow's own `run` of it.
      watcher: the watcher.
      prepare: called with a step before this session runs it for the first time.

    Attributes:
      training: does all work for the training except its steps.
    """

    def __init__(
        self,
        session,
        run: Callable,
        watcher: ScriptWatcher,
        prepare: Callable[[GuardedStep], None],
    ):
        self._session = _OfTensorFlow(session, run)
        self._watcher = watcher
        self._prepare = prepare
        self.training = watcher.training
        # If other code has replaced the session's `run`, keep using that code.
        is_own = tf_callers.is_method_of_sessions(run)
        self._runs = PreparedRuns(prepares=lambda session: is_own)
        self._steps: Dict[GuardedStep, HookedStep] = {}
        with session.graph.as_default():
            watcher.begin()
        watcher.after_create_session(self._session, tf1.train.Coordinator())
        watcher.runs.watch(self._session)

    def run_step(self, session, step: GuardedStep, feed_dict, options, run_metadata) -> Any:
        """Runs a step through its gates when it has the turn, lets the policy act, and counts it.

        Returns:
          The values that the script fetched.
        """
        known = self._steps.get(step)
        if known is None:
            self._prepare(step)
            asked = self._session, self._runs, [self._watcher], step.args
            known = self._steps[step] = HookedStep(*asked)
        incidents, seen = self._watcher.incident_count, self._watcher.seen
        try:
            with OWN_WORK:
                run = in_turn(self._run_step, session.graph, trains=bool(step.names))
                values = run(known, feed_dict, options, run_metadata)
        except Exception as error:
            if is_of_incident(error):
                seen.note_run(step.names)
                if not is_main_thread():
                    log().warning(_IN_A_THREAD, threading.current_thread().name)
            raise
        seen.note_run(step.names)
        if self._watcher.incident_count != incidents:
            seen.note_fetched(_of_script(values))
        return values

    def _run_step(self, known: HookedStep, *given):
        (mine, _), is_asked = known.run(*given)
        if is_asked:  # the script's loop would not ask, and go on
            raise stop_error(self._watcher.incidents[-1])
        return mine

    def release(self) -> None:
        """Stops watching."""
        self._watcher.end(self._session)


_IN_A_THREAD = (
    'the error ends a run in thread %r only. Unless something there catches it, such as a '
    'tf.train.Coordinator, the thread ends, and the others go on or wait for it. If the run is '
    'inside of a tf.py_func, the run around that ends in an UnknownError.'
)


def _of_script(values: Any) -> Any:
    """The values of a run, without the values fetched for hooks."""
    if not isinstance(values, dict):
        return values
    return [v for key, v in values.items() if not isinstance(key, tf1.train.SessionRunHook)]


class _OfTensorFlow(SessionWrapper):
    """A session of the script, with TensorFlow's own `run`.

    A subclass in the script may have its own `run`, which has already called TensorFlow's.
    """

    def __init__(self, session, run: Callable):
        # A proxy, because this object is kept under the session as a weak key.
        SessionWrapper.__init__(self, weakref.proxy(session))
        self._run = run

    def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        return self._run(self._session, fetches, feed_dict, options, run_metadata)

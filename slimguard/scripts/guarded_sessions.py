"""Sessions of a script that knows nothing of slimguard: each run that trains goes through a gate.

Every loop ends in `tf.compat.v1.Session.run`: a plain one, that of a MonitoredSession, of a
Supervisor, of an Estimator. There what trains is found (:mod:`train_steps`), its gate runs in its
place, and the policy acts (:mod:`script_watcher`).
"""

import functools
import threading
import weakref
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Set

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.checkpoints.step_turn import in_turn
from slimguard.compat import tf_callers, tf_private
from slimguard.diagnosis.evidence import Evidence, collect
from slimguard.gate import Gate, scale_learning_rates
from slimguard.graph.sessions import OWN_WORK, SessionWrapper, callable_of, note_opened
from slimguard.incidents.fallback_chain import FallbackChain
from slimguard.incidents.incident import Incident
from slimguard.incidents.nan_loss_error import with_short_traceback
from slimguard.incidents.policies import Raise, Skip
from slimguard.incidents.policy_language import OnNan
from slimguard.incidents.spike import Spike
from slimguard.scripts.ending import Seen
from slimguard.scripts.gradient_writes import note_tapes
from slimguard.scripts.optimizer_notes import OptimizerNotes
from slimguard.scripts.patches import Patches, kept_on
from slimguard.scripts.prepared_steps import Done, PreparedSteps
from slimguard.scripts.script_files import ScriptFiles
from slimguard.scripts.script_preemption import ScriptPreemption
from slimguard.scripts.script_summaries import ScriptSummaries
from slimguard.scripts.script_watcher import ScriptWatcher, is_of_incident, stop_error
from slimguard.scripts.train_steps import Step, TrainSteps
from slimguard.training import step_counters
from slimguard.training.hooked_session import HookedSession
from slimguard.training.preemption import SECONDS
from slimguard.training.signal_watch import is_main_thread
from slimguard.training.step_history import STEPS, HistorySettings, reading_of

_NO_PARTIAL_RUN = (
    'Session.partial_run fetches it apart from what its gate checks; use Session.run instead'
)


class ScriptSettings(NamedTuple):
    """How to guard a script.

    Attributes:
      on_nan: what happens after a bad step.
      max_loss: a larger loss is a bad step too.
      logdir: where records and bundles go; None for where the script saves.
      capture: whether bad steps are kept and examined.
      max_bundles: how many bundles there may be in one folder.
      preemption_seconds: how long a step may take to end after SIGTERM or Ctrl-C.
      spike: when a step is out of bounds; None if none is.
      history: how many of the last steps are kept.
    """

    on_nan: OnNan = None
    max_loss: Optional[float] = None
    logdir: Optional[str] = None
    capture: bool = True
    max_bundles: int = 5
    preemption_seconds: float = SECONDS
    spike: Optional[Spike] = None
    history: int = STEPS


_NO_CALLABLE = (
    'it is run by a callable made of options, as Keras does in fit, and not by Session.run; build '
    'the train op with an optimizer of tf.compat.v1.train, and run it in a session'
)


def _export(lock: threading.RLock, original: Callable, *args: Any, **kwargs: Any) -> Any:
    # By any thread, as a Supervisor's. An op that is being made just now is there already, and
    # unknown: TensorFlow fails there.
    with lock:
        return original(*args, **kwargs)


class GuardedSessions:
    """Guards what sessions run, from `install` until its patches are undone.

    Attributes:
      seen: what became of the trainings.
      files: where the script keeps its files.
    """

    def __init__(self, settings: ScriptSettings):
        self.seen = Seen()
        self._lock = threading.RLock()
        self.files = ScriptFiles(settings.logdir, self._lock, self.seen)
        self._settings = settings
        self._preemption = self._new_preemption()
        self._notes = OptimizerNotes()
        self._summaries = ScriptSummaries()
        self._sessions: Any = weakref.WeakKeyDictionary()  # the _HookedStep of each
        self._inside = OWN_WORK
        self._steps = self._skipped = 0  # other than those of slim's loop, which says it itself
        self._learning_rate = FallbackChain(settings.on_nan, Raise()).learning_rate
        self._without_loss: Set[str] = set()  # train ops of which that was said

    def install(self, patches: Patches) -> None:
        """Puts guarded methods in the place of TensorFlow's."""
        self._notes.install(patches)
        note_tapes(patches)
        self._summaries.install(patches)
        self.files.install(patches)
        owner = tf_private.session_class()
        patches.wrap(owner, '__init__', self._open)
        patches.wrap(owner, 'run', self._run)
        patches.wrap(owner, 'make_callable', self._make_callable)
        patches.wrap(owner, 'partial_run_setup', self._partial_run_setup)
        patches.wrap(owner, tf_private.MAKE_CALLABLE_FROM_OPTIONS, self._make_from_options)
        patches.wrap(tf.Graph, 'finalize', self._finalize)
        patches.wrap(tf.Graph, 'as_graph_def', functools.partial(_export, self._lock))
        patches.wrap(tf1.train.NanTensorHook, 'after_run', self._after_run_of_nan_hook)
        patches.wrap(tf1.train.StepCounterHook, 'after_run', step_counters.after_run)

    # What takes the place of TensorFlow's methods.

    def _open(self, original, session, *args, **kwargs):
        original(session, *args, **kwargs)
        if self._inside:
            return
        note_opened(session)
        self._hear_signals()  # its steps may be run in other threads, which cannot

    @with_short_traceback
    def _run(self, original, session, fetches, feed_dict=None, options=None, run_metadata=None):
        if self._inside:
            return original(session, fetches, feed_dict, options, run_metadata)
        self._summaries.note_run(session)
        step = self._step_of(session, fetches)
        self.seen.runs += step is None
        if step is None or step.is_watched:
            self.seen.own_steps += step is not None
            return original(session, fetches, feed_dict, options, run_metadata)
        try:
            self._capture(step, session.graph)
            run_step = functools.partial(
                self._run_step, original, session, step, feed_dict, options, run_metadata
            )
            self._hear_signals()
            values = self._preemption.run_step(session, run_step)
        except Exception as error:
            if is_of_incident(error):
                self._count(step)
            else:
                self.seen.note_failure(error)
            raise
        self._count(step)
        return values

    def _run_step(self, original, session, step, *arguments):
        with self._inside:
            run = self._hooked(session, original).run_step
            run = in_turn(run, session.graph, trains=bool(step.names))
            return run(session, step, *arguments)

    def _hear_signals(self) -> None:
        """From a session on, SIGTERM and Ctrl-C save what the script saves."""
        if is_main_thread() and not self._preemption.is_entered:
            self._preemption = self._new_preemption()
            self._preemption.__enter__()

    def _new_preemption(self) -> ScriptPreemption:
        return ScriptPreemption(self.files, self._settings.preemption_seconds)

    def release(self) -> None:
        """Puts signals back, and lets bad steps of sessions that go on tell of themselves."""
        for session, hooked in list(self._sessions.items()):
            if not tf_private.is_closed(session):
                hooked.release()
        self._preemption.leave()
        if self._skipped:
            said = self._skipped, self._steps
            tf1.logging.warning('slimguard: %d of %d batches were skipped.', *said)

    def _make_callable(self, original, session, fetches, feed_list=None, accept_options=False):
        step = None if self._inside else self._step_of(session, fetches)
        if step is None or step.is_watched:
            return original(session, fetches, feed_list, accept_options)
        return callable_of(session.run, fetches, feed_list)

    def _partial_run_setup(self, original, session, fetches, *args, **kwargs):
        for name in self._prepare(session.graph).names_of_updates(fetches):
            self._refuse(name, ValueError(_NO_PARTIAL_RUN))
        return original(session, fetches, *args, **kwargs)

    def _make_from_options(self, original, session, options):
        if not self._inside:
            named = [*options.fetch, *options.target]
            for name in self._prepare(session.graph).names_of_updates(named):
                self._refuse(name, ValueError(_NO_CALLABLE))
        return original(session, options)

    def _finalize(self, original, graph):
        if not graph.finalized and not self._inside:
            self._prepare(graph)
        return original(graph)

    def _after_run_of_nan_hook(self, original, hook, run_context, run_values):
        """The policy decides about a step with a gate; the hook about any other."""
        step = self._step_of(run_context.session, run_context.original_args.fetches)
        if step is None:
            original(hook, run_context, run_values)

    # Beneath.

    def _step_of(self, session, fetches) -> Optional[Step]:
        with self._lock, self._inside:
            return self._steps_of(session.graph).step_for(fetches)

    def _prepare(self, graph: tf.Graph) -> TrainSteps:
        with self._lock, self._inside:
            return self._steps_of(graph)

    def _steps_of(self, graph: tf.Graph) -> TrainSteps:
        known = kept_on(graph, 'steps', dict)  # by who guards it now
        steps = known.get(self)
        if steps is None:
            steps = known[self] = self._steps_in(graph)
        steps.prepare()
        return steps

    def _steps_in(self, graph: tf.Graph) -> TrainSteps:
        if self._learning_rate is not None:
            scale_learning_rates(graph, is_shared=False)
        told = (self._refuse, self._say_no_loss)
        return TrainSteps(graph, self._notes, self._settings.max_loss, *told)

    def _capture(self, step: Step, graph: tf.Graph) -> None:
        """Lets what the step draws be kept, before it runs for the first time."""
        known = kept_on(graph, 'captured', set)
        if not self._settings.capture or known.issuperset(step.gates):
            return
        with self._lock, tf_private.unfinalized(graph):
            for gate in set(step.gates) - known:
                collect(_evidence_of(graph), gate, max_bundles=self._settings.max_bundles)
                known.add(gate)  # now: another thread that sees it there does not wait

    def _hooked(self, session, run: Callable) -> '_HookedSteps':
        with self._lock:
            found = self._sessions.get(session)
            if found is None:
                evidence = _evidence_of(session.graph)
                told = HistorySettings(self._settings.spike, self._settings.history)
                watcher = ScriptWatcher(
                    *(self._settings.on_nan, self.files, evidence, self._note_incidents, told),
                    self._summaries.of(session),
                )
                found = self._sessions[session] = _HookedSteps(session, run, watcher)
            return found

    def _note_incidents(self, incidents: Sequence[Incident], logdir: str) -> None:
        self._skipped += incidents[-1].action == Skip.action  # all of one batch
        for incident in incidents:
            self.seen.note_incident(incident, logdir)

    def _count(self, step: Step) -> None:
        self._steps += 1
        self.seen.note_run(step.names)

    def _refuse(self, name: str, error: Exception) -> None:
        if name not in self.seen.refused:
            what = getattr(error, 'of', 'train op')
            self.seen.note_refused(what, name, str(error))
            tf1.logging.error('slimguard: %s %r is NOT guarded: %s', what, name, error)

    def _say_no_loss(self, name: str) -> None:
        if name not in self._without_loss:
            self._without_loss.add(name)
            tf1.logging.warning(
                'slimguard: max_loss is not compared with anything in train op %r, which has no '
                'single loss; what is not finite is guarded all the same',
                name,
            )


class _HookedSteps(HookedSession):
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


def _evidence_of(graph: tf.Graph) -> Dict[Gate, Evidence]:
    """By gate of a graph, what examines its bad steps."""
    return kept_on(graph, 'evidence', dict)

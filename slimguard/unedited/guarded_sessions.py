"""Sessions of a script that knows nothing of slimguard: each run that trains goes through a gate.

Every loop ends in `tf.compat.v1.Session.run`: a plain one, that of a MonitoredSession, of a
Supervisor, of an Estimator. There what trains is found (:mod:`train_steps`), its gate runs in its
place, and the policy acts (:mod:`script_watcher`).
"""

import functools
import threading
import weakref
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.compat import tf_private
from slimguard.diagnosis.evidence import Evidence, collect
from slimguard.gate import Gate, gates_of, scale_learning_rates
from slimguard.graph.sessions import OWN_WORK, callable_of, note_opened
from slimguard.incidents.fallback_chain import FallbackChain, skipped_in_words
from slimguard.incidents.incident import Incident
from slimguard.incidents.nan_loss_error import with_short_traceback
from slimguard.incidents.policies import Raise, Skip, Stop
from slimguard.incidents.policy_language import OnNan, fallbacks_of
from slimguard.incidents.spike import Spike
from slimguard.system.log import log
from slimguard.training.run_kinds import inner_feeds
from slimguard.training.step_history import STEPS
from slimguard.training.stop_signals import SECONDS, StopSignals
from slimguard.training.training import Training, TrainingSettings
from slimguard.unedited import own_runs
from slimguard.unedited.ending import Account
from slimguard.unedited.optimizer_notes import OptimizerNotes
from slimguard.unedited.patches import Patches, kept_already, kept_on
from slimguard.unedited.refusals import Refusals
from slimguard.unedited.script_files import ScriptFiles
from slimguard.unedited.script_saves import ScriptRestorer
from slimguard.unedited.script_session import ScriptSession
from slimguard.unedited.script_summaries import ScriptSummaries
from slimguard.unedited.script_watcher import ScriptWatcher, is_of_incident
from slimguard.unedited.train_steps import GuardedStep, TrainSteps

_NO_PARTIAL_RUN = (
    'Session.partial_run fetches it apart from what its gate checks; use Session.run instead'
)


_NAN_BESIDE = (
    "the loss that TensorFlow's NanTensorHook fetched is NaN, in a run that trains "
    'nothing itself and has written nothing bad. on_nan=%r decides, and not the hook. This is '
    'said once.'
)


class ScriptSettings(NamedTuple):
    """How to guard a script.

    Attributes:
      on_nan: what happens after a bad step.
      max_loss: a larger loss is a bad step too.
      logdir: the folder of records and bundles; None for the folder where the script saves.
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
    # Any thread may export, such as a Supervisor's. TensorFlow fails if another thread is just
    # making an op, which the graph lists before it is complete.
    with lock:
        return original(*args, **kwargs)


class GuardedSessions:
    """Guards the runs of sessions, from `install` until its patches are undone.

    Attributes:
      seen: the account of the trainings.
      files: where the script keeps its files.
    """

    def __init__(self, settings: ScriptSettings):
        self.seen = Account()
        self._lock = threading.RLock()
        self.files = ScriptFiles(settings.logdir, self._lock, self.seen)
        self._settings = settings
        seconds = settings.preemption_seconds
        self._signals = StopSignals(self._save_last, seconds, loop_asks=False)
        self._notes = OptimizerNotes()
        self._summaries = ScriptSummaries()
        self._sessions: Any = weakref.WeakKeyDictionary()  # the ScriptSession of each
        self._inside = OWN_WORK
        self._steps = self._skipped = 0  # other than those of slim's loop, which says it itself
        self._why_skipped = ''
        self._learning_rate = FallbackChain(settings.on_nan, Raise()).learning_rate
        self._first_policy = (
            Raise() if settings.on_nan is None else fallbacks_of(settings.on_nan)[0]
        )
        self._refusals = Refusals(self.seen)

    def install(self, patches: Patches) -> None:
        """Replaces TensorFlow's methods by guarded ones."""
        self._notes.install(patches)
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

    # Replacements of TensorFlow's methods.

    def _open(self, original, session, *args, **kwargs):
        original(session, *args, **kwargs)
        if self._inside:
            return
        note_opened(session)
        # Other threads, which may run its steps, cannot raise it. The session of slim's loop
        # already gets signals, and finishes its step.
        self._signals.enter_if_first()

    @with_short_traceback
    def _run(self, original, session, fetches, feed_dict=None, options=None, run_metadata=None):
        if self._inside:
            return original(session, fetches, feed_dict, options, run_metadata)
        self._summaries.note_run(session)
        fed = self._fed_within(session.graph, feed_dict)
        step = own_runs.step_of(self._step_of, session, fetches, fed)
        self.seen.runs += step is None
        if step is None or step.is_watched:
            self.seen.own_steps += step is not None
            return original(session, fetches, feed_dict, options, run_metadata)
        incidents = self.seen.incidents
        try:
            watched = self._watched(session, original, step)
            self._signals.enter()
            given = step, feed_dict, options, run_metadata
            run_step = functools.partial(self._run_counted, watched.run_step)
            values = self._signals.run_step(session, run_step, *given)
        except own_runs.HeldBeforeError as error:
            own_runs.leave_alone(session, step, error, self._refusals)
            return original(session, fetches, feed_dict, options, run_metadata)
        except Exception as error:
            if not is_of_incident(error):
                self.seen.note_failure(error)
            raise
        if self.seen.incidents != incidents:
            self.seen.note_fetched(_of_script(values))
        return values

    def _run_counted(self, run_step, session, step: GuardedStep, *given) -> Any:
        """Runs a step and counts it before a signal that came meanwhile saves the state."""
        try:
            values = run_step(session, step, *given)
        except Exception as error:
            if is_of_incident(error):
                self._count(step)
            raise
        self._count(step)
        return values

    def release(self) -> None:
        """Puts signal handlers back; bad steps of sessions that continue print or raise again."""
        for session, watched in list(self._sessions.items()):
            if not tf_private.is_closed(session):
                watched.release()
        self._signals.leave()
        if self._skipped:
            told = skipped_in_words(self._skipped, self._steps, self._why_skipped)
            log().warning('%s%s', told, self.seen.see() or '.')
        if self.seen.jump:
            log().warning('%s.', self.seen.jump)

    def _make_callable(self, original, session, fetches, feed_list=None, accept_options=False):
        # For a list, TensorFlow's method runs the session's own `run`; otherwise the session below.
        is_below = feed_list is None and not self._inside
        step = self._step_of(session, fetches) if is_below else None
        if step is None or step.is_watched:
            return original(session, fetches, feed_list, accept_options)
        run = functools.partial(tf_private.session_class().run, session)
        return callable_of(run, fetches, None)

    def _partial_run_setup(self, original, session, fetches, *args, **kwargs):
        for name in self._prepare(session.graph).names_of_updates(fetches):
            self._refusals.refuse(name, ValueError(_NO_PARTIAL_RUN))
        return original(session, fetches, *args, **kwargs)

    def _make_from_options(self, original, session, options):
        if not self._inside:
            named = [*options.fetch, *options.target]
            for name in self._prepare(session.graph).names_of_updates(named):
                self._refusals.refuse(name, ValueError(_NO_CALLABLE))
        return original(session, options)

    def _finalize(self, original, graph):
        if not graph.finalized and not self._inside:
            self._prepare(graph)
        return original(graph)

    def _after_run_of_nan_hook(self, original, hook, run_context, run_values):
        """Leaves a guarded training to the policy.

        A run beside its steps has written nothing bad either, as in a GAN's Estimator, whose train
        ops run in hooks; but it may have fetched the loss of a bad batch.
        """
        session = run_context.session
        if self._step_of(session, run_context.original_args.fetches) is not None:
            return
        is_guarded = bool(gates_of(session.graph)) and not self.seen.refused
        if not is_guarded or isinstance(self._first_policy, Raise):
            original(hook, run_context, run_values)
        elif np.isnan(run_values.results).any():
            if isinstance(self._first_policy, Stop):
                run_context.request_stop()
            if kept_already(session.graph, 'told_nan_beside') is None:
                kept_on(session.graph, 'told_nan_beside', lambda: True)
                log().warning(_NAN_BESIDE, self._settings.on_nan)

    # The sessions below.

    def _step_of(
        self, session, fetches, fed: Sequence[tf.Tensor] = (), *more
    ) -> Optional[GuardedStep]:
        with self._lock, self._inside:
            return self._steps_of(session.graph).step_for(fetches, fed, *more)

    def _fed_within(self, graph: tf.Graph, feed_dict: Any) -> Sequence[tf.Tensor]:
        """The tensors computed within a step that a run feeds."""
        if not feed_dict:
            return ()
        with self._lock:
            return inner_feeds(graph, feed_dict)

    def _prepare(self, graph: tf.Graph) -> TrainSteps:
        with self._lock, self._inside:
            return self._steps_of(graph)

    def _steps_of(self, graph: tf.Graph) -> TrainSteps:
        known = kept_on(graph, 'steps', dict)  # by the GuardedSessions in force
        steps = known.get(self)
        if steps is None:
            steps = known[self] = self._steps_in(graph)
        steps.prepare()
        return steps

    def _steps_in(self, graph: tf.Graph) -> TrainSteps:
        if self._learning_rate is not None:
            scale_learning_rates(graph, is_shared=False)
        told = (self._refusals.refuse, self._refusals.say_no_loss)
        return TrainSteps(graph, self._notes, self._settings.max_loss, *told)

    def _capture(self, step: GuardedStep, graph: tf.Graph) -> None:
        """Has the drawn values of a step kept, before it runs for the first time."""
        known = kept_on(graph, 'captured', set)
        if not self._settings.capture or known.issuperset(step.gates):
            return
        with self._lock, tf_private.unfinalized(graph):
            for gate in set(step.gates) - known:
                collect(_evidence_of(graph), gate, max_bundles=self._settings.max_bundles)
                known.add(gate)  # now: another thread that sees it there does not wait

    def _watched(self, session, run: Callable, step: GuardedStep) -> ScriptSession:
        """A session's `ScriptSession`, which captures bad runs of a step from now on."""
        self._capture(step, session.graph)
        with self._lock, self._inside:
            found = self._sessions.get(session)
            if found is None:
                graph, asked = session.graph, self._settings
                training = Training(
                    TrainingSettings(
                        ends_job=False, capture=False, spike=asked.spike, history=asked.history
                    ),
                    is_open=True,
                    checkpoints=ScriptRestorer(self.files.saves_of(graph), graph),
                    evidence=_evidence_of(graph),
                    summaries=self._summaries.of(session),
                    makes_sessions=False,
                )
                told = self.files, self._note_incidents, self.seen.note_jump
                watcher = ScriptWatcher(asked.on_nan, training, *told)
                found = self._sessions[session] = ScriptSession(session, run, watcher)
            return found

    def _save_last(self, session) -> None:
        self._sessions[session].training.save(session)

    def _note_incidents(self, incidents: Sequence[Incident], logdir: Optional[str]) -> None:
        last = incidents[-1]  # all of them are of one batch
        if last.action == Skip.action:
            self._skipped += 1
            self._why_skipped = self._why_skipped if last.diagnosis is None else last.cause
        for incident in incidents:
            rate = incident.learning_rate
            self.seen.note_incidents(str(incident.action), logdir, learning_rate=rate)

    def _count(self, step: GuardedStep) -> None:
        self._steps += 1
        self.seen.note_run(step.names)


def _of_script(values: Any) -> Any:
    """The values of a run, without those fetched for hooks."""
    if not isinstance(values, dict):
        return values
    return [v for key, v in values.items() if not isinstance(key, tf1.train.SessionRunHook)]


def _evidence_of(graph: tf.Graph) -> Dict[Gate, Evidence]:
    """By gate of a graph, its `Evidence`."""
    return kept_on(graph, 'evidence', dict)

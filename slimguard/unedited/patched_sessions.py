"""Sessions of a script that knows nothing of slimguard: each run that trains goes through a gate.

Every loop ends in `tf.compat.v1.Session.run`: a plain one, that of a MonitoredSession, of a
Supervisor, of an Estimator. There what trains is found (:mod:`train_steps`), its gate runs in its
place, and the policy acts (:mod:`script_session`).
"""

import functools
import threading
import weakref
from typing import Any, Callable, Dict, Optional, Sequence

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
from slimguard.incidents.policy_language import OnNan
from slimguard.system.log import log
from slimguard.training.fetch_structures import inner_feeds
from slimguard.training.stop_signals import StopSignals
from slimguard.training.training import Training, TrainingSettings
from slimguard.unedited.ending import Account
from slimguard.unedited.optimizer_notes import OptimizerNotes
from slimguard.unedited.own_updates import WITH_FIRST, UnguardedUpdateError, without_value
from slimguard.unedited.patches import Patches, kept_already, kept_on
from slimguard.unedited.script_files import ScriptFiles
from slimguard.unedited.script_saves import ScriptRestorer
from slimguard.unedited.script_session import ScriptSession, ScriptWatcher, is_of_incident
from slimguard.unedited.script_summaries import ScriptSummaries
from slimguard.unedited.train_steps import GuardedStep, TrainSteps

_NO_PARTIAL_RUN = (
    'Session.partial_run runs it apart from the checks of its gate; use Session.run instead'
)


_NAN_BESIDE = (
    "the loss that TensorFlow's NanTensorHook fetched is NaN, in a run that trains "
    'nothing itself and computes nothing that it writes. on_nan=%r decides, and not the hook. This '
    'is said once.'
)


_NO_CALLABLE = (
    'a callable runs it, as in the fit of Keras, and not Session.run; build the train op with an '
    'optimizer of tf.compat.v1.train, and run it in a session'
)


def _export(lock: threading.RLock, original: Callable, *args: Any, **kwargs: Any) -> Any:
    # Any thread may export, such as a Supervisor's. TensorFlow fails if another thread is just
    # making an op, which the graph lists before it is complete.
    with lock:
        return original(*args, **kwargs)


class PatchedSessions:
    """Guards the runs of sessions, from `install` until its patches are undone.

    Args:
      on_nan: what happens after a bad step.
      settings: what else the user says.

    Attributes:
      seen: the account of the trainings.
      files: where the script keeps its files.
    """

    def __init__(self, on_nan: OnNan, settings: TrainingSettings):
        self.seen = Account()
        self._lock = threading.RLock()
        logdir: Any = settings.logdir  # which is a str by now
        self.files = ScriptFiles(logdir, self._lock, self.seen)
        self._on_nan, self._settings = on_nan, settings
        seconds = settings.preemption_seconds
        self._signals = StopSignals(self._save_last, seconds, loop_asks=False)
        self._notes = OptimizerNotes()
        self._summaries = ScriptSummaries()
        self._sessions: Any = weakref.WeakKeyDictionary()  # the ScriptSession of each
        self._inside = OWN_WORK
        self._steps = self._skipped = 0
        self._why_skipped = ''
        policies = FallbackChain(on_nan, Raise())
        self._learning_rate, self._first_policy = policies.learning_rate, policies.fallbacks[0]

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
        # Other threads, which may run its steps, cannot. If this is the session of a
        # `slimguard.train`, that hears them already, and finishes its step.
        self._signals.enter_if_first()

    @with_short_traceback
    def _run(self, original, session, fetches, feed_dict=None, options=None, run_metadata=None):
        if self._inside:
            return original(session, fetches, feed_dict, options, run_metadata)
        self._summaries.note_run(session)
        fed = self._fed_within(session.graph, feed_dict)
        step = self._step_with_values(session, fetches, fed)
        self.seen.runs += step is None
        if step is None or step.is_watched:
            self.seen.own_steps += step is not None
            return original(session, fetches, feed_dict, options, run_metadata)
        watched = self._watched(session, original, step)
        self._signals.enter()
        run_step = functools.partial(self._run_counted, watched.run_step)
        incidents = self.seen.incidents
        values = self._signals.run_step(session, run_step, step, feed_dict, options, run_metadata)
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
            self.seen.refuse(name, ValueError(_NO_PARTIAL_RUN))
        return original(session, fetches, *args, **kwargs)

    def _make_from_options(self, original, session, options):
        if not self._inside:
            named = [*options.fetch, *options.target]
            for name in self._prepare(session.graph).names_of_updates(named):
                self.seen.refuse(name, ValueError(_NO_CALLABLE))
        return original(session, options)

    def _finalize(self, original, graph):
        if not graph.finalized and not self._inside:
            self._prepare(graph)
        return original(graph)

    def _after_run_of_nan_hook(self, original, hook, run_context, run_values):
        """Leaves a guarded training to the policy.

        A run beside its steps computes nothing that it writes, as in a GAN's Estimator, whose train
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
                log().warning(_NAN_BESIDE, self._on_nan)

    # The sessions below.

    def _step_of(
        self,
        session,
        fetches,
        fed: Sequence[tf.Tensor] = (),
        gives_first: bool = False,
    ) -> Optional[GuardedStep]:
        with self._lock, self._inside:
            return self._steps_of(session.graph).step_for(fetches, fed, gives_first)

    def _step_with_values(
        self, session, fetches, fed: Sequence[tf.Tensor]
    ) -> Optional[GuardedStep]:
        """The step that a run is; without what gives variables their first values.

        Of a variable that has no value yet there is no copy to go back to.
        """
        step = self._step_of(session, fetches, fed)
        if step is None or not step.written:
            return step
        missing = without_value(session, step.written)
        if not missing:
            return step
        names = sorted(each.name for each in step.written if each not in missing)
        if names:
            error = UnguardedUpdateError(WITH_FIRST, names)
            self.seen.refuse(error.name, error)
        return self._step_of(session, fetches, fed, gives_first=True)

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
        known = kept_on(graph, 'steps', dict)  # by the PatchedSessions in force
        steps = known.get(self)
        if steps is None:
            steps = known[self] = self._steps_in(graph)
        steps.prepare()
        return steps

    def _steps_in(self, graph: tf.Graph) -> TrainSteps:
        if self._learning_rate is not None:
            scale_learning_rates(graph, is_shared=False)
        told = (self.seen.refuse, self.seen.say_no_loss)
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
                graph = session.graph
                # Its gates have the limit; where it saves, and so has its record, comes out later.
                own = self._settings._replace(max_loss=None, logdir=None, capture=False)
                training = Training(
                    own,
                    is_open=True,
                    checkpoints=ScriptRestorer(self.files.saves_of(graph), graph),
                    evidence=_evidence_of(graph),
                    summaries=self._summaries.of(session),
                    makes_sessions=False,
                )
                told = self.files, self._note_incidents, self.seen.note_jump
                watcher = ScriptWatcher(self._on_nan, training, *told)
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
            self.seen.note_incident(incident, logdir)

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

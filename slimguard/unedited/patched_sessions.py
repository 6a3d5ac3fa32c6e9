"""Sessions of a script that does not use slimguard: each run that trains goes through a gate.

Every loop calls `tf.compat.v1.Session.run`: a plain loop, or the loop of a MonitoredSession, a
Supervisor or an Estimator. In this call :mod:`train_steps` finds the fetched elements that train,
and :mod:`script_session` runs their gates instead, and applies the policy.
"""

import functools
import threading
import weakref
from typing import Any, Callable, List, Optional, Sequence

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.compat import tf_callers, tf_private
from slimguard.gate import gates_of, scale_learning_rates
from slimguard.graph import op_of
from slimguard.graph.sessions import OWN_WORK, callable_of, note_opened
from slimguard.incidents.fallback_chain import FallbackChain
from slimguard.incidents.nan_loss_error import with_short_traceback
from slimguard.incidents.policies import Raise, Stop
from slimguard.incidents.policy_language import OnNan
from slimguard.system.log import log
from slimguard.training.fetch_structures import inner_feeds
from slimguard.training.stop_signals import StopSignals
from slimguard.training.training import Training, TrainingSettings
from slimguard.unedited.ending import Account
from slimguard.unedited.optimizer_notes import OptimizerNotes
from slimguard.unedited.own_updates import WITH_FIRST, UnguardedUpdateError, without_value
from slimguard.unedited.patches import Patches, kept_on
from slimguard.unedited.script_files import ScriptFiles
from slimguard.unedited.script_saves import ScriptRestorer
from slimguard.unedited.script_session import ScriptSession, ScriptWatcher
from slimguard.unedited.script_summaries import ScriptSummaries
from slimguard.unedited.train_steps import GuardedStep, TrainSteps

_NO_PARTIAL_RUN = (
    'Session.partial_run runs it apart from the checks of its gate; use Session.run instead'
)


_NAN_BESIDE = (
    "TensorFlow's NanTensorHook fetched a NaN loss, in a run that trains nothing itself. The hook "
    'does not act on it: on_nan=%r decides. This is said once.'
)


_NO_CALLABLE = (
    'a callable runs it, as in the fit of Keras, and not Session.run; build the train op with an '
    'optimizer of tf.compat.v1.train, and run it in a session'
)


def _operations_of(original: Callable, graph: tf.Graph) -> List[tf.Operation]:
    # `tf.add_check_numerics_ops` adds a check to every float tensor of a graph, and returns an op
    # that waits for all checks. It must not see our tensors: some have no value in most runs (a
    # branch that is not taken, a queue that only an incident fills), so it would wait forever.
    operations = original(graph)
    if tf_callers.checks_numerics():
        return [op for op in operations if not op.name.startswith(graphs.OURS)]
    return operations


class PatchedSessions:
    """Guards the runs of sessions, from `install` until its patches are undone.

    Args:
      on_nan: what happens after a bad step.
      settings: the user's other settings.

    Attributes:
      seen: the account of the trainings.
      files: where the script keeps its files.
    """

    def __init__(self, on_nan: OnNan, settings: TrainingSettings):
        self.seen = Account()
        self._lock = threading.RLock()
        logdir: Any = settings.logdir  # a str by now
        self.files = ScriptFiles(logdir, self._lock, self.seen)
        self._on_nan, self._settings = on_nan, settings
        seconds = settings.preemption_seconds
        self._signals = StopSignals(self._save_last, seconds, loop_asks=False)
        self._notes = OptimizerNotes()
        self._summaries = ScriptSummaries()
        self._has_said_nan_beside = False
        self._sessions: Any = weakref.WeakKeyDictionary()  # the ScriptSession of each
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
        patches.wrap(tf.Graph, 'get_operations', _operations_of)
        patches.wrap(tf.Graph, 'as_graph_def', self._export)
        patches.wrap(tf1.train.NanTensorHook, 'after_run', self._after_run_of_nan_hook)

    # Replacements of TensorFlow's methods.

    def _open(self, original, session, *args, **kwargs):
        original(session, *args, **kwargs)
        if OWN_WORK:
            return
        note_opened(session)
        # Handle signals from here on: the steps may run in other threads, which cannot install
        # handlers. If `slimguard.train` makes this session, it has installed its handlers already.
        self._signals.enter_if_first()

    @with_short_traceback
    def _run(self, original, session, fetches, feed_dict=None, options=None, run_metadata=None):
        if OWN_WORK:
            return original(session, fetches, feed_dict, options, run_metadata)
        self._summaries.note_run(session)
        step = self._step_with_values(session, fetches, inner_feeds(session.graph, feed_dict))
        self.seen.runs += step is None
        if step is None or step.is_watched:
            self.seen.own_steps += step is not None
            return original(session, fetches, feed_dict, options, run_metadata)
        watched = self._sessions.get(session) or self._watch(session, original)
        self._signals.enter()
        given = watched.run_step, step, feed_dict, options, run_metadata
        return self._signals.run_step(session, *given)

    def release(self) -> None:
        """Restores signal handlers; in sessions that go on, gates print or raise for bad steps."""
        for session, watched in list(self._sessions.items()):
            if not tf_private.is_closed(session):
                watched.release()
        self._signals.leave()
        self.seen.log_at_end()

    def _make_callable(self, original, session, fetches, feed_list=None, accept_options=False):
        # With a `feed_list`, TensorFlow's callable calls the guarded `run`; else it does not.
        is_below = feed_list is None and not OWN_WORK
        step = self._step_of(session, fetches) if is_below else None
        if step is None or step.is_watched:
            return original(session, fetches, feed_list, accept_options)
        run = functools.partial(tf_private.session_class().run, session)
        return callable_of(run, fetches, None)

    def _partial_run_setup(self, original, session, fetches, *args, **kwargs):
        self._refuse(session.graph, fetches, _NO_PARTIAL_RUN)
        return original(session, fetches, *args, **kwargs)

    def _make_from_options(self, original, session, options):
        if not OWN_WORK:
            self._refuse(session.graph, [*options.fetch, *options.target], _NO_CALLABLE)
        return original(session, options)

    def _refuse(self, graph: tf.Graph, fetches, why: str) -> None:
        with self._lock:
            names = self._steps_of(graph).names_of_updates(fetches)
        for name in names:
            self.seen.refuse(name, ValueError(why))

    def _finalize(self, original, graph):
        if not graph.finalized and not OWN_WORK:
            with self._lock:
                self._steps_of(graph)
        return original(graph)

    def _export(self, original, *args, **kwargs):
        # Any thread may export the graph, such as a Supervisor's. TensorFlow fails if another
        # thread is making an op, since the graph lists the op before it is complete.
        with self._lock:
            return original(*args, **kwargs)

    def _after_run_of_nan_hook(self, original, hook, run_context, run_values):
        """Leaves a guarded training to the policy.

        A run that is no step may still fetch the loss of a bad batch: in a GAN's Estimator, train
        ops run in hooks. Then the hook acts if the first policy is 'raise' or 'stop'.
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
            if not self._has_said_nan_beside:
                self._has_said_nan_beside = True
                log().warning(_NAN_BESIDE, self._on_nan)

    # The steps of a session.

    def _step_of(
        self,
        session,
        fetches,
        fed: Sequence[tf.Tensor] = (),
        gives_first: bool = False,
    ) -> Optional[GuardedStep]:
        with self._lock:
            return self._steps_of(session.graph).step_for(fetches, fed, gives_first)

    def _step_with_values(
        self, session, fetches, fed: Sequence[tf.Tensor]
    ) -> Optional[GuardedStep]:
        """The step that a run makes, without the writes that give variables their first values.

        A variable without a value cannot be copied, so a gate could not restore it.
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

    def _steps_of(self, graph: tf.Graph) -> TrainSteps:
        known = kept_on(graph, 'steps', dict)  # keys: the PatchedSessions in force
        steps = known.get(self)
        if steps is None:
            if self._learning_rate is not None:
                scale_learning_rates(graph, is_shared=False)
            steps = TrainSteps(graph, self._notes, self._settings.max_loss, self.seen)
            known[self] = steps
        steps.prepare()
        return steps

    def _capture(self, training: Training, step: GuardedStep) -> None:
        """Makes a step keep its drawn values; call it before the step first runs in a session."""
        graph = op_of(step.gates[0].train_op).graph
        with self._lock, tf_private.unfinalized(graph):
            training.capture(*step.gates)

    def _watch(self, session, run: Callable) -> ScriptSession:
        with self._lock, OWN_WORK:
            watched = self._sessions.get(session)
            if watched is None:
                graph = session.graph
                # The gates have `max_loss`. Where the script saves is not known yet.
                own = self._settings._replace(max_loss=None, logdir=None)
                training = Training(
                    own,
                    is_open=True,
                    checkpoints=ScriptRestorer(self.files.saves_of(graph), graph),
                    evidence=kept_on(graph, 'evidence', dict),  # for all sessions of the graph
                    summaries=self._summaries.of(session),
                    makes_sessions=False,
                )
                watcher = ScriptWatcher(self._on_nan, training, self.files, self.seen)
                prepare = functools.partial(self._capture, training)
                watched = ScriptSession(session, run, watcher, prepare)
                self._sessions[session] = watched
            return watched

    def _save_last(self, session) -> None:
        self._sessions[session].training.save(session)

"""The hook that watches the guarded train ops of a graph: :class:`GateWatcher`.

All bad steps take the same path: `take_values` gets the values of the run, `Run.read`
(watched_runs.py) opens an incident, and `IncidentHandler.handle` (incident_handler.py) examines it,
decides, acts and records.
"""

import collections
import contextlib
import itertools
from typing import Any, Deque, Iterator, List, Optional, Sequence, Tuple

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard.cluster.job import Job, job_of
from slimguard.cluster.sync_replicas import keep_tokens_open
from slimguard.compat import tf_callers
from slimguard.gate.histograms import leave_out_bad_values
from slimguard.graph import op_of
from slimguard.incidents.fallback_chain import FallbackChain
from slimguard.incidents.incident import Incident
from slimguard.incidents.incident_log import IncidentLog
from slimguard.incidents.nan_loss_error import with_short_traceback
from slimguard.incidents.policies import Raise, Stop
from slimguard.incidents.policy_language import OnNan, fallbacks_of
from slimguard.incidents.spike import as_spike
from slimguard.training.hook_loop import HookLoop, find_record_folder
from slimguard.training.incident_handler import IncidentHandler
from slimguard.training.open_incident import OpenIncident, look_again
from slimguard.training.rollback import Rollbacks, rollbacks_in
from slimguard.training.step_history import STEPS, Histories, summaries_beside
from slimguard.training.training import DEFAULTS, Training, TrainingSettings
from slimguard.training.watched_runs import (
    Run,
    WatchedRuns,
    refusal_without_gate,
    require_loss_in,
)

# How many incidents a hook remembers; the record in the logdir has them all.
_REMEMBERED = 1000


class GateWatcher(tf1.train.SessionRunHook):
    """Watches every train op of a graph: the base of `NanLossHook`, with or without a loss.

    Attributes:
      max_loss, logdir, ends_job: the user's settings of this hook; see `NanLossHook`.
      incidents: the last thousand incidents: a list with the newest version of each `Incident`.
      incident_count: how many incidents there were in all.
      histories: keeps the last steps of each gate.
      runs: knows which runs are steps to watch; each training has its own.
      job: the process's part in a job of several processes, or None.
    """

    # Whether other code handles writes beside the train op; if not, this hook refuses or logs them.
    _guards_beside = False

    def __init__(
        self,
        on_nan: OnNan = None,
        fail_on_nan_loss: bool = True,
        loss: Optional[tf.Tensor] = None,
        settings: TrainingSettings = DEFAULTS,
    ):
        self._settings = self._in_force = settings.require()
        self.max_loss, self.logdir = self._settings.max_loss, self._settings.logdir
        self.ends_job = self._settings.ends_job
        self._opened: Deque[OpenIncident] = collections.deque(maxlen=_REMEMBERED)
        self.incident_count = 0
        self.on_nan, self._loss = on_nan, loss
        self.job: Optional[Job] = None
        self._otherwise = Raise() if fail_on_nan_loss else Stop()
        self._directory: Optional[str] = None  # of this training's record
        self._ranks = gates.Ranks()
        self._joined = Training()
        self._be_idle()

    @property
    def incidents(self) -> List[Incident]:
        return [each.incident for each in list(self._opened)]

    @property
    def fallbacks(self) -> Sequence[Any]:
        """The policies in force, in order."""
        return self._policies.fallbacks

    @property
    def own_settings(self) -> TrainingSettings:
        """The user's settings of this hook, with changes that the user made later."""
        return self._settings._replace(
            max_loss=self.max_loss, logdir=self.logdir, ends_job=self.ends_job
        )

    @property
    def max_loss_now(self) -> Optional[float]:
        """The largest loss that is no incident, or None. A user may change it at any step."""
        return self._in_force.max_loss if self.max_loss is None else self.max_loss

    def join(self, training: Training) -> None:
        """Sets the training that the next `begin` belongs to."""
        self._joined = training

    def leave(self) -> None:
        """Releases what the hook made for a training, such as its open record."""
        self._handler.close()
        self._joined, self._in_force = Training(), self._settings
        self._be_idle()

    def begin(self):
        graph = tf1.get_default_graph()
        require_loss_in(graph, self._loss, type(self).__name__)
        self.job = None
        policies = FallbackChain(self.on_nan, self._otherwise)
        calling = self._look_around()
        self._ranks = gates.ranks_in(graph)
        training = self._training = self._joined
        settings = self._in_force = self.own_settings.over(training.settings)
        directory = self._directory = self._find_directory(policies, calling.dirs)
        self._loop = None
        if not training.is_open:
            self._loop = HookLoop(training, settings, graph, directory, calling)
            training = self._training = self._loop.training
        rollbacks = self._make_rollbacks(graph, policies)
        is_elsewhere = self._ranks.rank > 0
        incident_log = IncidentLog(directory, training.summary_writer, is_elsewhere=is_elsewhere)
        self._handle_with(policies, incident_log, rollbacks)
        summaries = training.summaries if self._loop is None else summaries_beside(self)
        self.histories.summaries = summaries
        leave_out_bad_values(graph)
        if settings.ends_job:
            keep_tokens_open(graph)

    def after_create_session(self, session, coord):
        if self.job is None and self._training.makes_sessions and not self._ranks.are_several:
            self.job = _job_in(session, self._loss, self._training.is_chief, self._directory)
        saves = self.job is None or self.job.is_chief
        if self._loop is not None:
            self._loop.open(session, saves, self._record_unseen, self._handler.close)
        if self._training.makes_sessions:
            self.runs.watch(session)
        if self.job is not None:
            self._handler.job = self.job
            self.job.enter(
                session,
                coord,
                prepare=self._handler.prepare,
                is_done=self._training.is_done,
                before_close=self._record_unseen,
            )
            self._policies.note_job_rollbacks(self.job.rollbacks)
            self._rollbacks.join_job(self.job.rollbacks)
        elif self._training.is_chief is not False:
            # With several ranks this is too early: the first rank has sent its variables to the
            # others only after all hooks' `after_create_session`.
            at_once = self._training.makes_sessions and not self._ranks.are_several
            self._handler.enter(session, at_once)

    def before_run(self, run_context):
        return self.ask(run_context, self.runs.run_for(run_context))

    def ask(self, run_context, run: Optional[Run]) -> Optional[tf1.train.SessionRunArgs]:
        """The fetches and feeds of this hook for a run; None if `run` is None (no step)."""
        session = run_context.session
        if self.job is not None:
            with self._training.saving_before_errors(session):
                self.job.check()
        self._training.is_saved = False
        self._handler.before_step(session)
        if run is None:
            return None
        if self._loop is not None:
            self._loop.begin_step()
        return run.args(run_context, self.max_loss_now)

    def after_run(self, run_context, run_values):
        self.take_values(run_context, self.runs.run_for(run_context), run_values.results)

    @with_short_traceback
    def take_values(self, run_context, run: Optional[Run], values: Any) -> None:
        """Reads the values of the hook's fetches, and handles the incidents that they show.

        Args:
          run_context: the `SessionRunContext` of the run.
          run: the kind of run; None if it was no watched step.
          values: the values of the fetches.
        """
        if run is not None:
            run.note_step(values, self._training)
        if self._loop is not None:
            self._loop.end_step(run_context, self.incident_count)
        if run is None:
            return
        incidents = run.read(values, self.max_loss_now, run_context)
        if not incidents:
            self.step_was_good(run_context.session, self._training.loss, run.train_ops)
        for number, together in enumerate(incidents, 1):
            try:
                self.handle(run_context, *together)
            except BaseException:
                for each in itertools.chain.from_iterable(incidents[number:]):
                    self._list(each)
                    self._handler.record_left(each, together[0].incident.action)
                raise

    def handle(self, run_context, opened: OpenIncident, *beside: OpenIncident) -> None:
        """Handles the first incident of a run together with the run's other incidents."""
        for each in (*beside, opened):
            if self.job is not None:
                look_again(run_context.session, each)
            self._list(each)
        is_own = getattr(self.on_nan_loss, '__func__', None) is GateWatcher.on_nan_loss
        override: Any = None if is_own else self.on_nan_loss
        name = type(self).__name__ + '.on_nan_loss'
        self._handler.handle(run_context, opened, beside, override, name)

    def _list(self, opened: OpenIncident) -> None:
        """Adds an incident to the list; in a job, with the name of this process."""
        if self.job is not None:
            opened.note(worker=self.job.worker)
        self._opened.append(opened)
        self.incident_count += 1

    def step_was_good(self, session, loss: Any, train_ops: Sequence[str]) -> None:
        """Notes a step without an incident; `loss` is the last finite loss, or None."""
        self._policies.step_was_good(train_ops)
        self._rollbacks.snapshots.step_was_good(session, loss)

    def end(self, session):
        if self._loop is not None:
            self._loop.end(session, self.incident_count)
        self._record_unseen(session)
        self._handler.close()
        if self._training.is_chief is None:  # else `train` ends the job after its save
            self.end_job()

    def on_nan_loss(self, run_context, incident: Incident) -> None:
        """Acts on an incident; override it to act otherwise.

        By default, does what the policy says: raises `NanLossError`, asks `run_context` to stop,
        restores a checkpoint, or does nothing, so that the next batch follows.

        Args:
          run_context: the `SessionRunContext` of the run, with its session and `request_stop`.
          incident: the `Incident`, which is already the last of `incidents`.
        """
        self._handler.act_on(run_context, incident)

    def _record_unseen(self, session) -> None:
        """Records the bad steps that no later step has reported."""
        rolls_back = self.job is not None and self.job.rolls_back
        for opened in self.runs.leave(session):
            self._list(opened)
            self._handler.record_unseen(opened, rolls_back)

    def end_job(self) -> None:
        """On the chief of a job, ends the job: all steps are done."""
        if self.job is not None and self.job.is_chief and self._in_force.ends_job:
            self.job.end()

    def _row_of(self, gate: gates.Gate, is_kept: bool) -> tf.Tensor:
        """The row of a gate's steps; if `is_kept`, it waits until a bad step's input is kept."""
        self._training.capture(gate)  # the train op may have been guarded after the hook began
        evidence = self._training.evidence.get(gate) if is_kept else None
        return gate.row if evidence is None else evidence.capture.row

    def _be_idle(self) -> None:
        """Drops all state of the last training; `begin` sets up the next."""
        self._training, self._loop = Training(), None
        policies = FallbackChain(self.on_nan, self._otherwise)
        self._handle_with(policies, IncidentLog(), Rollbacks())

    def _handle_with(
        self, policies: FallbackChain, incident_log: IncidentLog, rollbacks: Rollbacks
    ) -> None:
        settings = self._in_force
        length = STEPS if settings.history is None else settings.history
        self.histories = Histories(as_spike(settings.spike), length)
        self._policies, self._incident_log, self._rollbacks = policies, incident_log, rollbacks
        self._handler = IncidentHandler(
            policies,
            self._otherwise,
            incident_log,
            self._training,
            rollbacks,
            settings.ends_job,
            self.histories.take_last_words,
        )
        refusal = refusal_without_gate(policies, self.on_nan, self._loss)
        rollbacks.limits = self.histories
        self.runs = WatchedRuns(
            self._loss,
            refusal,
            self._row_of,
            self.histories,
            guards_beside=self._guards_beside,
            watches_ahead=self._loop is not None,
        )

    def _look_around(self) -> tf_callers.CallingSession:
        """What the call stack of `begin` shows about the new session."""
        return tf_callers.session_among_callers(self)

    def _find_directory(self, policies: FallbackChain, dirs: Sequence[str]) -> Optional[str]:
        """The folder of the record: the logdir, or where the session saves; None on other ranks."""
        saves_itself = self._training.saver is not None
        return find_record_folder(
            self, self._in_force.logdir, dirs, policies, self._ranks, warns=not saves_itself
        )

    def _make_rollbacks(self, graph: tf.Graph, policies: FallbackChain) -> Rollbacks:
        """The `Rollbacks` of this training."""
        has_logdir = self._in_force.logdir is not None
        return rollbacks_in(
            graph, policies, self._training, self._directory, has_logdir, self._ranks
        )


def _job_in(
    session, loss: Optional[tf.Tensor], is_chief: Optional[bool], directory: Optional[str]
) -> Optional[Job]:
    """This process's part in a job of several processes; None if it trains alone."""
    near = [loss.op] if loss is not None else []
    near += [op_of(gate.train_op) for gate in gates.gates_of(session.graph).values()]
    jobs = (job_of(session, op.device, is_chief, directory) for op in near)
    return next((job for job in jobs if job is not None), None)


# Which of the hooks of a training are watchers, and which one decides.


def with_watcher(
    hooks: Sequence[tf1.train.SessionRunHook],
    on_nan: OnNan,
    settings: TrainingSettings,
) -> Tuple[List[tf1.train.SessionRunHook], GateWatcher]:
    """The hooks, and the hook that decides: a NanLossHook among them, or else an added one.

    This changes no hook; `handed` passes them the settings of the training.

    Raises:
      TypeError: if `hooks` is no list of hooks.
      ValueError: if `on_nan`, or a `max_loss`, `spike` or `logdir` of `settings`, differs from that
        of a NanLossHook, or is unknown.
    """
    _require_hooks(hooks)
    watchers = watchers_in(hooks)
    if not watchers:
        watcher = GateWatcher(on_nan, settings=settings)
        return list(hooks) + [watcher], watcher
    for hook in watchers:
        if on_nan is not None and list(hook.fallbacks) != fallbacks_of(on_nan):
            _disagree('on_nan', on_nan, hook, list(hook.fallbacks))
        own = hook.own_settings
        for name in ('max_loss', 'spike', 'logdir'):
            asked, of_hook = getattr(settings, name), getattr(own, name)
            if asked is not None and of_hook not in (None, asked):
                _disagree(name, asked, hook, of_hook)
    return list(hooks), watchers[0]


# Every hook has these methods, whatever its class.
_METHODS = ('begin', 'after_create_session', 'before_run', 'after_run', 'end')


def _require_hooks(hooks) -> None:
    if not isinstance(hooks, (list, tuple)):
        raise TypeError('hooks must be a list of tf.train.SessionRunHooks, not %r' % (hooks,))
    for hook in hooks:
        if isinstance(hook, type):
            raise TypeError(
                'hooks has the class %s; make a hook of it: %s(...)'
                % (hook.__name__, hook.__name__)
            )
        if not all(callable(getattr(hook, name, None)) for name in _METHODS):
            raise TypeError('hooks must be tf.train.SessionRunHooks; %r is none' % (hook,))


def _disagree(name: str, value, hook: GateWatcher, other) -> None:
    raise ValueError(
        '%s=%r disagrees with the %s among the hooks, which says %r; say it in one place'
        % (name, value, type(hook).__name__, other)
    )


def watchers_in(hooks: Sequence[tf1.train.SessionRunHook]) -> List[GateWatcher]:
    """The hooks that watch gates."""
    return [hook for hook in hooks if isinstance(hook, GateWatcher)]


@contextlib.contextmanager
def handed(hooks: Sequence[tf1.train.SessionRunHook], training: Training) -> Iterator[None]:
    """Inside, the watchers among `hooks` belong to a training; enter it before their `begin`."""
    with contextlib.ExitStack() as stack:
        for hook in watchers_in(hooks):
            stack.callback(hook.leave)
            hook.join(training)
        yield

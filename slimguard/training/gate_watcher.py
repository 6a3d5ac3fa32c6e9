"""The hook that watches the guarded train ops of a graph: :class:`GateWatcher`.

A bad step goes one way: `take` gets the values of its run, `Run.read` (watched_run.py) makes an
incident of them, and `IncidentHandler.handle` (incident_handler.py) examines it, decides, acts and
records. Which runs are steps is in steps_to_watch.py.
"""

import collections
from typing import Any, Deque, List, Optional, Sequence

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
from slimguard.incidents.journal import Journal
from slimguard.incidents.nan_loss_error import with_short_traceback
from slimguard.incidents.policies import Raise, Stop
from slimguard.incidents.policy_language import OnNan
from slimguard.incidents.spike import as_spike
from slimguard.training.hook_loop import HookLoop
from slimguard.training.incident_handler import IncidentHandler
from slimguard.training.open_incident import OpenIncident, look_again
from slimguard.training.preparation import Preparation
from slimguard.training.record_folder import find_record_folder
from slimguard.training.recovery import Recovery, recovery_in
from slimguard.training.step_history import STEPS, Histories
from slimguard.training.step_summaries import summaries_beside
from slimguard.training.steps_to_watch import WatchedRuns, refusal_without_gate, require_loss_in
from slimguard.training.training import DEFAULTS, Training, TrainingSettings
from slimguard.training.watched_run import Reading, Run

# How many incidents a hook remembers; the record in the logdir has them all.
_REMEMBERED = 1000


class GateWatcher(tf1.train.SessionRunHook):
    """Watches every train op of a graph: the base of `NanLossHook`, with or without a loss.

    Attributes:
      max_loss, logdir, ends_job: the user's settings of this hook; see `NanLossHook`.
      incidents: the last thousand incidents, a list of `Incident`, each in its newest version.
      incident_count: how many there were in all.
      histories: keeps the last steps of each gate.
      runs: knows which runs are steps to watch; made anew for each training.
      job: the process's part in a job of several processes, or None.
    """

    # Whether another part handles writes beside the train op: gates them, or warns of them.
    _guards_beside = False

    def __init__(
        self,
        on_nan: OnNan = None,
        fail_on_nan_loss: bool = True,
        loss: Optional[tf.Tensor] = None,
        settings: TrainingSettings = DEFAULTS,
    ):
        self._settings = self._in_force = settings.require()
        given = self._settings
        self.max_loss, self.logdir, self.ends_job = given.max_loss, given.logdir, given.ends_job
        self._opened: Deque[OpenIncident] = collections.deque(maxlen=_REMEMBERED)
        self.incident_count = 0
        self.on_nan, self._loss = on_nan, loss
        self.job: Optional[Job] = None
        self._otherwise = Raise() if fail_on_nan_loss else Stop()
        self._directory: Optional[str] = None  # of this training
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
        """The user's settings of this hook; the user may have changed some since."""
        said = {'max_loss': self.max_loss, 'logdir': self.logdir, 'ends_job': self.ends_job}
        return self._settings._replace(**said)

    @property
    def max_loss_now(self) -> Optional[float]:
        """A larger loss is an incident; None for no limit. A user may change it at any step."""
        return self._in_force.max_loss if self.max_loss is None else self.max_loss

    def join(self, training: Training) -> None:
        """Takes over the training that will call `begin`."""
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
        recovery = self._make_recovery(graph, policies)
        is_elsewhere = self._ranks.rank > 0
        journal = Journal(directory, training.summary_writer, is_elsewhere=is_elsewhere)
        self._handle_with(policies, journal, recovery)
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
            done, leaving = self._training.is_done, self._record_unseen
            self.job.enter(session, coord, self._handler.prepare, done, leaving)
            self._handler.note_rollbacks(self.job.rollbacks)
        elif self._training.is_chief is not False:
            # The first rank sends its variables to the others once all hooks have the session.
            at_once = self._training.makes_sessions and not self._ranks.are_several
            self._preparation.enter(session, at_once)

    def before_step(self, session) -> None:
        """The part of `before_run` that comes before it is known what is run."""
        if self.job is not None:
            with self._training.saving_before_errors(session):
                self.job.check()
        self._training.is_saved = False
        self._preparation.before_step(session)

    def before_run(self, run_context):
        self.before_step(run_context.session)
        run = self.runs.run_for(run_context)
        return None if run is None else self.ask(run_context, run)

    def ask(self, run_context, run: Run) -> tf1.train.SessionRunArgs:
        """What to fetch and to feed in a step."""
        if self._loop is not None:
            self._loop.begin_step()
        return run.args(run_context, self.max_loss_now)

    def after_run(self, run_context, run_values):
        self.take(run_context, self.runs.run_for(run_context), run_values.results)

    @with_short_traceback
    def take(self, run_context, run: Optional[Run], values: Any) -> None:
        """Reads what was asked for, and handles the incidents that it tells of.

        Args:
          run_context: the `SessionRunContext` of the run.
          run: what kind of run it was; None if it is no step of a training that is watched.
          values: the values of what was fetched.
        """
        if run is not None:
            run.note(values, self._training)
        if self._loop is not None:
            self._loop.end_step(run_context, self.incident_count)
        if run is None:
            return
        incidents = run.read(values, self.max_loss_now, run_context)
        if not incidents:
            self.step_was_good(run_context.session, self._training.loss)
        for together in incidents:
            self.handle(run_context, *together)

    def handle(self, run_context, reading: Reading, *beside: Reading) -> None:
        """Handles one incident of a run, with the other incidents of that run beside it."""
        found = [*beside, reading]
        if self.job is not None:
            found = [look_again(run_context.session, each) for each in found]
        *others, opened = map(self._open, found)
        is_own = getattr(self.on_nan_loss, '__func__', None) is GateWatcher.on_nan_loss
        override: Any = None if is_own else self.on_nan_loss
        name = type(self).__name__ + '.on_nan_loss'
        self._handler.handle(run_context, opened, others, override, name)

    def _open(self, reading: Reading) -> OpenIncident:
        """Lists an incident; in a job, with the name of this process."""
        opened = OpenIncident(reading if self.job is None else reading.on(self.job.worker))
        self._opened.append(opened)
        self.incident_count += 1
        return opened

    def step_was_good(self, session, loss: Any) -> None:
        """Notes a step that was no incident, and its loss or None."""
        self._handler.step_was_good(session, loss)

    def end(self, session):
        if self._loop is not None:
            self._loop.end(session, self.incident_count)
        self._record_unseen(session)
        self._handler.close()
        if self._training.is_chief is None:  # else `train` says so, once it has saved
            self.end_job()

    def on_nan_loss(self, run_context, incident: Incident) -> None:
        """Acts on an incident; override it to act otherwise.

        By default, does what the policy says: raises `NanLossError`, or asks `run_context` to
        stop, or restores a checkpoint, or does nothing: the next batch comes.

        Args:
          run_context: the `SessionRunContext` of the run, with its session and `request_stop`.
          incident: the `Incident`, which is already the last of `incidents`.
        """
        self._handler.act_on(run_context, incident)

    def _record_unseen(self, session) -> None:
        """Records the bad steps that no later step has reported."""
        goes_back = self.job is not None and self.job.goes_back
        for reading in self.runs.leave(session):
            self._handler.record_unseen(self._open(reading), goes_back)

    def end_job(self) -> None:
        """Ends the job that this process is the chief of, if any: its work is done."""
        if self.job is not None and self.job.is_chief and self._in_force.ends_job:
            self.job.end()

    def _row_of(self, gate: gates.Gate, is_kept: bool) -> tf.Tensor:
        """The row of a gate's steps; where the batch is kept, one that arrives once it is."""
        self._training.capture(gate)  # the train op may have been guarded after the hook began
        evidence = self._training.evidence.get(gate) if is_kept else None
        return gate.row if evidence is None else evidence.capture.row

    def _be_idle(self) -> None:
        """Keeps nothing of a training; `begin` makes it ready for the next."""
        self._training, self._loop = Training(), None
        self._handle_with(FallbackChain(self.on_nan, self._otherwise), Journal())

    def _handle_with(
        self, policies: FallbackChain, journal: Journal, recovery: Optional[Recovery] = None
    ) -> None:
        settings = self._in_force
        length = STEPS if settings.history is None else settings.history
        self.histories = Histories(as_spike(settings.spike), length)
        self._policies, self._journal, self._recovery = policies, journal, recovery
        told = policies, self._otherwise, journal, self._training, recovery, settings.ends_job
        self._handler = IncidentHandler(*told, self.histories.take_last_words)
        self._preparation = Preparation(self._handler.prepare)
        refusal = refusal_without_gate(policies, self.on_nan, self._loss)
        if recovery is not None:
            recovery.limits = self.histories
        sides = self._guards_beside, self._loop is not None
        self.runs = WatchedRuns(self._loss, refusal, self._row_of, self.histories, *sides)

    def _look_around(self) -> tf_callers.CallingSession:
        """What the callers of `begin` show about the session that is being made."""
        return tf_callers.session_among_callers(self)

    def _find_directory(self, policies: FallbackChain, dirs: Sequence[str]) -> Optional[str]:
        """Where the record goes: the logdir, or where the session saves; None on other ranks."""
        saves_itself = self._training.saver is not None
        given = self._in_force.logdir, dirs, policies, self._ranks
        return find_record_folder(self, *given, warns=not saves_itself)

    def _make_recovery(self, graph: tf.Graph, policies: FallbackChain) -> Optional[Recovery]:
        """The `Recovery` for rollbacks; None if there is no directory for checkpoints."""
        given = self._directory, self._in_force.logdir is not None
        return recovery_in(graph, policies, self._training, *given, self._ranks)


def _job_in(
    session, loss: Optional[tf.Tensor], is_chief: Optional[bool], directory: Optional[str]
) -> Optional[Job]:
    """This process's part in a job of several processes; None if it trains alone."""
    near = [loss.op] if loss is not None else []
    near += [op_of(gate.train_op) for gate in gates.gates_of(session.graph).values()]
    found = (job_of(session, op.device, is_chief, directory) for op in near)
    return next((job for job in found if job is not None), None)

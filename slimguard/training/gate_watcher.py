"""The hook that watches the guarded train ops of a graph: :class:`GateWatcher`.

It puts together what is each a file of its own: which runs to watch (watched_run.py), what they
tell (incident_reading.py), and what is then done (incident_handler.py).
"""

from typing import Any, List, Optional, Sequence

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard.checkpoints.finite_saver import offer_saver
from slimguard.checkpoints.rollback import RankRestorer, Restorer
from slimguard.checkpoints.snapshots import Snapshots
from slimguard.cluster.job import Job, job_of
from slimguard.cluster.sync_replicas import keep_tokens_open
from slimguard.compat import tf_callers
from slimguard.gate.histograms import leave_out_bad_values
from slimguard.graph import op_of
from slimguard.incidents.fallback_chain import FallbackChain
from slimguard.incidents.incident import Incident
from slimguard.incidents.journal import Journal
from slimguard.incidents.nan_loss_error import with_short_traceback
from slimguard.incidents.policies import Policy, Raise, Rollback, Skip, Stop
from slimguard.incidents.policy_language import OnNan
from slimguard.incidents.spike import as_spike
from slimguard.system.log import log
from slimguard.training import back_off
from slimguard.training.hook_loop import HookLoop, found_for, warn_of_another
from slimguard.training.incident_handler import NO_GATE, NO_LOGDIR, Action, IncidentHandler
from slimguard.training.incident_reading import Reading, by_run, look_again
from slimguard.training.open_incident import IncidentList
from slimguard.training.recovery import Preparation, Recovery
from slimguard.training.step_history import STEPS, Histories, summaries_beside
from slimguard.training.training import DEFAULTS, Training, TrainingSettings
from slimguard.training.watched_run import Run, WatchedRuns


class GateWatcher(tf1.train.SessionRunHook):
    """Watches every train op of a graph: the base of `NanLossHook`, with or without a loss.

    Attributes:
      max_loss, logdir, ends_job: the user's settings of this hook; see `NanLossHook`.
      incidents: the last thousand incidents, a list of `Incident`.
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
        self.max_loss, self.logdir, self.ends_job = self._settings[:3]
        self._incident_list = IncidentList()
        self.incidents = self._incident_list.incidents
        self.on_nan, self._loss = on_nan, loss
        self.job: Optional[Job] = None
        self._otherwise = Raise() if fail_on_nan_loss else Stop()
        self._directory: Optional[str] = None  # of this training
        self._ranks = gates.Ranks()
        self._joined = Training()
        self._be_idle()

    @property
    def incident_count(self) -> int:
        return self._incident_list.count

    @property
    def fallbacks(self) -> Sequence[Any]:
        """The policies in force, in order."""
        return self._handler.fallbacks

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
        _require_loss_in(graph, self._loss, type(self).__name__)
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
            done, leaving = self._training.is_done, self._record_unseen
            self.job.enter(session, coord, self._prepare, done, leaving)
            self._handler.join_job(self.job.rollbacks)
        elif self._training.is_chief is not False:
            # The first rank sends its variables to the others once all hooks have the session.
            at_once = self._training.makes_sessions and not self._ranks.are_several
            self._preparation.enter(session, at_once)

    def before_step(self, session) -> None:
        """The part of `before_run` that comes before it is known what is run."""
        if self.job is not None:
            with self._training.saving_before_errors(session, self):
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
        found = run.read(values, self.max_loss_now, run_context)
        if not found:
            self.step_was_good(run_context.session, self._training.loss)
        for together in by_run(found):
            self.handle(run_context, *together)

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
        self._handler.act_by_policy(run_context, incident, self.job, self._in_force.ends_job)

    def step_was_good(self, session, loss: Any) -> None:
        """Notes a step that was no incident, and its loss or None."""
        self._handler.step_was_good(session, loss)

    @with_short_traceback
    def handle(self, run_context, reading: Reading, *beside: Reading) -> None:
        """Lets `on_nan_loss` act on one incident of a run; records all, then raises its errors."""
        with self._training.saving_before_errors(run_context.session, self):
            found = _looked_at(self.job, run_context.session, [*beside, reading])
            *others, reading = map(self._remember, found)
            self._handler.handle(run_context, reading, _action_of(self), others)

    def _remember(self, reading: Reading) -> Reading:
        """Lists the incident, which comes back with the name of this process."""
        reading = reading if self.job is None else reading.on(self.job.worker)
        self._incident_list.add(reading.incident)
        return reading

    def _record_unseen(self, session) -> None:
        """Records the bad steps that no later step has reported."""
        goes_back = self.job is not None and self.job.goes_back
        for reading in self.runs.leave(session):
            self._handler.record_unseen(self._remember(reading), goes_back)

    def take_failure(self) -> Optional[Incident]:
        """As `IncidentHandler.take_failure`."""
        return self._handler.take_failure()

    def end_job(self) -> None:
        """Ends the job that this process is the chief of, if any: its work is done."""
        if self.job is not None and self.job.is_chief and self._in_force.ends_job:
            self.job.end()

    def _told_by(self, gate: gates.Gate, is_kept: bool) -> tf.Tensor:
        self._training.capture(gate)  # the train op may have been guarded after the hook began
        evidence = self._training.evidence.get(gate) if is_kept else None
        return getattr(evidence, 'capture', gate).row

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
        told = (policies, self._otherwise, journal, self._training.evidence, recovery)
        last_words = self.histories.take_last_words
        self._handler = IncidentHandler(*told, self._incident_list.replace, last_words)
        self._preparation = Preparation(self._prepare)
        refusal = _refusal_without_gate(policies, self.on_nan, self._loss)
        if recovery is not None:
            recovery.take_along(self.histories)
        sides = self._guards_beside, self._loop is not None
        self.runs = WatchedRuns(self._loss, refusal, self._told_by, self.histories, *sides)

    def _look_around(self) -> tf_callers.CallingSession:
        """What the callers of `begin` show about the session that is being made."""
        return tf_callers.session_among_callers(self)

    def _find_directory(self, policies: FallbackChain, dirs: Sequence[str]) -> Optional[str]:
        """Finds the record's folder: the logdir, or where the session saves; on one rank only."""
        directory: Any = self._in_force.logdir  # which is a str by now
        if self._ranks.rank:
            if directory is not None:
                log().info(_ONE_RECORD, self._ranks.rank, directory)
            return None
        if directory is None:
            directory = found_for(self, dirs, policies.may(Rollback))
        elif self._training.saver is None:
            warn_of_another(self, dirs, directory, _may_go_back(policies))
        if directory is None and policies.may(Rollback) and not self._ranks.are_several:
            raise ValueError(NO_LOGDIR)
        return directory

    def _make_recovery(self, graph: tf.Graph, policies: FallbackChain) -> Optional[Recovery]:
        """The `Recovery` for rollbacks; None if there is no directory for checkpoints."""
        training, directory, ranks = self._training, self._directory, self._ranks
        may_go_back = _may_go_back(policies)
        if ranks.are_several:
            if not may_go_back:
                return None
            smaller = back_off.back_off_in(graph, policies, lambda: directory, False, ranks)
            snapshots = Snapshots(graph, policies.snapshots, is_shared=True)
            return Recovery(RankRestorer(training.saver, directory), snapshots, smaller)
        smaller = back_off.back_off_in(graph, policies, lambda: directory, training.makes_sessions)
        if directory is None or (self._in_force.logdir is None and not may_go_back):
            return None
        saver = training.saver or offer_saver(graph)
        snapshots = Snapshots(graph, policies.snapshots)
        return Recovery(Restorer(saver, directory), snapshots, smaller)

    def _prepare(self, session) -> None:
        self._handler.prepare(session, None if self.job is None else self.job.went_back)


def _require_loss_in(graph: tf.Graph, loss: Optional[tf.Tensor], name: str) -> None:
    if loss is not None and loss.graph is not graph:
        raise ValueError(
            'the loss %r of %s belongs to another graph than the training; build the hook '
            'in the graph that is trained' % (loss.name, name)
        )


def _refusal_without_gate(
    policies: FallbackChain, on_nan: OnNan, loss: Optional[tf.Tensor]
) -> Optional[str]:
    """The error for a train op without a gate; None if its loss can be watched instead."""
    needs_gate = policies.may(Skip) or (loss is None and on_nan is not None)
    return NO_GATE % (on_nan,) if needs_gate else None


def _looked_at(job: Optional[Job], session, found: List[Reading]) -> List[Reading]:
    return found if job is None else [look_again(session, each) for each in found]


def _action_of(watcher: GateWatcher) -> Action:
    """The `Action` on an incident: the watcher's method, or an override of it."""
    is_policy = getattr(watcher.on_nan_loss, '__func__', None) is GateWatcher.on_nan_loss
    return Action(watcher.on_nan_loss, type(watcher).__name__ + '.on_nan_loss', is_policy)


_ONE_RECORD = 'rank %d keeps no record in %s: rank 0 does, for all of them.'


def _may_go_back(policies: FallbackChain) -> bool:
    """Whether a policy rolls back; a callable may say so."""
    return any(
        isinstance(each, Rollback) or not isinstance(each, Policy) for each in policies.fallbacks
    )


def _job_in(
    session, loss: Optional[tf.Tensor], is_chief: Optional[bool], directory: Optional[str]
) -> Optional[Job]:
    """This process's part in a job of several processes; None if it trains alone."""
    near = [loss.op] if loss is not None else []
    near += [op_of(gate.train_op) for gate in gates.gates_of(session.graph).values()]
    for op in near:
        job = job_of(session, op.device, is_chief, directory)
        if job is not None:
            return job
    return None

"""The hook that watches the guarded train ops of a graph: :class:`GateWatcher`.

It puts together what is each a file of its own: which runs to watch (watched_run.py), what they
tell (incident_reading.py), and what is then done (incident_handler.py).
"""

import contextlib
import math
from typing import Any, Iterator, List, Mapping, NamedTuple, Optional, Sequence

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard.checkpoints.finite_saver import offer_saver
from slimguard.checkpoints.rollback import Restorer
from slimguard.cluster.job import Job, job_of
from slimguard.cluster.sync_replicas import keep_tokens_open
from slimguard.compat import tf_private
from slimguard.diagnosis.evidence import Evidence
from slimguard.gate.histograms import leave_out_bad_values
from slimguard.graph import op_of
from slimguard.incidents.incident import Incident, NanLossError
from slimguard.incidents.journal import Journal
from slimguard.incidents.policies import FallbackChain, OnNan, Policy, Raise, Rollback, Skip, Stop
from slimguard.system import files
from slimguard.training import checkpoint_dir
from slimguard.training.context import Borrower, TrainingContext
from slimguard.training.hook_training import DEFAULTS, HookTraining, Settings
from slimguard.training.incident_handler import NO_GATE, NO_LOGDIR, Action, IncidentHandler
from slimguard.training.incident_reading import Reading
from slimguard.training.open_incident import IncidentList
from slimguard.training.recovery import Preparation, Recovery
from slimguard.training.watched_run import WatchedRuns, take_untold


class _Shown(NamedTuple):
    """What is fetched in a step after which the progress is shown."""

    told: Any
    losses: Sequence[Any]  # one, or none


class GateWatcher(Borrower, tf1.train.SessionRunHook):
    """Watches every train op of a graph; what `NanLossHook` does, with or without a loss.

    Attributes:
      incidents: the last thousand incidents, a list of `Incident`.
      incident_count: how many there were in all.
      job: the part that the process takes in a job of several processes, or None.
    """

    def __init__(
        self,
        on_nan: OnNan = None,
        fail_on_nan_loss: bool = True,
        max_loss: Optional[float] = None,
        logdir: Optional[files.Path] = None,
        ends_job: bool = True,
        loss: Optional[tf.Tensor] = None,
        settings: Settings = DEFAULTS,
    ):
        gates.require_max_loss(max_loss)
        Borrower.__init__(
            self, max_loss, None if logdir is None else files.as_logdir(logdir), ends_job
        )
        self._incident_list = IncidentList()
        self.incidents = self._incident_list.incidents
        self.on_nan = on_nan
        self.job: Optional[Job] = None
        self._settings = settings.require()
        self._own: Optional[HookTraining] = None  # where the loop itself keeps nothing
        self._last_loss: Any = None  # of the last good step that was shown
        self._loss = loss
        self._otherwise = Raise() if fail_on_nan_loss else Stop()
        self._directory = self.logdir  # of this training
        self._be_idle()

    @property
    def incident_count(self) -> int:
        return self._incident_list.count

    @property
    def fallbacks(self) -> Sequence[Any]:
        """The policies in force, in order."""
        return self._handler.fallbacks

    def give_back(self) -> None:
        self._handler.close()
        self._own = None
        self._be_idle()

    def evidence_of(self, gate: gates.Gate) -> Optional[Evidence]:
        """What captures the bad steps of a gate, if the training has that."""
        return self._evidence_by_gate.get(gate)

    @property
    def _evidence_by_gate(self) -> Mapping[gates.Gate, Evidence]:
        return self._training.evidence if self._own is None else self._own.evidence

    # The hook.

    def begin(self):
        graph = tf1.get_default_graph()
        _require_loss_in(graph, self._loss, type(self).__name__)
        self.job = None
        policies = FallbackChain(self.on_nan, self._otherwise)
        calling = tf_private.session_among_callers(self)
        self._directory = _directory_for(self, self._training, policies, calling.dirs)
        self._own = None
        saver = self._training.saver
        if not self._training.is_kept:
            # In a job its place tells who saves; but what is restored first is looked at before.
            saves = calling.is_chief if self._training.joins_job else True
            self._own = HookTraining(graph, self._directory, calling, self._settings, saves)
            saver = self._own.saver
        recovery = None
        if self._directory is not None and (self.logdir is not None or _may_go_back(policies)):
            recovery = Recovery(Restorer(saver or offer_saver(graph), self._directory))
        self._handle_with(
            policies, Journal(self._directory, self._training.summary_writer), recovery
        )
        leave_out_bad_values(graph)
        if self.ends_job:
            keep_tokens_open(graph)

    def after_create_session(self, session, coord):
        if self.job is None and self._training.joins_job:
            self.job = _job_in(session, self._loss, self._training.is_chief, self._directory)
        if self._own is not None:
            saves = self.job is None or self.job.is_chief
            self._own.open(session, saves, self._handler.close)
        if self.job is None:
            if self._training.is_chief is not False:
                self._preparation.try_now(session)
            return
        self.job.enter(session, coord, self._prepare, self._training.is_done)
        self._handler.note_rollbacks(self.job.rollbacks)

    def before_run(self, run_context):
        if self.job is not None:
            with self._saving_before_errors(run_context.session):
                self.job.check()
        self._preparation.before_step(run_context.session)
        run = self._runs.run_for(run_context)
        if run is None:
            return None
        args = run.args(run_context, self.max_loss)
        if self._own is not None and self._own.is_progress_due():
            return args._replace(fetches=_Shown(args.fetches, run.losses[:1]))
        return args

    def after_run(self, run_context, run_values):
        if self._own is not None:
            self._own.step_ended(run_context)
            if isinstance(run_values.results, _Shown):
                run_values = self._show(run_context, run_values)
        found = self._read(run_context, run_values)
        if found == []:
            self.step_was_good()
        for reading in found or ():
            self.handle(run_context, reading)

    def after_run_failed(self, run_context, run_values, acting: str, error: BaseException) -> None:
        """Comes in place of `after_run` where that of a hook before this one has raised an error.

        Args:
          run_context: as for `after_run`.
          run_values: as for `after_run`.
          acting: what raised the error, for the record.
          error: the error.
        """
        for reading in self._read(run_context, run_values) or ():
            self.record_failure(run_context, reading, acting, error)

    def _read(self, run_context, run_values) -> Optional[List[Reading]]:
        """The incidents of a run; None if it is no step of a training that is watched."""
        run = self._runs.run_for(run_context)
        if run is None:
            return None
        return run.read(run_values.results, self.max_loss, run_context)

    def end(self, session):
        if self._own is not None:
            self._own.end()
        self._take_leave(session)
        self._handler.close()
        if self._training.is_chief is None:  # else `train` says so, once it has saved
            self.end_job()

    def on_nan_loss(self, run_context, incident: Incident) -> None:
        """Acts on an incident; override it to act otherwise.

        By default, does what the policy says: raises `NanLossError`, or asks `run_context` to
        stop, or restores a checkpoint, or does nothing, so that the training goes on with the
        next batch.

        Args:
          run_context: the `SessionRunContext` of the run, with its session and `request_stop`.
          incident: the `Incident`, which is already the last of `incidents`.
        """
        self._handler.act_by_policy(run_context, incident, self.job, self.ends_job)

    def only_looks_at(self, gate: gates.Gate, run_context) -> bool:
        """Whether in such a run it feeds and reads `gate`, and that is all.

        Then a loop may do so in its place, and call `step_was_good` or `handle`.
        """
        mine = [getattr(method, '__func__', None) for method in (self.before_run, self.after_run)]
        if mine != [GateWatcher.before_run, GateWatcher.after_run]:
            return False
        run = self._runs.run_for(run_context)
        return run is not None and run.gates == [gate] and not run.looks_at_loss

    def step_was_good(self) -> None:
        """Notes that a step was no incident."""
        self._handler.step_was_good()

    def handle(self, run_context, reading: Reading) -> None:
        """Records an incident and lets `on_nan_loss` act on it.

        What a callable of the user's raises leaves here once the incident is on record.
        """
        with self._saving_before_errors(run_context.session):
            self._handler.handle(run_context, self._remember(reading), _action_of(self))

    def record_failure(
        self, run_context, reading: Reading, acting: str, error: BaseException
    ) -> None:
        """Records an incident that nobody acts on, as another hook's error ends the step."""
        self._handler.record_failure(run_context.session, self._remember(reading), acting, error)

    def _remember(self, reading: Reading) -> Reading:
        """Lists the incident, which comes back with the name of this process."""
        if self.job is not None:
            reading = reading.on(self.job.worker)
        self._incident_list.add(reading.incident)
        return reading

    @contextlib.contextmanager
    def _saving_before_errors(self, session) -> Iterator[None]:
        """Saves the last good state before an error ends the training, where no loop does that."""
        try:
            yield
        except NanLossError as error:
            if self._own is not None:
                self._own.save(session, error.incident)
            raise
        except Exception:
            failure = None if self._own is None else self.take_failure()
            if self._own is not None and failure is not None:
                self._own.save(session, failure)
            raise

    def _show(self, run_context, run_values):
        """Shows the progress. Returns the values as they are in other steps."""
        told, losses = run_values.results
        if losses and math.isfinite(losses[0]):
            self._last_loss = losses[0]
        assert self._own is not None, 'it asked for them'
        self._own.show_progress(run_context.session, self._last_loss, self.incident_count)
        return run_values._replace(results=told)

    def _take_leave(self, session) -> None:
        """Records what nobody was told of; from then on, bad steps of the session are printed."""
        for gate in self._runs.all_gates():
            try:
                for reading in take_untold(gate, session):
                    self._handler.record_unseen(self._remember(reading))
                gate.untold.unwatch(session)
            except tf.errors.OpError as error:  # a server that is gone must not fail a good end
                tf1.logging.warning('slimguard: the end of the session is not clean: %s', error)

    def take_failure(self) -> Optional[Incident]:
        """The incident whose handling failed, if the last good state is in memory; told once."""
        return self._handler.take_failure()

    def end_job(self) -> None:
        """Ends the job that this process is the chief of, if any: its work is done."""
        if self.job is not None and self.job.is_chief and self.ends_job:
            self.job.end()

    def _count_of(self, gate: gates.Gate) -> tf.Tensor:
        if self._own is not None and not gate.bad.graph.finalized:
            self._own.capture(gate)  # it was guarded after the hook began
        evidence = self.evidence_of(gate)
        return gate.untold_count if evidence is None else evidence.capture.untold_count

    def _be_idle(self) -> None:
        """Keeps nothing of a training; `begin` makes it ready for the next."""
        self._handle_with(FallbackChain(self.on_nan, self._otherwise), Journal())

    def _handle_with(
        self, policies: FallbackChain, journal: Journal, recovery: Optional[Recovery] = None
    ) -> None:
        self._handler = IncidentHandler(
            policies,
            self._otherwise,
            journal,
            self._evidence_by_gate,
            recovery,
            self._incident_list.replace,
        )
        self._preparation = Preparation(self._prepare)
        refusal = NO_GATE % (self.on_nan,) if policies.may(Skip) else None
        self._runs = WatchedRuns(self._loss, refusal, self._count_of)

    def _prepare(self, session) -> None:
        self._handler.prepare(session, None if self.job is None else self.job.went_back)


def _require_loss_in(graph: tf.Graph, loss: Optional[tf.Tensor], name: str) -> None:
    if loss is not None and loss.graph is not graph:
        raise ValueError(
            'the loss %r of %s belongs to another graph than the training; build the hook '
            'in the graph that is trained' % (loss.name, name)
        )


def _action_of(watcher: GateWatcher) -> Action:
    """What acts on an incident: the watcher's method, or one that overrides it."""
    is_policy = getattr(watcher.on_nan_loss, '__func__', None) is GateWatcher.on_nan_loss
    return Action(watcher.on_nan_loss, type(watcher).__name__ + '.on_nan_loss', is_policy)


def _directory_for(
    watcher: GateWatcher, context: TrainingContext, policies: FallbackChain, dirs: Sequence[str]
) -> Optional[str]:
    """Where the record goes: the watcher's logdir, or where the session saves."""
    directory = watcher.logdir
    if directory is None:
        directory = checkpoint_dir.found_for(watcher, dirs, policies.may(Rollback))
    elif context.saver is None:  # else `train` saves to it
        checkpoint_dir.warn_of_another(watcher, dirs, directory, _may_go_back(policies))
    if directory is None and policies.may(Rollback):
        raise ValueError(NO_LOGDIR)
    return directory


def _may_go_back(policies: FallbackChain) -> bool:
    """Whether a policy rolls back; a callable may say so."""
    return any(
        isinstance(each, Rollback) or not isinstance(each, Policy) for each in policies.fallbacks
    )


def _job_in(
    session, loss: Optional[tf.Tensor], is_chief: Optional[bool], directory: Optional[str]
) -> Optional[Job]:
    """The part that this process has in a job of several; None if it is alone."""
    near = [loss.op] if loss is not None else []
    near += [op_of(gate.train_op) for gate in gates.gates_of(session.graph).values()]
    for op in near:
        job = job_of(session, op.device, is_chief, directory)
        if job is not None:
            return job
    return None

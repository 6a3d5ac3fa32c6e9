"""GateWatcher: watches the guarded train ops of a graph, decides, and acts."""

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard import graph as graphs
from slimguard.checkpoints import state_file
from slimguard.checkpoints.finite_saver import offer_saver
from slimguard.checkpoints.rollback import Restorer
from slimguard.cluster.job import Job, job_of
from slimguard.cluster.sync_replicas import keep_tokens_open
from slimguard.gate.histograms import leave_out_bad_values
from slimguard.graph import op_of
from slimguard.incidents.incident import Incident, NanLossError
from slimguard.incidents.journal import Journal
from slimguard.incidents.policies import (
    Ladder,
    OnNan,
    Policy,
    Raise,
    Rollback,
    Skip,
    Stop,
    rungs_of,
)
from slimguard.system import files
from slimguard.training.checkpoint_dir import checkpoint_dirs_for
from slimguard.training.watched_run import Run, fetched_elements

# How many incidents a hook remembers; the record in the logdir has them all.
_REMEMBERED = 1000
# How much of an error's message is told in the record, in characters.
_LONGEST = 300


class GateWatcher(tf1.train.SessionRunHook):
    """Watches every train op of a graph; what `NanLossHook` does, without a loss of its own.

    Attributes:
      incidents: the last thousand incidents, a list of `Incident`.
      incident_count: how many there were in all.
      failed_at: the incident whose handling ended in an error, if what is in memory is still the
        last good state; else None.
      is_alone: whether it takes no part in a job of several processes, although there is one.
      job: the part it takes in one, or None.
    """

    def __init__(
        self,
        on_nan: OnNan = None,
        fail_on_nan_loss: bool = True,
        max_loss=None,
        logdir: Optional[files.Path] = None,
        ends_job: bool = True,
    ):
        gates.require_max_loss(max_loss)
        self.incidents: List[Incident] = []
        self.incident_count = 0
        self.failed_at: Optional[Incident] = None
        self.on_nan = on_nan
        self.max_loss = max_loss
        self.logdir = None if logdir is None else files.as_logdir(logdir)
        self.ends_job = ends_job
        self.is_alone = False
        self.job: Optional[Job] = None
        self.lend(None, None, {})
        self._otherwise = Raise() if fail_on_nan_loss else Stop()
        self._ladder = Ladder(on_nan, self._otherwise)
        self._policy: Policy = self._otherwise
        self._acting = ''
        self._journal = Journal()
        self._directory = self.logdir  # of this training
        self._restorer: Optional[Restorer] = None
        self._loss: Optional[tf.Tensor] = None
        self._runs: Dict[tuple, Optional[Run]] = {}
        self._last: Tuple[Any, Optional[Run]] = (None, None)

    @property
    def rungs(self) -> Sequence[Any]:
        """The policies in force, in order."""
        return self._ladder.rungs

    def begin(self):
        graph = tf1.get_default_graph()
        if self._loss is not None and self._loss.graph is not graph:
            raise ValueError(
                'the loss %r of %s belongs to another graph than the training; build the hook '
                'in the graph that is trained' % (self._loss.name, type(self).__name__)
            )
        self._runs = {}
        self._last = None, None
        self.job = None
        self._ladder = Ladder(self.on_nan, self._otherwise)
        self._directory = self.logdir or self._find_directory()
        if self.logdir is not None and self._saver is None:  # else `train` saves to it
            self._compare_directories()
        if self._ladder.may(Rollback) and self._directory is None:
            raise ValueError(_NO_LOGDIR)
        self._restorer = None
        # Where only the record goes to a directory that was found, the graph's savers are as ever.
        if self.logdir is not None or (self._directory is not None and self._may_go_back()):
            self._restorer = Restorer(self._saver or offer_saver(graph), self._directory)
        self._journal = Journal(self._directory, self._summary_writer)
        leave_out_bad_values(graph)
        if self.ends_job:
            keep_tokens_open(graph)

    def _find_directory(self) -> Optional[str]:
        """Where the session saves, for a hook that was given no logdir; says so."""
        dirs = checkpoint_dirs_for(self)
        if not dirs:
            return None
        # A directory that TensorFlow can save to and never restore from will do for the record.
        read = files.as_logdir if self._ladder.may(Rollback) else files.as_path
        found = read(dirs[0], 'checkpoint_dir')
        tf1.logging.warning(
            'slimguard: %s has no logdir; incidents go to %s, where this session keeps its '
            'checkpoints.',
            type(self).__name__,
            found,
        )
        return found

    def _compare_directories(self) -> None:
        """Says so where the session saves to another directory than ours."""
        dirs = [files.as_path(each, 'checkpoint_dir') for each in checkpoint_dirs_for(self)]
        if not dirs or any(state_file.is_same(self.logdir, each) for each in dirs):
            return
        tf1.logging.warning(
            'slimguard: %s records incidents in %s, its logdir, but this session keeps its '
            'checkpoints in %s.%s To have all in one place, pass logdir=%r, or none.',
            type(self).__name__,
            self.logdir,
            dirs[0],
            _ROLLS_BACK % self.logdir if self._may_go_back() else '',
            dirs[0],
        )

    def _may_go_back(self) -> bool:
        """Whether a policy rolls back; a callable may say so."""
        return any(
            isinstance(rung, Rollback) or not isinstance(rung, Policy) for rung in self.rungs
        )

    def after_create_session(self, session, coord):
        if self.job is None and not self.is_alone:
            self.job = self._job_in(session)
        if self.job is None:
            if self._is_chief is not False:
                self._prepare(session)
            return
        self.job.enter(session, coord, self._prepare, self._is_done)
        self._ladder.note_rollbacks(self.job.rollbacks)

    def end(self, session):
        self._journal.close()
        if self._is_chief is None:  # else `train` says so, once it has saved
            self.end_job()

    def end_job(self) -> None:
        """Ends the job that this process is the chief of, if any: its work is done."""
        if self.job is not None and self.job.is_chief and self.ends_job:
            self.job.end()

    def lend(
        self,
        saver,
        summary_writer,
        evidence: Dict[gates.Gate, Any],
        is_chief: Optional[bool] = None,
        is_done: Callable[[Any], bool] = lambda session: False,
    ) -> None:
        """Gives it what a training has, until `close`.

        Args:
          saver: the training's saver, for rollbacks; None for the graph's.
          summary_writer: the `FileWriter` of the training's summaries, or None.
          evidence: by gate, the `Evidence` to ask after an incident.
          is_chief: whether this process is the chief; None for what the name of its device says.
          is_done: whether, in a session, there is nothing more to do.
        """
        self._saver, self._summary_writer, self.evidence = saver, summary_writer, evidence
        self._is_chief, self._is_done = is_chief, is_done

    def close(self) -> None:
        """Closes the record of incidents, and gives back what was lent."""
        self._journal.close()
        self.lend(None, None, {})

    def before_run(self, run_context):
        if self.job is not None:
            self.job.check()
        run = self._run_for(run_context)
        if run is None:
            return None
        # Two hooks may watch the same gate, and TensorFlow takes each feed from one of them.
        fed = run_context.__dict__.setdefault('_slimguard_fed', set())
        feeds = {}
        for gate in run.gates:
            if gate not in fed:
                fed.add(gate)
                feeds.update(self.feeds_of(gate))
        captures = [self.evidence[gate].fetch for gate in run.gates if gate in self.evidence]
        fetches = dict(run.fetches, captures=captures) if captures else run.fetches
        return tf1.train.SessionRunArgs(fetches, feed_dict=feeds or None)

    def after_run(self, run_context, run_values):
        run = self._run_for(run_context)
        if run is None:
            return
        incidents = run.incidents(run_values.results, self.max_loss, run_context.session)
        if not incidents:
            self.step_was_good()
        for incident, gate, bad in incidents:
            self.handle(run_context, incident, gate, bad)

    def only_looks_at(self, gate: gates.Gate, run_context) -> bool:
        """Whether in such a run it feeds `feeds_of(gate)` and looks at `gate`, and that is all.

        Then a loop may do so in its place, and call `step_was_good` or `handle`.
        """
        mine = [getattr(method, '__func__', None) for method in (self.before_run, self.after_run)]
        if mine != [GateWatcher.before_run, GateWatcher.after_run]:
            return False
        run = self._run_for(run_context)
        return run is not None and run.gates == [gate] and not run.looks_at_loss

    def step_was_good(self) -> None:
        """Notes that a step was no incident."""
        self._ladder.step_was_good()

    def handle(
        self,
        run_context,
        incident: Incident,
        gate: Optional[gates.Gate] = None,
        bad: Sequence[bool] = (),
    ) -> None:
        """Records an incident and lets `on_nan_loss` act on it; `bad` is what `gate` found.

        What a callable of the user's raises leaves here once the incident is on record.
        """
        if self.job is not None:
            incident.worker = self.job.worker
        self.incidents.append(incident)
        self.incident_count += 1
        del self.incidents[:-_REMEMBERED]
        self.failed_at = None
        self._acting = 'on_nan'
        try:
            self._decide(run_context.session, incident, gate, bad)
            self._acting = type(self).__name__ + '.on_nan_loss'
            self.on_nan_loss(run_context, incident)
        except _ENDS_AS_DECIDED:
            raise
        except BaseException as error:
            self._note_failure(incident, error)
            raise
        finally:
            if incident.action is None:
                incident.action = 'on_nan_loss'
            self._journal.record(incident, self._acting)

    def _decide(self, session, incident: Incident, gate: Optional[gates.Gate], bad) -> None:
        try:
            self._policy = self._ladder.decide(incident)
        except Exception:
            self._examine(session, incident, gate, bad, ends=True)
            raise
        ends = isinstance(self._policy, (Raise, Stop)) and self._acts_by_policy()
        self._examine(session, incident, gate, bad, ends)

    def _examine(self, session, incident: Incident, gate, bad, ends: bool) -> None:
        """Before anybody acts: the weights are as the bad step found them."""
        if gate in self.evidence:
            found = self.evidence[gate].examine(session, incident, gate.labels_of(bad), ends)
            incident.diagnosis = None if found.diagnosis is None else str(found.diagnosis)
            incident.bundle = found.bundle

    def _note_failure(self, incident: Incident, error: BaseException) -> None:
        incident.reason += '; %s raised %s' % (self._acting, _in_short(error))
        if incident.restored is None:  # else the last good state is a checkpoint already
            incident.action = 'error'
            self.failed_at = incident

    def on_nan_loss(self, run_context, incident: Incident) -> None:
        """Acts on an incident; override it to act otherwise.

        By default, does what the policy says: raises `NanLossError`, or asks `run_context` to
        stop, or restores a checkpoint, or does nothing, so that the training goes on with the
        next batch.

        Args:
          run_context: the `SessionRunContext` of the run, with its session and `request_stop`.
          incident: the `Incident`, which is already the last of `incidents`.
        """
        policy = self._policy
        incident.action = policy.action
        if incident.action == 'skip' and not incident.held:
            raise ValueError(_NO_GATE % 'skip')
        if isinstance(policy, Rollback):
            self._roll_back(run_context.session, incident, policy)
        if self.job is not None and self.ends_job and incident.action in ('raise', 'stop'):
            self.job.end(incident if incident.action == 'raise' else None)
        if incident.action == 'raise':
            raise NanLossError(incident)
        if incident.action == 'stop':
            run_context.request_stop()

    def _acts_by_policy(self) -> bool:
        method = getattr(self.on_nan_loss, '__func__', None)
        return method is GateWatcher.on_nan_loss

    def _roll_back(self, session, incident: Incident, policy: Rollback) -> None:
        if self._restorer is None:
            raise ValueError(_NO_LOGDIR)
        if self.job is not None:
            if not self._can_go_back(incident):
                incident.action = Raise.action
                return
            self.job.roll_back(incident)
        if not self._restorer.restore(session, incident):
            incident.action = Raise.action
        elif policy.on_rollback is not None:
            self._acting = 'on_rollback'
            policy.on_rollback(session, incident)

    # In a cluster.

    def _job_in(self, session) -> Optional[Job]:
        """The part that this process has in a job of several; None if it is alone."""
        graph = session.graph
        near = [self._loss.op] if self._loss is not None else []
        near += [op_of(gate.train_op) for gate in gates.gates_of(graph).values()]
        for op in near:
            job = job_of(session, op.device, self._is_chief, self._directory)
            if job is not None:
                return job
        return None

    def _can_go_back(self, incident: Incident) -> bool:
        if not self.job.takes_part:
            incident.reason += '; and the chief, who would go back to a checkpoint, hears nothing'
            return False
        return not self.job.is_chief or self._restorer.finds(incident)

    def _prepare(self, session) -> None:
        """What the chief does to a session before anybody trains in it."""
        incident = None if self.job is None else self.job.went_back
        if incident is not None:
            for rung in [self._policy] + list(self.rungs):
                if isinstance(rung, Rollback) and rung.on_rollback is not None:
                    rung.on_rollback(session, incident)
                    break
        elif self._restorer is not None and self._ladder.may(Rollback):
            self._restorer.save_first(session)

    def feeds_of(self, gate: gates.Gate) -> dict:
        """What to feed with a run of a gate that is watched."""
        return {gate.watched: True, **self.limits_of(gate)}

    def limits_of(self, gate: gates.Gate) -> dict:
        """What to feed with a run of a gate's `quiet` outcome."""
        if self.max_loss is None:
            return {}
        if gate.limit is None:
            raise ValueError(
                'max_loss=%r needs a loss in the gate, and train op %r has none; pass it as '
                'slimguard.guard(train_op, loss=total_loss)' % (self.max_loss, gate.original.name)
            )
        if gate.max_loss not in (None, self.max_loss):
            raise ValueError(
                'max_loss=%r here, but slimguard.guard() was given max_loss=%r; say it once'
                % (self.max_loss, gate.max_loss)
            )
        return {gate.limit: float(self.max_loss)}

    def _run_for(self, run_context) -> Optional['Run']:
        """What to fetch in such a run, or None if it is no step of a training we watch."""
        args = run_context.original_args
        if args is not self._last[0]:
            graph = run_context.session.graph
            elements = fetched_elements(args.fetches, graph)
            key = tuple(element.name for element in elements)
            if key not in self._runs:
                self._runs[key] = self._plan_run(elements, graph)
            self._last = args, self._runs[key]
        return self._last[1]

    def _plan_run(self, elements, graph) -> Optional['Run']:
        found = [g for g in (gates.gate_of(element) for element in elements) if g is not None]
        if found:
            found = [gate for gate in dict.fromkeys(found) if self._is_mine(gate)]
            return Run(found, self._loss_beside(found), graph) if found else None
        if self._loss is None or not self._is_step(elements, graph):
            return None
        if self._ladder.may(Skip):
            raise ValueError(_NO_GATE % self.on_nan)
        return Run([], self._loss, graph)

    def _is_mine(self, gate) -> bool:
        """With several trainings in a graph, a hook with a loss watches those that have it."""
        if self._loss is None or gate.loss is None:
            return True
        needed = graphs.ancestors([op_of(gate.original), gate.loss.op])
        return self._loss.op in needed or gate.loss.op in graphs.ancestors([self._loss.op])

    def _loss_beside(self, found) -> Optional[tf.Tensor]:
        """The loss to look at beside the gates: one that no gate knows."""
        return self._loss if all(gate.loss is None for gate in found) else None

    def _is_step(self, elements, graph) -> bool:
        needed = graphs.ancestors([op_of(element) for element in elements])
        writes = graphs.Writes(graph)
        return self._loss.op in needed or any(op in writes for op in needed)


def with_watcher(
    hooks: Sequence[tf1.train.SessionRunHook],
    on_nan: OnNan,
    max_loss: Optional[float],
    logdir: Optional[files.Path] = None,
    ends_job: bool = True,
) -> Tuple[List[tf1.train.SessionRunHook], GateWatcher]:
    """The hooks, and the one of them that decides: a NanLossHook, or else one that is added.

    Raises:
      ValueError: if `on_nan`, `max_loss` or `logdir` disagrees with a NanLossHook, or is nothing
        we know.
    """
    gates.require_max_loss(max_loss)
    logdir = None if logdir is None else files.as_logdir(logdir)
    given = [hook for hook in hooks if isinstance(hook, GateWatcher)]
    if not given:
        watcher = GateWatcher(on_nan, max_loss=max_loss, logdir=logdir, ends_job=ends_job)
        return list(hooks) + [watcher], watcher
    for hook in given:
        if on_nan is not None and list(hook.rungs) != rungs_of(on_nan):
            _disagree('on_nan', on_nan, hook, list(hook.rungs))
        if max_loss is not None and hook.max_loss not in (None, max_loss):
            _disagree('max_loss', max_loss, hook, hook.max_loss)
        if logdir is not None and hook.logdir not in (None, logdir):
            _disagree('logdir', logdir, hook, hook.logdir)
        hook.max_loss = hook.max_loss if max_loss is None else max_loss
        hook.logdir = hook.logdir if logdir is None else logdir
        hook.ends_job = hook.ends_job and ends_job
    return list(hooks), given[0]


def _disagree(name: str, value, hook: GateWatcher, other) -> None:
    raise ValueError(
        '%s=%r disagrees with the %s among the hooks, which says %r; say it in one place'
        % (name, value, type(hook).__name__, other)
    )


_NO_GATE = (
    'on_nan=%r goes on with the next batch, but the train op has no gate: the bad update would '
    'stay in the weights. Build it with slimguard.create_train_op(), or run '
    'slimguard.guard(train_op) in its place'
)

_NO_LOGDIR = (
    "on_nan='rollback' restores a checkpoint, and no logdir is given to find it in: pass "
    'logdir=... to slimguard.train(), checkpoint_dir=... to MonitoredTrainingSession, or '
    'NanLossHook(..., logdir=...) with the directory that the session saves to'
)

_ROLLS_BACK = (
    ' A rollback restores what is in %s: not what this session saves, but an older state, or that '
    'of another training.'
)

# What ends a step, and is no failure of the handling: the policy's own error, and what makes a
# process of a job begin a new session.
_ENDS_AS_DECIDED = (NanLossError, tf.errors.AbortedError, tf.errors.UnavailableError)


def _in_short(error: BaseException) -> str:
    """The type of an error, and the first line of what it says."""
    said = str(error).strip().split('\n')[0]
    said = said if len(said) <= _LONGEST else said[:_LONGEST] + '...'
    return '%s: %s' % (type(error).__name__, said) if said else type(error).__name__

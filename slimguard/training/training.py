"""What a process does for a training besides its steps: :class:`Training`."""

import contextlib
import math
from typing import Any, Callable, Dict, Iterator, NamedTuple, Optional, Sequence

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard.checkpoints.snapshots import Snapshots
from slimguard.diagnosis.evidence import Evidence, collect, require_capture
from slimguard.graph import op_of
from slimguard.incidents.incident import Incident
from slimguard.incidents.nan_loss_error import NanLossError
from slimguard.incidents.spike import AnySpike, as_spike
from slimguard.system import files
from slimguard.system.numbers import require_bool
from slimguard.training.checkpoint_keeper import CheckpointKeeper
from slimguard.training.progress import Progress, progress_bar
from slimguard.training.step_history import require_history
from slimguard.training.stop_signals import SECONDS, StopSignals, require_seconds


class TrainingSettings(NamedTuple):
    """What a user says, to a hook or to what opens the training; see `NanLossHook`."""

    max_loss: Optional[float] = None
    logdir: Optional[files.Path] = None
    ends_job: bool = True
    capture: bool = True
    max_bundles: int = 5
    progress: bool = False
    preemption_seconds: float = SECONDS
    spike: AnySpike = None
    history: Optional[int] = None  # STEPS, where nobody says another number

    def require(self) -> 'TrainingSettings':
        """These, as they are used; raises TypeError or ValueError for a bad one."""
        gates.require_max_loss(self.max_loss)
        require_bool('ends_job', self.ends_job)
        require_capture(self.capture, self.max_bundles)
        require_bool('progress', self.progress)
        require_seconds(self.preemption_seconds)
        if self.history is not None:
            require_history(self.history)
        logdir = None if self.logdir is None else files.as_logdir(self.logdir)
        return self._replace(logdir=logdir, spike=as_spike(self.spike))

    def over(self, others: 'TrainingSettings') -> 'TrainingSettings':
        """A hook's settings, which go before `others`, those of its training."""
        return self._replace(
            max_loss=others.max_loss if self.max_loss is None else self.max_loss,
            logdir=others.logdir if self.logdir is None else self.logdir,
            ends_job=self.ends_job and others.ends_job,
            spike=others.spike if self.spike is None else self.spike,
            history=others.history if self.history is None else self.history,
        )


DEFAULTS = TrainingSettings()


class Training:
    """A training: what is said of it, and what a process does for it besides its steps.

    It captures bad steps, hears signals, shows a progress bar, and saves the last good state before
    an error ends the training. Who runs the loop makes it, and hands it to the watchers among its
    hooks. Where nobody does, or it is not open, the hook opens one.

    Args:
      settings: what the user says.
      is_open: whether who makes it sees to it that it runs.
      keeper: what keeps its checkpoints; None where this process saves none.
      saver: what restores them; None for the graph's.
      number_of_steps: the global step at which the progress bar is full, or None.
      evidence: by gate, what captures and examines its bad steps; it may grow.
      summary_writer: the `FileWriter` of its summaries, or None.
      summary_secs: how often summaries are written to it, in seconds; 0 for never.
      is_chief: whether this process is the chief; None for what the name of its device says.
      joins_job: whether the process takes part in its job, if there is one.
      is_done: whether, in a session, there is nothing more to do.
      runs_at_once: whether the session may be run as soon as the hooks have it; else its user's
        first run comes first: what that fetches may have to be made yet, and TensorFlow warns of
        ops that are made after a run.
      guards_beside: whether what a run writes beside its train op goes through the gate, or is told
        of, elsewhere.

    Attributes:
      signals: hears SIGTERM and Ctrl-C, once it is entered.
      progress: where to show how the training goes, while it runs; or None.
      loss: that of the last step; None where it was not fetched.
      is_saved: whether the state was saved since the last step began.
    """

    def __init__(
        self,
        settings: TrainingSettings = DEFAULTS,
        is_open: bool = False,
        keeper: Optional[CheckpointKeeper] = None,
        saver: Optional[tf1.train.Saver] = None,
        number_of_steps: Optional[int] = None,
        evidence: Optional[Dict[gates.Gate, Evidence]] = None,
        summary_writer: Any = None,
        summary_secs: float = 0.0,
        is_chief: Optional[bool] = None,
        joins_job: bool = True,
        is_done: Callable[[Any], bool] = lambda session: False,
        runs_at_once: bool = True,
        guards_beside: bool = False,
    ):
        self.settings = settings
        self.is_open = is_open
        self.keeper = keeper
        self.saver = saver
        self._number_of_steps = number_of_steps
        self.evidence: Dict[gates.Gate, Evidence] = {} if evidence is None else evidence
        self.summary_writer, self.summary_secs = summary_writer, summary_secs
        self.is_chief, self.joins_job, self.is_done = is_chief, joins_job, is_done
        self.runs_at_once = runs_at_once
        self.guards_beside = guards_beside
        self.signals = StopSignals(self.save, settings.preemption_seconds)
        self.progress: Optional[Progress] = None
        self.loss: Any = None
        self.is_saved = False
        self._compares_losses = False
        self._bundles_in = None if keeper is None else keeper.bundles_in

    def capture(self, *found: gates.Gate) -> None:
        """Has the bad steps of gates captured, from their next step on."""
        for gate in dict.fromkeys(found):
            graph = op_of(gate.train_op).graph
            if self.settings.capture and gate not in self.evidence and not graph.finalized:
                collect(self.evidence, gate, self._bundles_in, self.settings.max_bundles)

    def snapshots(
        self, graph: tf.Graph, most: int, has_unlisted: bool = False, is_shared: bool = False
    ) -> Snapshots:
        """What keeps so many states in memory, with their losses; see `Snapshots`."""
        self._compares_losses = most > 0 and not is_shared
        return Snapshots(graph, most, has_unlisted, is_shared)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """While it runs, its logdir is taken and its progress shown; then captures are closed."""
        with contextlib.ExitStack() as stack:
            if self.keeper is not None:
                stack.enter_context(self.keeper.keeping())
            for evidence in self.evidence.values():
                stack.callback(evidence.close)
            bar = progress_bar(self.settings.progress, self._number_of_steps)
            self.progress = stack.enter_context(bar)
            try:
                yield
            finally:
                self.progress = None

    # The steps.

    def asking(self, args: tf1.train.SessionRunArgs, losses: Sequence[tf.Tensor]) -> Any:
        """What a watcher asks for in a step: `args`, and the loss where that is to be known."""
        self.is_saved = False
        if losses and (self._compares_losses or self.is_progress_due()):
            return args._replace(fetches=_Fetched(args.fetches, losses[0]))
        return args

    def answered(self, run_values: tf1.train.SessionRunValues) -> Any:
        """The values for `args`, of what was asked for."""
        if not isinstance(run_values.results, _Fetched):
            return run_values.results
        told, loss = run_values.results
        if math.isfinite(loss):
            self.loss = loss
        return told

    def is_progress_due(self) -> bool:
        """Whether it is time to show how the training goes."""
        return self.progress is not None and self.progress.is_due()

    # How it ends.

    @contextlib.contextmanager
    def saving_before_errors(self, session, watcher) -> Iterator[None]:
        """Saves the last good state before an error of a watcher's ends the training."""
        try:
            yield
        except Exception as error:
            self.save_before(error, session, [watcher])
            raise

    def save_before(self, error: Exception, session, watchers: Sequence[Any]) -> None:
        """Saves the last good state, if that is in memory as an error ends the training.

        Args:
          error: the error.
          session: the session.
          watchers: know the incidents whose handling failed.
        """
        if isinstance(error, NanLossError):
            incidents = [error.incident]
        else:
            incidents = [watcher.take_failure() for watcher in watchers]
        for incident in incidents:
            if incident is not None and not self.is_saved:
                self.save(session, incident)

    def save(self, session, incident: Optional[Incident] = None) -> None:
        """Saves the last good state, as an incident or an interrupt ends the training."""
        if self.keeper is not None:
            self.keeper.save(session, incident)
            self.is_saved = True


class _Fetched(NamedTuple):
    """What is fetched in a step whose loss is asked for."""

    told: Any
    loss: Any

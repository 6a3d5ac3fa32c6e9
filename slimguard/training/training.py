"""What a process does for a training besides its steps: :class:`Training`."""

import contextlib
import math
from typing import Any, Dict, Iterator, NamedTuple, Optional, Sequence

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard.checkpoints.snapshots import Snapshots
from slimguard.diagnosis.evidence import Evidence, collect, require_capture
from slimguard.graph import op_of
from slimguard.incidents.incident import Incident
from slimguard.incidents.nan_loss_error import NanLossError
from slimguard.incidents.spike import AnySpike, as_spike
from slimguard.system.numbers import require_bool
from slimguard.training.checkpoint_keeper import CheckpointKeeper
from slimguard.training.progress import Progress, progress_bar
from slimguard.training.step_history import require_history
from slimguard.training.stop_signals import SECONDS, StopSignals, require_seconds


class TrainingSettings(NamedTuple):
    """What a user says of all this; see `NanLossHook`."""

    capture: bool = True
    max_bundles: int = 5
    progress: bool = False
    preemption_seconds: float = SECONDS
    spike: AnySpike = None
    history: Optional[int] = None  # as the training says, or else STEPS

    def require(self) -> 'TrainingSettings':
        """Raises ValueError for a bad one."""
        require_capture(self.capture, self.max_bundles)
        require_bool('progress', self.progress)
        require_seconds(self.preemption_seconds)
        if self.history is not None:
            require_history(self.history)
        as_spike(self.spike)
        return self


DEFAULTS = TrainingSettings()
_NOTHING = TrainingSettings(capture=False)


class Training:
    """What a process does for a training besides its steps, in every loop.

    It captures bad steps, hears signals, shows a progress bar, and saves the last good state before
    an error ends the training. Who opens the training makes it: `slimguard.train`, a script's
    session, or else the hook.

    Args:
      settings: what the user says; by default nothing is captured or shown.
      keeper: what keeps its checkpoints; None where this process saves none.
      saver: what restores them.
      bundles_in: the directory for bundles; None for none.
      number_of_steps: the global step at which the progress bar is full, or None.
      evidence: by gate, what captures and examines its bad steps; it may grow.

    Attributes:
      keeper, saver, evidence: as given.
      signals: hears SIGTERM and Ctrl-C, once it is entered.
      progress: where to show how the training goes, while it runs; or None.
      loss: that of the last step; None where it was not fetched.
      is_saved: whether the state was saved since the last step began.
    """

    def __init__(
        self,
        settings: TrainingSettings = _NOTHING,
        keeper: Optional[CheckpointKeeper] = None,
        saver: Optional[tf1.train.Saver] = None,
        bundles_in: Optional[str] = None,
        number_of_steps: Optional[int] = None,
        evidence: Optional[Dict[gates.Gate, Evidence]] = None,
    ):
        self.keeper = keeper
        self.saver = saver
        self.evidence: Dict[gates.Gate, Evidence] = {} if evidence is None else evidence
        self.signals = StopSignals(self.save, settings.preemption_seconds)
        self.progress: Optional[Progress] = None
        self.loss: Any = None
        self.is_saved = False
        self._settings = settings
        self._bundles_in = bundles_in
        self._number_of_steps = number_of_steps
        self._compares_losses = False

    def capture(self, *found: gates.Gate) -> None:
        """Has the bad steps of gates captured, from their next step on."""
        room = None if self.keeper is None else self.keeper.room
        for gate in dict.fromkeys(found):
            graph = op_of(gate.train_op).graph
            if self._settings.capture and gate not in self.evidence and not graph.finalized:
                most = self._settings.max_bundles
                collect(self.evidence, gate, self._bundles_in, most, room)

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
            if self.keeper is not None and self.keeper.logdir == self._bundles_in:
                stack.enter_context(self.keeper.keeping())
            for evidence in self.evidence.values():
                stack.callback(evidence.close)
            bar = progress_bar(self._settings.progress, self._number_of_steps)
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

"""What a training hands to the hooks that watch it, and takes back: :class:`TrainingContext`."""

import contextlib
from typing import Any, Callable, Iterator, NamedTuple, Optional

from slimguard.incidents.spike import AnySpike, Spike, as_spike
from slimguard.system.numbers import require_bool
from slimguard.training.step_history import STEPS
from slimguard.training.training import Training


class TrainingContext(NamedTuple):
    """What a training has. It is made once, and handed to every `GateWatcher` among the hooks.

    The defaults are what a watcher knows in a loop that hands it nothing, such as a
    MonitoredTrainingSession.

    Attributes:
      max_loss: a larger loss is an incident, where the watcher has no limit of its own.
      logdir: where the record and the checkpoints are, where the watcher has no logdir of its own.
      ends_job: whether 'raise', 'stop' and the chief's end are to end the other processes.
      summary_writer: the `FileWriter` of the training's summaries, or None.
      summary_secs: how often summaries are written to it, in seconds; 0 for never.
      is_chief: whether this process is the chief; None for what the name of its device says.
      joins_job: whether the process takes part in its job, if there is one.
      training: what keeps the checkpoints and captures bad steps; None where the watcher is to open
        it, see `HookLoop`.
      guards_beside: whether what a run writes beside its train op goes through the gate, or is told
        of, elsewhere.
      runs_at_once: whether the session may be run as soon as the hooks have it; else its user's
        first run comes first: what that fetches may have to be made yet, and TensorFlow warns of
        ops that are made after a run.
      is_done: whether, in a session, there is nothing more to do.
      spike: when a step is out of bounds, where the watcher does not say.
      history: how many steps are kept, where the watcher does not say.
    """

    max_loss: Optional[float] = None
    logdir: Optional[str] = None
    ends_job: bool = True
    summary_writer: Any = None
    summary_secs: float = 0.0
    is_chief: Optional[bool] = None
    joins_job: bool = True
    training: Optional[Training] = None
    guards_beside: bool = False
    runs_at_once: bool = True
    is_done: Callable[[Any], bool] = lambda session: False
    spike: Optional[Spike] = None
    history: int = STEPS


class Borrower:
    """A hook that knows what a training has, as long as the training lasts.

    Args:
      max_loss, logdir, ends_job, spike, history: the settings of the hook's user. They go before
        those of a training, which never overwrites them: after the training, the hook is as it was.
    """

    def __init__(
        self,
        max_loss: Optional[float],
        logdir: Optional[str],
        ends_job: bool,
        spike: AnySpike = None,
        history: Optional[int] = None,
    ):
        require_bool('ends_job', ends_job)
        self._max_loss = max_loss
        self._logdir = logdir
        self._ends_job = ends_job
        self._spike = as_spike(spike)
        self._history = history
        self._context = TrainingContext()

    @contextlib.contextmanager
    def borrowing(self, context: TrainingContext) -> Iterator[None]:
        """For a `with` block, has what a training has."""
        before, self._context = self._context, context
        try:
            yield
        finally:
            self._context = before
            self.give_back()

    def give_back(self) -> None:
        """Releases what the hook made for a training, such as its open record."""

    @property
    def max_loss(self) -> Optional[float]:
        """A larger loss is an incident; None for no limit."""
        return self._context.max_loss if self._max_loss is None else self._max_loss

    @max_loss.setter
    def max_loss(self, max_loss: Optional[float]) -> None:
        self._max_loss = max_loss

    @property
    def spike(self) -> Optional[Spike]:
        """When a step is out of bounds; None for no such limit."""
        return self._context.spike if self._spike is None else self._spike

    @property
    def history(self) -> int:
        """How many of the last steps are kept."""
        return self._context.history if self._history is None else self._history

    @property
    def logdir(self) -> Optional[str]:
        """Where the record goes, and where a rollback finds its checkpoints; None if not said."""
        return self._context.logdir if self._logdir is None else self._logdir

    @logdir.setter
    def logdir(self, logdir: Optional[str]) -> None:
        self._logdir = logdir

    @property
    def ends_job(self) -> bool:
        """Whether 'raise', 'stop' and the chief's end are to end the other processes of a job."""
        return self._ends_job and self._context.ends_job

    @ends_job.setter
    def ends_job(self, ends_job: bool) -> None:
        self._ends_job = ends_job

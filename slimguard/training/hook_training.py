"""What a hook does for a training whose loop hands it nothing: :class:`HookTraining`.

`slimguard.train` keeps checkpoints, saves on signals, and captures bad steps by itself. In a
`MonitoredSession`, an Estimator or a plain session there is only the hook. It learns of the graph
when it begins, of the session when that is made, of each step; that the session is closed is told
to no hook, so it listens at the session's `close`.
"""

import contextlib
import math
import sys
import weakref
from typing import (
    Any,
    Callable,
    ContextManager,
    Dict,
    Iterator,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
)

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard import graph as graphs
from slimguard.checkpoints import repair
from slimguard.checkpoints.finite_saver import FiniteSaver, make_finite, offer_saver
from slimguard.checkpoints.snapshots import Snapshots
from slimguard.compat import tf_callers, tf_private
from slimguard.diagnosis.evidence import Evidence, collect, require_capture
from slimguard.incidents.incident import Incident
from slimguard.incidents.nan_loss_error import NanLossError
from slimguard.incidents.spike import AnySpike, as_spike
from slimguard.system import files
from slimguard.system.numbers import require_bool
from slimguard.training.checkpoint_keeper import CheckpointKeeper
from slimguard.training.prepared_runs import prepare_steps
from slimguard.training.progress import Progress, progress_bar
from slimguard.training.step_history import require_history
from slimguard.training.stop_signals import SECONDS, StopSignals, require_seconds


class HookSettings(NamedTuple):
    """What the user of a hook says of all this; see `NanLossHook`."""

    capture: bool = True
    max_bundles: int = 5
    progress: bool = False
    preemption_seconds: float = SECONDS
    spike: AnySpike = None
    history: Optional[int] = None  # as the training says, or else STEPS

    def require(self) -> 'HookSettings':
        """Raises ValueError for a bad one."""
        require_capture(self.capture, self.max_bundles)
        require_bool('progress', self.progress)
        require_seconds(self.preemption_seconds)
        if self.history is not None:
            require_history(self.history)
        as_spike(self.spike)
        return self


DEFAULTS = HookSettings()

# By session, the directories that the hooks of one keep: several hooks may watch it.
_kept_in: Any = weakref.WeakKeyDictionary()


class KeptByLoop:
    """The part that a hook takes where the loop itself does all this: none.

    Attributes:
      evidence: by gate, what captures and examines its bad steps.
      saver: what saves; None if nothing is saved, or the loop knows.
      loss: that of the last step; None where it was not fetched.
      watches_ahead: whether all gates are watched from the start of a session on.
    """

    watches_ahead = False

    def __init__(self, evidence: Mapping[gates.Gate, Evidence]):
        self.evidence: Mapping[gates.Gate, Evidence] = evidence
        self.saver: Optional[FiniteSaver] = None
        self.loss: Any = None
        self._compares_losses = False

    def capture(self, gate: gates.Gate) -> None:
        """Has the bad steps of a gate captured, from its next step on."""

    def snapshots(
        self, graph: tf.Graph, most: int, has_unlisted: bool = False, is_shared: bool = False
    ) -> Snapshots:
        """What keeps so many states in memory, with their losses; see `Snapshots`."""
        self._compares_losses = most > 0 and not is_shared
        return Snapshots(graph, most, has_unlisted, is_shared)

    def open(
        self, session, saves: bool, closing: Callable[[Any], None], closed: Callable[[], None]
    ) -> None:
        """A session is there; it may be a new one in place of one that failed.

        Args:
          session: the `tf.compat.v1.Session`.
          saves: whether this process saves, as far as the job knows.
          closing: called with the session before it is closed.
          closed: called when the session is closed.
        """

    def asking(self, session, args: tf1.train.SessionRunArgs, losses: Sequence[tf.Tensor]) -> Any:
        """What the hook asks for in a step: `args`, and what else there is to know."""
        if losses and self.asks_for_loss():
            return args._replace(fetches=_Fetched(args.fetches, losses[:1]))
        return args

    def asks_for_loss(self) -> bool:
        """Whether the loss of the next step is to be fetched."""
        return self._compares_losses

    def answered(self, run_context, run_values, incidents: int) -> Any:
        """What the hook is to read of what it asked for: the values for `args`."""
        if not isinstance(run_values.results, _Fetched):
            return run_values
        told, losses = run_values.results
        if losses and math.isfinite(losses[0]):
            self.loss = losses[0]
        return run_values._replace(results=told)

    def saving_before_errors(self, session, take_failure: Callable) -> ContextManager:
        """Saves the last good state before an error ends the training.

        Args:
          session: the session.
          take_failure: gives the incident whose handling failed, if that state is in memory.
        """
        return contextlib.ExitStack()

    def end(self, session, incidents: int) -> None:
        """The training has ended as it should, after so many incidents; its saver saves now."""


class HookTraining(KeptByLoop):
    """A training from the `begin` of a hook to the end of its session.

    Args:
      graph: the graph.
      directory: where the record is, and the checkpoints, if the session itself keeps none; None
        if nowhere.
      calling: what is known of the session that is being made.
      settings: what the user says.
      saves: whether this process is one that saves; None if that is not known yet.
    """

    watches_ahead = True

    def __init__(
        self,
        graph: tf.Graph,
        directory: Optional[str],
        calling: tf_callers.CallingSession,
        settings: HookSettings,
        saves: Optional[bool],
    ):
        self._captures: Dict[gates.Gate, Evidence] = {}
        KeptByLoop.__init__(self, self._captures)
        self._graph = graph
        self._record_in = directory
        self._directory = _saved_to(directory, calling) if _trains(graph) else None
        self._calling = calling
        self._settings = settings
        self._saves = saves
        self._has_ended = False
        self._open = contextlib.ExitStack()  # what is given back when the session is closed
        self._closing: Callable[[Any], None] = lambda session: None
        self._keeper: Optional[CheckpointKeeper] = None
        self._signals: Optional[StopSignals] = None
        self._progress: Optional[Progress] = None
        self._is_saved = False  # since the last step
        if self._directory is not None and saves is not False:
            self.saver = _finite_saver(graph, calling)
            if saves:
                repair.resume_from_good(self._directory)
        for gate in dict.fromkeys(gates.gates_of(graph).values()):
            self.capture(gate)

    def capture(self, gate: gates.Gate) -> None:
        if self._settings.capture and gate not in self._captures and not self._graph.finalized:
            folder = None if self._saves is False or self._directory is None else self._record_in
            collect(self._captures, gate, folder, self._settings.max_bundles)

    # The session.

    def open(
        self, session, saves: bool, closing: Callable[[Any], None], closed: Callable[[], None]
    ) -> None:
        self._closing = closing
        self._has_ended = False
        self._open = contextlib.ExitStack()
        if saves and self._directory is not None and self.saver is not None:
            kept = _kept_in.setdefault(session, set())
            if self._directory not in kept:
                kept.add(self._directory)
                self._keep(session, self._directory, self.saver)
        elif gates.ranks_in(self._graph).end_together:
            self._hear_signals(session)
        self._open.callback(closed)
        for evidence in self.evidence.values():
            self._open.callback(evidence.close)
        self._progress = self._open.enter_context(progress_bar(self._settings.progress, None))
        _listen_to_close(session, self)
        self._open.callback(prepare_steps(session))

    def _keep(self, session, directory: str, saver: FiniteSaver) -> None:
        if not tf_private.is_built(saver):
            with self._graph.as_default(), tf_private.unfinalized(self._graph):
                saver.build()
        step = graphs.global_step(self._graph)
        self._keeper = CheckpointKeeper(directory, saver, step)
        for evidence in self.evidence.values():
            evidence.share(self._keeper.room)
        self._hear_signals(session)
        if directory == self._record_in:
            self._open.enter_context(self._keeper.keeping())

    def _hear_signals(self, session) -> None:
        signals = self._signals or StopSignals(self._save, self._settings.preemption_seconds)
        signals.watch(session)
        self._signals = signals.entered()
        # This comes after all others, as it may end the process.
        self._open.callback(self._leave_signals)

    def _leave_signals(self) -> None:
        signals, self._signals = self._signals, None
        if signals is not None:
            signals.leave()

    def end(self, session, incidents: int) -> None:
        self._has_ended = True
        self._show(session, incidents)

    def close(self, session, close: Callable[[], None]) -> None:
        """Closes the session; if an interrupt ended the training, saves before that."""
        interrupted = isinstance(sys.exc_info()[1], (KeyboardInterrupt, SystemExit))
        is_saved = self._is_saved or self._has_ended and self._calling.saves_at_end
        with self._open:
            self._closing(session)
            asked = self._signals is not None and self._signals.is_asked
            if (interrupted or asked) and not is_saved:
                self._save(session)
            self._keeper = self._progress = None
            close()

    def drop(self) -> None:
        """Gives back what it took: the session is gone, and nobody has closed it."""
        self._open.close()

    # The steps.

    def asking(self, session, args: tf1.train.SessionRunArgs, losses: Sequence[tf.Tensor]) -> Any:
        self._is_saved = False
        if self._signals is not None:
            self._signals = self._signals.entered()
            self._signals.begin_step()
        return KeptByLoop.asking(self, session, args, losses)

    def asks_for_loss(self) -> bool:
        return KeptByLoop.asks_for_loss(self) or self._is_progress_due()

    def _is_progress_due(self) -> bool:
        return self._progress is not None and self._progress.is_due()

    def answered(self, run_context, run_values, incidents: int) -> Any:
        if self._signals is not None:
            self._signals.end_step()
            if self._signals.is_asked:
                self._signals.tell_saving()
                run_context.request_stop()
        run_values = KeptByLoop.answered(self, run_context, run_values, incidents)
        if self._is_progress_due():
            self._show(run_context.session, incidents)
        return run_values

    def _show(self, session, incidents: int) -> None:
        if self._progress is not None:
            step = graphs.global_step(self._graph)
            step_now = 0 if step is None else int(session.run(step))
            self._progress.show(step_now, self.loss, incidents)

    @contextlib.contextmanager
    def saving_before_errors(self, session, take_failure: Callable) -> Iterator[None]:
        try:
            yield
        except NanLossError as error:
            self._save(session, error.incident)
            raise
        except Exception:
            failure = take_failure()
            if failure is not None:
                self._save(session, failure)
            raise

    def _save(self, session, incident: Optional[Incident] = None) -> None:
        if self._keeper is not None:
            self._keeper.save(session, incident)
            self._is_saved = True


class _Fetched(NamedTuple):
    """What is fetched in a step whose loss is asked for."""

    told: Any
    losses: Sequence[Any]  # one, or none


def _trains(graph: tf.Graph) -> bool:
    """Whether there is a train op. A hook may watch an evaluation as well, which saves nothing."""
    return bool(gates.gates_of(graph)) or any(map(graphs.is_apply, graph.get_operations()))


def _saved_to(directory: Optional[str], calling: tf_callers.CallingSession) -> Optional[str]:
    """Where the session keeps its checkpoints, also where the hook's record is elsewhere."""
    if directory is None or not calling.dirs:
        return directory
    return files.as_path(calling.dirs[0], 'checkpoint_dir')


def _finite_saver(graph: tf.Graph, calling: tf_callers.CallingSession) -> FiniteSaver:
    """What the session that is being made saves with, from now on a `FiniteSaver`.

    It is the session's own, or the graph's, as TensorFlow's hooks take it; else a new one.
    """
    with tf_private.unfinalized(graph):
        saver = calling.saver() or offer_saver(graph, is_built_later=calling.builds_saver)
        finite = make_finite(graph, saver)
    calling.use(finite)
    return finite


def _listen_to_close(session, training: HookTraining) -> None:
    """Has `training.close` called in place of `session.close`, once."""
    here = weakref.ref(session)  # as the session itself holds what is made here
    before = vars(session).get('close')  # of another hook

    def close() -> None:
        session = here()
        if session is None:  # Python is freeing it, with other objects in a cycle
            training.drop()
            if before is not None:
                before()
            return
        if before is None:
            del session.close
        else:
            session.close = before
        training.close(session, session.close)

    session.close = close

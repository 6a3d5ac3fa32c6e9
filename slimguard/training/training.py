"""A training's settings, captures of bad steps, last save and logdir: :class:`Training`."""

import contextlib
import os
from typing import Any, Callable, Dict, Iterator, NamedTuple, Optional

import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard import graph as graphs
from slimguard.checkpoints.finite_saver import FiniteSaver
from slimguard.checkpoints.restorers import Restorer
from slimguard.checkpoints.snapshots import IS_RUINED
from slimguard.diagnosis import bundle
from slimguard.diagnosis.evidence import Evidence, collect, require_capture
from slimguard.graph import op_of
from slimguard.incidents.incident import Incident
from slimguard.incidents.nan_loss_error import NanLossError
from slimguard.incidents.spike import AnySpike, as_spike
from slimguard.system import files, logdirs
from slimguard.system.log import log
from slimguard.system.numbers import require_bool
from slimguard.training.open_incident import OpenIncident
from slimguard.training.progress import Progress, progress_bar
from slimguard.training.step_history import require_history
from slimguard.training.stop_signals import SECONDS, StopSignals, require_seconds

try:
    import fcntl
except ImportError:  # no POSIX
    fcntl = None


class TrainingSettings(NamedTuple):
    """The user's settings of a hook or of the function that trains; see `NanLossHook`."""

    max_loss: Optional[float] = None
    logdir: Any = None  # a path; after `require` an absolute str
    ends_job: bool = True
    capture: bool = True
    max_bundles: int = 5
    progress: bool = False
    preemption_seconds: float = SECONDS
    spike: AnySpike = None
    history: Optional[int] = None  # None stands for STEPS

    def require(self) -> 'TrainingSettings':
        """The settings, checked, with `logdir` absolute; raises TypeError or ValueError."""
        gates.require_max_loss(self.max_loss)
        require_bool('ends_job', self.ends_job)
        require_capture(self.capture, self.max_bundles)
        require_bool('progress', self.progress)
        require_seconds(self.preemption_seconds)
        if self.history is not None:
            require_history(self.history)
        logdir = None if self.logdir is None else logdirs.as_logdir(self.logdir)
        return self._replace(logdir=logdir, spike=as_spike(self.spike))

    def over(self, others: 'TrainingSettings') -> 'TrainingSettings':
        """A hook's settings, which override `others`, the settings of its training."""
        return self._replace(
            max_loss=others.max_loss if self.max_loss is None else self.max_loss,
            logdir=others.logdir if self.logdir is None else self.logdir,
            ends_job=self.ends_job and others.ends_job,
            spike=others.spike if self.spike is None else self.spike,
            history=others.history if self.history is None else self.history,
        )


DEFAULTS = TrainingSettings()


class Training:
    """A training: its settings, and all that a process does for it except the steps.

    It captures bad steps, handles signals, shows a progress bar, and saves the last good state
    before an error ends the training. The function that runs the loop makes it, and passes it to
    the watchers among the hooks. A hook that gets no training opens one.

    Args:
      settings: the user's settings.
      is_open: whether the function that made it also runs it; if not, a hook opens another.
      checkpoints: saves the last good state; None if this process saves none.
      saver: restores checkpoints; None for the graph's saver.
      number_of_steps: the global step at which it ends, or None.
      evidence: by gate, its `Evidence`, which captures and examines bad steps; gates may be added.
      summary_writer: the `FileWriter` of its summaries, or None.
      summaries: as `Histories.summaries`; None if nothing writes summaries.
      is_chief: whether this process is the chief; None if the name of its device decides.
      makes_sessions: whether the loop makes its sessions. If so, the process takes part in its job,
        if there is one, and the hooks may run a session as soon as they have it. If not, hooks wait
        for the user's first run: its ops may not exist before, and TensorFlow warns of ops that are
        made after a run.

    Attributes:
      signals: handles SIGTERM and Ctrl-C, once it is entered.
      progress: the progress bar while the training runs, or None.
      loss: the last finite loss; None if none is known.
      step: the global step after the last step; None where it is not known.
      is_saved: whether the state was saved since the last step began.
      is_put_back: whether the last incident put an older state back, since the weights were ruined.
    """

    def __init__(
        self,
        settings: TrainingSettings = DEFAULTS,
        is_open: bool = False,
        checkpoints: Optional[Restorer] = None,
        saver: Optional[tf1.train.Saver] = None,
        number_of_steps: Optional[int] = None,
        evidence: Optional[Dict[gates.Gate, Evidence]] = None,
        summary_writer: Any = None,
        summaries: Optional[Callable[[str], Any]] = None,
        is_chief: Optional[bool] = None,
        makes_sessions: bool = True,
    ):
        self.settings = settings
        self.is_open = is_open
        self.checkpoints = checkpoints
        self.saver = saver
        self._number_of_steps = number_of_steps
        self.evidence: Dict[gates.Gate, Evidence] = {} if evidence is None else evidence
        self.summary_writer, self.summaries = summary_writer, summaries
        self.is_chief, self.makes_sessions = is_chief, makes_sessions
        self.signals = StopSignals(self.save, settings.preemption_seconds)
        self.progress: Optional[Progress] = None
        self.loss: Any = None
        self.step: Optional[int] = None
        self.is_saved = self.is_put_back = False
        self._bundles_in: Optional[str] = None  # the logdir of the record
        if checkpoints is not None and isinstance(saver, FiniteSaver):
            self._bundles_in = settings.logdir or checkpoints.logdir

    def capture(self, *new: gates.Gate) -> None:
        """Captures the bad steps of gates, from their next step on."""
        for gate in dict.fromkeys(new):
            graph = op_of(gate.train_op).graph
            if self.settings.capture and gate not in self.evidence and not graph.finalized:
                own = self.settings
                collect(self.evidence, gate, self._bundles_in, own.max_bundles)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Inside, locks the logdir and shows the progress bar; the end also closes captures."""
        with contextlib.ExitStack() as stack:
            if self.checkpoints is not None and self._bundles_in == self.checkpoints.logdir:
                stack.enter_context(occupied(self.checkpoints.logdir))
            for evidence in self.evidence.values():
                stack.callback(evidence.close)
            bar = progress_bar(self.settings.progress, self._number_of_steps)
            self.progress = stack.enter_context(bar)
            try:
                yield
            finally:
                self.progress = None

    # The steps.

    def is_done(self, session) -> bool:
        """Whether the global step has reached the number of steps."""
        step = graphs.global_step(session.graph)
        if self._number_of_steps is None or step is None:
            return False
        return session.run(step) >= self._number_of_steps

    # How it ends.

    @contextlib.contextmanager
    def saving_before_errors(
        self, session, opened: Optional[OpenIncident] = None
    ) -> Iterator[None]:
        """Saves before an error ends the training, as `save_before`.

        Args:
          session: the session.
          opened: the incident that is handled inside, or None.
        """
        try:
            yield
        except Exception as error:
            failed = opened.incident if opened is not None and opened.has_failed else None
            self.save_before(error, session, failed)
            raise

    def save_before(self, error: Exception, session, failed: Optional[Incident] = None) -> None:
        """Saves the last good state if an incident caused the error that ends the training.

        Args:
          error: the error.
          session: the session.
          failed: the incident whose handling the error ended, or None.
        """
        incident = error.incident if isinstance(error, NanLossError) else failed
        if incident is not None and not self.is_saved:
            self.save(session, incident)

    def save(self, session, incident: Optional[Incident] = None) -> None:
        """Saves the last good state when an incident or an interrupt ends the training."""
        if self.checkpoints is not None:
            text = SAVED_OLDER if self.is_put_back else SAVED
            _save_last(self.checkpoints, session, incident, text)
            self.is_saved = True


def _save_last(checkpoints: Restorer, session, incident: Optional[Incident], text: str) -> None:
    if incident is not None and not incident.held:
        return  # the bad update is in memory
    is_ruined = incident is not None and IS_RUINED in incident.reason
    try:
        apart = checkpoints.save_apart(session) if is_ruined else None
        if apart is not None:
            log().warning(_SAVED_APART, apart, checkpoints.published())
            return
        saved = checkpoints.save_last(session)
    except Exception as error:  # no error may hide the incident
        log().error('the last finite state could not be saved: %s', error)
        return
    if saved is not None and incident is not None:
        log().warning(text, saved + (_NONE_BEFORE if is_ruined else ''))
    elif saved is None and not gates.ranks_in(session.graph).rank:  # else another rank saves
        log().warning('the last finite state is not saved: %s.', checkpoints.why_not_saved)


SAVED = 'the last finite state is saved: %s'
SAVED_OLDER = 'the state that was put back is saved: %s'
_NONE_BEFORE = '; its weights are taken for ruined, and there is no earlier checkpoint'
_SAVED_APART = (
    'the weights after the last good step are taken for ruined, so this state is saved apart, as '
    '%s; a restart begins at %s.'
)


@contextlib.contextmanager
def occupied(logdir: str) -> Iterator[None]:
    """Marks a logdir as in use by this process; warns if another process already trains there.

    It holds an advisory lock on the file ``LOGDIR/slimguard/lock``. The system releases the lock
    when the process ends, also if it is killed. It may not notice a process on another machine, or
    on a file system without locks.
    """
    with contextlib.ExitStack() as stack:
        if fcntl is not None and not files.is_remote(logdir):
            folder = bundle.folder(logdir)
            try:
                files.make_dirs(folder)
                file = stack.enter_context(open(os.path.join(folder, 'lock'), 'a'))
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log().warning(
                    'another training is writing to %s at the moment. Each may delete the '
                    "other's checkpoints, or resume from them: end one of the two, and give it a "
                    'logdir of its own.',
                    logdir,
                )
            except OSError:
                pass  # no locks here, or the next write will report the error
        yield

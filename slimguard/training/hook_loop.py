"""A training in a loop that only calls hooks, such as a `MonitoredSession`: :class:`HookLoop`.

`slimguard.train` itself keeps checkpoints, saves on signals, and captures bad steps. In a
`MonitoredSession`, an Estimator or a plain session there is only the hook. The loop calls it when
the graph is complete, when the session is made, and around each step. No loop calls hooks when the
session is closed, so this hook replaces the session's `close`.
"""

import contextlib
import sys
import weakref
from typing import Any, Callable, Optional, Sequence

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard import graph as graphs
from slimguard.checkpoints import repair, state_file
from slimguard.checkpoints.finite_saver import FiniteSaver, make_finite, offer_saver
from slimguard.checkpoints.restorers import Restorer
from slimguard.compat import tf_callers, tf_private
from slimguard.incidents.fallback_chain import FallbackChain
from slimguard.incidents.nan_loss_error import with_short_traceback
from slimguard.incidents.policies import Rollback
from slimguard.system import files, logdirs
from slimguard.system.log import log
from slimguard.training.prepared_runs import prepare_steps
from slimguard.training.rollback import NO_LOGDIR
from slimguard.training.training import Training, TrainingSettings

# By session, the checkpoint directories that its hooks manage: several hooks may watch one session.
_kept_in: Any = weakref.WeakKeyDictionary()


class HookLoop:
    """Opens a training for a hook, from its `begin` to the end of its session.

    Args:
      handed: the training, which is not open yet.
      settings: the user's settings of the hook, else those of the loop.
      graph: the graph.
      directory: the folder of the record, and of the checkpoints unless the session keeps its own;
        None for none.
      calling: what is known of the new session.

    Attributes:
      training: the training.
    """

    def __init__(
        self,
        handed: Training,
        settings: TrainingSettings,
        graph: tf.Graph,
        directory: Optional[str],
        calling: tf_callers.CallingSession,
    ):
        self._graph = graph
        self._calling = calling
        self._has_ended = self._hears = False
        self._open = contextlib.ExitStack()  # what to undo when the session is closed
        self._closing: Callable[[Any], None] = lambda session: None
        checkpoints = saver = None
        # None if no caller shows whether this process saves; the job tells later, in `open`. That
        # is too late for the repair, which must precede the session's restore.
        saves = calling.is_chief if handed.makes_sessions else True
        folder = directory if _trains(graph) else None
        if folder is not None and calling.dirs:  # save where the session saves
            folder = files.as_path(calling.dirs[0], 'checkpoint_dir')
        if folder is not None and saves is not False:
            saver = _finite_saver(graph, calling)
            checkpoints = Restorer(saver, folder)
            if saves:
                repair.resume_from_good(folder)
        self.training = Training(
            settings,
            is_open=True,
            checkpoints=checkpoints,
            saver=saver,
            makes_sessions=handed.makes_sessions,
        )
        self.training.capture(*gates.gates_of(graph).values())

    # The session.

    def open(
        self, session, saves: bool, closing: Callable[[Any], None], closed: Callable[[], None]
    ) -> None:
        """Starts work in a new session, which may replace one that failed.

        Args:
          session: the `tf.compat.v1.Session`.
          saves: whether this process saves, according to the job.
          closing: called with the session before it is closed.
          closed: called when the session is closed.
        """
        self._closing = closing
        self._has_ended = False
        self._open = contextlib.ExitStack()
        checkpoints = self.training.checkpoints
        if checkpoints is not None and saves and _keep_in(checkpoints.logdir, session):
            self._build_saver()
        else:
            checkpoints = self.training.checkpoints = None
        # A rank that saves nothing must hear signals too, since all ranks end together.
        self._hears = checkpoints is not None or gates.ranks_in(self._graph).end_together
        if self._hears:
            self.training.signals.watch(session)
            self.training.signals.enter()
            # Pushed first, so it is called last: it may end the process.
            self._open.callback(self.training.signals.leave)
        self._open.callback(closed)
        self._open.enter_context(self.training.running())
        _listen_to_close(session, self)
        if self.training.makes_sessions:  # a `WatchedSession` prepares its own runs
            self._open.callback(prepare_steps(session))

    def _build_saver(self) -> None:
        saver: Any = self.training.saver
        if not tf_private.is_built(saver):
            with self._graph.as_default(), tf_private.unfinalized(self._graph):
                saver.build()

    def end(self, session, incidents: int) -> None:
        """Notes that the training ended without an error, with this number of incidents."""
        self._has_ended = True
        self._show(session, incidents)

    def close(self, session, close: Callable[[], None]) -> None:
        """Closes the session; if an interrupt ended the training, saves first."""
        interrupted = isinstance(sys.exc_info()[1], (KeyboardInterrupt, SystemExit))
        is_saved = self.training.is_saved or self._has_ended and self._calling.saves_at_end
        with self._open:
            self._closing(session)
            if not is_saved and (interrupted or self.training.signals.is_asked):
                self.training.save(session)
            close()

    def drop(self) -> None:
        """Releases everything after the session was freed without being closed."""
        self._open.close()

    # The steps.

    def begin_step(self) -> None:
        """Notes that a step begins."""
        if self._hears:
            self.training.signals.enter()
            self.training.signals.begin_step()

    def end_step(self, run_context, incidents: int) -> None:
        """Notes that a step has ended; asks the loop to stop if a signal came."""
        signals = self.training.signals
        signals.end_step()
        if signals.is_asked:
            signals.tell_saving()
            run_context.request_stop()
        progress = self.training.progress
        if progress is not None and progress.is_due():
            self._show(run_context.session, incidents)

    def _show(self, session, incidents: int) -> None:
        if self.training.progress is not None:
            step = graphs.global_step(self._graph)
            step_now = 0 if step is None else int(session.run(step))
            self.training.progress.show(step_now, self.training.loss, incidents)


def _keep_in(directory: str, session) -> bool:
    """Claims a checkpoint directory for a hook; False if another hook of the session claimed it."""
    kept = _kept_in.setdefault(session, set())
    is_first = directory not in kept
    kept.add(directory)
    return is_first


def _trains(graph: tf.Graph) -> bool:
    """Whether a graph has a train op. A hook may also watch an evaluation, which saves nothing."""
    return bool(gates.gates_of(graph)) or any(map(graphs.is_apply, graph.get_operations()))


def _finite_saver(graph: tf.Graph, calling: tf_callers.CallingSession) -> FiniteSaver:
    """Makes the new session's saver a `FiniteSaver`, and returns it.

    It wraps the session's own saver or the graph's saver, which TensorFlow's hooks use; without
    either it is a new one.
    """
    with tf_private.unfinalized(graph):
        saver = calling.saver() or offer_saver(graph, is_built_later=calling.builds_saver)
        finite = make_finite(graph, saver)
    calling.use(finite)
    return finite


def _listen_to_close(session, loop: HookLoop) -> None:
    """Replaces `session.close` by `loop.close`, for one call."""
    here = weakref.ref(session)  # weak, since the session itself holds this function
    before = vars(session).get('close')  # from another hook

    @with_short_traceback
    def close() -> None:
        session = here()
        if session is None:  # the garbage collector is freeing the session
            loop.drop()
            if before is not None:
                before()
            return
        if before is None:
            del session.close
        else:
            session.close = before
        loop.close(session, session.close)

    session.close = close


# Where the record is.


def find_record_folder(
    hook: tf1.train.SessionRunHook,
    logdir: Optional[str],
    dirs: Sequence[str],
    policies: FallbackChain,
    ranks: gates.Ranks,
    warns: bool,
) -> Optional[str]:
    """The logdir, or where the session saves; None without either, and on all ranks but the first.

    Args:
      hook: the hook, for the log.
      logdir: the logdir in force, or None.
      dirs: where the session keeps its checkpoints, as far as known.
      policies: the policies in force.
      ranks: the processes that train together.
      warns: whether to warn of a logdir that the session does not save to.

    Raises:
      ValueError: if a policy rolls back, and there is no directory.
    """
    if ranks.rank:
        if logdir is not None:
            log().info(_ONE_RECORD, ranks.rank, logdir)
        return None
    rolls_back = policies.may(Rollback)
    if logdir is None:
        logdir = _folder_for(hook, dirs, rolls_back)
    elif warns:
        _warn_of_another(hook, dirs, logdir, policies.may_roll_back)
    if logdir is None and rolls_back and not ranks.are_several:
        raise ValueError(NO_LOGDIR)
    return logdir


def _folder_for(
    hook: tf1.train.SessionRunHook, dirs: Sequence[str], must_restore: bool
) -> Optional[str]:
    """For a hook without a logdir, where the session saves; logs it. None if it does not save.

    Args:
      hook: the hook.
      dirs: where the session keeps its checkpoints.
      must_restore: whether TensorFlow must be able to restore from there. The record needs only a
        directory to write to.
    """
    if not dirs:
        return None
    read = logdirs.as_logdir if must_restore else files.as_path
    folder = read(dirs[0], 'checkpoint_dir')
    log().info(
        '%s has no logdir; incidents go to %s, where this session keeps its checkpoints.',
        type(hook).__name__,
        folder,
    )
    return folder


def _warn_of_another(
    hook: tf1.train.SessionRunHook, dirs: Sequence[str], logdir: str, may_restore: bool
) -> None:
    """Warns if the session saves to a directory (one of `dirs`) that is not the hook's logdir."""
    dirs = [files.as_path(each, 'checkpoint_dir') for each in dirs]
    if not dirs or any(state_file.is_same(logdir, each) for each in dirs):
        return
    log().warning(
        '%s records incidents in %s, its logdir, but this session keeps its '
        'checkpoints in %s.%s To have all in one place, pass logdir=%r, or none.',
        type(hook).__name__,
        logdir,
        dirs[0],
        _ROLLS_BACK % logdir if may_restore else '',
        dirs[0],
    )


_ROLLS_BACK = (
    ' A rollback restores what is in %s: not what this session saves, but an older state, or that '
    'of another training.'
)

_ONE_RECORD = 'rank %d keeps no record in %s: rank 0 does, for all of them.'

"""Hooks and policies for a plain session: :func:`watch`."""

import atexit
import contextlib
import os
import weakref
from typing import Any, Callable, MutableMapping, Optional, Sequence

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard.checkpoints import checkpoint_files, checkpoint_reader
from slimguard.checkpoints.checkpoint_files import reason_of
from slimguard.compat import tf_private
from slimguard.graph.sessions import OWN_WORK, SessionInterface
from slimguard.incidents.nan_loss_error import with_short_traceback
from slimguard.incidents.policy_language import OnNan, require_policy
from slimguard.incidents.spike import AnySpike
from slimguard.system import files, logdirs
from slimguard.system.log import log
from slimguard.training.gate_watcher import GateWatcher, handed, watchers_in, with_watcher
from slimguard.training.hooked_session import HookedSession
from slimguard.training.incident_handler import NotInitializedError
from slimguard.training.step_history import STEPS
from slimguard.training.stop_signals import SECONDS
from slimguard.training.training import Training, TrainingSettings

# By session, its WatchedSession while that is in use.
_WATCHED: MutableMapping[Any, 'WatchedSession'] = weakref.WeakValueDictionary()


class WatchedSession(HookedSession):
    """The session that `watch` returns: a `HookedSession` that can be closed."""

    def __init__(
        self,
        session,
        hooks: Sequence[tf1.train.SessionRunHook],
        coordinator: tf1.train.Coordinator,
        give_back: Callable[[], None],
    ):
        HookedSession.__init__(self, session, hooks)
        self._coordinator = coordinator
        self._give_back = give_back  # releases what hooks made for the training
        self._ended = False
        self._is_new = True
        self._contexts = contextlib.ExitStack()
        # Runs before Python unloads its modules, even if nobody closes the session.
        atexit.register(_give_back, weakref.ref(self), os.getpid())

    @with_short_traceback
    def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        """As `tf.compat.v1.Session.run`; once a hook asked to stop, steps raise RuntimeError."""
        if self.should_stop() and self._step_of(fetches) is not None:
            raise RuntimeError(
                "on_nan='stop', a signal or a hook has asked the training to stop, and this would "
                'be one more step; loop with "while not session.should_stop()"'
            )
        if self._is_new:  # by now the user's first ops exist, such as an initializer
            self._is_new = False
            for watcher in watchers_in(self._hooks):
                watcher.runs.watch(self._session)
        values = HookedSession.run(self, fetches, feed_dict, options, run_metadata)
        if isinstance(fetches, str) and isinstance(values, bytes) and not OWN_WORK:
            _look_at_save(values.decode())
        return values

    def should_stop(self) -> bool:
        """Whether a hook asked to stop, as `MonitoredSession.should_stop` says."""
        return self.stop_requested or self._coordinator.should_stop()

    @with_short_traceback
    def close(self):
        """Calls the hooks' `end`, joins their threads, and closes the session.

        Raises an error that a thread of the hooks has reported to the coordinator.
        """
        with contextlib.ExitStack() as stack:  # calls them in reverse order
            stack.callback(self._give_back)
            stack.callback(self._session.close)
            stack.callback(self._join)
            if not self._ended:
                self._ended = True
                for hook in self._hooks:
                    hook.end(self._session)

    def _join(self) -> None:
        self._coordinator.request_stop()
        if not self._coordinator.joined:
            self._coordinator.join(ignore_live_threads=True)

    def __enter__(self):
        self._contexts.enter_context(self.graph.as_default())
        self._contexts.enter_context(self.as_default())
        return self

    @with_short_traceback
    def __exit__(self, error_type, error, traceback):
        is_end_of_input = error_type in (tf.errors.OutOfRangeError, StopIteration)
        self._ended = self._ended or not (error_type is None or is_end_of_input)
        try:
            if isinstance(self._session, tf1.InteractiveSession):
                self._contexts.close()  # only the innermost default session can be left
            self.close()
        finally:
            self._contexts.close()
        return is_end_of_input  # True: the block ends without the error, as in a MonitoredSession


def _look_at_save(prefix: str) -> None:
    """Logs an error if a saver other than a `FiniteSaver` has just written a bad checkpoint."""
    if not checkpoint_files.files_of(prefix):
        return  # no checkpoint was saved
    inspection = checkpoint_reader.read(prefix)
    if not inspection.is_good:
        log().error(
            'checkpoint %s is %s. A slimguard.FiniteSaver refuses such a save.', prefix, inspection
        )


def _give_back(session: 'weakref.ReferenceType[WatchedSession]', process: int) -> None:
    watched = session()
    if watched is not None and os.getpid() == process:  # not in a fork
        watched._give_back()


def watch(
    session: tf1.Session,
    hooks: Sequence[tf1.train.SessionRunHook] = (),
    on_nan: OnNan = None,
    max_loss: Optional[float] = None,
    logdir: Optional[files.Path] = None,
    capture: bool = True,
    max_bundles: int = 5,
    progress: bool = False,
    preemption_seconds: float = SECONDS,
    spike: AnySpike = None,
    history: int = STEPS,
) -> WatchedSession:
    """Gives a plain session hooks and policies.

    The returned session behaves like the given one. It calls the hooks only for runs of a train op:
    a guarded one, or any op that runs an optimizer. Without a `NanLossHook`, a ValueError
    refuses a run of a train op that nobody has guarded. `watch` itself calls the hooks' `begin` and
    `after_create_session`. A `CheckpointSaverHook` saves in `after_create_session`, so with such a
    hook, initialize the variables first.

        train_op = slimguard.guard(optimizer.minimize(loss, global_step), loss=loss)
        with slimguard.watch(tf.compat.v1.Session(), on_nan='skip', logdir='logs') as session:
            session.run(tf.compat.v1.global_variables_initializer())
            for batch in batches:
                session.run(train_op, feed_dict={features: batch})
                if session.should_stop():
                    break

    The returned session calls the hooks' `end` when it is closed, or when its `with` block ends
    without an error. The end of the input (`tf.errors.OutOfRangeError`) and StopIteration do not
    count as errors: they end the block and are not raised.

    Args:
      session: a `tf.compat.v1.Session`, new or in use.
      hooks: `SessionRunHook`s. A `NanLossHook` among them decides what happens after a bad step.
      on_nan: what happens after a bad step, unless a `NanLossHook` decides; see `NanLossHook`.
      max_loss: a larger loss is a bad step, too; a positive finite number. Default: no limit.
        `slimguard.guard` says what this limit cannot prevent.
      logdir: the directory for the record of incidents and the bundles, in which a rollback finds
        its checkpoints: a str, bytes or `os.PathLike`. A relative path is made absolute here.
        Before 'raise', on SIGTERM and on Ctrl-C the last good state is saved there. Without a
        logdir, no record is kept; the log says so at the first incident.
      capture, max_bundles, progress, preemption_seconds: as for `NanLossHook`; a `NanLossHook`
        among the hooks uses its own.
      spike, history: as for `NanLossHook`; they also apply to a `NanLossHook` among the hooks that
        does not set them.

    Raises:
      TypeError: if `session` is no session.
      RuntimeError: if it is closed.
      ValueError: if it is watched already; if there is a `logdir` but no variable yet, or the
        `logdir` cannot be written to; if `on_nan`, `max_loss`, `preemption_seconds`, `spike` or
        `history` has a bad value, or differs from that of a hook.
      tf.errors.FailedPreconditionError: if a hook reads a variable that has no value yet.
    """
    if not isinstance(session, SessionInterface):
        raise TypeError(
            'session must be a tf.compat.v1.Session, not %r; a MonitoredSession takes the hook '
            'itself: hooks=[slimguard.NanLossHook(loss)]' % (session,)
        )
    if isinstance(session, tf1.Session) and tf_private.is_closed(session):
        raise RuntimeError('session is closed; watch another, before it trains')
    if isinstance(session, WatchedSession) or session in _WATCHED:
        raise ValueError(
            'session is watched already; call watch() once for each session, and give it all hooks '
            'in hooks='
        )
    require_policy(on_nan)
    settings = TrainingSettings(
        max_loss=max_loss,
        logdir=logdir,
        capture=capture,
        max_bundles=max_bundles,
        progress=progress,
        preemption_seconds=preemption_seconds,
        spike=spike,
        history=history,
    ).require()
    if settings.logdir is not None:
        if not session.graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES):
            raise ValueError(
                'the graph of the session has no variables yet, so there is nothing to save in '
                'logdir=%r; build the model and the train op first, and then call watch()'
                % settings.logdir
            )
        logdirs.require_writable(settings.logdir)
    hooks, watcher = with_watcher(hooks, on_nan, settings)
    if type(watcher) is GateWatcher and watcher.on_nan is None:
        watcher.on_nan = 'raise'  # if named, 'raise' refuses unguarded train ops
    # It joins no job: a job may ask for a new session, and `watch` cannot make one.
    training = Training(settings, makes_sessions=False)
    # Like a MonitoredSession's coordinator, it raises any error that a thread reports.
    coordinator = tf1.train.Coordinator(clean_stop_exception_types=[])
    with contextlib.ExitStack() as stack:
        stack.enter_context(handed(hooks, training))
        with session.graph.as_default():
            for hook in hooks:
                hook.begin()
        for hook in hooks:
            try:
                hook.after_create_session(session, coordinator)
            except tf.errors.FailedPreconditionError as error:
                is_scaled = gates.learning_rates_of(session.graph) is not None
                what_to_do = _SAVE_IN_THE_LOOP if is_scaled else _INITIALIZE
                told = type(hook).__name__, what_to_do, reason_of(error)
                raise NotInitializedError(_TOO_EARLY % told) from None
        watched = WatchedSession(session, hooks, coordinator, stack.pop_all().close)
    _WATCHED[session] = watched
    return watched


_TOO_EARLY = (
    '%s reads variables as soon as watch() is called, and one has no value yet; %s. TensorFlow '
    'says: %s'
)
_INITIALIZE = 'initialize or restore them before'
_SAVE_IN_THE_LOOP = (
    'for a rollback with a factor (rollback:3x0.1) the session may not run anything before, so '
    'leave this hook out. To save, make saver = slimguard.FiniteSaver() before watch(), and in the '
    "loop call saver.save(session, logdir + '/model.ckpt', global_step)"
)

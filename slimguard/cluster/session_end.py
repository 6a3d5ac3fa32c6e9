"""How a session ends: the errors that lead to a new one, and what happens once its threads end."""

import threading
from typing import Any, Callable, Dict, Optional

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.cluster.job_table import PAUSE
from slimguard.incidents.incident import Incident
from slimguard.incidents.nan_loss_error import NanLossError

# How many seconds threads may take to end by themselves, before the session is closed to end them.
_GRACE = 2.0

# The errors after which a process of a job begins a new session.
NEW_SESSION = (tf.errors.AbortedError, tf.errors.UnavailableError)
# The errors that a coordinator may raise instead, once a session's threads have ended.
_RESTARTING = (*NEW_SESSION, tf.errors.CancelledError)


def as_aborted(error: tf.errors.OpError) -> tf.errors.AbortedError:
    """The same error as an `AbortedError`, after which slim makes a new session."""
    return tf.errors.AbortedError(error.node_def, error.op, error.message)


def aborted(why: str) -> tf.errors.AbortedError:
    """An error that leads to a new session."""
    return tf.errors.AbortedError(None, None, 'slimguard: ' + why)


def error_of(incident: Optional[Dict[str, Any]]) -> Optional[NanLossError]:
    """The error that ends a training for an incident (a dict); None for a good end."""
    return None if incident is None else NanLossError(Incident.from_dict(incident))


def stop(coordinator: Any, error: Optional[Exception]) -> None:
    """Asks a coordinator to stop: with an error, or because all steps are done."""
    if error is None:
        coordinator.request_stop()
        return
    try:
        raise error  # a coordinator accepts only errors that were raised
    except type(error) as raised:
        coordinator.request_stop(raised)


def call_when_joined(
    session,
    coordinator: Any,
    before_close: Callable[[], None],
    leave: Callable[[bool], None],
    closes_session: bool,
) -> None:
    """Calls `leave` once the coordinator's threads have ended.

    Args:
      session: the coordinator's session.
      coordinator: the coordinator; its `join` method is replaced.
      before_close: called before `leave`, and before the session is closed, when its threads have
        ended or do not end by themselves. It may be called several times.
      leave: called with a bool: whether a new session follows. It may be called twice.
      closes_session: whether to close the session if its threads do not end by themselves.
    """
    lock = threading.Lock()

    def look() -> None:
        with lock:  # `leave` may close the session, too
            before_close()

    def join(*args, **kwargs):
        joined = threading.Event()
        if closes_session:
            arguments = [session, joined, look]
            threading.Thread(target=_close_in_time, args=arguments, daemon=True).start()
        try:
            try:
                type(coordinator).join(coordinator, *args, **kwargs)
            finally:
                joined.set()
                look()
        except _RESTARTING as error:
            leave(True)
            if isinstance(error, tf.errors.AbortedError):
                raise
            raise as_aborted(error) from error
        finally:
            leave(False)

    coordinator.join = join


def _close_in_time(session, joined: threading.Event, before_close: Callable[[], None]) -> None:
    """Closes a session to end the threads that wait in it, but not while one may be saving."""
    if joined.wait(_GRACE):
        return
    while any(isinstance(thread, tf1.train.LooperThread) for thread in threading.enumerate()):
        if joined.wait(PAUSE):
            return
    try:
        before_close()
    finally:
        session.close()

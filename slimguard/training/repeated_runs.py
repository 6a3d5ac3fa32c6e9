"""The steps of a session that hooks watch, each kind prepared once: `prepare_steps`.

In every step a `MonitoredSession` asks its session to run the same fetches, those of its hooks
among them, with options that ask for nothing; so does what `watch` returns. A session takes all of
it apart each time, which on a small model takes longer than the gate. So where a hook of ours
watches, the session runs such a step by a :class:`PreparedCall`: it gives the same values and
errors, sooner.
"""

import weakref
from typing import Any, Callable, Dict, Optional

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.compat import tf_callers, tf_private
from slimguard.training.prepared_call import PreparedCall, PreparedCalls, key_of

_NO_FEEDS: Dict[tf.Tensor, Any] = {}


def prepare_steps(session) -> Callable[[], None]:
    """Has a session run the steps that hooks watch by prepared calls.

    Nothing is done to a session of another class than TensorFlow's own, to one whose `run` somebody
    has replaced, or to one of a cluster.

    Args:
      session: what hooks are given when it is made.

    Returns:
      What ends it.
    """
    of_class = tf1.Session.run
    is_local = type(session) is tf1.Session and session.sess_str in ('', b'')
    if not is_local or 'run' in vars(session) or not tf_callers.is_method_of_sessions(of_class):
        return lambda: None
    steps = _PreparedSteps(session)

    def run(fetches, feed_dict=None, options=None, run_metadata=None):
        if _is_step(fetches) and _asks_nothing(options) and tf1.Session.run is of_class:
            values = steps.run(fetches, feed_dict)
            if values is not None:
                return values
        # As it is now: a profiler replaces it for a while.
        return tf1.Session.run(steps.session, fetches, feed_dict, options, run_metadata)

    def end() -> None:
        session = steps.session
        if session is not None and vars(session).get('run') is run:
            del session.run
        steps.forget()

    session.run = run
    return end


class _PreparedSteps:
    def __init__(self, session):
        self._session = weakref.ref(session)  # as the session holds what holds this
        self._calls = PreparedCalls()

    @property
    def session(self) -> Any:
        return self._session()

    def run(self, fetches: dict, feed_dict: Any) -> Optional[dict]:
        """The values of a step, by the keys of `fetches`.

        None where the session has to see to it; then nothing has run.
        """
        feeds = feed_dict or _NO_FEEDS
        session = self.session
        if type(feeds) is not dict or session is None or tf_private.is_closed(session):
            return None
        asked = (key_of(fetches), *map(id, feeds))
        call = self._calls.of(asked, PreparedCall.of, session, [], [], fetches, feeds)
        if call is None:
            return None
        values = call.values_of(feeds)
        return None if values is None else call(values)[1]

    def forget(self) -> None:
        self._calls.clear()


def _is_step(fetches: Any) -> bool:
    """Whether a run is a step that fetches for hooks as well, as they are told apart there."""
    return type(fetches) is dict and any(isinstance(k, tf1.train.SessionRunHook) for k in fetches)


def _asks_nothing(options: Optional[tf1.RunOptions]) -> bool:
    return options is None or not options.ByteSize()

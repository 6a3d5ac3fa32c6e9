"""The sessions on a graph, and :class:`SessionWrapper`, which stands in for one."""

import gc
import threading
import weakref
from typing import Any, Callable, List, Optional, Sequence

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.compat import tf_private
from slimguard.graph.kept import kept_already, kept_on

SessionInterface = tf_private.SessionInterface


class Inside(threading.local):
    """Whether this thread is inside a call of ours: a context manager that is also a bool.

    Our replacements of TensorFlow's methods read it, and pass calls from inside on unchanged.
    """

    _depth = 0

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *_) -> None:
        self._depth -= 1

    def __bool__(self) -> bool:
        return self._depth > 0


# The attribute in which our replacement of a method keeps TensorFlow's method.
REPLACES = '_slimguard_replaces'

# Set during runs of our own (diagnosis, saves): `instrument` looks for no training in them.
OWN_WORK = Inside()


class SessionWrapper(SessionInterface):
    """Behaves as the session that it wraps; subclasses change some methods.

    Args:
      session: the `tf.compat.v1.Session` to wrap, or a wrapper of one.
    """

    def __init__(self, session):
        self._session = session

    def __getattr__(self, name):
        return getattr(self._session, name)

    @property
    def graph(self):
        return self._session.graph

    @property
    def sess_str(self):
        return self._session.sess_str

    def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        """As `tf.compat.v1.Session.run`; leaves out options if None: some sessions lack them."""
        given = {'options': options, 'run_metadata': run_metadata}
        given = {name: value for name, value in given.items() if value is not None}
        return self._session.run(fetches, feed_dict, **given)

    def partial_run_setup(self, fetches, feeds=None):
        return self._session.partial_run_setup(fetches, feeds)

    def partial_run(self, handle, fetches, feed_dict=None):
        return self._session.partial_run(handle, fetches, feed_dict)

    def as_default(self):
        """As `tf.compat.v1.Session.as_default`, so that `eval()` and `run()` of ops come here."""
        return tf1.Session.as_default(self)


def callable_of(
    run: Callable[..., Any], fetches: Any, feed_list: Optional[Sequence[Any]]
) -> Callable[..., Any]:
    """As a session's `make_callable`, but each call goes through `run`.

    Args:
      run: as `tf.compat.v1.Session.run`.
      fetches, feed_list: as for `tf.compat.v1.Session.make_callable`.
    """
    fed = list(feed_list or ())

    def call(*values, options=None, run_metadata=None):
        if len(values) < len(fed):  # TensorFlow ignores extra values
            raise TypeError('expected %d values to feed, not %d' % (len(fed), len(values)))
        return run(fetches, dict(zip(fed, values)), options, run_metadata)

    return call


_SEEN = '_slimguard_seen'  # the number of the last op that a session has seen
_OPENED = 'noted_sessions'  # the sessions whose every run is noted


def note_seen(graph: tf.Graph) -> None:
    """Notes that a session is about to see all ops of the graph.

    Call it before each run of every session on the graph: ops made after the last call are unseen.
    """
    operations = graph.get_operations()
    # Another thread may still be making the last ops; they count as seen.
    complete = [op for op in operations[-10:] if tf_private.is_made(op)]
    last = tf_private.number_of(complete[-1]) if complete else 0
    setattr(graph, _SEEN, last + len(operations[-10:]) - len(complete))


def note_opened(session: tf1.Session) -> None:
    """Notes that a session was just opened: until `note_seen` it has seen nothing."""
    kept_on(session.graph, _OPENED, weakref.WeakSet).add(session)


def unseen_by_sessions(graph: tf.Graph) -> Callable[[tf.Operation], bool]:
    """A function: whether an op is unseen by all sessions, so that it can get new inputs."""
    seen = getattr(graph, _SEEN, None)
    if seen is not None:
        return lambda op: tf_private.number_of(op) > seen
    opened = kept_already(graph, _OPENED) or ()
    nobody_has_run = all(session in opened for session in open_sessions(graph))
    return lambda op: nobody_has_run


def open_sessions(graph: tf.Graph) -> List[tf1.Session]:
    """The open sessions of a graph. An op that one of them may have run cannot get new inputs."""
    found = []
    # As a graph's referrer `gc` names either the session or the session's `__dict__`.
    for holder in gc.get_referrers(graph):
        if type(holder) is not dict:
            things = [holder]
        else:
            things = gc.get_referrers(holder) if '_closed' in holder else []
        found.extend(
            thing
            for thing in things
            if isinstance(thing, (tf1.Session, tf1.InteractiveSession))
            and thing.graph is graph
            and not tf_private.is_closed(thing)
        )
    return found

"""The `Supervisor` of slim's loop: found, and made to do what a `MonitoredSession` does."""

import functools
import sys
from typing import Callable, ContextManager, Optional

import tensorflow.compat.v1 as tf1

from slimguard.training.hooked_session import HookedSession


def supervisor_that_calls() -> Optional[tf1.train.Supervisor]:
    """The Supervisor of the slim.learning.train that calls us, or None.

    slim makes it and hands it to nobody, so it is looked for among the variables of the callers.
    """
    frame = sys._getframe(1)
    while frame is not None:
        for value in frame.f_locals.values():
            if issubclass(type(value), tf1.train.Supervisor):
                return value
        frame = frame.f_back
    return None


def take_reins(
    supervisor: tf1.train.Supervisor,
    session: HookedSession,
    has_ended: Callable[[], bool],
    before_session: Callable[[], None],
    retried: ContextManager,
) -> None:
    """Changes what slim asks of its Supervisor; to be called as soon as it has a session.

    Args:
      supervisor: the Supervisor.
      session: the session that slim gets.
      has_ended: whether the hooks' `end` was called.
      before_session: called before a session is made after this one.
      retried: a context for making it, with which an error leads to one more.
    """
    # slim asks before each step. It must not leave its loop but by way of a step, or else the
    # hooks' `end` is not called where a thread asked to stop.
    supervisor.should_stop = has_ended
    # The hooks of a MonitoredSession find its queues running. slim starts them next, and those
    # that ran dry must not be started twice.
    start = functools.partial(type(supervisor).start_queue_runners, supervisor)
    threads = start(session)

    def start_more(session, queue_runners=None):
        return threads if queue_runners is None else start(session, queue_runners)

    supervisor.start_queue_runners = start_more
    prepare = functools.partial(type(supervisor).prepare_or_wait_for_session, supervisor)

    def prepare_again(*args, **kwargs):
        with retried:
            before_session()
            return prepare(*args, **kwargs)

    supervisor.prepare_or_wait_for_session = prepare_again

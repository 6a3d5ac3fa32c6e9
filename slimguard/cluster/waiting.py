"""Waits for other processes of a job, and logs now and then for which."""

import time
from typing import Any, Callable, Optional

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.graph import ops
from slimguard.system.log import log

# Seconds between two reads of the shared table.
PAUSE = 0.2
# How often a process that waits says so, in seconds.
_REMINDER = 30.0

# The errors of a call to a process that is gone, or was started anew.
GONE = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.UnavailableError,
)


class Readiness:
    """Waits until the chief has initialized the variables, and checks often.

    Without this, a worker that checks too early would check again half a minute later.

    Args:
      graph: the graph of the training, to which an op is added.
    """

    def __init__(self, graph: tf.Graph):
        with ops.our_scope(graph, 'job'):
            missing = tf1.report_uninitialized_variables(tf1.global_variables())
        self._manager = tf1.train.SessionManager(
            graph=graph, ready_op=missing, recovery_wait_secs=PAUSE
        )

    def wait(self, target: str, config: Optional[tf1.ConfigProto]) -> None:
        self._manager.wait_for_session(target, config=config).close()


def insist(call: Callable[[], Any]) -> Any:
    """Repeats a call until the shared table answers, and returns the answer."""
    reminder = Reminder()
    while True:
        try:
            return call()
        except GONE as error:
            reminder.say('waits for a parameter server: %s', error)
            time.sleep(PAUSE)


class Reminder:
    """Logs now and then what a process waits for."""

    def __init__(self):
        self._next = time.monotonic() + _REMINDER / 10

    def say(self, text: str, *values) -> None:
        if time.monotonic() > self._next:
            self._next = time.monotonic() + _REMINDER
            log().info(text, *values)

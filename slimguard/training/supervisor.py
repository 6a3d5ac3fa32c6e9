"""Makes the `Supervisor` of slim's loop do what a `MonitoredSession` does."""

from typing import Any, Callable, ContextManager

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.compat import tf_private
from slimguard.training.hooked_session import HookedSession


def take_reins(
    supervisor: tf1.train.Supervisor,
    session: HookedSession,
    has_ended: Callable[[], bool],
    before_session: Callable[[], None],
    retried: ContextManager,
    needs_queues: bool,
) -> None:
    """Replaces the methods that slim calls on its Supervisor; call it once there is a session.

    Args:
      supervisor: the Supervisor.
      session: the session that slim gets.
      has_ended: whether the hooks' `end` was called.
      before_session: called before a session is made after this one.
      retried: a context for making the session; an error in it leads to another session.
      needs_queues: whether the queues have to run at once.
    """
    # slim asks before each step. It must leave its loop only from within a step: else the hooks'
    # `end` is not called if a thread asked to stop.
    tf_private.replace_method(supervisor, 'should_stop', has_ended)
    # The hooks of a MonitoredSession find its queues running. slim starts them soon, and queues
    # that ran dry must not be started twice. Starting them before a hook asks is too soon: a run
    # beside threads that begin to fill queues waits for them.
    threads: Any = None
    if needs_queues:
        threads = type(supervisor).start_queue_runners(supervisor, session)

    def start_more(session, queue_runners=None):
        is_done = threads is not None and queue_runners is None
        return threads if is_done else start(session, queue_runners)

    start = tf_private.replace_method(supervisor, 'start_queue_runners', start_more)

    def prepare_again(*args, **kwargs):
        with retried:
            before_session()
            return prepare(*args, **kwargs)

    prepare = tf_private.replace_method(supervisor, 'prepare_or_wait_for_session', prepare_again)


def wait_before_stop(supervisor: tf1.train.Supervisor, wait: Callable[[], None]) -> None:
    """Makes a Supervisor wait before it joins its threads, for which it allows only two minutes.

    Args:
      supervisor: the Supervisor.
      wait: called once they are asked to stop.
    """

    def stop_at_last(*args, **kwargs):
        supervisor.request_stop()
        wait()
        return stop(*args, **kwargs)

    stop = tf_private.replace_method(supervisor, 'stop', stop_at_last)


def summarize(
    supervisor: tf1.train.Supervisor,
    session,
    summary_op: tf.Tensor,
    alone: Callable[[], ContextManager],
) -> None:
    """Makes a Supervisor without a summary op write this one, in a thread, as often as its own.

    Args:
      supervisor: the Supervisor.
      session: its session.
      summary_op: the summary op.
      alone: a context for its runs: no step may see what they write and perhaps put back.
    """

    def summarize_once():
        with alone():
            summary, step = session.run([summary_op, supervisor.global_step])
        tf1.logging.info('Recording summary at step %s.', step)
        supervisor.summary_writer.add_summary(summary, step)

    if supervisor.save_summaries_secs and supervisor.summary_writer:
        supervisor.loop(supervisor.save_summaries_secs, summarize_once)

"""What happens between the last step of a session and its end."""

import threading

import tensorflow as tf

from slimguard.cluster.session_end import call_when_joined

tf1 = tf.compat.v1


def join(session, target, done, closes_session):
    """Ends a session while a thread runs `target`; `done` gets what happens, in order."""
    coordinator = tf1.train.Coordinator()
    thread = threading.Thread(target=target, args=[coordinator])
    coordinator.register_thread(thread)
    call_when_joined(
        session,
        coordinator,
        before_close=lambda: done.append('look'),
        leave=lambda restarts: done.append('leave'),
        closes_session=closes_session,
    )
    thread.start()
    coordinator.request_stop()
    coordinator.join()


def test_the_last_look_waits_for_the_threads_that_may_still_update():
    done = []

    def update(coordinator):
        coordinator.wait_for_stop()
        done.append('update')

    with tf1.Session() as session:
        join(session, update, done, closes_session=False)
    assert done == ['update', 'look', 'leave']


def test_there_is_a_look_before_a_session_is_closed_whose_threads_do_not_end():
    done = []
    queue = tf1.FIFOQueue(1, tf.int32)
    session = tf1.Session()
    closes = session.close

    def wait_for_what_never_comes(_):
        try:
            session.run(queue.dequeue())
        except (tf.errors.OpError, RuntimeError):
            done.append('cancelled')

    def close():
        done.append('close')
        closes()

    session.close = close
    join(session, wait_for_what_never_comes, done, closes_session=True)
    assert done == ['look', 'close', 'cancelled', 'look', 'leave']

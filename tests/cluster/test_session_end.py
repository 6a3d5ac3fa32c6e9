"""What happens between the last step of a session and its end."""

import threading

import tensorflow as tf

from slimguard.cluster.session_end import call_when_joined

tf1 = tf.compat.v1


def test_the_last_look_waits_for_the_threads_that_may_still_update():
    coordinator, done = tf1.train.Coordinator(), []

    def update():
        coordinator.wait_for_stop()
        done.append('update')

    with tf1.Session() as session:
        thread = threading.Thread(target=update)
        coordinator.register_thread(thread)
        call_when_joined(
            session,
            coordinator,
            before_close=lambda: done.append('look'),
            leave=lambda restarts: done.append('leave'),
            closes_session=False,
        )
        thread.start()
        coordinator.request_stop()
        coordinator.join()
    assert done == ['update', 'look', 'leave']


def test_there_is_a_look_before_a_session_is_closed_whose_threads_do_not_end():
    coordinator, done = tf1.train.Coordinator(), []
    queue = tf1.FIFOQueue(1, tf.int32)
    session = tf1.Session()
    closes = session.close

    def wait_for_what_never_comes():
        try:
            session.run(queue.dequeue())
        except (tf.errors.OpError, RuntimeError):
            done.append('cancelled')

    def close():
        done.append('close')
        closes()

    session.close = close
    thread = threading.Thread(target=wait_for_what_never_comes)
    coordinator.register_thread(thread)
    call_when_joined(
        session,
        coordinator,
        before_close=lambda: done.append('look'),
        leave=lambda restarts: done.append('leave'),
        closes_session=True,
    )
    thread.start()
    coordinator.request_stop()
    coordinator.join()
    assert done == ['look', 'close', 'cancelled', 'look', 'leave']

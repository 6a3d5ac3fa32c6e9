"""Scripts that train in another thread than the one that builds the graph."""

import threading
import time

import numpy as np
import pytest
import tensorflow as tf

import slimguard

tf1 = tf.compat.v1


def in_a_thread(function, waits):
    """Calls a function in a thread. The calling thread waits for it, or is busy meanwhile."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    while not waits and thread.is_alive():
        time.sleep(0.01)  # like a thread that builds: it is in no function of `threading`
    thread.join(300)
    assert not thread.is_alive()


class Script:
    """A script with a loss and its update; `complete` groups the update with a batch counter."""

    def __init__(self):
        self.x = tf1.placeholder(tf.float32, [])
        self.queue = tf.queue.FIFOQueue(9, [tf.float32], [[]])
        self.enqueue = self.queue.enqueue(self.x)
        self.weight = tf1.get_variable('w', initializer=1.0)
        self.count = tf1.get_variable('count', initializer=0.0, trainable=False)
        loss = tf.square(self.weight * self.queue.dequeue())
        self.update = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
        self.session = tf1.Session()

    def feed(self, value=1.0):
        self.session.run(self.enqueue, {self.x: value})

    def train(self):
        """A bad step, and a good one."""
        self.session.run(self.init)
        self.feed(np.nan)
        for _ in range(2):
            self.session.run(self.train_op)

    def complete(self):
        with tf.control_dependencies([self.update]):
            self.train_op = self.count.assign_add(1.0)
        self.init = tf1.global_variables_initializer()

    def values(self):
        return self.session.run([self.weight, self.count])


@pytest.fixture
def guards(tmp_path):
    with slimguard.instrument(on_nan='skip', logdir=tmp_path) as guards:
        yield guards


@pytest.mark.parametrize('waits', [False, True], ids=['busy', 'waiting'])
def test_what_trains_in_a_thread_is_guarded_whatever_the_main_thread_does(guards, waits):
    script = Script()
    script.feed()
    script.complete()
    in_a_thread(script.train, waits)
    assert script.values() == [np.float32(0.8), 1.0]
    assert guards.sessions.seen.actions == {'skip': 1}

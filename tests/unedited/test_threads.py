"""Scripts of several threads, one of which builds the graph while another runs a session on it."""

import sys
import threading
import time
import traceback

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard.compat import tf_callers

tf1 = tf.compat.v1


def in_a_thread(function, waits):
    """Calls a function in a thread. This one waits for it, or is busy in between."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    while not waits and thread.is_alive():
        time.sleep(0.01)  # as one that builds: it is in no function of `threading`
    thread.join(300)
    assert not thread.is_alive()


class Script:
    """A script that has a loss and its update, and is to group that with a count of batches."""

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


def until(condition):
    while not condition():
        time.sleep(0.001)


def ours(graph):
    return [op.name for op in graph.get_operations() if op.name.startswith('slimguard')]


@pytest.fixture
def guards(tmp_path):
    with slimguard.instrument(on_nan='skip', logdir=tmp_path) as guards:
        yield guards


@pytest.mark.full
class TestAThreadThatFeedsAQueue:
    def test_adds_nothing_to_a_graph_that_is_being_built(self, guards, graph):
        script = Script()
        with tf1.name_scope('half'), tf.control_dependencies([script.x]), tf.device('/cpu:0'):
            in_a_thread(script.feed, waits=False)
        assert ours(graph) == []
        script.complete()
        script.train()
        assert script.values() == [np.float32(0.8), 1.0]  # the batch 1 came first, then the NaN
        assert guards.sessions.seen.actions == {'skip': 1}

    def test_finds_the_graph_ready_where_the_main_thread_waits_for_it(self, guards, graph):
        script = Script()
        script.complete()

        def run_until_it_is():  # from its start on, until the main thread has come to wait
            while not ours(graph):
                script.session.run(script.init)

        in_a_thread(run_until_it_is, waits=True)


class TestWhoWaits:
    """A thread that waits for others builds no graph, and one that waits for its graph does."""

    def is_waiting(self, function, *arguments, at):
        """Whether a thread counts as waiting once it is in a function of a name."""
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        thread.start()
        until(lambda: at in functions_of(thread))
        return tf_callers.is_waiting(thread)

    def test_for_an_event(self):
        event = threading.Event()
        assert self.is_waiting(event.wait, at='wait')
        event.set()

    def test_for_its_graph(self, graph):
        with graph._session_run_lock():  # as a session has it that takes over what is new
            assert not self.is_waiting(self.build, graph, at='wait')

    def build(self, graph):
        with graph.as_default():
            tf.constant(1.0)


def functions_of(thread):
    """The names of the functions that a thread is in."""
    frame = sys._current_frames().get(thread.ident)
    return [each.f_code.co_name for each, _ in traceback.walk_stack(frame)] if frame else []


@pytest.mark.parametrize('waits', [False, True], ids=['busy', 'waiting'])
def test_what_trains_in_a_thread_is_guarded_whatever_the_main_thread_does(guards, waits):
    script = Script()
    script.feed()
    script.complete()
    in_a_thread(script.train, waits)
    assert script.values() == [np.float32(0.8), 1.0]
    assert guards.sessions.seen.actions == {'skip': 1}


@pytest.mark.full
def test_an_update_that_no_optimizer_made_is_found_after_a_thread_has_run(guards, graph):
    x = tf1.placeholder(tf.float32, [])
    weight = tf1.get_variable('w', initializer=1.0)
    (gradient,) = tf1.gradients(tf.square(weight * x), [weight])
    init, read = tf1.global_variables_initializer(), tf.identity(weight)
    session = tf1.Session()
    in_a_thread(lambda: session.run(init), waits=False)
    train_op = weight.assign_sub(0.1 * gradient)
    in_a_thread(lambda: session.run(read), waits=False)
    assert ours(graph) == []
    session.run(train_op, {x: np.nan})
    assert session.run(weight) == 1.0

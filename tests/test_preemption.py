"""SIGTERM and Ctrl-C: no step is lost, and signals do afterwards what they did before."""

import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest
import tensorflow as tf

import slimguard
from tests.children import environment
from tests.models import Linear, checkpoint_at, train_quietly

tf1 = tf.compat.v1


def handlers():
    return signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    # Whoever starts the tests in the background may have them ignore Ctrl-C.
    given = signal.signal(signal.SIGINT, signal.default_int_handler)
    before = handlers()
    yield
    assert handlers() == before
    signal.signal(signal.SIGINT, given)
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    assert wakeup == -1
    assert not [t for t in threading.enumerate() if t.name == 'slimguard-preemption']


def train(logdir, act, at=3, number_of_steps=10, **kwargs):
    """Trains and calls `act` while the batch of the step after `at` good ones is drawn."""
    model = Linear()
    ended = []

    class Act(tf1.train.SessionRunHook):
        def before_run(self, run_context):
            if model.batches.drawn == at:
                act()

        def end(self, session):
            ended.append(True)

    train_op = slimguard.create_train_op(model.loss, model.optimizer)
    try:
        train_quietly(train_op, logdir, number_of_steps, hooks=[Act()], **kwargs)
    finally:
        train.ended = bool(ended)
        train.drawn = model.batches.drawn


def send(number):
    return lambda: os.kill(os.getpid(), number)


def test_ctrl_c_lets_the_step_finish_and_saves(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, send(signal.SIGINT))
    assert checkpoint_at(tmp_path) == (4, [])
    assert train.ended and train.drawn == 4


def test_a_second_ctrl_c_ends_at_once(tmp_path):
    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, twice)
    assert train.drawn == 3
    assert checkpoint_at(tmp_path) == (3, [])  # saved all the same


def test_a_keyboard_interrupt_that_somebody_raises_saves_as_well(tmp_path):
    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, interrupt)
    assert checkpoint_at(tmp_path) == (3, [])


def test_a_handler_of_the_programs_own_is_left_alone(tmp_path):
    got = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))
    try:
        train(tmp_path, send(signal.SIGTERM), number_of_steps=6)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert got == [signal.SIGTERM]
    assert checkpoint_at(tmp_path) == (6, [])


def test_a_handler_that_exits_saves(tmp_path):
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(7))
    try:
        with pytest.raises(SystemExit):
            train(tmp_path, send(signal.SIGTERM))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert checkpoint_at(tmp_path) == (3, [])


def test_another_thread_than_the_main_one_trains_without_handlers(tmp_path):
    before = handlers()
    seen = []
    graph = tf1.get_default_graph()

    def run():
        with graph.as_default():
            train(tmp_path, lambda: seen.append(handlers()), number_of_steps=5)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen and set(seen) == {before}
    assert checkpoint_at(tmp_path) == (5, [])


CHILD = """
import sys, time
import tensorflow as tf
import slimguard
from slimguard import preemption

tf1 = tf.compat.v1
tf1.disable_eager_execution()
preemption._PATIENCE = 0.5
batches = [0]

def draw():
    batches[0] += 1
    if batches[0] == 4:
        print('third step done', flush=True)
        time.sleep({seconds})
    return 1.0

x = tf1.py_func(draw, [], tf.float64, stateful=True)
weights = tf1.get_variable('w', initializer=2.0)
loss = tf.square(weights * tf.cast(tf.reshape(x, []), tf.float32))
train_op = slimguard.create_train_op(loss, tf1.train.GradientDescentOptimizer(0.1))
slimguard.train(train_op, sys.argv[1], save_interval_secs=0, save_summaries_secs=0)
"""


@pytest.mark.parametrize(
    'seconds, status, step', [(0.2, -signal.SIGTERM, 4), (3600, 128 + signal.SIGTERM, 3)]
)
def test_sigterm_saves_and_ends_the_process_also_where_a_step_never_ends(
    tmp_path, seconds, status, step
):
    code = textwrap.dedent(CHILD).format(seconds=seconds)
    child = subprocess.Popen(
        [sys.executable, '-c', code, str(tmp_path)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert child.stdout.readline() == 'third step done\n'
        child.send_signal(signal.SIGTERM)
        assert child.wait(timeout=120) == status
    finally:
        child.kill()
        child.communicate()
    assert checkpoint_at(tmp_path) == (step, [])

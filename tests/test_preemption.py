"""SIGTERM and Ctrl-C: no step is lost, and signals do afterwards what they did before."""

import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import tensorflow as tf

import slimguard
from slimguard import preemption
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


def test_a_handler_that_is_set_meanwhile_stays_and_what_it_calls_of_ours_does_the_default(tmp_path):
    def install():
        ours = signal.getsignal(signal.SIGINT)

        def chained(number, frame):
            ours(number, frame)

        signal.signal(signal.SIGINT, chained)

    before = signal.getsignal(signal.SIGINT)
    try:
        train(tmp_path, install, number_of_steps=6)
        assert signal.getsignal(signal.SIGINT).__name__ == 'chained'
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)
    finally:
        signal.signal(signal.SIGINT, before)
    assert checkpoint_at(tmp_path) == (6, [])


def test_a_wakeup_fd_that_is_set_meanwhile_stays(tmp_path):
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        train(tmp_path, lambda: signal.set_wakeup_fd(writing), number_of_steps=6)
        assert signal.set_wakeup_fd(-1) == writing
    finally:
        os.close(reading)
        os.close(writing)


def answer_of_child(question):
    """What `question` returns in a child that os.fork makes, as text."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, str(question()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return text


def signal_handling():
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    return handlers(), wakeup, signal.pthread_sigmask(signal.SIG_BLOCK, ())


def sockets():
    """The descriptors of sockets that this process holds."""
    return [fd for fd in range(3, 1000) if is_socket(fd)]


def is_socket(descriptor):
    try:
        return stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except OSError:
        return False


def test_a_child_has_the_handlers_the_wakeup_fd_and_the_sockets_of_before(tmp_path):
    def ask():
        return signal_handling(), sockets()

    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    seen = []

    def act():
        seen.append(signal_handling())
        seen.append(answer_of_child(ask))
        seen.append(answer_of_child(lambda: answer_of_child(ask)))  # a child of a child
        seen.append(signal_handling())

    signal.set_wakeup_fd(writing)
    try:
        before = answer_of_child(ask)  # asyncio takes the wake-up fd from a child, from 3.12 on
        train(tmp_path, act, number_of_steps=6)
    finally:
        signal.set_wakeup_fd(-1)
        os.close(reading)
        os.close(writing)
    assert seen[0] == seen[3] and seen[0][0] != handlers()
    assert seen[1] == seen[2] == before


def test_a_child_that_is_terminated_as_soon_as_it_is_there_ends_by_that(tmp_path):
    statuses = []

    def act():
        while len(statuses) < 200 and set(statuses) <= {signal.SIGTERM}:
            child = os.fork()
            if child == 0:
                time.sleep(10)
                os._exit(7)
            os.kill(child, signal.SIGTERM)
            statuses.append(os.waitpid(child, 0)[1])

    train(tmp_path, act, number_of_steps=6)
    assert set(statuses) == {signal.SIGTERM}
    assert checkpoint_at(tmp_path) == (6, [])


def test_a_thread_may_fork_at_any_moment_of_entering_and_leaving():
    statuses = []

    def fork():
        while len(statuses) < 300 and set(statuses) <= {signal.SIGTERM}:
            child = os.fork()
            if child == 0:
                time.sleep(10)
                os._exit(7)
            os.kill(child, signal.SIGTERM)
            statuses.append(os.waitpid(child, 0)[1])

    thread = threading.Thread(target=fork)
    thread.start()
    while thread.is_alive():
        with preemption.Preemption(lambda: None, print):
            pass
    assert set(statuses) == {signal.SIGTERM}


def test_a_command_with_preexec_fn_can_be_terminated(tmp_path):
    def act():
        code = 'import time; print(flush=True); time.sleep(20)'
        command = [sys.executable, '-c', code]
        with subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=os.getpid) as child:
            child.stdout.readline()
            child.terminate()
        statuses.append(child.returncode)

    statuses = []
    train(tmp_path, act, number_of_steps=6)
    assert statuses == [-signal.SIGTERM]


def test_a_child_that_outlives_the_training_does_not_hold_it_up(tmp_path):
    children = []

    def act():
        children.append(os.fork())
        if children[0] == 0:
            time.sleep(600)
            os._exit(0)

    try:
        train(tmp_path, act, number_of_steps=6)
    finally:
        os.kill(children[0], signal.SIGKILL)
        os.waitpid(children[0], 0)
    assert checkpoint_at(tmp_path) == (6, [])


def test_a_child_that_leaves_by_an_exception_does_nothing_of_what_the_parent_was_asked():
    child = None
    try:
        with preemption.Preemption(lambda: None, print):
            os.kill(os.getpid(), signal.SIGINT)
            child = os.fork()
            if child == 0:
                raise EOFError
            assert os.waitpid(child, 0)[1] == 7 << 8
    except (EOFError, KeyboardInterrupt) as error:
        if child == 0:
            os._exit(7 if isinstance(error, EOFError) else 8)
        assert isinstance(error, KeyboardInterrupt)


def test_ctrl_c_after_children_still_saves(tmp_path):
    def act():
        answer_of_child(os.getpid)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, act)
    assert checkpoint_at(tmp_path) == (4, [])


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

"""Trainings whose input comes from child processes, for each way to start these."""

import inspect
import os
import signal
import stat
import subprocess
import sys
import time

import pytest
import tensorflow as tf

import slimguard
from slimguard.training.stop_signals import StopSignals
from tests.helpers.children import Started, forked_python
from tests.helpers.models import Linear, checkpoint_at, train_quietly

tf1 = tf.compat.v1

pytestmark = pytest.mark.usefixtures('ctrl_c_is_pythons')

# Functions import TensorFlow, not the script: a spawned child imports the script, too.
SCRIPT = """
import multiprocessing, sys, time


def square(x):
    return x * x


def sleep():
    time.sleep(3600)


def never_return(x):
    print('waiting', flush=True)
    time.sleep(3600)


def batches(method, stops_in_epoch, waits):
    context = multiprocessing.get_context(method)
    for epoch in range(3):
        process = context.Process(target=sleep, daemon=True)
        process.start()
        with context.Pool(2) as pool:
            values = pool.map(square, range(4))
            if epoch == stops_in_epoch and waits == 'for a line':
                print('waiting', flush=True)
                sys.stdin.readline()
            elif epoch == stops_in_epoch:
                pool.map(never_return, range(2))
            pool.close()  # that it is terminated may hang with Python 3.7, where it is spawned
            pool.join()
        process.terminate()
        process.join()
        print('epoch', epoch, 'ended a process with', process.exitcode, flush=True)
        for value in values:
            yield float(value)


def main(kind, method, stops_in_epoch, waits, patience, logdir):
    import tensorflow as tf
    import slimguard
    from slimguard import compat

    tf1 = tf.compat.v1
    tf1.disable_eager_execution()
    drawn = batches(method, int(stops_in_epoch), waits)
    x = tf1.py_func(lambda: next(drawn), [], tf.float64, stateful=True)
    tf1.train.get_or_create_global_step()
    weights = tf1.get_variable('w', initializer=2.0)
    loss = tf.square(weights * tf.cast(tf.reshape(x, []), tf.float32)) / 1000.0
    learning, ours = compat.import_slim().learning, {}
    if kind == 'slimguard':
        learning, ours = slimguard, {'preemption_seconds': float(patience)}
    train_op = learning.create_train_op(loss, tf1.train.GradientDescentOptimizer(0.1))
    loss = learning.train(
        train_op, logdir, number_of_steps=12, save_interval_secs=0, save_summaries_secs=0, **ours
    )
    print('the last loss is', loss)


if __name__ == '__main__':
    main(*sys.argv[1:])
"""

METHODS = ['fork', 'spawn', 'forkserver']

NEVER = -1

SHORT, LONG = 0.05, 100  # seconds


@pytest.fixture
def script(tmp_path):
    path = tmp_path / 'script.py'
    path.write_text(SCRIPT)
    return path


@pytest.mark.full
@pytest.mark.parametrize('method', METHODS)
def test_a_pool_and_a_terminated_process_in_each_epoch_train_as_under_slim(
    method, script, tmp_path
):
    outcomes = {}
    for kind in ('slim', 'slimguard'):
        logdir = tmp_path / kind
        # With SHORT, the parent would act at once if it took a child's SIGTERM for its own.
        arguments = script, kind, method, NEVER, '', SHORT, logdir
        done = forked_python(*arguments, stderr=subprocess.DEVNULL)
        outcomes[kind] = done.returncode, done.stdout, checkpoint_at(logdir)
    assert outcomes['slimguard'] == outcomes['slim']
    status, output, checkpoint = outcomes['slimguard']
    assert (status, checkpoint) == (0, (12, []))
    assert output.count('ended a process with -15') == 3


class Training(Started):
    """The script above, when its second epoch waits for input: for a line, or for its pool."""

    def __init__(self, script, method, logdir, patience=LONG, waits='for a line'):
        Started.__init__(self, script, 'slimguard', method, 1, waits, patience, logdir)
        self.wait_for('waiting')


@pytest.mark.full
@pytest.mark.parametrize(
    ('method', 'number'),
    [('fork', signal.SIGTERM), ('spawn', signal.SIGINT)],
)
def test_a_signal_to_all_that_ends_the_pool_for_which_the_step_waits_saves_and_ends_all(
    method, number, script, tmp_path
):
    # The pool needs a moment to replace workers that have ended.
    with Training(script, method, tmp_path / 'log', 1.0, 'for its pool') as training:
        training.send_to_group(number)
        assert training.wait() == 128 + number
        training.wait_for_children()
    assert checkpoint_at(tmp_path / 'log') == (4, [])


LEAVES = """
import os, signal, sys
import tensorflow as tf
import slimguard
tf1 = tf.compat.v1
tf1.disable_eager_execution()
step = tf1.train.get_or_create_global_step()
loss = tf.square(tf1.get_variable('w', initializer=2.0))
optimizer = tf1.train.GradientDescentOptimizer(0.1)
train_op = slimguard.guard(optimizer.minimize(loss, step), loss=loss)
hook = slimguard.NanLossHook(loss, on_nan='skip')
child = None
try:
    with tf1.train.MonitoredTrainingSession(checkpoint_dir=sys.argv[1], hooks=[hook]) as session:
        session.run(train_op)
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # a session that is run in a fork never comes back
            raise ValueError('the child leaves')
        print('the child ended with', os.waitpid(child, 0)[1] >> 8, flush=True)
        session.run(train_op)
except ValueError:
    os._exit(3)
"""


@pytest.mark.full
@pytest.mark.skipif(
    sys.version_info < (3, 8), reason='TensorFlow 1.15 itself cannot close a session in a fork'
)
def test_a_child_that_leaves_a_monitored_session_by_an_exception_ends(tmp_path):
    done = forked_python('-c', LEAVES, tmp_path / 'log')
    assert (done.returncode, done.stdout) == (0, 'the child ended with 3\n'), done.stderr
    assert checkpoint_at(tmp_path / 'log') == (2, [])


def train(logdir, act):
    """Trains, and calls `act` before the fourth of six steps."""
    model = Linear()

    class Act(tf1.train.SessionRunHook):
        def before_run(self, run_context):
            if model.batches.drawn == 3:
                act()

    train_op = slimguard.create_train_op(model.loss, model.optimizer)
    train_quietly(train_op, logdir, hooks=[Act()])
    assert checkpoint_at(logdir) == (6, [])


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


def handlers():
    return signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)


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


@pytest.mark.full
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
        before = answer_of_child(ask)  # from Python 3.12 on, asyncio resets a child's wake-up fd
        train(tmp_path, act)
    finally:
        signal.set_wakeup_fd(-1)
        os.close(reading)
        os.close(writing)
    assert seen[0] == seen[3] and seen[0][0] != handlers()
    assert seen[1] == seen[2] == before


def statuses_of_terminated(count):
    """Forks children and sends each SIGTERM at once; returns their exit statuses.

    It forks `count` children, or stops at the first that SIGTERM does not end.
    """
    statuses = []
    while len(statuses) < count and set(statuses) <= {signal.SIGTERM}:
        child = os.fork()
        if child == 0:
            time.sleep(1000)
            os._exit(7)
        os.kill(child, signal.SIGTERM)
        statuses.append(os.waitpid(child, 0)[1])
    return statuses


# The imported modules of Python have hooks before a fork, which give other threads time to run.
FORKING = """
import concurrent.futures.thread, logging, os, random, signal, sys, threading, time
from slimguard.training.stop_signals import StopSignals

sys.setswitchinterval(1e-6)
"""

IN_THE_MAIN_THREAD = """
with StopSignals(print):
    statuses = statuses_of_terminated(200)
"""

IN_A_THREAD = """
statuses = []
thread = threading.Thread(target=lambda: statuses.extend(statuses_of_terminated(200)))
thread.start()
while thread.is_alive():
    with StopSignals(print):
        pass
"""


@pytest.mark.full
@pytest.mark.parametrize('where', [IN_THE_MAIN_THREAD, IN_A_THREAD], ids=['main', 'thread'])
def test_one_may_fork_at_any_moment_of_entering_and_leaving(where):
    parts = FORKING, inspect.getsource(statuses_of_terminated), where
    program = '\n'.join([*parts, 'print(len(statuses), set(statuses))'])
    done = forked_python('-c', program)
    assert done.stdout == '200 {%d}\n' % signal.SIGTERM, done.stderr


@pytest.mark.full
def test_a_child_that_outlives_the_training_does_not_hold_it_up(tmp_path):
    children = []

    def act():
        children.append(os.fork())
        if children[0] == 0:
            time.sleep(600)
            os._exit(0)

    try:
        train(tmp_path, act)
    finally:
        os.kill(children[0], signal.SIGKILL)
        os.waitpid(children[0], 0)


def test_a_child_that_leaves_by_an_exception_does_nothing_of_what_the_parent_was_asked():
    child = None
    try:
        with StopSignals(print) as signals:
            signals.begin_step()
            os.kill(os.getpid(), signal.SIGINT)
            child = os.fork()
            if child == 0:
                raise EOFError
            assert os.waitpid(child, 0)[1] == 7 << 8
    except (EOFError, KeyboardInterrupt) as error:
        if child == 0:
            os._exit(7 if isinstance(error, EOFError) else 8)
        assert isinstance(error, KeyboardInterrupt)

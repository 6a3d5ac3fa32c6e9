"""Whole trainings whose input comes from children, by each way that multiprocessing makes them."""

import signal
import subprocess
import sys

import pytest

from tests.helpers.children import Started, forked_python
from tests.helpers.models import checkpoint_at

# TensorFlow is imported where it is needed: a child that is spawned imports this, too.
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


@pytest.mark.parametrize('method', METHODS)
def test_a_pool_and_a_terminated_process_in_each_epoch_train_as_under_slim(
    method, script, tmp_path
):
    outcomes = {}
    for kind in ('slim', 'slimguard'):
        logdir = tmp_path / kind
        # Whatever the parent took for its own SIGTERM, it would act on at once.
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


@pytest.mark.parametrize('method', METHODS)
def test_sigterm_to_the_parent_still_saves(method, script, tmp_path):
    with Training(script, method, tmp_path / 'log') as training:
        training.send(signal.SIGTERM)
        training.go_on()
        assert training.wait() == -signal.SIGTERM
    assert checkpoint_at(tmp_path / 'log') == (5, [])


def test_sigterm_to_the_parent_still_saves_where_the_step_never_ends(script, tmp_path):
    with Training(script, 'fork', tmp_path / 'log', patience=SHORT) as training:
        training.send(signal.SIGTERM)
        assert training.wait() == 128 + signal.SIGTERM
    assert checkpoint_at(tmp_path / 'log') == (4, [])


@pytest.fixture
def heeds_ctrl_c():
    """Whoever starts the tests in the background may have them, and their children, ignore it."""
    given = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, given)


@pytest.mark.parametrize('method', METHODS)
def test_ctrl_c_to_the_parent_still_saves(method, script, tmp_path, heeds_ctrl_c):
    with Training(script, method, tmp_path / 'log') as training:
        training.send(signal.SIGINT)
        training.go_on()
        assert training.wait() in (-signal.SIGINT, 1)  # 1 before Python 3.8
    assert checkpoint_at(tmp_path / 'log') == (5, [])


@pytest.mark.parametrize('method', METHODS)
def test_ctrl_c_to_all_that_ends_the_pool_for_which_the_step_waits_saves(
    method, script, tmp_path, heeds_ctrl_c
):
    arguments = script, method, tmp_path / 'log', SHORT, 'for its pool'
    with Training(*arguments) as training:
        training.send_to_group(signal.SIGINT)
        assert training.wait() == 128 + signal.SIGINT
    assert checkpoint_at(tmp_path / 'log') == (4, [])


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_no_worker_of_a_pool_outlives_a_training_whose_step_never_ends(
    number, script, tmp_path, heeds_ctrl_c
):
    # Workers that end are replaced by the pool, which needs a moment for it.
    with Training(script, 'fork', tmp_path / 'log', 1.0, 'for its pool') as training:
        training.send_to_group(number)
        assert training.wait() == 128 + number
        training.wait_for_children()


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


@pytest.mark.skipif(
    sys.version_info < (3, 8), reason='TensorFlow 1.15 itself cannot close a session in a fork'
)
def test_a_child_that_leaves_a_monitored_session_by_an_exception_ends(tmp_path):
    done = forked_python('-c', LEAVES, tmp_path / 'log')
    assert (done.returncode, done.stdout) == (0, 'the child ended with 3\n'), done.stderr
    assert checkpoint_at(tmp_path / 'log') == (2, [])

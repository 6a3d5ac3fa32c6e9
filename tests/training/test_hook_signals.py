"""SIGTERM and Ctrl-C in a loop of TensorFlow's, beyond the cells of `test_every_loop`."""

import gc
import signal
import subprocess
import threading

import pytest
import tensorflow as tf

import slimguard
from tests.helpers.children import ROOT, Started, forked_python, python
from tests.helpers.models import Linear, LogLines, checkpoint_at
from tests.helpers.monitored import build, monitored
from tests.helpers.signals import press_ctrl_c

tf1 = tf.compat.v1

pytestmark = pytest.mark.usefixtures('ctrl_c_is_pythons')


def is_heard():
    return signal.getsignal(signal.SIGINT) is not signal.default_int_handler


def test_ctrl_c_between_two_steps_saves_and_is_raised_where_the_program_is(tmp_path):
    train_op, hook = build()
    with LogLines() as lines, monitored(tmp_path, hook) as session:
        session.run(train_op)
        with pytest.raises(KeyboardInterrupt):
            press_ctrl_c()
        assert checkpoint_at(tmp_path) == (1, [])
        assert not is_heard()
        # The program has caught it and goes on; the next one is heard as well.
        session.run(train_op)
        with pytest.raises(KeyboardInterrupt):
            press_ctrl_c()
        assert checkpoint_at(tmp_path) == (2, [])
        assert not session.should_stop()
    assert not [line for line in lines if 'is finished first' in line]


def test_the_state_is_saved_once_where_ctrl_c_leaves_the_loop(tmp_path, monkeypatch):
    saved = []
    save = slimguard.FiniteSaver.save
    monkeypatch.setattr(
        slimguard.FiniteSaver, 'save', lambda *args, **kw: saved.append(kw) or save(*args, **kw)
    )
    train_op, hook = build()
    with pytest.raises(KeyboardInterrupt), monitored(tmp_path, hook) as session:
        session.run(train_op)
        del saved[:]
        press_ctrl_c()
    assert len(saved) == 1 and checkpoint_at(tmp_path) == (1, [])


def test_a_step_in_another_thread_is_waited_for(tmp_path):
    train_op, hook = build()
    with pytest.raises(KeyboardInterrupt), monitored(tmp_path, hook) as session:
        thread = threading.Thread(target=session.run, args=(train_op,))
        thread.start()
        thread.join()
        press_ctrl_c()
        assert not session.should_stop()
        thread = threading.Thread(target=session.run, args=(train_op,))
        thread.start()
        thread.join()
        assert session.should_stop()
    assert checkpoint_at(tmp_path) == (2, [])


def test_after_a_step_that_failed_ctrl_c_is_heard(tmp_path):
    train_op, hook = build()
    scalar = tf1.placeholder(tf.float32, [])
    with pytest.raises(KeyboardInterrupt):
        with monitored(tmp_path, hook) as session:
            session.run(train_op)
            with pytest.raises(ValueError, match='Cannot feed value of shape'):
                session.run(train_op, {scalar: [1.0, 2.0]})
            press_ctrl_c()
            session.run(train_op)
            assert session.should_stop()
    assert checkpoint_at(tmp_path) == (2, [])


def test_a_session_that_is_dropped_gives_the_signals_back(tmp_path):
    train_op, hook = build()
    session = monitored(tmp_path, hook)
    session.run(train_op)
    assert is_heard()
    del session, train_op, hook
    with tf.Graph().as_default():
        gc.collect()
    assert not is_heard()
    assert 'slimguard-preemption' not in [thread.name for thread in threading.enumerate()]


def test_what_a_session_that_is_freed_in_another_thread_leaves_goes_with_the_next_signal(tmp_path):
    train_op, hook = build()
    session = monitored(tmp_path, hook)
    session.run(train_op)
    del session, train_op, hook
    thread = threading.Thread(target=gc.collect)
    thread.start()
    thread.join()
    with pytest.raises(KeyboardInterrupt):
        press_ctrl_c()
    assert not is_heard()


def test_a_session_that_another_thread_closes_saves(tmp_path):
    train_op, hook = build()
    session = monitored(tmp_path, hook)
    session.run(train_op)
    thread = threading.Thread(target=session.close)
    thread.start()
    thread.join()
    assert checkpoint_at(tmp_path) == (1, [])
    with pytest.raises(KeyboardInterrupt):
        press_ctrl_c()
    assert not is_heard()


def test_two_hooks_give_the_signals_back(tmp_path):
    model = Linear()
    train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False)
    hooks = [slimguard.NanLossHook(model.loss) for _ in range(2)]
    with monitored(tmp_path, *hooks) as session:
        session.run(train_op)
        assert is_heard()
    assert not is_heard()


_FORGETS_TO_CLOSE = """
import os, signal, sys
import tensorflow.compat.v1 as tf1
tf1.disable_eager_execution()
from tests.helpers.monitored import build, monitored
train_op, hook = build()
session = monitored(sys.argv[1], hook)
session.run(train_op)
{}
os.kill(os.getpid(), signal.SIGTERM)
for _ in range(1000):
    pass
print('went on')
"""


@pytest.mark.parametrize('ends', ['session.close()', 'session._sess.close()'])
def test_sigterm_after_the_training_ends_the_process_at_once(ends, tmp_path):
    program = _FORGETS_TO_CLOSE.format(ends)
    done = forked_python('-c', program, tmp_path, stderr=subprocess.STDOUT, cwd=str(ROOT))
    assert done.returncode == -signal.SIGTERM, done.stdout
    assert 'went on' not in done.stdout


# A step of each loop that never ends.
_NEVER_ENDS = """
import sys
import tensorflow as tf
import slimguard
tf1 = tf.compat.v1
tf1.disable_eager_execution()
drawn = [0]

def draw():
    drawn[0] += 1
    if drawn[0] == 3:
        print('waiting', flush=True)
        sys.stdin.readline()
    return 1.0

def build():
    x = tf.reshape(tf1.py_func(draw, [], tf.float64, stateful=True), [])
    loss = tf.square(tf1.get_variable('w', initializer=2.0) * tf.cast(x, tf.float32))
    tf1.train.get_or_create_global_step()
    optimizer = tf1.train.GradientDescentOptimizer(0.1)
    return loss, lambda learning: learning.create_train_op(loss, optimizer)

loss, train_op_by = build()
logdir, seconds = sys.argv[1], 0.05
"""
_LOOPS = {
    'hook': """
train_op = train_op_by(slimguard)
hook = slimguard.NanLossHook(loss, preemption_seconds=seconds)
with tf1.train.MonitoredTrainingSession(checkpoint_dir=logdir, hooks=[hook]) as session:
    while not session.should_stop():
        session.run(train_op)
""",
    'watch': """
train_op = train_op_by(slimguard)
with slimguard.watch(tf1.Session(), logdir=logdir, preemption_seconds=seconds) as session:
    session.run(tf1.global_variables_initializer())
    while not session.should_stop():
        session.run(train_op)
""",
    'instrument': """
slimguard.instrument(preemption_seconds=seconds)
train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss, tf1.train.get_global_step())
saver = tf1.train.Saver()
with tf1.Session() as session:
    session.run(tf1.global_variables_initializer())
    saver.save(session, logdir + '/model.ckpt', tf1.train.get_global_step())
    while True:
        session.run(train_op)
""",
}
_LOOPS['slim, instrumented'] = """
slimguard.instrument(preemption_seconds=seconds)
from slimguard import compat
learning = compat.import_slim().learning
learning.train(train_op_by(learning), logdir, save_interval_secs=0, save_summaries_secs=0)
"""


@pytest.mark.parametrize('loop', sorted(_LOOPS))
def test_preemption_seconds_is_how_long_a_step_is_waited_for(loop, tmp_path):
    with Started('-c', _NEVER_ENDS + _LOOPS[loop], tmp_path) as child:
        child.wait_for('waiting')
        child.send(signal.SIGTERM)
        child.wait_for('SIGTERM, and no step has ended for 0.05 s; saving and ending')
        assert child.wait() == 128 + signal.SIGTERM
        assert 'the step is done' not in child.process.stdout.read()
    assert checkpoint_at(tmp_path) == (2, [])


def test_run_takes_preemption_seconds(tmp_path):
    script = tmp_path / 'script.py'
    script.write_text(_NEVER_ENDS + _LOOPS['instrument'].partition('\n')[2].partition('\n')[2])
    option = '--preemption-seconds=0.05'
    with Started('-m', 'slimguard', 'run', option, script, tmp_path) as child:
        child.wait_for('waiting')
        child.send(signal.SIGTERM)
        child.wait_for('SIGTERM, and no step has ended for 0.05 s; saving and ending')
        assert child.wait() == 128 + signal.SIGTERM
    assert checkpoint_at(tmp_path) == (2, [])


# Two steps, and what a test does after them. Python calls both handlers at once where both signals
# have come: they are held up until then.
_BETWEEN_STEPS = """
import os, signal, sys, threading
import tensorflow.compat.v1 as tf1
import slimguard
from slimguard.training.step_preemption import StepPreemption
tf1.disable_eager_execution()
logdir = sys.argv[1]
step = tf1.train.get_or_create_global_step()
loss = tf1.square(tf1.get_variable('w', initializer=2.0))

def send_at_once(*numbers):
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    for number in numbers:
        signal.pthread_kill(threading.main_thread().ident, number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)

def save_that_waits(self, save=StepPreemption.save):
    print('waiting', flush=True)
    sys.stdin.readline()
    save(self)

def optimize():
    return tf1.train.GradientDescentOptimizer(0.1).minimize(loss, step)

def train(session, train_op):
    for _ in range(2):
        session.run(train_op)
    try:
        act()
    except KeyboardInterrupt:
        print('caught', flush=True)
        raise
    print('went on')
"""
_TRAINED = {
    'hook': """
train_op = slimguard.guard(optimize(), loss=loss)
hook = slimguard.NanLossHook(loss)
with tf1.train.MonitoredTrainingSession(checkpoint_dir=logdir, hooks=[hook]) as session:
    train(session, train_op)
""",
    'watch': """
train_op = slimguard.guard(optimize(), loss=loss)
with slimguard.watch(tf1.Session(), logdir=logdir) as session:
    session.run(tf1.global_variables_initializer())
    train(session, train_op)
""",
    'instrument': """
slimguard.instrument()
train_op = optimize()
saver = tf1.train.Saver()
with tf1.Session() as session:
    session.run(tf1.global_variables_initializer())
    saver.save(session, logdir + '/model.ckpt', step)
    train(session, train_op)
""",
}


@pytest.mark.parametrize('loop', sorted(_TRAINED))
def test_ctrl_c_and_sigterm_at_once_save_and_end_the_process_by_sigterm(loop, tmp_path):
    act = 'act = lambda: send_at_once(signal.SIGINT, signal.SIGTERM)\n'
    program = _BETWEEN_STEPS + act + _TRAINED[loop]
    done = forked_python('-c', program, tmp_path, stderr=subprocess.STDOUT)
    assert done.returncode == -signal.SIGTERM, done.stdout
    assert 'slimguard: SIGTERM; saving before the end.' in done.stdout
    for word in 'caught', 'went on', 'Traceback', 'Error', 'the step is done':
        assert word not in done.stdout
    assert checkpoint_at(tmp_path) == (2, [])


@pytest.mark.parametrize('loop', sorted(_TRAINED))
def test_ctrl_c_that_comes_when_all_is_given_back_does_not_hide_sigterm(loop, tmp_path):
    act = """
def act():
    from slimguard.training.signal_watch import SignalWatch
    def join(self):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    SignalWatch.join = join
    send_at_once(signal.SIGINT, signal.SIGTERM)
"""
    program = _BETWEEN_STEPS + act + _TRAINED[loop]
    done = forked_python('-c', program, tmp_path, stderr=subprocess.STDOUT)
    assert done.returncode == -signal.SIGTERM, done.stdout
    assert checkpoint_at(tmp_path) == (2, [])


@pytest.mark.parametrize('loop', sorted(_TRAINED))
def test_ctrl_c_that_another_thread_takes_does_not_wait_for_what_the_main_one_is_at(loop, tmp_path):
    act = """
def take():
    time.sleep(0.3)  # the main thread sleeps by then, or nothing is shown
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

def act():
    threading.Thread(target=take).start()
    time.sleep(100)

import time
"""
    program = _BETWEEN_STEPS + act + _TRAINED[loop]
    done = forked_python('-c', program, tmp_path, stderr=subprocess.STDOUT)
    assert done.returncode in (-signal.SIGINT, 1), done.stdout  # 1 before Python 3.8
    assert 'caught' in done.stdout
    assert checkpoint_at(tmp_path) == (2, [])


@pytest.mark.parametrize('loop', sorted(_TRAINED))
def test_a_second_ctrl_c_waits_for_the_save_between_steps(loop, tmp_path):
    act = 'act, StepPreemption.save = lambda: send_at_once(signal.SIGINT), save_that_waits\n'
    with Started('-c', _BETWEEN_STEPS + act + _TRAINED[loop], tmp_path) as child:
        child.wait_for('waiting')
        child.send(signal.SIGINT)
        child.go_on()
        child.wait_for('caught')  # and does not begin another one
        assert child.wait() in (-signal.SIGINT, 1)  # 1 before Python 3.8
    assert checkpoint_at(tmp_path) == (2, [])


@pytest.mark.parametrize('value', [0, -1.0, float('nan'), float('inf'), '10', None, True])
def test_preemption_seconds_is_a_positive_finite_number(value, tmp_path):
    model = Linear()
    told = 'preemption_seconds must be a positive finite number, .* not %r' % (value,)
    with pytest.raises(ValueError, match=told):
        slimguard.train(model.minimize(), str(tmp_path), preemption_seconds=value)
    with pytest.raises(ValueError, match=told):
        slimguard.NanLossHook(model.loss, preemption_seconds=value)
    with tf1.Session() as session, pytest.raises(ValueError, match=told):
        slimguard.watch(session, preemption_seconds=value)
    with pytest.raises(ValueError, match=told):
        slimguard.instrument(preemption_seconds=value)
    assert list(tmp_path.iterdir()) == []


_NEVER_CLOSED = """
import sys
import tensorflow.compat.v1 as tf1
import slimguard
tf1.disable_eager_execution()

class Failing(slimguard.NanLossHook):
    def after_create_session(self, session, coord):
        slimguard.NanLossHook.after_create_session(self, session, coord)
        error = ValueError('after it was made')
        raise error  # the frame and its error keep each other, and the session

step = tf1.train.get_or_create_global_step()
weights = tf1.get_variable('w', [])
loss = weights * weights
train_op = slimguard.guard(tf1.train.AdamOptimizer().minimize(loss, step), loss=loss)
tf1.train.MonitoredTrainingSession(hooks=[Failing(loss, logdir=sys.argv[1])])
"""


def test_a_session_that_is_freed_with_the_interpreter_does_not_keep_it(tmp_path):
    """Nobody closes it, and the thread that hears of signals runs no more."""
    run = python('-c', _NEVER_CLOSED, tmp_path / 'logs')
    assert run.returncode == 1
    assert run.stderr.rstrip().endswith('ValueError: after it was made')

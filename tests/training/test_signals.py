"""SIGTERM and Ctrl-C: no step is lost, and signals do afterwards what they did before.

`test_every_loop` tests what each loop does at one signal; here are the ways in which signals come.
"""

import gc
import os
import signal
import subprocess
import threading
import time

import pytest
import tensorflow as tf

import slimguard
from tests.helpers.children import ROOT, Started, forked_python
from tests.helpers.models import Linear, LogLines, checkpoint_at, train_quietly
from tests.helpers.monitored import build, monitored
from tests.helpers.signals import press_ctrl_c

tf1 = tf.compat.v1


def handlers():
    return signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)


@pytest.fixture(autouse=True)
def nothing_is_left_behind(ctrl_c_is_pythons):
    before = handlers()
    yield
    assert handlers() == before
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    assert wakeup == -1
    assert not [t for t in threading.enumerate() if t.name == 'slimguard-signals']


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


@pytest.mark.full
def test_a_second_ctrl_c_ends_at_once(tmp_path):
    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, twice)
    assert train.drawn == 3
    assert checkpoint_at(tmp_path) == (3, [])  # the state was saved


@pytest.mark.full
@pytest.mark.parametrize('kind', [KeyboardInterrupt, SystemExit])
def test_what_a_handler_of_the_programs_own_raises_saves(kind, tmp_path):
    def leave(*_):
        raise kind

    before = signal.signal(signal.SIGTERM, leave)
    try:
        with pytest.raises(kind):
            train(tmp_path, send(signal.SIGTERM))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert checkpoint_at(tmp_path) == (3, [])


@pytest.mark.full
def test_handlers_of_the_programs_own_are_left_alone(tmp_path):
    numbers = [signal.SIGTERM, signal.SIGINT] * 3
    got = []

    def act():
        for number in numbers:
            os.kill(os.getpid(), number)

    before = [signal.signal(each, lambda number, _: got.append(number)) for each in numbers[:2]]
    try:
        train(tmp_path, act, number_of_steps=6, preemption_seconds=0.001)
    finally:
        for number, handler in zip(numbers, before):
            signal.signal(number, handler)
    assert got == numbers
    assert checkpoint_at(tmp_path) == (6, [])


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


@pytest.mark.full
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


@pytest.fixture
def pipe():
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    yield reading, writing
    signal.set_wakeup_fd(-1)
    os.close(reading)
    os.close(writing)


@pytest.mark.full
def test_a_wakeup_fd_that_is_set_meanwhile_stays(pipe, tmp_path):
    train(tmp_path, lambda: signal.set_wakeup_fd(pipe[1]), number_of_steps=6)
    assert signal.set_wakeup_fd(-1) == pipe[1]


@pytest.mark.full
def test_a_wakeup_fd_that_was_there_before_stays(pipe, tmp_path):
    signal.set_wakeup_fd(pipe[1])
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, send(signal.SIGINT))
    assert os.read(pipe[0], 10) == bytes([signal.SIGINT])
    assert signal.set_wakeup_fd(-1) == pipe[1]


@pytest.mark.full
def test_signals_end_an_inner_training_and_then_the_outer_one(tmp_path):
    inner = {}

    def act():
        handlers_of_outer = handlers()
        with tf.Graph().as_default(), pytest.raises(KeyboardInterrupt) as caught:
            train(tmp_path / 'inner', send(signal.SIGINT))
        inner['drawn'] = train.drawn
        assert handlers() == handlers_of_outer
        raise caught.value

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / 'outer', act)
    assert inner['drawn'] == 4
    assert checkpoint_at(tmp_path / 'inner') == (4, [])
    assert checkpoint_at(tmp_path / 'outer') == (3, [])


# In a loop of TensorFlow's own, a signal may also come between two steps.


def is_heard():
    return signal.getsignal(signal.SIGINT) is not signal.default_int_handler


def in_a_thread(function, *arguments):
    thread = threading.Thread(target=function, args=arguments)
    thread.start()
    thread.join()


@pytest.mark.full
def test_ctrl_c_between_two_steps_saves_once_and_is_raised_where_the_program_is(
    tmp_path, monkeypatch
):
    saved = []
    save = slimguard.FiniteSaver.save
    monkeypatch.setattr(
        slimguard.FiniteSaver, 'save', lambda *args, **kw: saved.append(kw) or save(*args, **kw)
    )
    train_op, hook = build()
    with pytest.raises(KeyboardInterrupt), LogLines() as lines:
        with monitored(tmp_path, hook) as session:
            session.run(train_op)
            with pytest.raises(KeyboardInterrupt):
                press_ctrl_c()
            assert checkpoint_at(tmp_path) == (1, [])
            assert not is_heard()
            # The program has caught the KeyboardInterrupt and goes on; the next Ctrl-C works, too.
            session.run(train_op)
            assert not session.should_stop()
            del saved[:]
            press_ctrl_c()
    assert len(saved) == 1 and checkpoint_at(tmp_path) == (2, [])
    assert not [line for line in lines if 'is finished first' in line]


@pytest.mark.full
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


@pytest.mark.full
def test_a_session_that_is_dropped_gives_the_signals_back(tmp_path):
    train_op, hook = build()
    session = monitored(tmp_path, hook)
    session.run(train_op)
    assert is_heard()
    del session, train_op, hook
    with tf.Graph().as_default():
        gc.collect()
    assert not is_heard()
    assert 'slimguard-signals' not in [thread.name for thread in threading.enumerate()]


@pytest.mark.full
def test_a_session_that_another_thread_closes_saves(tmp_path):
    train_op, hook = build()
    session = monitored(tmp_path, hook)
    session.run(train_op)
    in_a_thread(session.close)
    assert checkpoint_at(tmp_path) == (1, [])
    with pytest.raises(KeyboardInterrupt):
        press_ctrl_c()
    assert not is_heard()


@pytest.mark.full
def test_two_hooks_give_the_signals_back(tmp_path):
    model = Linear()
    train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False)
    hooks = [slimguard.NanLossHook(model.loss) for _ in range(2)]
    with monitored(tmp_path, *hooks) as session:
        session.run(train_op)
        assert is_heard()
    assert not is_heard()


# A program that trains in slim's loop. Tests insert their changes between its parts.


FUNCTIONS = """
import os, select, signal, sys, threading
import tensorflow as tf
import slimguard
from tensorflow.python.training.saver import BaseSaverBuilder

tf1 = tf.compat.v1
tf1.disable_eager_execution()
logdir, number_of_steps, patience = sys.argv[1:]
drawn = [0]

def wait():
    print('waiting', flush=True)
    # A signal that comes just before a system call is heard when that ends, which is soon here.
    while not select.select([0], [], [], 0.05)[0]:
        pass
    os.read(0, 1)

def fourth_before_run():
    pass

def fourth_step():
    pass

def save():
    pass

def end():
    pass
"""

TRAINING = """
def draw():
    drawn[0] += 1
    if drawn[0] == 4:
        fourth_step()
    return 1.0

def value_to_save():
    save()
    return 0

class Hook(tf1.train.SessionRunHook):
    def before_run(self, run_context):
        if drawn[0] == 3:
            fourth_before_run()

    def end(self, session):
        end()

class Drawn(BaseSaverBuilder.SaveableObject):
    def __init__(self):
        value = tf1.py_func(value_to_save, [], tf.int64, stateful=True)
        value.set_shape([])
        spec = BaseSaverBuilder.SaveSpec(value, '', 'saved', tf.int64)
        BaseSaverBuilder.SaveableObject.__init__(self, value, [spec], 'saved')

    def restore(self, restored_tensors, restored_shapes):
        return tf.no_op()

x = tf1.py_func(draw, [], tf.float64, stateful=True)
weights = tf1.get_variable('w', initializer=2.0)
loss = tf.square(weights * tf.cast(tf.reshape(x, []), tf.float32))
train_op = slimguard.create_train_op(loss, tf1.train.GradientDescentOptimizer(0.1))
slimguard.train(
    train_op,
    logdir,
    number_of_steps=int(number_of_steps),
    saver=tf1.train.Saver(tf1.global_variables() + [Drawn()]),
    hooks=[Hook()],
    save_interval_secs=0,
    save_summaries_secs=0,
    preemption_seconds=float(patience),
)
"""

STEP_WAITS = """
fourth_step = wait
"""

# The step ends too late: the state before it is being saved already.
STEP_ENDS_DURING_THE_SAVE = """
is_saving, has_ended = threading.Event(), threading.Event()

def fourth_step():
    print('waiting', flush=True)
    assert is_saving.wait(300)

def save():
    if drawn[0] == 4 and not is_saving.is_set():
        is_saving.set()
        assert has_ended.wait(300)

end = has_ended.set
"""

AT_A_PROMPT = """
sys.ps1 = '>>> '
"""

BOTH = """
def fourth_before_run():
    os.kill(os.getpid(), signal.%s)
    os.kill(os.getpid(), signal.%s)
"""

SHORT, LONG = 0.05, 1000  # seconds

BY_CTRL_C = (-signal.SIGINT, 1)  # 1 before Python 3.8

NAMES = {signal.SIGTERM: 'SIGTERM', signal.SIGINT: 'Ctrl-C'}


def training(logdir, changes, patience, number_of_steps=10):
    code = FUNCTIONS + changes + TRAINING
    return Started('-c', code, logdir, number_of_steps, patience)


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_ends_the_process_where_a_step_never_ends(number, tmp_path):
    with training(tmp_path, STEP_WAITS, SHORT) as child:
        child.wait_for('waiting')
        child.send(number)
        child.wait_for('%s, and no step has ended for 0.05 s; saving and ending' % NAMES[number])
        assert child.wait() == 128 + number
    assert checkpoint_at(tmp_path) == (3, [])


@pytest.mark.full
def test_a_step_that_ends_while_the_state_before_it_is_saved_is_saved_as_well(tmp_path):
    with training(tmp_path, STEP_ENDS_DURING_THE_SAVE, SHORT) as child:
        child.wait_for('waiting')
        child.send(signal.SIGTERM)
        child.wait_for('SIGTERM, and no step has ended for 0.05 s; saving and ending')
        child.wait_for('SIGTERM; saving before the end')
        assert child.wait() == -signal.SIGTERM
    assert checkpoint_at(tmp_path) == (4, [])


@pytest.mark.parametrize('order', [('SIGTERM', 'SIGINT'), ('SIGINT', 'SIGTERM')], ids='-'.join)
def test_where_sigterm_comes_too_the_process_ends_by_it(order, tmp_path):
    with training(tmp_path, BOTH % order, LONG) as child:
        assert child.wait() == -signal.SIGTERM
    assert checkpoint_at(tmp_path) == (4, [])


@pytest.mark.full
def test_ctrl_c_at_a_prompt_saves_and_never_ends_the_process(tmp_path):
    with training(tmp_path, AT_A_PROMPT + STEP_WAITS, SHORT) as child:
        child.wait_for('waiting')
        child.send(signal.SIGINT)
        child.wait_for('no step has ended for 0.05 s; saving, and waiting on')
        limit = time.time() + 240
        while checkpoint_at(tmp_path) != (3, []) and time.time() < limit:
            time.sleep(0.1)
        assert checkpoint_at(tmp_path) == (3, [])
        child.go_on()
        assert child.wait() in BY_CTRL_C
    assert checkpoint_at(tmp_path) == (4, [])


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
    'run': """
train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss, tf1.train.get_global_step())
saver = tf1.train.Saver()
with tf1.Session() as session:
    session.run(tf1.global_variables_initializer())
    saver.save(session, logdir + '/model.ckpt', tf1.train.get_global_step())
    while True:
        session.run(train_op)
""",
}


@pytest.mark.full
@pytest.mark.parametrize('loop', sorted(_LOOPS))
def test_preemption_seconds_is_how_long_a_step_is_waited_for(loop, tmp_path):
    script = tmp_path / 'script.py'
    script.write_text(_NEVER_ENDS + _LOOPS[loop])
    run = ['-m', 'slimguard', 'run', '--preemption-seconds=0.05'] if loop == 'run' else []
    with Started(*run, script, tmp_path) as child:
        child.wait_for('waiting')
        child.send(signal.SIGTERM)
        child.wait_for('SIGTERM, and no step has ended for 0.05 s; saving and ending')
        assert child.wait() == 128 + signal.SIGTERM
        assert 'saving before the end' not in child.process.stdout.read()
    assert checkpoint_at(tmp_path) == (2, [])


# Two steps, then the code of a test. Signals are blocked until both have come, since Python then
# calls both handlers at once.
_BETWEEN_STEPS = """
import os, signal, sys, threading
import tensorflow.compat.v1 as tf1
import slimguard
from slimguard.training.stop_signals import StopSignals
tf1.disable_eager_execution()
logdir = sys.argv[1]
step = tf1.train.get_or_create_global_step()
loss = tf1.square(tf1.get_variable('w', initializer=2.0))

def send_at_once(*numbers):
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    for number in numbers:
        signal.pthread_kill(threading.main_thread().ident, number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)

def save_that_waits(self, save=StopSignals.save_session):
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
    assert '; saving before the end.' in done.stdout
    assert 'slimguard:SIGTERM: saved ' in done.stdout
    for word in 'caught', 'went on', 'Traceback', 'Error':
        assert word not in done.stdout
    assert checkpoint_at(tmp_path) == (2, [])


@pytest.mark.full
def test_a_second_ctrl_c_waits_for_the_save_between_steps(tmp_path):
    act = 'act = lambda: send_at_once(signal.SIGINT)\nStopSignals.save_session = save_that_waits\n'
    with Started('-c', _BETWEEN_STEPS + act + _TRAINED['hook'], tmp_path) as child:
        child.wait_for('waiting')
        child.send(signal.SIGINT)
        child.go_on()
        child.wait_for('caught')  # and begins no further step
        assert child.wait() in (-signal.SIGINT, 1)  # 1 before Python 3.8
    assert checkpoint_at(tmp_path) == (2, [])


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


@pytest.mark.full
def test_a_session_that_is_freed_with_the_interpreter_does_not_keep_it(tmp_path):
    """Nobody closes the session, and the thread that handles signals has ended."""
    run = forked_python('-c', _NEVER_CLOSED, tmp_path / 'logs')
    assert run.returncode == 1
    assert run.stderr.rstrip().endswith('ValueError: after it was made')

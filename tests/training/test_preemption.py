"""SIGTERM and Ctrl-C: no step is lost, and signals do afterwards what they did before."""

import inspect
import os
import signal
import stat
import subprocess
import sys
import threading
import time

import pytest
import tensorflow as tf

import slimguard
from slimguard.training import preemption
from tests.helpers.children import Started, python
from tests.helpers.models import Linear, LogLines, checkpoint_at, train_quietly

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


def test_a_second_ctrl_c_ends_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(preemption, '_GRACE', 100)  # seconds for this process to save

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


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_a_handler_of_the_programs_own_is_left_alone(number, tmp_path, monkeypatch):
    monkeypatch.setattr(preemption, '_GRACE', 0)
    got = []

    def act():
        for _ in range(3):
            os.kill(os.getpid(), number)

    before = signal.signal(number, lambda number, frame: got.append(number))
    try:
        train(tmp_path, act, number_of_steps=6, preemption_seconds=0.001)
    finally:
        signal.signal(number, before)
    assert got == [number] * 3
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


def test_a_wakeup_fd_that_takes_no_more_does_not_keep_the_training_from_hearing(tmp_path):
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(writing, bytes(4096))

    def act():
        os.kill(os.getpid(), signal.SIGINT)
        limit = time.time() + 60
        while not any('Ctrl-C' in line for line in lines) and time.time() < limit:
            time.sleep(0.01)

    signal.set_wakeup_fd(writing)
    try:
        with LogLines() as lines, pytest.raises(KeyboardInterrupt):
            train(tmp_path, act)
    finally:
        signal.set_wakeup_fd(-1)
        os.close(reading)
        os.close(writing)
    assert any('Ctrl-C; the step under way is finished first' in line for line in lines)


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


def statuses_of_terminated(count):
    """The exit statuses of children, each of which gets SIGTERM as soon as it is there.

    There are `count` of them, or fewer where one did not end by that.
    """
    statuses = []
    while len(statuses) < count and set(statuses) <= {signal.SIGTERM}:
        child = os.fork()
        if child == 0:
            time.sleep(10)
            os._exit(7)
        os.kill(child, signal.SIGTERM)
        statuses.append(os.waitpid(child, 0)[1])
    return statuses


def test_a_child_that_is_terminated_as_soon_as_it_is_there_ends_by_that(tmp_path):
    statuses = []
    train(tmp_path, lambda: statuses.extend(statuses_of_terminated(20)), number_of_steps=6)
    assert set(statuses) == {signal.SIGTERM}
    assert checkpoint_at(tmp_path) == (6, [])


# What a training enters and leaves, in a process without TensorFlow: that forks many times faster.
# Python's own modules, which do things before a fork as well, give other threads a moment there.
FORKING = """
import concurrent.futures.thread, logging, os, random, signal, sys, threading, time
from slimguard.training.signal_watch import SignalListener, SignalWatch

sys.setswitchinterval(1e-6)

class Deaf(SignalListener):
    def on_signal(self, number):
        pass

    def on_wakeup(self, number):
        pass
"""
IN_THE_MAIN_THREAD = """
watch = SignalWatch(Deaf())
watch.enter()
statuses = statuses_of_terminated(600)
watch.leave()
watch.join()
"""
IN_A_THREAD = """
statuses = []
thread = threading.Thread(target=lambda: statuses.extend(statuses_of_terminated(600)))
thread.start()
while thread.is_alive():
    watch = SignalWatch(Deaf())
    watch.enter()
    watch.leave()
    watch.join()
"""


@pytest.mark.parametrize('where', [IN_THE_MAIN_THREAD, IN_A_THREAD], ids=['main', 'thread'])
def test_one_may_fork_at_any_moment_of_entering_and_leaving(where):
    parts = FORKING, inspect.getsource(statuses_of_terminated), where
    tell = 'assert "tensorflow" not in sys.modules\nprint(len(statuses), set(statuses))'
    done = python('-c', '\n'.join([*parts, tell]))
    assert done.stdout == '600 {%d}\n' % signal.SIGTERM, done.stderr


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


# A program that trains. What a test changes of it comes between its parts.
FUNCTIONS = """
import os, select, signal, sys, threading
import tensorflow as tf
import slimguard
from slimguard.training import preemption, signal_watch
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
HOOK_HOLDS_ON = """
def fourth_before_run():
    while True:
        try:
            wait()
        except KeyboardInterrupt:
            signal_watch.listeners()[0]._seconds = {patience}
            print('caught', flush=True)
"""
HOOK_TAKES_ITS_TIME = """
import time
preemption._GRACE = 3

def fourth_before_run():
    try:
        wait()
    except KeyboardInterrupt:
        time.sleep(preemption._GRACE + 2)
        raise
"""
# The handler runs once for two of them, before the other thread is told of the second.
TWO_ARE_HEARD_AS_ONE = """
has_run = threading.Event()
on_signal, on_wakeup = signal_watch.SignalWatch._on_signal, preemption.Preemption.on_wakeup

def on_signal_once_for_both(self, number, frame):
    if frame is None or has_run.is_set():
        on_signal(self, number, frame)

def on_wakeup_that_is_late(self, number):
    if self._ctrl_cs == 1:
        print('two', flush=True)
        assert has_run.wait(60)
    on_wakeup(self, number)

signal_watch.SignalWatch._on_signal = on_signal_once_for_both
preemption.Preemption.on_wakeup = on_wakeup_that_is_late

def fourth_before_run():
    wait()
    signal.getsignal(signal.SIGINT)(signal.SIGINT, None)
    has_run.set()
    try:
        wait()
    except KeyboardInterrupt:
        print('caught', flush=True)
        wait()
        raise
"""
NO_MORE_THREADS = """
def fourth_step():
    def start(self):
        raise RuntimeError("can't start new thread")

    threading.Thread.start = start
    wait()
"""
SAVE_WAITS = """
def save():
    if drawn[0] > 2:
        wait()
"""
# The step ends when it is too late for it, while the state before it is being saved.
STEP_ENDS_DURING_THE_SAVE = """
is_saving, has_ended = threading.Event(), threading.Event()

def fourth_step():
    print('waiting', flush=True)
    assert is_saving.wait(60)

def save():
    if drawn[0] == 4 and not is_saving.is_set():
        is_saving.set()
        assert has_ended.wait(60)

end = has_ended.set
"""
AT_A_PROMPT = """
sys.ps1 = '>>> '
preemption._GRACE = 0
"""
SHORT, LONG = 0.05, 1000  # seconds
BY_CTRL_C = (-signal.SIGINT, 1)  # 1 before Python 3.8
NAMES = {signal.SIGTERM: 'SIGTERM', signal.SIGINT: 'Ctrl-C'}


def training(logdir, changes, patience, number_of_steps=10):
    code = FUNCTIONS + changes + TRAINING
    return Started('-c', code, logdir, number_of_steps, patience)


def train_to_end(logdir, number_of_steps):
    with training(logdir, '', LONG, number_of_steps) as child:
        assert child.wait() == 0
    assert checkpoint_at(logdir) == (number_of_steps, [])


def press_ctrl_c(child):
    child.send(signal.SIGINT)
    child.wait_for('Ctrl-C; the step under way is finished first')


def press_ctrl_c_again(child):
    child.send(signal.SIGINT)
    child.wait_for('Ctrl-C again; ending at once')


@pytest.mark.parametrize(
    'number, statuses', [(signal.SIGTERM, (-signal.SIGTERM,)), (signal.SIGINT, BY_CTRL_C)]
)
def test_a_signal_lets_a_step_that_waits_finish_and_saves(number, statuses, tmp_path):
    with training(tmp_path, STEP_WAITS, LONG) as child:
        child.wait_for('waiting')
        child.send(number)
        child.go_on()
        assert child.wait() in statuses
    assert checkpoint_at(tmp_path) == (4, [])


@pytest.mark.parametrize('changes', [STEP_WAITS, NO_MORE_THREADS])
@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_ends_the_process_where_a_step_never_ends(number, changes, tmp_path):
    with training(tmp_path, changes, SHORT) as child:
        child.wait_for('waiting')
        child.send(number)
        child.wait_for('%s, and no step has ended for 0.05 s; saving and ending' % NAMES[number])
        assert child.wait() == 128 + number
    assert checkpoint_at(tmp_path) == (3, [])


@pytest.mark.parametrize(
    'number, statuses', [(signal.SIGTERM, (-signal.SIGTERM,)), (signal.SIGINT, BY_CTRL_C)]
)
def test_a_step_that_ends_while_the_state_before_it_is_saved_is_saved_as_well(
    number, statuses, tmp_path
):
    with training(tmp_path, STEP_ENDS_DURING_THE_SAVE, SHORT) as child:
        child.wait_for('waiting')
        child.send(number)
        child.wait_for('%s, and no step has ended for 0.05 s; saving and ending' % NAMES[number])
        child.wait_for('%s; the step is done, saving before the end' % NAMES[number])
        assert child.wait() in statuses
    assert checkpoint_at(tmp_path) == (4, [])


def test_a_second_ctrl_c_ends_a_step_that_never_ends(tmp_path):
    train_to_end(tmp_path, 2)
    with training(tmp_path, STEP_WAITS, LONG) as child:
        child.wait_for('waiting')
        press_ctrl_c(child)
        press_ctrl_c_again(child)
        assert child.wait() == 128 + signal.SIGINT
    assert checkpoint_at(tmp_path) == (2, [])
    train_to_end(tmp_path, 6)


def test_a_second_ctrl_c_ends_a_save_and_the_newest_checkpoint_stays(tmp_path):
    train_to_end(tmp_path, 2)
    with training(tmp_path, STEP_WAITS + SAVE_WAITS, LONG) as child:
        child.wait_for('waiting')
        press_ctrl_c(child)
        child.go_on()
        child.wait_for('the step is done, saving before the end')
        child.wait_for('waiting')
        press_ctrl_c_again(child)
        assert child.wait() == 128 + signal.SIGINT
    assert checkpoint_at(tmp_path) == (2, [])
    train_to_end(tmp_path, 6)


def test_a_second_ctrl_c_ends_a_save_where_a_step_never_ends(tmp_path):
    train_to_end(tmp_path, 2)
    with training(tmp_path, STEP_WAITS + SAVE_WAITS, SHORT) as child:
        child.wait_for('waiting')
        child.send(signal.SIGINT)
        child.wait_for('saving and ending')
        child.wait_for('waiting')
        press_ctrl_c_again(child)
        assert child.wait() == 128 + signal.SIGINT
    assert checkpoint_at(tmp_path) == (2, [])


@pytest.mark.parametrize('patience, presses', [(SHORT, 2), (LONG, 3)])
def test_who_holds_a_keyboard_interrupt_back_is_ended_in_time_or_by_a_third(
    patience, presses, tmp_path
):
    with training(tmp_path, HOOK_HOLDS_ON.format(patience=patience), LONG) as child:
        child.wait_for('waiting')
        press_ctrl_c(child)
        child.send(signal.SIGINT)
        child.wait_for('caught')
        if presses == 3:
            child.wait_for('waiting')  # where it catches the next one, too
            child.send(signal.SIGINT)
        child.wait_for('Ctrl-C again; ending at once')
        assert child.wait() == 128 + signal.SIGINT


def test_each_ctrl_c_after_the_first_raises_at_a_prompt(tmp_path):
    with training(tmp_path, AT_A_PROMPT + HOOK_HOLDS_ON.format(patience=SHORT), LONG) as child:
        child.wait_for('waiting')
        press_ctrl_c(child)
        for _ in range(3):
            child.send(signal.SIGINT)
            child.wait_for('caught')
            child.wait_for('waiting')


def test_who_hears_of_a_second_ctrl_c_has_time_to_save(tmp_path):
    with training(tmp_path, HOOK_TAKES_ITS_TIME, LONG) as child:
        child.wait_for('waiting')
        press_ctrl_c(child)
        child.send(signal.SIGINT)
        assert child.wait() in BY_CTRL_C
    assert checkpoint_at(tmp_path) == (3, [])


BOTH = """
def fourth_before_run():
    os.kill(os.getpid(), signal.%s)
    os.kill(os.getpid(), signal.%s)
"""


@pytest.mark.parametrize('order', [('SIGTERM', 'SIGINT'), ('SIGINT', 'SIGTERM')], ids='-'.join)
def test_where_sigterm_comes_too_the_process_ends_by_it(order, tmp_path):
    with training(tmp_path, BOTH % order, LONG) as child:
        assert child.wait() == -signal.SIGTERM
    assert checkpoint_at(tmp_path) == (4, [])


@pytest.mark.parametrize('place', ['', AT_A_PROMPT], ids=['script', 'prompt'])
def test_a_second_ctrl_c_that_is_heard_as_one_with_the_first_raises(place, tmp_path):
    with training(tmp_path, TWO_ARE_HEARD_AS_ONE + place, LONG) as child:
        child.wait_for('waiting')
        press_ctrl_c(child)
        child.send(signal.SIGINT)
        child.wait_for('two')
        child.go_on()
        child.wait_for('caught')
        child.wait_for('waiting')
        child.go_on()
        assert child.wait() in BY_CTRL_C  # what reminded the main thread is no third
    assert checkpoint_at(tmp_path) == (3, [])


def test_ctrl_c_at_a_prompt_saves_and_never_ends_the_process(tmp_path):
    with training(tmp_path, AT_A_PROMPT + STEP_WAITS, SHORT) as child:
        child.wait_for('waiting')
        child.send(signal.SIGINT)
        child.wait_for('no step has ended for 0.05 s; saving, and waiting on')
        limit = time.time() + 60
        while checkpoint_at(tmp_path) != (3, []) and time.time() < limit:
            time.sleep(0.1)
        assert checkpoint_at(tmp_path) == (3, [])
        for _ in range(2):
            child.send(signal.SIGINT)
            child.wait_for('Ctrl-C again; KeyboardInterrupt is raised as soon as Python runs')
        child.go_on()
        assert child.wait() in BY_CTRL_C
        assert 'the step is done' not in child.process.stdout.read()  # it was not the first
    assert checkpoint_at(tmp_path) == (4, [])

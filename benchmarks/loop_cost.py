"""What a step costs in each loop a user can pick, as ratios.

    python benchmarks/loop_cost.py [rounds] [--resnet]

The model is so small that the loop takes most of the step, on one thread. All loops train at once,
each in a thread of its own and one at a time: a loop does twenty steps, then the next has its turn.
The time of a loop in a round is divided by that of the first loop in the same round. The table has
the median of these ratios, with the quartiles. Start-up is a training of one step, without the time
to build the train op.

A second table is for trainings that take snapshots for a rollback. A third is for the loop of an
unedited script under `slimguard.instrument`; it is compared with the same loop unguarded, twice,
and with that of a guarded train op which nobody watches.

`--resnet` prints one other table instead: what a history and a `Spike` add to a step of ResNet-50,
in turns of four steps, with all cores.
"""

import functools
import gc
import logging
import os
import sys
import tempfile
import threading
import time

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import gate_cost
import measure
import numpy as np
import tensorflow as tf

import slimguard
from slimguard import compat
from slimguard import gate as gates

slim = compat.import_slim()
tf1 = tf.compat.v1

STEPS_A_TURN, STEPS_OF_RESNET = 20, 4
SAVING = {'skip': 'skip', 'skip, rollback': ['skip', 'rollback'], 'skip, again': 'skip'}
MEASURING = {
    'slimguard.train, history=0': dict(history=0),
    'slimguard.train, history=0, again': dict(history=0),
    'slimguard.train, history=200': dict(history=200),
    'slimguard.train, spike=True': dict(spike=True),
}
ONE_THREAD = tf1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)


class Over(Exception):
    """Ends a loop."""


class Loop(threading.Thread):
    """Runs a loop in turns. The loop calls `tick` after each turn's `steps`."""

    def __init__(self, train, steps=STEPS_A_TURN):
        threading.Thread.__init__(self, daemon=True)
        self._train, self._steps = train, steps
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._over = False
        self._start = None
        self._seconds = None

    def run(self):
        try:
            with tf.Graph().as_default():
                self._train(self.tick)
        except Over:
            pass

    def tick(self):
        now = time.perf_counter()
        self._seconds = None if self._start is None else (now - self._start) / self._steps
        self._done.release()
        self._go.acquire()
        if self._over:
            raise Over()
        self._start = time.perf_counter()

    def turn(self):
        """Runs one more turn; returns the seconds that a step took."""
        self._go.release()
        self._done.acquire()
        return self._seconds

    def begin(self):
        self.start()
        self._done.acquire()

    def end(self):
        self._over = True
        self._go.release()
        self.join()


class Ticks(logging.Handler):
    """Ends a turn of slim's loop when it logs, as it does every `STEPS_A_TURN` steps."""

    def __init__(self):
        logging.Handler.__init__(self)
        self.ticks = {}

    def handle(self, record):
        # Without the handler's lock: a loop waits in here for its next turn.
        if record.msg.startswith('global step'):
            self.ticks[threading.get_ident()]()


def build(library, check_numerics=True):
    """A model of two small layers; its loss and its train op."""
    rng = np.random.RandomState(0)
    x = tf.constant(rng.randn(32, 64).astype(np.float32))
    y = tf.constant(rng.randint(0, 10, 32))
    hidden = slim.fully_connected(x, 64)
    logits = slim.fully_connected(hidden, 10, activation_fn=None)
    loss = tf1.losses.sparse_softmax_cross_entropy(y, logits)
    optimizer = tf1.train.MomentumOptimizer(0.01, 0.9)
    return loss, library.create_train_op(loss, optimizer, check_numerics=check_numerics)


def in_session(library, make_step):
    """A plain loop around a session."""

    def train(tick):
        _, train_op = build(library)
        with tf1.Session(config=ONE_THREAD) as session:
            session.run(tf1.global_variables_initializer())
            step = make_step(session, train_op)
            while True:
                for _ in range(STEPS_A_TURN):
                    step()
                tick()

    return train


def in_monitored_session(library, make_hook):
    def train(tick):
        loss, train_op = build(library, check_numerics=False)
        hooks = [make_hook(loss)]
        with tf1.train.MonitoredTrainingSession(hooks=hooks, config=ONE_THREAD) as session:
            while True:
                for _ in range(STEPS_A_TURN):
                    session.run(train_op)
                tick()

    return train


def in_train(library, ticks, make_hooks=None, logdir=None, model=build, **arguments):
    arguments = dict(dict(log_every_n_steps=STEPS_A_TURN, session_config=ONE_THREAD), **arguments)

    def train(tick):
        ticks.ticks[threading.get_ident()] = tick
        loss, train_op = model(library)
        if make_hooks is not None:
            arguments['hooks'] = make_hooks(loss)
        library.train(train_op, logdir, **arguments)

    return train


class Idle(tf1.train.SessionRunHook):
    """A hook that does nothing."""

    def before_run(self, run_context):
        return None

    def after_run(self, run_context, run_values):
        pass


def with_idle(number):
    return lambda loss: [slimguard.NanLossHook(loss)] + [Idle() for _ in range(number)]


def with_fetching(loss):
    return [
        slimguard.NanLossHook(loss),
        tf1.train.StopAtStepHook(num_steps=10**9),
        tf1.train.LoggingTensorHook({'loss': loss}, every_n_iter=100),
    ]


def prepared(session, train_op):
    return session.make_callable([train_op, tf1.train.get_global_step()])


def prepared_guarded(session, train_op):
    gate = gates.gate_of(train_op)
    return session.make_callable([train_op, gate.step, gate.bad])


def loops(ticks):
    plain, guarded = slim.learning, slimguard
    found = {
        'make_callable([train_op, global_step])': in_session(plain, prepared),
        'make_callable, guarded': in_session(guarded, prepared_guarded),
        'session.run(train_op)': in_session(
            plain, lambda session, train_op: lambda: session.run(train_op)
        ),
        'MonitoredTrainingSession, NanTensorHook': in_monitored_session(
            plain, tf1.train.NanTensorHook
        ),
        'MonitoredTrainingSession, guarded, NanTensorHook': in_monitored_session(
            guarded, tf1.train.NanTensorHook
        ),
        'MonitoredTrainingSession, guarded, NanTensorHook again': in_monitored_session(
            guarded, tf1.train.NanTensorHook
        ),
        'MonitoredTrainingSession, guarded, NanLossHook': in_monitored_session(
            guarded, slimguard.NanLossHook
        ),
        'MonitoredTrainingSession, guarded, NanLossHook, history=0': in_monitored_session(
            guarded, functools.partial(slimguard.NanLossHook, history=0)
        ),
        'slim.learning.train': in_train(plain, ticks),
        'slimguard.train, NanLossHook': in_train(guarded, ticks, with_idle(0)),
    }
    for number in (1, 5, 20):
        name = 'slimguard.train, NanLossHook, %d idle hook%s' % (number, 's' * (number > 1))
        found[name] = in_train(guarded, ticks, with_idle(number))
    found['slimguard.train, NanLossHook, 2 hooks that fetch'] = in_train(
        guarded, ticks, with_fetching
    )
    for name, asked in MEASURING.items():
        found[name] = in_train(guarded, ticks, **asked)
    return found


def resnet(library):
    train_op = gate_cost.network('resnet_v1_50', library=library)
    return tf1.losses.get_total_loss(), train_op


def loops_of_resnet(ticks):
    asked = dict(model=resnet, session_config=None, log_every_n_steps=STEPS_OF_RESNET)
    return {name: in_train(slimguard, ticks, **asked, **more) for name, more in MEASURING.items()}


def step_costs(rounds, loops=loops, steps=STEPS_A_TURN):
    """The seconds of a step, by loop, with a value for each round."""
    logger = logging.getLogger('tensorflow')
    ticks = Ticks()
    logger.handlers, logger.propagate = [ticks], False
    tf1.logging.set_verbosity(tf1.logging.INFO)
    running = {name: Loop(train, steps) for name, train in loops(ticks).items()}
    tf1.logging.get_verbosity()
    logger.handlers = [ticks]
    for loop in running.values():
        loop.begin()
    times = {name: [] for name in running}
    names = list(running)
    gc.disable()
    for number in range(rounds + 2):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            seconds = running[name].turn()
            if number > 1:
                times[name].append(seconds)
    gc.enable()
    for loop in running.values():
        loop.end()
    tf1.logging.set_verbosity(tf1.logging.ERROR)
    return times


def unedited_step(is_fed, run, guard=lambda train_op, loss: train_op):
    """A step of a plain session whose train op is one of TensorFlow's own."""
    rng = np.random.RandomState(0)
    with tf.Graph().as_default():
        x = tf1.placeholder_with_default(rng.randn(32, 64).astype(np.float32), [None, 64])
        y = tf.constant(rng.randint(0, 10, 32))
        logits = slim.fully_connected(slim.fully_connected(x, 64), 10, activation_fn=None)
        loss = tf1.losses.sparse_softmax_cross_entropy(y, logits)
        step = tf1.train.get_or_create_global_step()
        optimizer = tf1.train.MomentumOptimizer(0.01, 0.9)
        train_op = guard(optimizer.minimize(loss, global_step=step), loss)
        initialize = tf1.global_variables_initializer()
        session = tf1.Session(config=ONE_THREAD)
    session.run(initialize)
    if not is_fed:
        return lambda: run(session, train_op)
    feed_dict = {x: rng.randn(32, 64).astype(np.float32)}
    return lambda: run(session, [train_op, loss], feed_dict)


def unedited_costs(is_fed, rounds):
    """The ratios of each loop to a plain one."""
    run = tf1.Session.run
    steps = {
        'unguarded': unedited_step(is_fed, run),
        'unguarded, again': unedited_step(is_fed, run),
        'guarded train op, nobody watches': unedited_step(is_fed, run, slimguard.guard),
    }
    with slimguard.instrument():  # the loops above keep TensorFlow's own functions
        unedited = unedited_step(is_fed, lambda session, *args: session.run(*args))
        steps['unedited, under instrument()'] = unedited
        return measure.interleave(steps, rounds, STEPS_A_TURN)


class Clock(tf1.train.SessionRunHook):
    """Tells how long a step took, once the first ones are over."""

    def __init__(self):
        self._starts = []

    def before_run(self, run_context):
        self._starts.append(time.perf_counter())

    @property
    def seconds(self):
        starts = self._starts[len(self._starts) // 10 :]
        return (starts[-1] - starts[0]) / (len(starts) - 1)


def saving_step(on_nan, steps):
    """The seconds of a step of a training in a logdir, rare work such as snapshots included.

    The training is so long that snapshots are as rare as in any long one.
    """
    clock = Clock()
    with tf.Graph().as_default(), tempfile.TemporaryDirectory() as logdir:
        _, train_op = build(slimguard)
        slimguard.train(
            train_op,
            logdir,
            session_config=ONE_THREAD,
            number_of_steps=steps,
            log_every_n_steps=0,
            save_summaries_secs=0,
            on_nan=on_nan,
            hooks=[clock],
        )
    return clock.seconds


def saving_costs(rounds, steps=20000):
    """The seconds of a step, by policy, with a value for each round."""
    times = {name: [] for name in SAVING}
    for _ in range(rounds):
        for name, on_nan in SAVING.items():
            times[name].append(saving_step(on_nan, steps))
    return times


def start_up(library):
    """The seconds of a training of one step; the session takes most of them."""
    with tf.Graph().as_default():
        _, train_op = build(library)
        start = time.perf_counter()
        library.train(train_op, None, session_config=ONE_THREAD, number_of_steps=1)
        return time.perf_counter() - start


def main():
    measure.require_arguments(__doc__, '--resnet', takes_rounds=True)
    tf1.disable_eager_execution()
    numbers = [int(argument) for argument in sys.argv[1:] if argument.isdigit()]
    print('TensorFlow', tf.__version__)
    if '--resnet' in sys.argv:
        print_resnet(*numbers or [100])
    else:
        print_loops(*numbers or [300])


def print_resnet(rounds):
    times = step_costs(rounds, loops_of_resnet, STEPS_OF_RESNET)
    first = next(iter(times))
    rows = [['ResNet-50, 8 x 64 x 64 x 3', 'of the first', 'milliseconds']]
    for name in times:
        of_first = measure.ratio(times[name], times[first])
        rows.append([name, of_first, '%.1f' % (1e3 * of_first.seconds)])
    print(measure.table(rows))


def print_loops(rounds):
    times = step_costs(rounds)
    names = list(times)
    stock = times['slim.learning.train']
    rows = [['loop', 'of ' + names[0], 'of slim.learning.train', 'microseconds']]
    for name in names:
        of_first = measure.ratio(times[name], times[names[0]])
        of_stock = measure.ratio(times[name], stock)
        rows.append([name, of_first, of_stock, '%.0f' % (1e6 * of_first.seconds)])
    print(measure.table(rows))
    times = saving_costs(max(3, rounds // 60))
    rows = [['slimguard.train in a logdir', 'of skip', 'microseconds']]
    for name in times:
        of_skip = measure.ratio(times[name], times['skip'])
        rows.append([name, of_skip, '%.0f' % (1e6 * of_skip.seconds)])
    print(measure.table(rows))
    rows = [['plain loop', 'of unguarded', 'microseconds']]
    for is_fed, called in enumerate(['run(train_op)', 'run([train_op, loss], feed_dict)']):
        for name, ratio in unedited_costs(is_fed, rounds).items():
            rows.append(['%s: %s' % (called, name), ratio, '%.0f' % (1e6 * ratio.seconds)])
    print(measure.table(rows))
    start_ups = measure.interleave(
        {'stock': lambda: start_up(slim.learning), 'guarded': lambda: start_up(slimguard)}, 10
    )
    print(
        'start-up, of that of slim.learning.train: %s, %.2f s'
        % (start_ups['guarded'], start_ups['guarded'].seconds)
    )


if __name__ == '__main__':
    main()

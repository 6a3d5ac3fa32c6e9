"""Kills trainings at random moments, and looks at what they leave behind.

Not a test module: pytest does not collect it, but test_soak.py runs a few kills of it. From
the root of the repository::

    python tests/programs/soak.py --kills=200
    python tests/programs/soak.py --kills=200 --relative   # the logdir is given as `logs`

Each life of a training is a process of its own. It resumes, saves as often as it can, meets NaN
batches at random, and is killed by SIGKILL at a random moment. Lives differ: the gate holds the bad
update; or it has to undo a write of the forward pass; or an update without a gate makes the weights
themselves NaN. They train in slim's loop or a MonitoredTrainingSession, with ref or with resource
variables. After each life a process that trained nothing reads the logdir.
"""

import argparse
import os
import pathlib
import random
import signal
import sys
import tempfile
import time

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
sys.path.append(str(pathlib.Path(__file__).resolve().parents[2]))

import numpy as np
import tensorflow as tf

import slimguard
from slimguard import compat
from slimguard.checkpoints import checkpoint_reader, repair
from tests.helpers.processes import in_a_fork

tf1 = tf.compat.v1
slim = compat.import_slim()

KINDS = ('guarded', 'put back', 'poisoned weights', 'monitored, no gate')
# The share of bad batches, or of bad updates that no gate holds.
BAD = 0.2
# How long a life may last once it has resumed, in seconds.
LIFE = 0.6


def build(kind, seed):
    """A model with the same names in every life. Returns the loss and the op that poisons it."""
    rng = np.random.RandomState(seed)

    def draw():
        x = rng.randn(8, 128).astype(np.float32)
        if kind != 'poisoned weights' and rng.rand() < BAD:
            x[0, 0] = rng.choice([np.nan, np.inf])
        return x

    x = tf1.py_func(draw, [], tf.float32, stateful=True)
    x.set_shape([8, 128])
    updates = None if kind == 'put back' else tf1.GraphKeys.UPDATE_OPS
    with tf1.variable_scope('', use_resource=bool(seed % 2)):
        net = slim.batch_norm(x, updates_collections=updates, is_training=True, scope='bn')
        weights = tf1.get_variable('w', [128, 512])
        bias = tf1.get_variable('b', [512], initializer=tf1.zeros_initializer())
    loss = tf.reduce_mean(tf.square(tf.matmul(net, weights) + bias - 1.0))
    poison = weights.assign(weights * np.nan).op
    return loss, poison, rng


def live(kind, seed, logdir, resumed):
    """Trains until it is killed. Calls `resumed` with the global step it starts from."""
    tf1.set_random_seed(seed)
    step = tf1.train.get_or_create_global_step()
    loss, poison, rng = build(kind, seed)
    optimizer = tf1.train.MomentumOptimizer(0.001, 0.9)

    class Resumed(tf1.train.SessionRunHook):
        def after_create_session(self, session, coord):
            resumed(session.run(step))

    ladder = [slimguard.Skip(3), slimguard.Rollback(max_times=10**9)]
    if kind == 'monitored, no gate':
        hook = slimguard.NanLossHook(loss, on_nan=ladder[1:], logdir=logdir)
        train_op = slim.learning.create_train_op(loss, optimizer, check_numerics=False)
        repair.resume_from_good(logdir)
        with tf1.train.MonitoredTrainingSession(
            checkpoint_dir=logdir,
            save_checkpoint_steps=1,
            save_checkpoint_secs=None,
            save_summaries_steps=None,
            save_summaries_secs=None,
            log_step_count_steps=None,
            hooks=[hook, Resumed()],
        ) as session:
            while True:
                session.run(train_op)

    def train_step(session, train_op, global_step, kwargs):
        if kind == 'poisoned weights' and rng.rand() < BAD / 4:
            session.run(poison)
        return session.run(train_op), False

    slimguard.train(
        slimguard.create_train_op(loss, optimizer, check_numerics=False),
        logdir,
        train_step_fn=train_step,
        save_interval_secs=0.001,
        save_summaries_secs=0,
        summary_op=None,
        hooks=[Resumed()],
        on_nan=ladder,
    )


def inspect(logdir, say):
    """Sends the state of a logdir: the published checkpoint, the newest good one, and its step."""
    published = tf1.train.latest_checkpoint(logdir)
    finding = checkpoint_reader.read(published) if published else None
    say('none' if finding is None else str(finding))
    good = slimguard.latest_finite_checkpoint(logdir)
    say('none' if good is None else checkpoint_reader.read(good).step)
    os._exit(0)


def live_in_working_directory(kind, seed, logdir, resumed):
    """As `live`, with the logdir given by a relative path."""
    os.chdir(os.path.dirname(logdir))
    live(kind, seed, os.path.basename(logdir), resumed)


def soak(kills, seed, is_relative=False, out=print):
    """Returns the number of lives by what was wrong after them; all of them should be `ok`."""
    choose = random.Random(seed)
    found = dict.fromkeys(['ok', 'poisoned', 'unreadable', 'not resumed'], 0)
    expected = 'none'
    with tempfile.TemporaryDirectory() as parent:
        logdir = os.path.join(parent, 'logs')
        start = live_in_working_directory if is_relative else live
        for number in range(kills):
            kind = KINDS[number % len(KINDS)]
            life, said = in_a_fork(start, kind, choose.randrange(10**6), logdir)
            resumed = said.readline().strip()
            time.sleep(choose.random() * LIFE)
            os.kill(life, signal.SIGKILL)
            os.waitpid(life, 0)
            said.close()
            reader, said = in_a_fork(inspect, logdir)
            published, step = said.readline().strip(), said.readline().strip()
            os.waitpid(reader, 0)
            said.close()
            verdict = 'ok'
            if published.startswith('not finite'):
                verdict = 'poisoned'
            elif published.startswith('truncated') or not step:
                verdict = 'unreadable'
            elif not resumed or (expected != 'none' and resumed != expected):
                verdict = 'not resumed'
            found[verdict] += 1
            out(
                '%4d  %-18s  resumed at %-6s  left %-6s  %s'
                % (number + 1, kind, resumed, step, verdict)
            )
            expected = step
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--kills', type=int, default=200, metavar='N')
    parser.add_argument('--seed', type=int, default=0, metavar='N')
    parser.add_argument('--relative', action='store_true', help='give the logdir as `logs`')
    options = parser.parse_args()
    tf1.disable_eager_execution()
    tf1.logging.set_verbosity(tf1.logging.FATAL)
    found = soak(options.kills, options.seed, options.relative)
    print('TensorFlow %s, %d kills: %s' % (tf.__version__, options.kills, found))
    sys.exit(found['ok'] != options.kills)


if __name__ == '__main__':
    main()

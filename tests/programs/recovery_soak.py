"""Kills trainings that explode and go back, and looks at the state and the rate they resume with.

Not a test module: pytest does not collect it, but test_soak.py runs a few kills of it. From
the root of the repository::

    python tests/programs/recovery_soak.py --kills=100

Each life of a training is a process of its own, in slim's loop, in a MonitoredTrainingSession or in
the plain session of an unedited script. It meets NaN batches and explosions at random. An explosion
writes finite, ruined weights for some steps, which are saved as well, before the first Inf comes.
Then the training rolls back, with a smaller learning rate. Lives are killed at a random moment,
before a file operation, or in a rollback before a file operation or a run of the session. Half of
them have no memory for snapshots, and go back to checkpoints.

From the lines that a life prints it follows what the next one has to resume with:

* a finite checkpoint, without any step of an explosion, unless the explosion began after the last
  complete rollback;
* the learning rate's factor of the last complete rollback, or of one that was under way.
"""

import argparse
import os
import pathlib
import random
import select
import signal
import sys
import tempfile
import time

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
sys.path.append(str(pathlib.Path(__file__).resolve().parents[2]))

import numpy as np
import tensorflow as tf

import slimguard
from slimguard import gate as gates
from slimguard.checkpoints import checkpoint_reader
from slimguard.compat import tf_private
from slimguard.system import memory
from slimguard.training.rollback import Rollbacks
from tests.helpers.processes import in_a_fork
from tests.programs.state_soak import Killed

tf1 = tf.compat.v1

KILLS = ('at random', 'ahead of a file operation', 'in a rollback', 'in a rollback')
BACK_OFF = 0.9
# How often a batch is NaN, and how often an explosion begins.
BAD, EXPLODES = 0.05, 0.02
# No explosion begins sooner: a trusted state has to come before it.
BEGINS = 20
# So many checkpoints are kept that some are older than any explosion.
KEPT = 40
# How long a life may last, once it trains: until it is killed by the clock, in seconds, or at all.
LIFE, LONGEST = 0.8, 8.0
# How long it may take until it trains.
START = 60.0


class KilledAt(Killed):
    """Kills the process ahead of its n-th file operation; a run of a session counts as one."""

    def __init__(self, after):
        Killed.__init__(self, after)
        owner = tf_private.session_class()
        owner.run = self.counted(owner.run)

    def tick(self):
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1


class Model:
    """Weights that a variable multiplies, which an explosion multiplies by a thousand each step.

    Attributes:
      scale: this variable, which is 1 unless the state is of an explosion.
    """

    def __init__(self, seed, say):
        self._random = np.random.RandomState(seed)
        self._say = say
        self.step = tf1.train.get_or_create_global_step()
        with tf1.variable_scope('', use_resource=bool(seed % 2)):
            self.scale = tf1.get_variable('scale', initializer=1.0, trainable=False)
            weights = tf1.get_variable('w', [1000], initializer=tf1.ones_initializer())
        batch = tf1.py_func(self._draw, [self.scale, self.step], tf.float32, stateful=True)
        batch.set_shape([2])
        begins = tf.logical_or(batch[1] > 0, self.scale > 1)
        scale = self.scale.assign(tf.where(begins, self.scale * 1000, self.scale))
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, scale)
        self.loss = tf.reduce_mean(tf.square(self.scale * weights * batch[0] - 0.5))
        self.optimizer = tf1.train.GradientDescentOptimizer(0.05)

    def _draw(self, scale, step):
        bad, explodes = self._random.uniform(size=2) < [BAD, EXPLODES]
        begins = explodes and scale == 1 and step >= BEGINS
        if begins:
            self._say('explodes')
        return np.array([np.nan if bad else 1.0, float(begins)], np.float32)


def told_of(session, model):
    """The global step, the scale and the factor of the learning rate in a session."""
    factor = gates.learning_rates_of(session.graph).get(session)
    return '%d %g %.17g' % (*session.run([model.step, model.scale]), factor)


def live(loop, how, after, seed, logdir, is_short, say):
    """Trains until it is killed; says what happens."""
    if is_short:
        memory.available = lambda: 0
    tf1.set_random_seed(seed)
    model = Model(seed, say)
    _tell_of_rollbacks(model, how, after, 1 + seed // 2 % 2, say)

    def is_back(session, incident):
        say('is back ' + told_of(session, model))

    policy = slimguard.Rollback(10**9, on_rollback=is_back, learning_rate=BACK_OFF)
    LOOPS[loop](model, logdir, [slimguard.Skip(2), policy])


def _tell_of_rollbacks(model, how, after, number, say):
    """Makes a life say when it trains and when a rollback begins; from then on it may be killed.

    Args:
      model: the model.
      how: when it is killed.
      after: the number of the file operation, from there on, before which it is killed.
      number: the number of the rollback in which it is killed.
      say: says it.
    """
    prepare, roll_back = Rollbacks.prepare, Rollbacks.roll_back
    begun = []

    def prepare_and_tell(recovery, session, *args, **kwargs):
        prepare(recovery, session, *args, **kwargs)
        say('trains ' + told_of(session, model))
        if how == 'ahead of a file operation':
            Killed(after)

    def tell_and_roll_back(*args):
        say('goes back')
        begun.append(1)
        if how == 'in a rollback' and len(begun) == number:
            KilledAt(after)
        return roll_back(*args)

    Rollbacks.prepare, Rollbacks.roll_back = prepare_and_tell, tell_and_roll_back


def train(model, logdir, on_nan):
    slimguard.train(
        slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False),
        logdir,
        save_interval_secs=0.001,
        save_summaries_secs=0,
        summary_op=None,
        log_every_n_steps=0,
        saver=tf1.train.Saver(max_to_keep=KEPT),
        on_nan=on_nan,
        capture=False,
    )


def train_monitored(model, logdir, on_nan):
    train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False)
    hook = slimguard.NanLossHook(model.loss, on_nan=on_nan, capture=False)
    scaffold = tf1.train.Scaffold(saver=tf1.train.Saver(max_to_keep=KEPT))
    with tf1.train.MonitoredTrainingSession(
        checkpoint_dir=logdir,
        scaffold=scaffold,
        save_checkpoint_steps=3,
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        save_summaries_secs=None,
        log_step_count_steps=None,
        hooks=[hook],
    ) as session:
        while True:
            session.run(train_op)


def train_unedited(model, logdir, on_nan):
    with slimguard.instrument(on_nan, capture=False):
        train_op = model.optimizer.minimize(model.loss, model.step)
        train_op = tf.group(train_op, tf1.get_collection(tf1.GraphKeys.UPDATE_OPS))
        saver = tf1.train.Saver(max_to_keep=KEPT)
        path = os.path.join(logdir, 'model.ckpt')
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            newest = tf1.train.latest_checkpoint(logdir)
            if newest is not None:
                saver.restore(session, newest)
                listed = tf1.train.get_checkpoint_state(logdir).all_model_checkpoint_paths
                saver.recover_last_checkpoints(listed)
            saver.save(session, path, model.step)
            while True:
                for _ in range(3):
                    session.run(train_op)
                saver.save(session, path, model.step)


LOOPS = {'train': train, 'monitored': train_monitored, 'unedited': train_unedited}


class Expected:
    """What the next life has to resume with.

    Attributes:
      factors: the right factors; several if a life was killed in a rollback.
      rollbacks: how many were complete.
      restarts: how many lives began to train.
    """

    def __init__(self):
        self.factors = [1.0]
        self.rollbacks = self.restarts = 0
        self._explodes = False

    def hear(self, said):
        """Takes a line of a life. Returns what is wrong with it, or None."""
        if said == 'explodes':
            self._explodes = True
        elif said == 'goes back':
            self.factors = [self.factors[0], self.factors[0] * BACK_OFF]
        elif said.startswith('trains'):
            return self._resumed(*map(float, said.split()[-2:]))
        elif said.startswith('is back'):
            self.rollbacks += 1
            return self._is_back(*map(float, said.split()[-2:]))
        return None

    def _resumed(self, scale, factor):
        self.restarts += 1
        right = [each for each in self.factors if np.isclose(each, factor, rtol=1e-9, atol=0)]
        if not right:
            return 'resumed with the factor %g, not %s' % (factor, self.factors)
        self.factors = right
        if scale != 1 and not self._explodes:
            return 'resumed with a state that a rollback had left'
        return None

    def _is_back(self, scale, factor):
        self._explodes = False
        self.factors = self.factors[1:]
        if scale != 1:
            return 'went back to a state of the explosion'
        if not np.isclose(factor, self.factors[0], rtol=1e-9, atol=0):
            return 'went back with the factor %g, not %s' % (factor, self.factors)
        return None


def inspect(logdir, say):
    """Says what is wrong with the state that TensorFlow would resume from, if anything is."""
    newest = tf1.train.latest_checkpoint(logdir)
    if newest is None:
        say('nothing is published')
    elif not checkpoint_reader.read(newest).is_good:
        say('%s is %s' % (newest, checkpoint_reader.read(newest)))
    os._exit(0)


def lines_of(life, said, how):
    """Yields the lines of a life until it is killed; kills it here unless it kills itself."""
    ends = time.monotonic() + START
    is_killed, pending = False, b''
    while True:
        left = max(0.0, ends - time.monotonic())
        if not is_killed and not select.select([said], [], [], left)[0]:
            os.kill(life, signal.SIGKILL)
            is_killed = True
        more = os.read(said.fileno(), 10000)
        if not more:
            break
        *lines, pending = (pending + more).split(b'\n')
        for line in lines:
            if line.startswith(b'trains'):
                share = random.Random(line).random()
                ends = time.monotonic() + (share * LIFE if how == 'at random' else LONGEST)
            yield line.decode()
    os.waitpid(life, 0)
    said.close()


def soak(kills, seed, out=print):
    """Returns what was wrong, a sentence for each; and what the lives said."""
    choose = random.Random(seed)
    wrong, expected = [], Expected()
    with tempfile.TemporaryDirectory() as parent:
        tempfile.tempdir = parent  # in the lives as well
        logdir = os.path.join(parent, 'logs')
        for number in range(kills):
            loop = choose.choice(sorted(LOOPS))
            how, after = choose.choice(KILLS), choose.randrange(60)
            given = (loop, how, after, choose.randrange(10**6), logdir, choose.random() < 0.5)
            life, said = in_a_fork(live, *given)
            found = [expected.hear(line) for line in lines_of(life, said, how)]
            reader, said = in_a_fork(inspect, logdir)
            found += [line for line in said.read().splitlines()]
            os.waitpid(reader, 0)
            said.close()
            found = [each for each in found if each]
            wrong += ['life %d (%s, killed %s): %s' % (number, loop, how, each) for each in found]
            out(
                '%4d  %-9s  %-25s  factor %-10.4g  %s'
                % (number, loop, how, expected.factors[-1], '; '.join(found) or 'ok')
            )
        left = [name for name in os.listdir(parent) if name != 'logs']
        if len(left) > 1:  # the one of the last life may still be there
            wrong.append('left behind: %s' % ', '.join(sorted(left)))
    return wrong, expected


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--kills', type=int, default=100, metavar='N')
    parser.add_argument('--seed', type=int, default=0, metavar='N')
    options = parser.parse_args()
    tf1.disable_eager_execution()
    tf1.logging.set_verbosity(tf1.logging.FATAL)
    wrong, heard = soak(options.kills, options.seed)
    print('\n'.join(wrong))
    said = (tf.__version__, options.kills, heard.restarts, heard.rollbacks, len(wrong))
    print('TensorFlow %s, %d kills, %d restarts, %d rollbacks: %d wrong' % said)
    sys.exit(bool(wrong))


if __name__ == '__main__':
    main()

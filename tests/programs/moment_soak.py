"""Saves as often as it goes while it trains, and looks whether each checkpoint is of one moment.

Not a test module: pytest does not collect it, but test_soak.py runs a little of it. From the root
of the repository::

    python tests/programs/moment_soak.py --checkpoints=1000

Twelve variables are equal to the global step after every step. TensorFlow's Supervisor saves them
from a thread of its own. In each checkpoint they have to be equal to the step in its name.
"""

import argparse
import os
import pathlib
import sys
import tempfile

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
sys.path.append(str(pathlib.Path(__file__).resolve().parents[2]))

import tensorflow as tf

import slimguard

tf1 = tf.compat.v1

VARIABLES, SIZE = 12, 200000


class Reader(tf1.train.SessionRunHook):
    """Reads each checkpoint and removes it; asks to stop when there were enough."""

    def __init__(self, logdir, enough):
        self._logdir = logdir
        self._enough = enough
        self.count = self.mixed = self.misnamed = 0

    def after_run(self, run_context, run_values):
        if self.has_enough():
            run_context.request_stop()

    def has_enough(self):
        """Reads the checkpoints that are there; returns whether there were enough by now."""
        found = pathlib.Path(self._logdir).glob('model.ckpt-*.meta')
        # The newest may be half written, and the Saver deletes none.
        for path in sorted(found, key=lambda path: int(path.stem.rsplit('-', 1)[1]))[:-1]:
            self.read(str(path)[: -len('.meta')])
        return self.count >= self._enough

    def read(self, prefix):
        """Counts a checkpoint."""
        reader = tf1.train.load_checkpoint(prefix)
        step = int(reader.get_tensor('global_step'))
        values = {
            float(value)
            for number in range(VARIABLES)
            for value in reader.get_tensor('v%02d' % number)[[0, SIZE // 2, -1]]
        }
        self.count += 1
        self.mixed += len(values) > 1
        self.misnamed += int(prefix.rsplit('-', 1)[1]) != step or values != {float(step)}
        for file in pathlib.Path(self._logdir).glob(os.path.basename(prefix) + '.*'):
            file.unlink()


def build(use_resource, minimize):
    """The train op that `minimize` makes of the loss; each of its steps adds 1 to all variables."""
    tf1.get_variable_scope().set_use_resource(use_resource)
    zeros = tf1.zeros_initializer()
    variables = [tf1.get_variable('v%02d' % n, [SIZE], initializer=zeros) for n in range(12)]
    loss = tf.add_n([tf.reduce_mean(v) for v in variables]) * -float(SIZE)
    return minimize(loss, tf1.train.GradientDescentOptimizer(1.0))


def train(use_resource, reader, logdir):
    """Trains in slim's loop until `reader` asks to stop."""

    def minimize(loss, optimizer):
        return slimguard.create_train_op(loss, optimizer, check_numerics=False)

    slimguard.train(
        build(use_resource, minimize),
        logdir,
        log_every_n_steps=0,
        save_interval_secs=0.001,
        save_summaries_secs=0,
        saver=tf1.train.Saver(max_to_keep=0),
        hooks=[reader],
        capture=False,
    )


def train_unedited(use_resource, reader, logdir):
    """The same in a user's loop around a Supervisor, which knows nothing of slimguard."""
    step = tf1.train.get_or_create_global_step()
    with slimguard.instrument(capture=False):
        train_op = build(use_resource, lambda loss, optimizer: optimizer.minimize(loss, step))
        supervisor = tf1.train.Supervisor(
            logdir=logdir,
            summary_op=None,
            global_step=step,
            saver=tf1.train.Saver(max_to_keep=0),
            save_model_secs=0.001,
        )
        with supervisor.managed_session() as session:
            while not supervisor.should_stop():
                session.run(train_op)
                if reader.has_enough():
                    supervisor.request_stop()


LOOPS = {'slimguard.train': train, "a Supervisor's session": train_unedited}


def soak(loop, use_resource, enough):
    """Trains until there were enough checkpoints; returns the `Reader` of them."""
    with tf.Graph().as_default(), tempfile.TemporaryDirectory() as logdir:
        reader = Reader(logdir, enough)
        LOOPS[loop](use_resource, reader, logdir)
    return reader


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--checkpoints', type=int, default=1000, metavar='N')
    options = parser.parse_args()
    tf1.disable_eager_execution()
    tf1.logging.set_verbosity(tf1.logging.ERROR)
    wrong = 0
    for loop in LOOPS:
        for use_resource in (False, True):
            found = soak(loop, use_resource, options.checkpoints)
            wrong += found.mixed + found.misnamed
            print(
                'TensorFlow %s, %s, %s variables: %d checkpoints, %d mix steps, %d are not of the '
                'step in their name'
                % (
                    tf.__version__,
                    loop,
                    'resource' if use_resource else 'ref',
                    found.count,
                    found.mixed,
                    found.misnamed,
                )
            )
    sys.exit(bool(wrong))


if __name__ == '__main__':
    main()

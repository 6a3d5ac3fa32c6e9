"""What a NaN costs: stock TensorFlow against slimguard, as a table.

    python benchmarks/what_is_lost.py

For each strategy that TensorFlow documents, trains a small model for eight steps, turns the batch
of the sixth into NaN, and checks what is left for the user. Prints the table of docs/cost.md.
"""

import os
import tempfile

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import measure
import numpy as np
import tensorflow as tf

import slimguard
from slimguard import compat

slim = compat.import_slim()
tf1 = tf.compat.v1

STEPS, BAD_STEP = 8, 5


def build(library, check_numerics):
    """A linear model whose input is NaN in one step, and its train op."""
    step = tf1.train.get_or_create_global_step()
    rng = np.random.RandomState(0)
    x = tf.constant(rng.randn(32, 8).astype(np.float32))
    y = tf.constant(rng.randn(32, 1).astype(np.float32))
    draws = iter(range(1000))
    draw = tf1.py_func(lambda: np.int64(next(draws)), [], tf.int64, stateful=True)
    x = tf.where(tf.equal(draw, BAD_STEP), x * np.float32('nan'), x)
    x.set_shape([32, 8])
    loss = tf1.losses.mean_squared_error(y, slim.fully_connected(x, 1, activation_fn=None))
    optimizer = tf1.train.MomentumOptimizer(0.01, 0.9)
    train_op = library.create_train_op(loss, optimizer, check_numerics=check_numerics)
    return step, loss, train_op


class Weights:
    """Whether the weights were finite at the last call of `look`."""

    finite = True

    def look(self, session):
        with session.graph.as_default():
            variables = tf1.trainable_variables()
        self.finite = all(np.isfinite(session.run(v)).all() for v in variables)


def in_train(library, weights, check_numerics, logdir, on_nan):
    _, _, train_op = build(library, check_numerics)

    def train_step_fn(session, *args):
        try:
            return slim.learning.train_step(session, *args)
        finally:
            weights.look(session)

    kwargs = {} if library is slim.learning else {'on_nan': on_nan}
    return library.train(
        train_op,
        logdir,
        train_step_fn=train_step_fn,
        number_of_steps=STEPS,
        log_every_n_steps=0,
        **kwargs,
    )


def in_monitored_session(library, weights, check_numerics, logdir, on_nan):
    _, loss, train_op = build(library, check_numerics)
    if library is slim.learning:
        hook = tf1.train.NanTensorHook(loss, fail_on_nan_loss=on_nan == 'raise')
    else:
        hook = slimguard.NanLossHook(loss, on_nan=on_nan)
    hooks = [hook, tf1.train.StopAtStepHook(last_step=STEPS)]
    with tf1.train.MonitoredTrainingSession(
        checkpoint_dir=logdir, save_checkpoint_steps=1, save_checkpoint_secs=None, hooks=hooks
    ) as session:
        value = None
        while not session.should_stop():
            try:
                value = session.run(train_op)
            finally:
                weights.look(session._tf_sess())
    return value


def checkpoint(logdir):
    path = tf1.train.latest_checkpoint(logdir)
    reader = tf1.train.load_checkpoint(path)
    values = [reader.get_tensor(name) for name in reader.get_variable_to_shape_map()]
    finite = all(np.isfinite(value).all() for value in values)
    return '`%s`%s' % (os.path.basename(path), '' if finite else ', **NaN**')


def row(name, loop, library, check_numerics, on_nan):
    weights, logdir = Weights(), tempfile.mkdtemp()
    with tf.Graph().as_default():
        tf1.set_random_seed(0)
        try:
            outcome = 'ends, loss %.3g' % loop(library, weights, check_numerics, logdir, on_nan)
        except (tf.errors.OpError, RuntimeError) as error:
            outcome = '`%s`' % type(error).__name__
        state = 'finite' if weights.finite else '**NaN**'
    print('| %s | %s | %s | %s |' % (name, outcome, state, checkpoint(logdir)))


def main():
    measure.require_arguments(__doc__)
    tf1.disable_eager_execution()
    tf1.logging.set_verbosity(tf1.logging.FATAL)
    print('TensorFlow %s; batch %d of %d is NaN' % (tf.__version__, BAD_STEP + 1, STEPS))
    print('| | what you see | weights | newest checkpoint |')
    print('|---|---|---|---|')
    stock, ours = slim.learning, slimguard
    row('`slim.learning.train`, `check_numerics=True`', in_train, stock, True, None)
    row('`slim.learning.train`, `check_numerics=False`', in_train, stock, False, None)
    row('`NanTensorHook`, raise', in_monitored_session, stock, False, 'raise')
    row('`NanTensorHook`, stop', in_monitored_session, stock, False, 'stop')
    row('`slimguard.train`, `on_nan="raise"`', in_train, ours, True, 'raise')
    row('`slimguard.train`, `on_nan="skip"`', in_train, ours, False, 'skip')
    row('`slimguard.NanLossHook`, raise', in_monitored_session, ours, False, 'raise')
    row('`slimguard.NanLossHook`, stop', in_monitored_session, ours, False, 'stop')


if __name__ == '__main__':
    main()

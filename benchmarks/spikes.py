"""What `Spike` saves, and how often it is wrong. Prints two tables.

    python benchmarks/spikes.py [--quick] [explosions] [alarms]

`explosions` trains a small network that is damaged in one of five ways, over ten seeds: without a
`Spike`, with one (on_nan='skip:3,rollback:3,raise' both times), and undamaged. It shows the loss of
the last checkpoint on undamaged data, as a multiple of the undamaged run's: the median of the
seeds, and the worst. The last column is the control: the largest loss of the undamaged run in its
last 40 steps, as a multiple of its last loss. Large batches keep it small. With 32 rows it is 1.9,
so that even a good state from before the damage may have more than 1.2 times the last loss.

`alarms` trains healthy networks with noisy losses, and counts the good steps that are held at the
defaults. A held step is skipped, which may lead to more held steps.
"""

import os
import statistics
import sys
import tempfile
from typing import Callable, List, NamedTuple

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import measure
import numpy as np
import tensorflow as tf

import slimguard
from slimguard import compat

slim = compat.import_slim()
tf1 = tf.compat.v1
tf1.logging.set_verbosity(tf1.logging.FATAL)

QUICK = '--quick' in sys.argv
SEEDS = range(3 if QUICK else 10)
STEPS, DAMAGED_AT = 420, 400
POLICIES = [slimguard.Skip(3), slimguard.Rollback(3), slimguard.Raise()]


# Trainings that explode.


class Damage(NamedTuple):
    """What goes wrong.

    Attributes:
      x, y: returns a factor for the inputs or the targets, by the number of the batch.
      rate: returns factors for the learning rate, by global steps.
      optimizer: makes the optimizer from a learning rate.
    """

    x: Callable[[int], float] = lambda draw: 1.0
    y: Callable[[int], float] = lambda draw: 1.0
    rate: Callable[[np.ndarray], np.ndarray] = np.ones_like
    optimizer: Callable = lambda rate: tf1.train.MomentumOptimizer(0.02 * rate, 0.9)


def once(factor):
    return lambda draw: factor if draw == DAMAGED_AT else 1.0


def adam(rate):
    return tf1.train.AdamOptimizer(0.02 * rate)


def growing(steps: np.ndarray) -> np.ndarray:
    return 1.15 ** np.clip(steps - (DAMAGED_AT - 50), 0, 50)


DAMAGES = {
    'too high a learning rate': Damage(rate=lambda steps: np.where(steps < DAMAGED_AT, 1.0, 100.0)),
    'one batch scaled by 1e4': Damage(x=once(1e4)),
    'one mislabelled batch': Damage(y=once(-100.0)),
    'a slow explosion': Damage(rate=growing),
    'Adam after a long calm': Damage(x=once(1e4), optimizer=adam),
}


class Regression:
    """A network that learns the outputs of another one, with noise."""

    def __init__(self, seed: int, damage: Damage):
        tf1.set_random_seed(seed)
        self._draws = np.random.RandomState(seed)
        teacher = np.random.RandomState(1000 + seed)
        self._weights = teacher.randn(8, 1) / 3
        self._damage = damage
        self._drawn = 0
        self.held_out = self._batch(2000, np.random.RandomState(2000 + seed))
        self.step = tf1.train.get_or_create_global_step()
        x, y = tf1.py_func(self._draw, [], [tf.float32, tf.float32], stateful=True)
        self.x = tf1.placeholder_with_default(x, [None, 8])
        self.y = tf1.placeholder_with_default(y, [None, 1])
        hidden = slim.fully_connected(self.x, 16, activation_fn=tf.nn.tanh)
        hidden = slim.fully_connected(hidden, 16)
        self.loss = tf.reduce_mean(
            tf.square(slim.fully_connected(hidden, 1, activation_fn=None) - self.y)
        )
        rates = tf.constant(damage.rate(np.arange(STEPS + 1.0)), tf.float32)
        self.optimizer = damage.optimizer(tf.gather(rates, self.step))

    def _batch(self, size, random):
        x = random.randn(size, 8)
        y = np.sin(2 * x.dot(self._weights)) + 0.3 * random.randn(size, 1)
        return x.astype(np.float32), y.astype(np.float32)

    def _draw(self):
        x, y = self._batch(256, self._draws)
        x, y = x * self._damage.x(self._drawn), y * self._damage.y(self._drawn)
        self._drawn += 1
        return x.astype(np.float32), y.astype(np.float32)

    def held_out_loss(self, session) -> float:
        """The loss on undamaged data that the network is not trained on."""
        return float(session.run(self.loss, dict(zip((self.x, self.y), self.held_out))))


class LastLosses(tf1.train.SessionRunHook):
    """Notes the held-out loss after each of the last steps."""

    def __init__(self, model: Regression):
        self._model = model
        self.losses: List[float] = []

    def before_run(self, run_context):
        return tf1.train.SessionRunArgs(self._model.step)

    def after_run(self, run_context, run_values):
        if run_values.results > STEPS - 40:
            self.losses.append(self._model.held_out_loss(run_context.session))


class Trained(NamedTuple):
    """The held-out losses of the last checkpoint, and of the last steps if they were measured."""

    loss: float
    last: List[float]


def train(seed: int, damage: Damage, spike, looks: bool = False) -> Trained:
    with tempfile.TemporaryDirectory() as logdir:
        with tf.Graph().as_default():
            model = Regression(seed, damage)
            train_op = slimguard.create_train_op(model.loss, model.optimizer)
            last = LastLosses(model)
            try:
                slimguard.train(
                    train_op,
                    logdir,
                    number_of_steps=STEPS,
                    on_nan=POLICIES,
                    spike=spike,
                    capture=False,
                    log_every_n_steps=0,
                    save_summaries_secs=0,
                    save_interval_secs=0,
                    hooks=[last] if looks else [],
                )
            except slimguard.NanLossError:
                pass
        with tf.Graph().as_default(), tf1.Session() as session:
            model = Regression(seed, Damage())
            tf1.train.Saver().restore(session, tf1.train.latest_checkpoint(logdir))
            return Trained(model.held_out_loss(session), last.losses)


def explosions() -> None:
    rows = [['', 'without Spike', 'worst', 'with Spike', 'worst', 'within 1.2', 'undamaged']]
    for name, damage in DAMAGES.items():
        healthy = Damage(optimizer=damage.optimizer)
        undamaged = [train(seed, healthy, None, looks=True) for seed in SEEDS]
        told = [name]
        for spike in (None, slimguard.Spike()):
            losses = [train(seed, damage, spike).loss for seed in SEEDS]
            ratios = [mine / other.loss for mine, other in zip(losses, undamaged)]
            told += ['%.3g' % statistics.median(ratios), '%.3g' % max(ratios)]
        told.append('%d of %d' % (sum(ratio <= 1.2 for ratio in ratios), len(ratios)))
        told.append('%.3g' % max(max(each.last) / each.loss for each in undamaged))
        rows.append(told)
    print(measure.table(rows))


# Trainings that are healthy.


class Healthy(NamedTuple):
    """A training: its train ops, which take turns, and their losses."""

    train_ops: List[tf.Tensor]
    losses: List[tf.Tensor]


def _guarded(loss, optimizer, variables=None) -> tf.Tensor:
    return slimguard.create_train_op(loss, optimizer, variables_to_train=variables)


def digits(seed: int) -> Healthy:
    """Ten noisy patterns, learned until the loss is near zero."""
    random = np.random.RandomState(seed)
    patterns = tf.constant(random.randn(10, 64).astype(np.float32))
    labels = tf1.random_uniform([32], maxval=10, dtype=tf.int32, seed=seed)
    x = tf.gather(patterns, labels) + tf1.random_normal([32, 64], stddev=1.5, seed=seed)
    logits = slim.fully_connected(slim.fully_connected(x, 32), 10, activation_fn=None)
    loss = tf1.losses.sparse_softmax_cross_entropy(labels, logits)
    return Healthy([_guarded(loss, tf1.train.MomentumOptimizer(0.05, 0.9))], [loss])


def gan(seed: int) -> Healthy:
    """Two networks that compete, in turns."""
    real = tf1.random_normal([64, 2], seed=seed) * [1.0, 0.3] + [2.0, -1.0]
    with tf1.variable_scope('generator'):
        noise = tf1.random_normal([64, 4], seed=seed + 1)
        fake = slim.fully_connected(slim.fully_connected(noise, 16), 2, activation_fn=None)

    def judge(x, reuse):
        with tf1.variable_scope('judge', reuse=reuse):
            hidden = slim.fully_connected(x, 16, scope='hidden', reuse=reuse)
            return slim.fully_connected(hidden, 1, activation_fn=None, scope='out', reuse=reuse)

    of_real, of_fake = judge(real, None), judge(fake, True)
    cost = tf.nn.sigmoid_cross_entropy_with_logits
    loss_of_judge = tf.reduce_mean(
        cost(labels=tf.ones_like(of_real), logits=of_real)
        + cost(labels=tf.zeros_like(of_fake), logits=of_fake)
    )
    loss_of_generator = tf.reduce_mean(cost(labels=tf.ones_like(of_fake), logits=of_fake))
    made = []
    for name, loss in (('judge', loss_of_judge), ('generator', loss_of_generator)):
        variables = tf1.trainable_variables(name)
        made.append(_guarded(loss, tf1.train.AdamOptimizer(2e-3, 0.5), variables))
    return Healthy(made, [loss_of_judge, loss_of_generator])


def resnet(seed: int) -> Healthy:
    """Two residual blocks with batch norm, and a learning rate with a warm-up."""
    labels = tf1.random_uniform([16], maxval=4, dtype=tf.int32, seed=seed)
    patterns = tf.constant(np.random.RandomState(seed).randn(4, 8, 8, 3).astype(np.float32))
    net = tf.gather(patterns, labels) + tf1.random_normal([16, 8, 8, 3], seed=seed)
    with slim.arg_scope([slim.conv2d], normalizer_fn=slim.batch_norm):
        net = slim.conv2d(net, 8, 3)
        for _ in range(2):
            net += slim.conv2d(slim.conv2d(net, 8, 3), 8, 3, activation_fn=None)
    logits = slim.fully_connected(tf.reduce_mean(net, [1, 2]), 4, activation_fn=None)
    loss = tf1.losses.sparse_softmax_cross_entropy(labels, logits)
    step = tf.cast(tf1.train.get_or_create_global_step(), tf.float32)
    rate = 0.1 * tf.minimum(1.0, (step + 1) / 500)
    return Healthy([_guarded(loss, tf1.train.MomentumOptimizer(rate, 0.9))], [loss])


def cyclic(seed: int) -> Healthy:
    """A regression whose learning rate goes up and down by 100 every 500 steps."""
    x = tf1.random_normal([32, 8], seed=seed)
    y = tf.sin(tf.reduce_sum(x, 1, keepdims=True)) + 0.1 * tf1.random_normal([32, 1], seed=seed)
    loss = tf.reduce_mean(
        tf.square(slim.fully_connected(slim.fully_connected(x, 32), 1, activation_fn=None) - y)
    )
    step = tf.cast(tf1.train.get_or_create_global_step(), tf.float32)
    rate = 1e-3 * 100 ** tf.abs(2 * tf.math.floormod(step / 500, 1.0) - 1)
    return Healthy([_guarded(loss, tf1.train.MomentumOptimizer(rate, 0.9))], [loss])


def reinforcement(seed: int) -> Healthy:
    """A policy gradient with long-tailed rewards: a loss of both signs, around zero."""
    x = tf1.random_normal([64, 4], seed=seed)
    logits = slim.fully_connected(slim.fully_connected(x, 16), 3, activation_fn=None)
    action = tf.reshape(tf1.multinomial(logits, 1, seed=seed), [-1])
    reward = tf.gather_nd(x, tf.stack([tf.range(64), tf.cast(action, tf.int32)], 1))
    noise = tf.exp(tf1.random_normal([64], seed=seed))
    cost = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=action, logits=logits)
    loss = tf.reduce_mean(cost * (reward * noise - 0.5))
    return Healthy([_guarded(loss, tf1.train.AdamOptimizer(1e-3))], [loss])


def memorized(seed: int) -> Healthy:
    """Few examples, learned by heart: the loss falls to nothing."""
    random = np.random.RandomState(seed)
    xs = tf.constant(random.randn(128, 16).astype(np.float32))
    ys = tf.constant(random.randint(0, 2, 128))
    rows = tf1.random_uniform([8], maxval=128, dtype=tf.int32, seed=seed)
    logits = slim.fully_connected(
        slim.fully_connected(tf.gather(xs, rows), 64), 2, activation_fn=None
    )
    loss = tf1.losses.sparse_softmax_cross_entropy(tf.gather(ys, rows), logits)
    return Healthy([_guarded(loss, tf1.train.AdamOptimizer(3e-3))], [loss])


HEALTHY = (digits, gan, resnet, cyclic, reinforcement, memorized)


def alarms() -> None:
    seeds, steps = (range(2), 2000) if QUICK else (range(5), 10000)
    rows = [['', 'good steps', 'held', 'in 10,000', 'an example']]
    for make in HEALTHY:
        counted, held, example = 0, 0, ''
        for seed in seeds:
            with tf.Graph().as_default():
                tf1.set_random_seed(seed)
                tf1.train.get_or_create_global_step()
                training = make(seed)
                hooks = [
                    slimguard.NanLossHook(
                        loss, on_nan=slimguard.Skip(10**6), spike=True, capture=False
                    )
                    for loss in training.losses
                ]
                with slimguard.watch(tf1.Session(), hooks=hooks) as session:
                    session.run(tf1.global_variables_initializer())
                    for number in range(steps):
                        session.run(training.train_ops[number % len(training.train_ops)])
            found = [incident for each in hooks for incident in each.incidents]
            counted, held = counted + steps, held + len(found)
            example = example or (found[0].reason if found else '')
        share = '%.2f' % (1e4 * held / counted)
        rows.append([make.__name__, str(counted), str(held), share, example])
    print(measure.table(rows))


if __name__ == '__main__':
    measure.require_arguments(__doc__, '--quick', 'explosions', 'alarms')
    wanted = [name for name in sys.argv[1:] if not name.startswith('--')]
    if not wanted or 'explosions' in wanted:
        explosions()
    if not wanted or 'alarms' in wanted:
        alarms()

"""Gradients accumulated over several runs: a bad micro-batch changes nothing, its counter included.

Each training below adds the gradients of micro-batches up, and applies them with every third.
"""

from typing import Callable, Dict, List, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from slimguard import compat, gate
from tests.helpers import gate_models as models

tf1 = tf.compat.v1
slim = compat.import_slim()

EVERY = 3
ZERO = tf1.zeros_initializer()
BAD = (np.nan, np.inf)
TRAININGS: Dict[str, Callable] = {}


def training(build):
    TRAININGS[build.__name__] = build
    return build


class Parts(NamedTuple):
    """The parts of every training here.

    Attributes:
      loss: the loss of a micro-batch.
      pairs: its gradients, with the weights.
      sums: the accumulators.
      counter: the number of micro-batches.
      optimizer: an optimizer whose variables exist.
    """

    loss: tf.Tensor
    pairs: list
    sums: list
    counter: tf.Variable
    optimizer: tf1.train.Optimizer


def loss_of(batch):
    w = tf1.get_variable('w', initializer=tf.constant([0.5, -0.25, 0.75]))
    b = tf1.get_variable('b', initializer=0.25)
    return tf.reduce_sum(tf.tanh(w * batch + b - [1.0, 2.0, 3.0]))


def parts_of(loss, dtype=tf.int32, local=False, trainable=False) -> Parts:
    optimizer = tf1.train.AdamOptimizer(0.1)
    pairs = optimizer.compute_gradients(loss)
    weights = [v for _, v in pairs]
    optimizer._create_slots(weights)  # variables made in a branch could not be initialized
    sums = [
        tf1.get_variable('sum_' + v.op.name, v.shape, initializer=ZERO, trainable=trainable)
        for v in weights
    ]
    collections = [tf1.GraphKeys.LOCAL_VARIABLES] if local else None
    counter = tf1.get_variable(
        'n', [], dtype, initializer=ZERO, trainable=False, collections=collections
    )
    return Parts(loss, pairs, sums, counter, optimizer)


def accumulate(parts: Parts) -> list:
    return [tf1.assign_add(a, g) for a, (g, _) in zip(parts.sums, parts.pairs)]


def zero(parts: Parts) -> tf.Operation:
    return tf.group(*[tf1.assign(a, tf.zeros_like(a)) for a in parts.sums])


def apply(parts: Parts, divisor=None, **kwargs) -> tf.Operation:
    """Applies the sums, or the means."""
    sums = [tf.identity(a) for a in parts.sums]
    if divisor is not None:
        sums = [a / tf.cast(divisor, tf.float32) for a in sums]
    pairs = [(a, v) for a, (_, v) in zip(sums, parts.pairs)]
    return parts.optimizer.apply_gradients(pairs, **kwargs)


def apply_and_zero(parts: Parts, **kwargs) -> tf.Operation:
    with tf.control_dependencies([apply(parts, **kwargs)]):
        return zero(parts)


def is_due(count) -> tf.Tensor:
    return tf.equal(tf.math.floormod(count, tf.cast(EVERY, count.dtype)), tf.zeros([], count.dtype))


def in_branch(pred, update: Callable):
    """Runs `update` if `pred` holds, as people write it for either control flow."""

    def run():
        with tf.control_dependencies([update()]):
            return tf.constant(True)

    return tf.group(tf.cond(pred, run, lambda: tf.constant(False)))


def every_third(parts: Parts, update: Callable = None) -> tf.Operation:
    """The usual train op: it adds the gradients up, and a branch applies every third sum."""
    count = tf1.assign_add(parts.counter, tf.ones([], parts.counter.dtype.base_dtype))
    with tf.control_dependencies(accumulate(parts) + [count]):
        return in_branch(is_due(tf.identity(count)), update or (lambda: apply_and_zero(parts)))


@training
def usual(batch):
    parts = parts_of(loss_of(batch))
    return every_third(parts), parts.loss


@training
def trainable_sums_and_a_local_float_counter(batch):
    """The script's accumulators are trainable, since it did not say ``trainable=False``."""
    parts = parts_of(loss_of(batch), tf.float32, local=True, trainable=True)
    step = tf1.train.get_or_create_global_step()
    return every_third(parts, lambda: apply_and_zero(parts, global_step=step)), parts.loss


@training
def means_by_the_counter(batch):
    parts = parts_of(loss_of(batch))
    count = tf.identity(tf1.assign_add(parts.counter, 1))

    def update():
        with tf.control_dependencies([apply_and_zero(parts, divisor=count)]):
            return tf.group(tf1.assign(parts.counter, 0))

    with tf.control_dependencies(accumulate(parts) + [count]):
        return in_branch(tf.equal(count, EVERY), update), parts.loss


@training
def means_by_the_counter_read_in_the_branch(batch):
    parts = parts_of(loss_of(batch))
    return every_third(parts, lambda: apply_and_zero(parts, divisor=parts.counter)), parts.loss


@training
def zeroed_ahead_of_the_next(batch):
    """The first micro-batch of three overwrites the sums, the others are added."""
    parts = parts_of(loss_of(batch))
    number = tf.math.floormod(parts.counter.read_value(), EVERY)
    keep = tf.cast(tf.not_equal(number, 0), tf.float32)
    sums = [tf1.assign(a, keep * a + g) for a, (g, _) in zip(parts.sums, parts.pairs)]
    with tf.control_dependencies(sums + [number]):
        count = tf1.assign_add(parts.counter, 1)
    with tf.control_dependencies([count]):
        return in_branch(is_due(tf.identity(count)), lambda: apply(parts)), parts.loss


@training
def zeroed_by_selecting(batch):
    parts = parts_of(loss_of(batch))
    count = tf.identity(tf1.assign_add(parts.counter, 1))
    is_first = tf.equal(tf.math.floormod(count, EVERY), 1)
    sums = [
        tf1.assign(a, tf1.where(is_first, g, a + g)) for a, (g, _) in zip(parts.sums, parts.pairs)
    ]
    with tf.control_dependencies(sums):
        return in_branch(is_due(count), lambda: apply(parts)), parts.loss


@training
def loss_returned_by_the_branch(batch):
    parts = parts_of(loss_of(batch))
    count = tf1.assign_add(parts.counter, 1)

    def update():
        with tf.control_dependencies([apply_and_zero(parts)]):
            return tf.identity(parts.loss)

    with tf.control_dependencies(accumulate(parts) + [count]):
        due = is_due(tf.identity(count))
        return tf.cond(due, update, lambda: tf.identity(parts.loss)), parts.loss


class GradientAccumulationOptimizer(tf1.train.Optimizer):
    """An optimizer around another, as people write it."""

    def __init__(self, optimizer, every):
        super().__init__(False, 'GradientAccumulation')
        self._optimizer = optimizer
        self._every = every

    def compute_gradients(self, *args, **kwargs):
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        pairs = [(g, v) for g, v in grads_and_vars if g is not None]
        weights = [v for _, v in pairs]
        self._optimizer._create_slots(weights)
        sums = [
            tf1.get_variable('sum_' + v.op.name, v.shape, initializer=ZERO, trainable=False)
            for v in weights
        ]
        counter = tf1.get_variable('n', [], tf.int64, initializer=ZERO, trainable=False)
        accumulated = [tf1.assign_add(a, g) for a, (g, _) in zip(sums, pairs)]
        count = tf1.assign_add(counter, 1)

        def update():
            means = [(a / self._every, v) for a, v in zip(sums, weights)]
            applied = self._optimizer.apply_gradients(means, global_step)
            with tf.control_dependencies([applied]):
                zeros = [tf1.assign(a, tf.zeros_like(a)) for a in sums]
            return tf.group(*zeros)

        with tf.control_dependencies(accumulated + [count]):
            due = tf.equal(tf.math.floormod(tf.identity(count), self._every), 0)
            return tf.group(tf.cond(due, update, tf.no_op), name=name)


@training
def wrapping_optimizer_in_create_train_op(batch):
    loss = loss_of(batch)
    optimizer = GradientAccumulationOptimizer(tf1.train.MomentumOptimizer(0.1, 0.9), EVERY)
    return slim.learning.create_train_op(loss, optimizer), loss


def normalized(batch, **kwargs):
    rows = tf.reshape(tf.range(6.0), [2, 3]) * batch
    net = slim.batch_norm(rows, decay=0.5, is_training=True, scale=True, **kwargs)
    return tf.reduce_sum(tf.tanh(net - [1.0, 2.0, 3.0]))


@training
def batch_norm_in_the_forward_pass(batch):
    parts = parts_of(normalized(batch, updates_collections=None))
    return every_third(parts), parts.loss


def micro_batches() -> List[float]:
    """Good micro-batches for two updates, and a bad one at each kind of place among them."""
    good = [0.5 + 0.125 * i for i in range(2 * EVERY)]
    return [BAD[0], *good[:1], BAD[1], *good[1:4], BAD[0], *good[4:5], BAD[1], *good[5:]]


def good_micro_batches() -> List[Dict[str, float]]:
    """The feeds of the good micro-batches."""
    return [{'micro_batch:0': value} for value in filter(np.isfinite, micro_batches())]


def bits_of_guarded(guarded: models.Guarded, batch: tf.Tensor) -> List[Dict[str, bytes]]:
    found = []
    for number, value in enumerate(micro_batches()):
        if np.isfinite(value):
            guarded.assert_written({batch: value})
            found.append(guarded.snapshot(guarded.sess))
        else:
            guarded.assert_held({batch: value}, 'micro-batch %d' % number)
            assert not guarded.finding().state_lost, 'the sums were not finite for a moment'
    guarded.close()
    return found


# Each training with one or two kinds of variables, and with or without a loss given to the guard.
@pytest.mark.full
@pytest.mark.parametrize(
    'name, kind, give_loss',
    [
        ('wrapping_optimizer_in_create_train_op', 'ref', True),
        ('wrapping_optimizer_in_create_train_op', 'functions', False),
        ('means_by_the_counter', 'resource', False),
        ('usual', 'ref', False),
        ('usual', 'resource', True),
        ('usual', 'functions', True),
        ('trainable_sums_and_a_local_float_counter', 'ref', True),
        ('means_by_the_counter_read_in_the_branch', 'ref', True),
        ('means_by_the_counter_read_in_the_branch', 'functions', False),
        ('zeroed_ahead_of_the_next', 'ref', False),
        ('zeroed_by_selecting', 'resource', False),
        ('zeroed_by_selecting', 'functions', True),
        ('loss_returned_by_the_branch', 'resource', True),
        ('batch_norm_in_the_forward_pass', 'resource', False),
    ],
    indirect=['kind'],
)
def test_bad_micro_batch_changes_nothing(name, kind, give_loss):
    """The bits equal those of an unguarded training on the good micro-batches alone."""
    batch = tf1.placeholder(tf.float32, [], 'micro_batch')
    train_op, loss = TRAININGS[name](batch)
    plain = models.Unguarded(train_op).bits(good_micro_batches())
    guarded = models.Guarded((train_op, loss if give_loss else None))
    assert bits_of_guarded(guarded, batch) == plain


@pytest.mark.full
@pytest.mark.parametrize(
    'is_grouped, kind',
    [(True, 'ref'), (False, 'functions'), (False, 'resource')],
    indirect=['kind'],
)
def test_an_update_that_waits_for_guarded_sums_runs_them_once(is_grouped, kind):
    def build(batch, is_guarded):
        tf1.set_random_seed(1)
        tf1.get_variable_scope().set_use_resource(kind != 'ref')
        parts = parts_of(loss_of(batch))
        sums = tf.group(*accumulate(parts), tf1.assign_add(parts.counter, 1))
        if is_guarded:
            sums = gate.guard(sums, parts.loss)
        with tf.control_dependencies([sums]):
            due = is_due(parts.counter.read_value())
            update = in_branch(due, lambda: apply_and_zero(parts))
        return tf.group(sums, update) if is_grouped else update, parts.loss

    def micro_batch():
        return tf1.placeholder(tf.float32, [], 'micro_batch')

    with tf.Graph().as_default():
        plain = models.Unguarded(build(micro_batch(), is_guarded=False)[0])
        plain = plain.bits(good_micro_batches())
    with tf.Graph().as_default():
        batch = micro_batch()
        guarded = models.Guarded(build(batch, is_guarded=True))
        assert bits_of_guarded(guarded, batch) == plain


# A counter that picks the micro-batch is input, whatever else it counts.

PICKED = [0.5, np.nan, 0.75, 1.0, np.nan, 1.25, 1.5, 1.75]
PICKERS: Dict[str, Callable] = {}


def picker(build):
    PICKERS[build.__name__] = build
    return build


@picker
def element_of_a_constant(count):
    return tf.gather(tf.constant(PICKED), count - 1)


@picker
def branch(count):
    data = iter(PICKED)

    def choose(number):
        value = next(data)
        if number == len(PICKED):
            return tf.constant(value)
        rest = choose(number + 1)
        return tf.cond(tf.equal(count, number), lambda: tf.constant(value), lambda: rest)

    return choose(1)


@picker
def element_in_a_branch(count):
    return tf.cond(count > 0, lambda: tf.gather(tf.constant(PICKED), count - 1), lambda: 0.0)


@picker
def selected(count):
    value = tf.constant(PICKED[-1])
    for number, other in enumerate(PICKED[:-1], 1):
        value = tf1.where(tf.equal(count, number), tf.constant(other), value)
    return value


@pytest.mark.full
@pytest.mark.parametrize(
    'name, kind, give_loss',
    [
        ('element_of_a_constant', 'resource', True),
        ('element_of_a_constant', 'ref', False),
        ('branch', 'ref', True),
        ('branch', 'functions', False),
        ('element_in_a_branch', 'resource', False),
        ('element_in_a_branch', 'functions', True),
        ('selected', 'ref', True),
        ('selected', 'functions', False),
    ],
    indirect=['kind'],
)
def test_a_counter_that_picks_the_micro_batch_stays_advanced(name, kind, give_loss):
    picked = tf1.get_variable('picked', [], tf.int32, initializer=ZERO, trainable=False)
    with tf.control_dependencies([tf1.assign_add(picked, 1)]):
        count = picked.read_value()
    parts = parts_of(loss_of(PICKERS[name](count)))
    model = every_third(parts), parts.loss if give_loss else None
    guarded = models.Guarded(model)
    assert [guarded.step() for _ in PICKED] == list(np.isfinite(PICKED))
    assert guarded.sess.run([picked, parts.counter]) == [len(PICKED), np.isfinite(PICKED).sum()]


@pytest.mark.full
@pytest.mark.parametrize(
    'give_loss, kind', [(False, 'resource'), (True, 'ref'), (True, 'functions')], indirect=['kind']
)
def test_one_counter_for_both_stays_advanced(give_loss, kind):
    counter = tf1.get_variable('n', [], tf.int32, initializer=ZERO, trainable=False)
    count = tf.identity(tf1.assign_add(counter, 1))
    loss = loss_of(tf.gather(tf.constant(PICKED), count - 1))
    with tf1.variable_scope('parts'):
        parts = parts_of(loss)
    with tf.control_dependencies(accumulate(parts)):
        train_op = in_branch(is_due(count), lambda: apply_and_zero(parts))
    guarded = models.Guarded((train_op, loss if give_loss else None))
    assert [guarded.step() for _ in PICKED] == list(np.isfinite(PICKED))
    assert guarded.sess.run(counter) == len(PICKED)


# A counter that scales the update is no such input: a bad step leaves it as it was.


def by_its_rate(w, loss, steps):
    return tf1.train.GradientDescentOptimizer(0.1 / steps).minimize(loss)


def by_the_weight_of_the_loss(w, loss, steps):
    return tf1.train.MomentumOptimizer(0.1, 0.9).minimize(loss * tf.minimum(1.0, steps / 10.0))


def by_a_correction(w, loss, steps):
    (gradient,) = tf.gradients(loss, [w])
    average = tf1.get_variable('average', w.shape, initializer=ZERO, trainable=False)
    next_average = average.assign(0.9 * average + 0.1 * gradient)
    return w.assign_sub(0.1 * next_average / (1.0 - 0.9**steps))


@pytest.mark.every_cell
@pytest.mark.parametrize(
    'follow, kind',
    [
        (by_its_rate, 'ref'),
        (by_the_weight_of_the_loss, 'resource'),
        (by_a_correction, 'resource'),
        pytest.param(by_its_rate, 'resource', marks=pytest.mark.full),
        pytest.param(by_a_correction, 'ref', marks=pytest.mark.full),
    ],
    indirect=['kind'],
)
def test_a_counter_of_steps_that_a_schedule_follows_is_put_back(follow, kind):
    x = tf1.placeholder(tf.float32, [])
    w = tf1.get_variable('w', initializer=[1.0, 2.0])
    counted = tf1.assign_add(tf1.train.get_or_create_global_step(), 1)
    guarded = models.Guarded(
        (follow(w, tf.reduce_sum((w * x - 1.0) ** 2), tf.cast(counted, tf.float32)), None)
    )
    for value in (0.5, np.nan, 0.75, np.inf, 1.0):
        if np.isfinite(value):
            guarded.assert_written({x: value})
        else:
            guarded.assert_held({x: value}, '%s' % value)
    assert guarded.sess.run(tf1.train.get_global_step()) == 3


@pytest.mark.parametrize('kind', ['resource'], indirect=True)
def test_a_good_step_copies_the_counter_and_no_more(kind):
    """The gate puts back the counter and the accumulators, and no other variable."""
    train_op, loss = usual(tf1.placeholder(tf.float32, []))
    guarded = gate.gate_of(gate.guard(train_op, loss))
    assert {variable.name for variable in guarded.transient} == {'n', 'sum_w', 'sum_b'}

"""The loss that an unedited script trains: slimguard finds it if only one tensor can be meant.

Each function below builds a training of a loss to which `noise` is added. Its gradients are finite
whatever the noise is.
"""

import math

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from tests.helpers.models import LogLines, records_in

tf1 = tf.compat.v1
KNOWN, UNKNOWN = {}, {}


def known(build):
    KNOWN[build.__name__] = build
    return build


def unknown(build):
    UNKNOWN[build.__name__] = build
    return build


def sgd():
    return tf1.train.GradientDescentOptimizer(0.1)


def weight(name='w'):
    return tf1.get_variable(name, [3], initializer=tf1.ones_initializer())


def square(values, noise):
    """A sum of squares that takes `noise` as an input, and is finite whatever it is."""
    one = tf.where(tf.math.is_finite(noise), tf.ones([]), tf.ones([]))
    return tf.reduce_sum(tf.square(values * one))


@known
def gradients_that_are_clipped(noise):
    w = weight()
    gradients, _ = tf.clip_by_global_norm(tf1.gradients(square(w, noise) + noise, [w]), 1.0)
    return sgd().apply_gradients(zip(gradients, [w]))


@known
def gradients_by_a_name_that_was_imported_before(noise, gradients=tf1.gradients):
    w = weight()
    return tf1.assign_sub(w, 0.1 * gradients(square(w, noise) + noise, w)[0])


@known
def gradients_of_a_list_of_losses(noise):
    w = weight()
    return sgd().apply_gradients(
        zip(tf1.gradients([square(w, noise), square(w, noise) + noise], [w]), [w])
    )


def averaged(towers):
    return [
        (tf.reduce_mean(tf.stack([gradient for gradient, _ in pairs]), 0), pairs[0][1])
        for pairs in zip(*towers)
    ]


@known
def towers(noise):
    variables, noises = [weight(), weight('v')], [0.0, noise]
    losses = [square(tf.add_n(variables) - number, noise) + noises[number] for number in range(2)]
    return sgd().apply_gradients(averaged([sgd().compute_gradients(loss) for loss in losses]))


@known
def towers_by_gradients(noise):
    w, noises = weight(), [noise, 0.0, 0.0]
    losses = [square(w - number, noise) + noises[number] for number in range(3)]
    pairs = [list(zip(tf1.gradients(loss, [w]), [w])) for loss in losses]
    return sgd().apply_gradients(averaged(pairs))


def replicas(update):
    """The updates of two replicas of a `MirroredStrategy`; `update` gets a replica's number."""

    def in_replica():
        number = tf.distribute.get_replica_context().replica_id_in_sync_group
        return update(tf.get_static_value(number))

    strategy = tf.distribute.MirroredStrategy(['/cpu:0', '/cpu:1'])
    with strategy.scope():
        run = getattr(strategy, 'run', None) or strategy.experimental_run_v2
        return tf.group(*strategy.experimental_local_results(run(in_replica)))


@known
def mirrored(noise):
    return replicas(
        lambda number: sgd().minimize(square(weight(), noise) + (noise if number else 0.0))
    )


@known
def mirrored_gradients_that_are_clipped(noise):
    def update(number):
        variables = [weight(), weight('v')]
        loss = square(tf.add_n(variables), noise) + (0.0 if number else noise)
        gradients, _ = tf.clip_by_global_norm(tf1.gradients(loss, variables), 1.0)
        return sgd().apply_gradients(zip(gradients, variables))

    return replicas(update)


@known
def a_penalty_on_the_gradient_of_something(noise):
    w, x = weight(), tf.constant([1.0, 2.0, 3.0])
    (of_input,) = tf1.gradients(square(w * x, noise), [x])
    return sgd().minimize(square(w, noise) + 0.01 * square(of_input, noise) + noise)


@unknown
def two_losses_of_their_own_variables(noise):
    v, w = weight('v'), weight()
    return tf.group(
        sgd().minimize(square(v, noise), var_list=[v]),
        sgd().minimize(square(w, noise) + noise, var_list=[w]),
    )


@unknown
def two_losses_in_each_replica(noise):
    return replicas(lambda number: two_losses_of_their_own_variables(noise))


@unknown
def a_gradient_that_goes_on_from_another(noise):
    w = weight()
    action = tf.tanh(w) + noise
    return sgd().apply_gradients(zip(tf1.gradients(action, [w], grad_ys=tf.ones([3])), [w]))


@unknown
def a_loss_of_an_input_that_the_update_does_without(noise):
    w = weight()
    draw = tf.random.uniform([])
    return sgd().apply_gradients(zip(tf1.gradients(square(w, noise) + noise + draw, [w]), [w]))


def train(build, tmp_path, noises, **kwargs):
    """The records of incidents, and the log lines."""
    kwargs = dict({'logdir': str(tmp_path), 'capture': False}, **kwargs)
    two = tf1.ConfigProto(device_count={'CPU': 2})
    with slimguard.instrument('skip', **kwargs), LogLines() as lines, tf1.Session(
        config=two
    ) as session:
        noise = tf1.placeholder_with_default(0.0, [])
        train_op = build(noise)
        session.run(tf1.global_variables_initializer())
        for value in noises:
            session.run(train_op, {noise: value})
        variables = session.run(tf1.trainable_variables())
    assert np.isfinite(variables).all()
    return (records_in(tmp_path) if lines else []), list(lines)


@pytest.mark.every_cell
@pytest.mark.parametrize('name', sorted(KNOWN))
def test_a_loss_that_is_not_finite_or_too_large_is_an_incident(name, tmp_path):
    noises = [0.0, math.nan, 0.0, 2000.0, 0.0]
    records, lines = train(KNOWN[name], tmp_path, noises, max_loss=200.0)
    assert [record['action'] for record in records] == ['skip'] * 2
    assert np.isnan(float(records[0]['loss'])) and 'not finite: loss' in records[0]['reason']
    assert 'above max_loss' in records[1]['reason'] and float(records[1]['loss']) > 600
    assert not [line for line in lines if 'is not known' in line]


@pytest.mark.every_cell
@pytest.mark.parametrize('name', sorted(UNKNOWN))
def test_where_it_is_not_certain_there_is_none_and_that_is_said(name, tmp_path):
    _, lines = train(UNKNOWN[name], tmp_path, [0.0, math.nan, 0.0], max_loss=200.0)
    assert not [line for line in lines if 'incident' in line]
    assert (
        len([line for line in lines if 'neither checked nor compared with max_loss' in line]) == 1
    )


def test_losses_that_are_not_known_are_named_without_a_limit_too(tmp_path):
    _, lines = train(two_losses_of_their_own_variables, tmp_path, [0.0, 0.0])
    (line,) = [line for line in lines if 'is not known' in line]
    assert "'group_deps'" in line and 'by different variables: Sum, add.' in line


def test_the_loss_of_towers_is_their_mean(tmp_path):
    def build(noise):
        pairs = []
        w = weight()
        for number in range(2):
            with tf.name_scope('tower_%d' % number):
                loss = tf.add(square(w - number, noise), noise if number else 0.0, name='cost')
                pairs.append(sgd().compute_gradients(loss))
        return sgd().apply_gradients(averaged(pairs))

    (record,), _ = train(build, tmp_path, [0.0, math.nan])
    reason = 'not finite: loss (mean of tower_0/cost, tower_1/cost)'
    assert record['reason'] == reason


def test_an_overflow_of_a_loss_that_is_scaled_by_hand_is_for_the_script(tmp_path):
    """The script then leaves the update out, and lowers the scale."""

    def build(noise):
        w, scale = weight(), tf1.get_variable('scale', initializer=3e38, trainable=False)
        (gradient,) = tf1.gradients((square(w, noise) + noise) * scale, [w])
        is_finite = tf.reduce_all(tf.math.is_finite(gradient))
        update = tf.where(is_finite, gradient / scale, tf.zeros([3]))
        next_scale = tf.where(is_finite, scale, scale / 1000.0)
        return tf.group(sgd().apply_gradients([(update, w)]), scale.assign(next_scale))

    records, _ = train(build, tmp_path, [0.0] * 3)
    assert records == []

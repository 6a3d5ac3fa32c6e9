"""Several clones of a model in one graph, on several devices: one clone's NaN is one incident."""

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard import compat
from tests.helpers import models
from tests.helpers.gate_models import Damage, Guarded

tf1 = tf.compat.v1
slim = compat.import_slim()

CLONES = 2
CPUS = tf1.ConfigProto(device_count={'CPU': CLONES})


def clone_losses(damage, share):
    """Builds the clones as model_deploy does; `share` is a clone's part of the loss."""
    losses = []
    for number in range(CLONES):
        with tf1.variable_scope(tf1.get_variable_scope(), reuse=True if number else None):
            with tf.name_scope('clone_%d/' % number), tf1.device('/cpu:%d' % number):
                x = tf.constant(np.random.RandomState(number).randn(4, 3), tf.float32)
                net = slim.batch_norm(x, is_training=True)
                net = slim.fully_connected(net, 2, activation_fn=tf.tanh)
                net = damage.gradient(net, 'gradient of clone %d' % number)
                loss = tf.reduce_mean(tf.square(net - 0.5))
                loss += tf.math.log(1.0 + damage('loss of clone %d' % number))
                tf1.losses.add_loss(loss)
                losses.append(loss * share)
    return losses


def deployed(damage):
    """A train op and the loss, as model_deploy's optimize_clones makes them."""
    optimizer = tf1.train.MomentumOptimizer(0.05, 0.9)
    step = tf1.train.get_or_create_global_step()
    losses = clone_losses(damage, 1.0 / CLONES)
    updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS, 'clone_0')
    gradients = {}
    for number, loss in enumerate(losses):
        with tf.name_scope('clone_%d/' % number), tf1.device('/cpu:%d' % number):
            for gradient, variable in optimizer.compute_gradients(loss):
                gradients.setdefault(variable.op.name, ([], variable))[0].append(gradient)
    total = tf.add_n(losses, name='total_loss')
    summed = [(tf.add_n(given, name='sum_grads'), v) for given, v in gradients.values()]
    updates.append(optimizer.apply_gradients(summed, global_step=step))
    with tf.control_dependencies([tf.group(*updates)]):
        return tf.identity(total, name='train_op'), total


def towers(damage):
    """Towers whose gradients are averaged, without model_deploy."""
    optimizer = tf1.train.AdamOptimizer(0.05)
    step = tf1.train.get_or_create_global_step()
    losses = clone_losses(damage, 1.0)
    found = []
    for number, loss in enumerate(losses):
        with tf.name_scope('clone_%d/' % number), tf1.device('/cpu:%d' % number):
            found.append(optimizer.compute_gradients(loss))
    stacked = [(tf.stack([g for g, _ in pair]), pair[0][1]) for pair in zip(*found)]
    pairs = [(tf.reduce_mean(gradients, 0), v) for gradients, v in stacked]
    return optimizer.apply_gradients(pairs, global_step=step), tf.reduce_mean(tf.stack(losses))


@pytest.mark.full
@pytest.mark.parametrize('build', [deployed, towers])
def test_one_clones_nan_is_held(build):
    with tf.Graph().as_default():
        damage = Damage()
        guarded = Guarded(build(damage), cpus=CLONES)
        healthy = {place: 0.0 for place in damage.places.values()}
        guarded.assert_written(healthy)
        for number in range(CLONES):
            for what in ('gradient', 'loss'):
                place = damage.places['%s of clone %d' % (what, number)]
                guarded.assert_held({**healthy, place: np.nan}, what)
                if what == 'gradient':
                    assert 'gradient of fully_connected/weights' in guarded.finding().tensors
        guarded.assert_written(healthy)
        guarded.close()


@pytest.mark.full
def test_train_makes_one_incident_of_it_and_finds_the_clone(tmp_path):
    with tf.Graph().as_default():
        draws = []
        damage = Damage()

        def draw():
            draws.append(0)
            return np.float32(-1 if len(draws) == 3 else 0)  # the log is -Inf

        hurt = tf1.py_func(draw, [], tf.float32, stateful=True)
        hurt.set_shape([])
        damage.places['loss of clone 1'] = hurt
        train_op, total = deployed(damage)
        hook = slimguard.NanLossHook(total, on_nan='raise')
        arguments = dict(number_of_steps=4, hooks=[hook], session_config=CPUS)
        with pytest.raises(slimguard.NanLossError) as caught:
            models.train_quietly(train_op, tmp_path, **arguments)
        assert 'log of 0' in str(caught.value) and 'clone_1/Log' in str(caught.value)
        assert [incident.step for incident in hook.incidents] == [2]

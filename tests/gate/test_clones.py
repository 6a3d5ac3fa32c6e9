"""Several clones of a model in one graph, on several devices: one clone's NaN is one incident."""

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard import compat, gate
from slimguard.graph.clones import summands_by_clone
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


def towers(damage, average):
    """Towers whose gradients are averaged, without model_deploy."""
    optimizer = tf1.train.AdamOptimizer(0.05)
    step = tf1.train.get_or_create_global_step()
    losses = clone_losses(damage, 1.0)
    found = []
    for number, loss in enumerate(losses):
        with tf.name_scope('clone_%d/' % number), tf1.device('/cpu:%d' % number):
            found.append(optimizer.compute_gradients(loss))
    pairs = [(average([g for g, _ in pair]), pair[0][1]) for pair in zip(*found)]
    return optimizer.apply_gradients(pairs, global_step=step), tf.reduce_mean(tf.stack(losses))


def stacked(gradients):
    return tf.reduce_mean(tf.stack(gradients), 0)


def concatenated(gradients):
    return tf.reduce_mean(tf.concat([tf.expand_dims(g, 0) for g in gradients], 0), 0)


BUILDS = {
    'model_deploy': deployed,
    'stack': lambda damage: towers(damage, stacked),
    'concat': lambda damage: towers(damage, concatenated),
}


@pytest.mark.full
@pytest.mark.parametrize('build', BUILDS.values(), ids=BUILDS.keys())
def test_one_clones_nan_is_held_and_names_the_clone(build):
    with tf.Graph().as_default():
        damage = Damage()
        guarded = Guarded(build(damage), cpus=CLONES)
        healthy = {place: 0.0 for place in damage.places.values()}
        guarded.assert_written(healthy)
        for number in range(CLONES):
            for what in ('gradient', 'loss'):
                place = damage.places['%s of clone %d' % (what, number)]
                guarded.assert_held({**healthy, place: np.nan}, what)
                found = guarded.finding()
                assert '(in clone_%d)' % number in found.reason
                if what == 'gradient':
                    assert 'gradient of fully_connected/weights' in found.tensors
                assert not [name for name in found.tensors if name.startswith('clone')]
        every = {place: np.nan for place in damage.places.values()}
        guarded.assert_held(every, 'all clones')
        assert '(in clone_0, clone_1)' in guarded.finding().reason
        guarded.assert_written(healthy)
        guarded.close()


@pytest.mark.full
def test_train_makes_one_incident_of_it(tmp_path):
    with tf.Graph().as_default():
        draws = []
        damage = Damage()

        def draw():
            draws.append(0)
            return np.float32(-1 if len(draws) == 3 else 0)  # its log is infinite

        hurt = tf1.py_func(draw, [], tf.float32, stateful=True)
        hurt.set_shape([])
        damage.places['loss of clone 1'] = hurt
        train_op, total = deployed(damage)
        hook = slimguard.NanLossHook(total, on_nan='raise')
        arguments = dict(number_of_steps=4, hooks=[hook], session_config=CPUS)
        with pytest.raises(slimguard.NanLossError, match=r'\(in clone_1\)') as caught:
            models.train_quietly(train_op, tmp_path, **arguments)
        assert 'log of 0' in str(caught.value) and 'clone_1/Log' in str(caught.value)
        assert [incident.step for incident in hook.incidents] == [2]
        assert hook.incidents[0].reason.endswith('(in clone_1)')


@pytest.mark.full
def test_an_error_of_check_numerics_names_the_clone():
    with tf.Graph().as_default():
        damage = Damage()
        train_op, total = deployed(damage)
        with tf.control_dependencies([train_op]):
            train_op = tf.debugging.check_numerics(total, 'LossTensor is inf or nan')
        guarded = gate.guard(train_op)
        with tf1.Session(config=CPUS) as session:
            session.run(tf1.global_variables_initializer())
            with pytest.raises(tf.errors.InvalidArgumentError) as caught:
                session.run(guarded, {damage.places['loss of clone 1']: np.inf})
        assert '(in clone_1)' in gate.explain(gate.labels_in(caught.value.message)).reason


def test_gradients_asked_for_outside_of_the_scopes_name_the_clone_and_layers_are_none():
    w = tf1.get_variable('w', [3, 3])
    losses = []
    for number in range(2):
        with tf.name_scope('tower_%d' % number):
            losses.append(tf.reduce_sum(tf.square(w)))
    gradients = [tf.gradients(loss, [w])[0] for loss in losses]
    found = summands_by_clone([tf.add_n(gradients) / 2.0], lambda tensor: tensor)
    assert list(found) == ['tower_0', 'tower_1']
    x = tf.ones([2, 3])
    for _ in range(2):
        with tf.name_scope('layer'):
            x = tf.tanh(tf.matmul(x, w))
    (gradient,) = tf.gradients(tf.reduce_sum(x), [w])
    assert gradient.op.type == 'AddN'
    assert not summands_by_clone([gradient], lambda tensor: tensor)

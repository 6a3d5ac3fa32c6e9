"""Gradients of regularizers wait for the gradients that they are added to; nothing else does."""

import numpy as np
import pytest
import tensorflow as tf

from slimguard import compat, gate
from tests.helpers import gate_models as models

tf1 = tf.compat.v1
slim = compat.import_slim()

SIZE = 128  # a weight of 64 KiB
LAYERS = 8
NAMES = ['w%d' % i for i in range(LAYERS)]

REGULARIZERS = {
    'l2': lambda: slim.l2_regularizer(0.01),
    'l1': lambda: slim.l1_regularizer(0.01),
    'both': lambda: slim.l1_l2_regularizer(0.01, 0.01),
}
cases = pytest.mark.parametrize(
    'regularizer, use_resource', [('both', True), ('l2', False), ('l1', True)]
)
loops_as_ops = pytest.mark.parametrize('control_flow', ['v1'], indirect=True)


def weights_with(regularizer, use_resource=True, size=SIZE, trainable=True):
    kwargs = {'use_resource': use_resource, 'trainable': trainable, 'regularizer': regularizer}
    return [tf1.get_variable('w%d' % i, [size, size], **kwargs) for i in range(LAYERS)]


def loss_of(weights, damage=None):
    size = weights[0].shape[0]
    net = tf.constant(np.linspace(-1, 1, size).reshape(1, size), tf.float32)
    for w in weights:
        net = tf.nn.relu(tf.matmul(net, w))
    if damage is not None:
        net = damage.gradient(net)
    return tf.reduce_mean(tf.square(net - 1.0)) + tf1.losses.get_regularization_loss()


def train_op_of(loss, weights=None):
    optimizer = tf1.train.MomentumOptimizer(0.1, 0.9)
    return optimizer.minimize(loss, tf1.train.get_or_create_global_step(), var_list=weights)


def of_regularizer(weight):
    """The op that makes the gradient of a weight's L2 regularizer."""
    found = [
        op
        for op in tf1.get_default_graph().get_operations()
        if op.name.startswith('gradients/%s/Regularizer/' % weight) and 'L2Loss_grad' in op.name
    ]
    (op,) = found
    return op


def by_chance():
    return tf.random.uniform([SIZE, SIZE])


def weights_of(added):
    return sorted(name.split('/')[1] for name in added)


def training(damage, regularizer='l2', use_resource=True):
    loss = loss_of(weights_with(REGULARIZERS[regularizer](), use_resource), damage)
    return train_op_of(loss), loss


def wiring():
    """What each op of the default graph takes and waits for, but for those of the gate."""
    return {
        op.name: ([t.name for t in op.inputs], {c.name for c in op.control_inputs})
        for op in tf1.get_default_graph().get_operations()
        if not op.name.startswith('slimguard/')
    }


def guard_and_compare(train_op, loss=None):
    """Guards; returns the ops of the graph that wait for more than before, and for what."""
    before = wiring()
    gate.guard(train_op, loss)
    after = wiring()
    assert list(before) == list(after)
    added = {}
    for name, (inputs, controls) in after.items():
        assert inputs == before[name][0]
        assert controls >= before[name][1]
        if controls > before[name][1]:
            added[name] = controls - before[name][1]
    return added


@pytest.mark.full
@cases
def test_each_waits_for_the_gradient_that_it_is_added_to(regularizer, use_resource):
    added = guard_and_compare(*training(models.Damage(), regularizer, use_resource))
    layers = ['MatMul'] + ['MatMul_%d' % i for i in range(1, LAYERS)]
    expected = {
        'w%d' % i: {'gradients/%s_grad/tuple/control_dependency_1' % layer}
        for i, layer in enumerate(layers)
    }
    assert {name.split('/')[1]: controls for name, controls in added.items()} == expected
    assert all('Regularizer' in name for name in added)


@pytest.mark.full
@cases
def test_the_bits_are_the_same_and_bad_steps_are_held(regularizer, use_resource):
    def build(damage):
        return training(damage, regularizer, use_resource)

    models.check_bits_and_damage(build, steps=5)


@pytest.mark.full
def test_a_session_keeps_to_it():
    """What TensorFlow makes of the graph before it runs still waits."""
    train_op, loss = training(models.Damage())
    train_op = gate.guard(train_op, loss)
    options = tf1.RunOptions(output_partition_graphs=True)
    metadata = tf1.RunMetadata()
    with models.new_session() as sess:
        models.initialize(sess)
        sess.run(train_op, None, options, metadata)
    inputs = {
        node.name: [name.lstrip('^').split(':')[0] for name in node.input]
        for part in metadata.partition_graphs
        for node in part.node
    }
    for i, layer in [(0, 'MatMul'), (LAYERS - 1, 'MatMul_%d' % (LAYERS - 1))]:
        before = [of_regularizer('w%d' % i).name]
        for name in before:
            before.extend(each for each in inputs[name] if each not in before)
        assert 'gradients/%s_grad/MatMul_1' % layer in before


def test_what_others_take_does_not_wait():
    train_op = train_op_of(loss_of(weights_with(slim.l2_regularizer(0.01))))
    tf1.summary.scalar('norm', tf.norm(of_regularizer('w0').outputs[0]))
    with tf.control_dependencies([of_regularizer('w1')]):
        tf.no_op()
    assert weights_of(guard_and_compare(train_op)) == NAMES[2:]


@pytest.mark.full
def test_what_the_forward_pass_writes_is_read_when_it_was():
    weights = weights_with(slim.l2_regularizer(0.01), False, trainable=False)
    with tf.control_dependencies([weights[0].assign(tf.clip_by_norm(weights[0], 1.0))]):
        loss = loss_of(weights)
    waiting = guard_and_compare(train_op_of(loss, weights))
    assert weights_of(name for name in waiting if 'Regularizer' in name) == NAMES[1:]


def test_what_is_on_another_device_does_not_wait():
    """It would be sent later, and the sum would wait for that."""

    def elsewhere(weight):
        with tf.device('/cpu:1'):
            return 0.01 * tf.nn.l2_loss(weight)

    loss = loss_of(weights_with(elsewhere))
    optimizer = tf1.train.MomentumOptimizer(0.1, 0.9)
    gradients = optimizer.compute_gradients(loss, colocate_gradients_with_ops=True)
    assert not guard_and_compare(optimizer.apply_gradients(gradients))


@pytest.mark.full
@loops_as_ops
def test_what_comes_out_of_a_branch_or_a_loop_does_not_wait(control_flow):
    weights = weights_with(slim.l2_regularizer(0.01))
    loss = loss_of(weights)
    loss += tf1.cond(loss > 0, lambda: 0.1 * tf.nn.l2_loss(weights[0]), lambda: 0.0)
    loss += tf1.while_loop(
        lambda i, _: i < 2, lambda i, x: (i + 1, x + tf.nn.l2_loss(weights[1])), [0, 0.0]
    )[1]
    assert weights_of(guard_and_compare(train_op_of(loss))) == NAMES


@loops_as_ops
def test_nothing_waits_for_what_is_in_a_loop(control_flow):
    """It would wait in there for ever, or TensorFlow would refuse the graph."""
    weights = weights_with(None)
    half = 0.5 * weights[0]

    def body(i, x):
        return i + 1, x + tf.reduce_sum(tf.add_n([half, by_chance()]))

    total = tf1.while_loop(lambda i, _: i < 2, body, [0, 0.0])[1]
    loss = loss_of(weights) + 1e-6 * tf.stop_gradient(total)
    assert not guard_and_compare(train_op_of(loss), loss)


def test_nothing_waits_for_a_write():
    """The write would run where the gate holds it back."""
    weights = weights_with(None)
    loss = loss_of(weights)
    train_op = train_op_of(loss)
    with tf.control_dependencies([train_op]):
        updated = weights[0].read_value() * by_chance()
    mean = tf1.get_variable('mean', [SIZE, SIZE], trainable=False)
    assert not guard_and_compare(mean.assign(tf.add_n([0.5 * weights[1], updated])).op, loss)


def test_what_is_drawn_by_chance_does_not_wait():
    """The order in which ops with a state run is the user's."""
    optimizer = tf1.train.MomentumOptimizer(0.1, 0.9)
    gradients = optimizer.compute_gradients(loss_of(weights_with(None)))
    noisy = [(tf.add_n([g, by_chance()]), w) for g, w in gradients]
    assert not guard_and_compare(optimizer.apply_gradients(noisy))


@pytest.mark.full
def test_nothing_is_wired_that_an_open_session_may_have_seen():
    """TensorFlow would refuse to run it there again."""
    train_op, loss = training(models.Damage())
    other = tf1.Session(graph=tf.Graph())
    other.knows = train_op.graph
    with models.new_session() as sess:
        models.initialize(sess)
        sess.run(train_op)
        assert not guard_and_compare(train_op, loss)
        sess.run([train_op, gate.gate_of(gate.guard(train_op, loss)).train_op])
    # That one is closed, and the other is of another graph. A third gate finds all wired.
    again = tf.group(train_op, tf.no_op())
    assert len(guard_and_compare(again, loss)) == LAYERS
    assert not guard_and_compare(tf.group(again, tf.no_op()), loss)
    other.close()

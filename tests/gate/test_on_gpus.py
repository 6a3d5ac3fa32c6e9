"""Graphs pinned to GPUs, without soft placement: what TensorFlow can start, it can start guarded.

There is no GPU here: each op of slimguard is compared with the kernels that TensorFlow registers.
"""

import collections

import numpy as np
import pytest
import tensorflow as tf

from slimguard import compat, gate
from slimguard.diagnosis.capture import Capture
from slimguard.gate.histograms import leave_out_bad_values
from slimguard.gate.runs_without_training import guard_writes
from tests.helpers import gate_models
from tests.helpers.gpu_kernels import Places, has_kernel, pinned
from tests.helpers.zoo import ZOO, batches, nothing

tf1 = tf.compat.v1
slim = compat.import_slim()

# Ops that must not be on an accelerator, even if it has kernels for them.
HOSTS = ('Print', 'Stage', 'Unstage', 'Assert', 'PyFunc', 'Queue', 'Save')
VARIABLES = frozenset(['Variable', 'VariableV2', 'VarHandleOp'])
WORKER = '/job:worker/replica:0/task:1'


def on_a_cluster(build):
    """Variables on two parameter servers in turn, all else on a GPU of a worker or its CPU."""

    def build_there():
        numbers = iter(range(1000))

        def choose(op):
            server = '/job:ps/replica:0/task:%d/device:CPU:0' % (next(numbers) % 2)
            return server if op.type in VARIABLES else op.device

        with tf1.device(choose):
            return build()

    return pinned(build_there, WORKER + '/device:GPU:0', WORKER + '/device:CPU:0')


ONE_GPU, CLUSTER = (pinned, ''), (on_a_cluster, WORKER)


def guard(train_op, loss, **kwargs):
    """Guards and captures as all loops do; returns slimguard's ops."""
    graph = tf1.get_default_graph()
    before = set(graph.get_operations())
    guarded = gate.gate_of(gate.guard(train_op, loss, **kwargs))
    Capture(guarded)
    return [op for op in graph.get_operations() if op not in before]


def touches_strings(op):
    return any(t.dtype.base_dtype == tf.string for t in [*op.inputs, *op.outputs])


def check_places(ours, task=''):
    """Each of slimguard's ops can run where it is pinned; ops for hosts are on a task's CPU."""
    places = Places(tf1.get_default_graph())
    seen = collections.Counter()
    for op in ours:
        place = places.of(op)
        seen[place.device_type] += 1
        on_host = touches_strings(op) or op.type.startswith(HOSTS)
        if place.device_type == 'GPU':
            assert not on_host, '%s (%s) is for a host' % (op.name, op.type)
            assert has_kernel(op), '%s (%s) has no kernel on a GPU' % (op.name, op.type)
        elif on_host:
            assert place.device_type == 'CPU', '%s (%s) is on any device' % (op.name, op.type)
            assert task in place.to_string(), (op.name, place.to_string())
    return seen


def train_op_of(built):
    loss, train = built if isinstance(built, tuple) else (built, None)
    if train is None:
        train = tf1.train.GradientDescentOptimizer(0.01)
    step = tf1.train.get_or_create_global_step()
    return (train() if callable(train) else train.minimize(loss, step)), loss


@pytest.mark.parametrize(
    'name, world',
    [(name, CLUSTER if number % 2 else ONE_GPU) for number, name in enumerate(ZOO)],
    ids=list(ZOO),
)
def test_each_op_of_ours_has_a_kernel_where_it_is(name, world):
    world, task = world
    train_op, loss = world(lambda: train_op_of(ZOO[name].build()))
    seen = check_places(guard(train_op, loss), task)
    assert seen['GPU'] >= 1 and seen['CPU'] > 20


@pytest.mark.parametrize(
    'optimizer, dtype, use_resource',
    [(name, 'float32', number % 2 == 0) for number, name in enumerate(gate_models.OPTIMIZERS)]
    + [('Momentum', 'float16', False), ('Adam', 'float64', True), ('RMSProp', 'float16', True)],
)
def test_optimizers(optimizer, dtype, use_resource):
    make = gate_models.OPTIMIZERS[optimizer]
    damage = gate_models.Damage
    model = pinned(
        lambda: gate_models.two_weights(damage(), make, tf.as_dtype(dtype), use_resource)
    )
    assert check_places(guard(*model, max_loss=1e3))['GPU'] > 5


def clones():
    """Two towers, as model_deploy has them."""
    damage = gate_models.Damage()
    optimizer = tf1.train.MomentumOptimizer(0.01, 0.9)
    towers = []
    losses = []
    with tf.device('/cpu:0'):
        tf1.train.get_or_create_global_step()
    for number in range(2):
        gpu = '/device:GPU:%d' % number

        def choose(op, gpu=gpu):
            on_cpu = op.type in VARIABLES or not has_kernel(op)
            return op.device or ('/device:CPU:0' if on_cpu else gpu)

        with tf1.variable_scope('', reuse=number > 0), tf.name_scope('clone_%d' % number):
            with tf1.device(choose):
                net = slim.fully_connected(batches(nothing), 8, scope='one')
                net = slim.batch_norm(net, is_training=True, scope='norm')
                net = slim.fully_connected(net, 1, scope='two')
                losses.append(tf.reduce_mean(tf.square(net)) + damage('loss'))
                towers.append(optimizer.compute_gradients(losses[-1]))
    with tf.device('/cpu:0'):
        loss = tf.add_n(losses)
        summed = [(tf.add_n([g for g, _ in same]), same[0][1]) for same in zip(*towers)]
        updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
        with tf.control_dependencies(updates):
            return optimizer.apply_gradients(summed, tf1.train.get_global_step()), loss


@pytest.mark.full
def test_two_towers_and_variables_on_the_cpu():
    model = clones()
    seen = check_places(guard(*model))
    assert seen['CPU'] > 50


def network():
    with slim.arg_scope([slim.conv2d, slim.fully_connected], normalizer_fn=slim.batch_norm):
        x = tf.constant(np.random.RandomState(0).randn(4, 8, 8, 3), tf.float32)
        net = slim.flatten(slim.conv2d(slim.conv2d(x, 8, 3), 8, 3))
        net = slim.dropout(slim.fully_connected(net, 16))
        logits = slim.fully_connected(net, 3, activation_fn=None, normalizer_fn=None)
    slim.losses.sparse_softmax_cross_entropy(logits, tf.zeros([4], tf.int32))
    for variable in tf1.trainable_variables():
        tf1.summary.histogram(variable.op.name, variable)
    return slim.losses.get_total_loss()


@pytest.mark.full
@pytest.mark.parametrize('world, check_numerics', [(ONE_GPU, True), (CLUSTER, False)])
def test_a_network_of_slim(world, check_numerics):
    world, task = world

    def build():
        loss = network()
        optimizer = tf1.train.MomentumOptimizer(0.1, 0.9)
        create = slim.learning.create_train_op
        return create(loss, optimizer, check_numerics=check_numerics), loss

    train_op, loss = world(build)
    ours = guard(train_op, loss)
    before = set(loss.graph.get_operations())
    leave_out_bad_values(loss.graph)
    ours += [op for op in loss.graph.get_operations() if op not in before]
    assert check_places(ours, task)['CPU'] > 20


@pytest.mark.full
@pytest.mark.parametrize('world', [CLUSTER, ONE_GPU])
def test_runs_that_only_write(world):
    """An evaluation of a model with batch norm in place, and the summaries of it."""
    world, task = world

    def build():
        x = tf.constant(np.random.RandomState(0).randn(4, 6), tf.float32)
        norm = {'updates_collections': None, 'is_training': True}
        net = slim.batch_norm(slim.fully_connected(x, 3, None), **norm)
        loss = tf.reduce_mean(tf.square(net))
        with tf.device((task or '') + '/device:CPU:0'):
            summary = tf1.summary.scalar('loss', loss)
        return tf1.train.MomentumOptimizer(0.1, 0.9).minimize(loss), loss, summary

    train_op, loss, summary = world(build)
    ours = guard(train_op, loss)
    before = set(loss.graph.get_operations())
    guard_writes([loss])
    written = gate.guard_summary(summary, gate.gates_of(loss.graph)[train_op.name].train_op)
    assert written is not None
    ours += [op for op in loss.graph.get_operations() if op not in before]
    assert check_places(ours, task)['CPU'] > 20


def many_weights(number):
    weights = [tf1.get_variable('w%d' % i, [300, 20]) for i in range(number)]
    loss = tf.add_n([tf.nn.l2_loss(w) for w in weights])
    return tf1.train.MomentumOptimizer(0.1, 0.9).minimize(loss), loss


@pytest.mark.full
def test_one_number_and_the_loss_tell_that_a_step_is_good():
    """No more values cross from the GPU, however many variables there are."""

    def crossings(number):
        with tf.Graph().as_default():
            train_op, loss = pinned(lambda: many_weights(number))
            guarded = gate.gate_of(gate.guard(train_op, loss))
            fast = guarded.train_op.graph.get_operation_by_name('slimguard/gate/is_fast')
            places = Places(loss.graph)
            found = set()
            waiting = [fast]
            while waiting:
                op = waiting.pop()
                for tensor in op.inputs:
                    if places.of(tensor.op).device_type == 'GPU':
                        assert tensor.shape.rank == 0
                        found.add(tensor.name)
                    else:
                        waiting.append(tensor.op)
            return found

    assert crossings(3) == crossings(30) == {'AddN:0', 'slimguard/gate/AddN:0'}

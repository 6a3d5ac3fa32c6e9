"""`guard`: the train ops it takes and refuses, its messages, and its changes to the graph."""

import math
import threading

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.training import moving_averages

import slimguard
from slimguard import compat, gate
from slimguard.gate.building.announcement import NOT_WATCHED
from tests.helpers import gate_models as models
from tests.helpers.models import LogLines

tf1 = tf.compat.v1
slim = compat.import_slim()


def sgd(damage, name='w'):
    """A train op as an Operation, and its loss."""
    w = tf1.get_variable(name, initializer=tf.constant([0.5, -0.5]))
    loss = tf.reduce_sum(damage.gradient(w)) + damage('loss')
    return tf1.train.GradientDescentOptimizer(0.1).minimize(loss), loss


def slim_train_op(damage, check_numerics=False):
    w = tf1.get_variable('w', initializer=tf.constant([0.5, -0.5]))
    average = tf1.get_variable('average', initializer=tf.constant(0.0), trainable=False)
    loss = tf.reduce_sum(damage.gradient(w)) + damage('loss')
    update = moving_averages.assign_moving_average(
        average, loss * 0.0 + damage('average'), 0.9, zero_debias=False
    )
    tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, update)
    tf1.train.get_or_create_global_step()
    optimizer = tf1.train.GradientDescentOptimizer(0.1)
    return slim.learning.create_train_op(loss, optimizer, check_numerics=check_numerics)


# Arguments that it refuses.


def test_train_op_has_to_be_a_train_op():
    for wrong in (None, 1.5, 'train_op'):
        with pytest.raises(TypeError, match=r'train_op must be a tf.Tensor or a tf.Oper.*not '):
            gate.guard(wrong)


@pytest.mark.skipif(tf.__version__ < '2', reason='eager mode cannot be entered on TensorFlow 1')
def test_eager_tensors_are_refused():
    from tensorflow.python.eager import context

    with context.eager_mode():
        eager = tf.constant(1.0)
    with pytest.raises(RuntimeError, match='train_op is no tensor of a graph.*disable_v2_beh'):
        gate.guard(eager)


def test_loss_of_another_graph():
    with tf.Graph().as_default():
        other = tf.constant(1.0, name='stranger')
    train_op, _ = sgd(models.Damage())
    with pytest.raises(ValueError, match="loss 'stranger:0' belongs to another graph"):
        gate.guard(train_op, other)


def test_loss_has_to_be_a_floating_scalar():
    train_op, loss = sgd(models.Damage())
    with pytest.raises(ValueError, match=r"'vector:0' has shape \(2,\); reduce it first"):
        gate.guard(train_op, tf.zeros([2], name='vector'))
    with pytest.raises(ValueError, match="'count:0' is of dtype int32"):
        gate.guard(train_op, tf.constant(1, name='count'))
    with pytest.raises(TypeError, match='loss must be a tf.Tensor, the scalar loss, but is 3.0'):
        gate.guard(train_op, 3.0)


def test_finalized_graph(graph):
    train_op, loss = sgd(models.Damage())
    graph.finalize()
    with pytest.raises(RuntimeError, match='the graph is finalized.*right after the train op'):
        gate.guard(train_op)


def test_train_op_that_writes_nothing():
    with pytest.raises(ValueError, match="train op 'idle' writes no variable"):
        gate.guard(tf.no_op(name='idle'))


def test_forward_write_that_a_session_has_seen():
    w = tf1.get_variable('w', initializer=tf.constant(0.5))
    average = tf1.get_variable('average', initializer=tf.constant(0.5), trainable=False)
    with tf.control_dependencies([tf1.assign(average, w * 2.0)]):
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(tf.square(w))
    with models.new_session() as sess:
        models.initialize(sess)
        with pytest.raises(ValueError, match="writes 'average' in the forward pass.*open the ses"):
            gate.guard(train_op)


def test_placeholder_behind_a_write():
    train_op, _ = sgd(models.Damage())
    with tf.control_dependencies([train_op]):
        late = tf1.placeholder_with_default(1.0, [], name='late')
        with tf.control_dependencies([late]):
            both = tf.no_op()
    with pytest.raises(ValueError, match="placeholder 'late' waits for a write"):
        gate.guard(both)


# Guarding twice.


def test_guarding_twice_is_guarding_once(graph):
    damage = models.Damage()
    train_op, loss = sgd(damage)
    guarded = gate.guard(train_op, loss)
    size = len(graph.get_operations())
    assert gate.guard(guarded) is gate.guard(train_op) is gate.guard(guarded, loss) is guarded
    assert len(graph.get_operations()) == size
    limited = models.Guarded((guarded, loss), max_loss=5.0)
    limited.assert_held({damage.places['loss']: 10.0}, 'above the limit')
    limited.assert_held({damage.places['loss']: math.nan}, 'nan')
    limited.assert_written()


def test_two_guarded_trainings_of_one_graph():
    damage = models.Damage()
    first = models.Guarded(sgd(damage, 'first'))
    other_damage = models.Damage()
    second = models.Guarded(sgd(other_damage, 'second'), sess=first.sess)
    hurt = {damage.places['gradient']: math.nan}
    first.assert_held(hurt, 'its own gradient')
    second.assert_written(hurt)
    assert first.gate is not second.gate


def test_a_train_op_whose_loss_is_not_checked_is_told_once(graph):
    weight = tf1.get_variable('w', initializer=1.0)
    loss = tf.square(weight)
    optimizer = tf1.train.GradientDescentOptimizer(0.1)
    with LogLines() as lines:
        gate.guard(optimizer.minimize(loss, name='with_loss'), loss)
        gate.guard(tf.group(weight.assign_add(loss)))  # it trains nothing
        assert not list(lines)
        gate.guard(gate.guard(optimizer.minimize(loss, name='without')))
    (line,) = lines
    assert line.startswith("the loss of train op 'without' is not known, so it is neither checked")


# Ops and variables that it does not change.


def test_a_control_input_of_a_forward_write_is_all_that_changes_in_the_graph(graph):
    w = tf1.get_variable('w', initializer=tf.constant(0.5))
    average = tf1.get_variable('average', initializer=tf.constant(0.5), trainable=False)
    write = tf1.assign(average, w * 2.0)
    with tf.control_dependencies([write]):
        train_op = tf1.train.MomentumOptimizer(0.1, 0.9).minimize(tf.square(w))
    before = {node.name: node for node in graph.as_graph_def().node}
    gate.guard(train_op)
    after = {node.name: node for node in graph.as_graph_def().node}
    (changed,) = [name for name in before if after[name] != before[name]]
    assert after[changed].op.startswith('Assign')
    added = [name for name in after[changed].input if name not in before[changed].input]
    assert len(added) == 1 and added[0].startswith('^slimguard/')
    assert all(name.startswith('slimguard/') for name in after if name not in before)


# Its findings and messages.


NAMES = {'loss': 'loss (add)', 'gradient': 'gradient of w', 'average': 'update of average'}


@pytest.mark.full
def test_a_bad_step_returns_its_loss_the_step_and_what_was_bad():
    damage = models.Damage()
    guarded = models.Guarded(slim_train_op(damage))
    fetches = [guarded.train_op, guarded.gate.step, guarded.gate.bad]
    assert guarded.step()
    assert guarded.gate.explain(guarded.bad).tensors == ()
    for place, name in NAMES.items():
        feed = {guarded.gate.watched: True, damage.places[place]: math.inf}
        value, step, bad = guarded.sess.run(fetches, feed)
        assert (value, step) == (math.inf if place == 'loss' else value, 1)
        finding = guarded.gate.explain(bad)
        assert finding.tensors[:1] == (name,)
        assert finding.tensors == (name,) or place == 'loss'
        assert finding.reason.startswith('not finite: ' + name)
    assert guarded.sess.run(fetches, {guarded.gate.watched: True})[1] == 2
    labels = [gate.Label('value', name) for name in ('update of a', 'update of b', 'update of a')]
    assert gate.explain(labels).reason == 'not finite: update of a, update of b'


def test_a_bad_step_that_nobody_watches_prints_one_line(capfd):
    x = tf1.placeholder(tf.float32, [])
    variables = [tf1.get_variable('v%d' % number, initializer=1.0) for number in range(7)]
    optimizer = tf1.train.GradientDescentOptimizer(0.1)
    train_op = slimguard.create_train_op(tf.add_n(variables) * x, optimizer, check_numerics=False)
    guarded = models.Guarded(train_op)
    guarded.sess.run(train_op, {x: 1.0})
    guarded.assert_held({x: np.nan}, 'watched')
    assert 'slimguard' not in capfd.readouterr().err
    guarded.sess.run(train_op, {x: np.nan})
    (line,) = [line for line in capfd.readouterr().err.splitlines() if 'slimguard' in line]
    bad = ', gradient of v0, gradient of v1 and 5 more; loss nan'
    bad += '; ' + NOT_WATCHED
    assert line.startswith(
        'slimguard: this step wrote nothing (global step 1); bad: loss '
    ) and line.endswith(bad)


@pytest.mark.parametrize('dtype', [tf.float16, tf.bfloat16, tf.float64], ids=lambda d: d.name)
def test_any_loss_can_be_printed(dtype, capfd):
    w = tf1.get_variable('w', initializer=tf.constant(0.5))
    loss = tf.cast(w, dtype) + tf1.placeholder_with_default(tf.cast(math.nan, dtype), [])
    train_op = gate.guard(tf.group(tf1.assign_sub(w, 0.1)), loss)
    with models.new_session() as sess:
        models.initialize(sess)
        sess.run(train_op)
    assert 'loss nan' in capfd.readouterr().err


@pytest.mark.full
def test_with_check_numerics_a_bad_step_raises_where_nobody_watches():
    damage = models.Damage()
    train_op = slim_train_op(damage, check_numerics=True)
    guarded = models.Guarded(train_op)
    assert guarded.gate.raises
    guarded.sess.run(guarded.train_op)
    for place, name in NAMES.items():
        for value in models.BAD.values():
            hurt = {damage.places[place]: value}
            before = guarded.snapshot(guarded.sess)
            with pytest.raises(tf.errors.InvalidArgumentError) as caught:
                guarded.sess.run(guarded.train_op, hurt)
            assert not models.changed(before, guarded.snapshot(guarded.sess))
            assert gate.Label('value', name) in gate.labels_in(caught.value.message)
            assert '[%s]' % NOT_WATCHED in caught.value.message
            assert ('LossTensor is inf or nan' in caught.value.message) == (place == 'loss')
            guarded.assert_held(hurt, 'watched')
    guarded.assert_written()
    assert gate.labels_in('LossTensor is inf or nan : Tensor had NaN values') == []
    grouped = gate.guard(tf.group(train_op, tf.no_op()))
    with pytest.raises(tf.errors.InvalidArgumentError, match='this step wrote nothing'):
        guarded.sess.run(grouped, {damage.places['loss']: math.nan})


# Each batch once.


def test_each_batch_is_drawn_once():
    """A dataset, a queue and Python count up; every seventh batch is NaN, and none is left out."""
    drawn = []

    def draw():
        drawn.append(len(drawn))
        return np.float32(drawn[-1])

    def hurt(number):
        return tf1.where(tf.equal(number % 7, 3), math.nan, 0.0)

    dataset = tf.data.Dataset.range(1000)
    numbers = tf1.data.make_one_shot_iterator(dataset).get_next()
    queue = tf.queue.FIFOQueue(100, tf.float32, [[]])
    fill = queue.enqueue_many([np.arange(40, dtype=np.float32)])
    by_python = tf.reshape(tf1.py_func(draw, [], tf.float32), [])
    parts = [tf.cast(numbers, tf.float32), queue.dequeue(), by_python]
    batch = tf.stack(parts) + hurt(numbers)
    seen = tf1.get_variable('seen', initializer=tf.zeros([3]), trainable=False)
    w = tf1.get_variable('w', initializer=0.0)
    train = tf1.train.AdamOptimizer(0.1).minimize(tf.reduce_sum(tf.square(w - batch)))
    guarded = models.Guarded(tf.group(train, tf1.assign_add(seen, batch)))
    guarded.sess.run(fill)
    assert [guarded.step() for _ in range(20)] == [i % 7 != 3 for i in range(20)]
    assert guarded.sess.run(seen).tolist() == [sum(i for i in range(20) if i % 7 != 3)] * 3
    assert guarded.sess.run(queue.size()) == 40 - 20
    assert drawn == list(range(20))


def test_variables_that_are_written_and_undone_are_known():
    damage = models.Damage()
    usual = gate.gate_of(gate.guard(slim_train_op(damage)))
    assert usual.transient == ()
    v = tf1.get_variable('v', initializer=tf.constant([1.0, 2.0]))
    average = tf1.get_variable('forward', initializer=0.5, trainable=False)
    with tf.control_dependencies([tf1.assign(average, damage('forward'))]):
        loss = tf.reduce_sum(tf.square(v))
        put_back = gate.guard(tf1.train.GradientDescentOptimizer(0.1).minimize(loss))
    assert gate.gate_of(put_back).transient == (average.op,)
    centered = tf1.train.RMSPropOptimizer(0.1, centered=True)
    trial = gate.guard(centered.minimize(tf.reduce_sum(tf.square(v))))
    slots = [centered.get_slot(v, name).op for name in centered.get_slot_names()]
    assert set(gate.gate_of(trial).transient) == {v.op, *slots}


# Where it runs.


def test_session_that_was_there_before():
    queue = tf.queue.FIFOQueue(10, tf.float32, [[]])
    number = tf1.placeholder(tf.float32, [])
    enqueue = queue.enqueue(number)
    table = tf1.get_variable('table', initializer=tf.ones([4, 2]))
    initializer = tf1.global_variables_initializer()
    sess = models.new_session()
    sess.run(initializer)

    def feed():
        for value in (1.0, math.nan, 2.0):
            sess.run(enqueue, {number: value})

    feeder = threading.Thread(target=feed)
    feeder.start()
    rows = tf.nn.embedding_lookup(table, [0, 1])
    loss = tf.reduce_sum(tf.square(rows - queue.dequeue()))
    train_op = tf1.train.AdamOptimizer(0.1).minimize(loss)
    guarded = models.Guarded((train_op, loss), sess=sess)
    assert [guarded.step() for _ in range(3)] == [True, False, True]
    feeder.join()


# Optimizers with a life of their own.


def loss_scale_optimizer():
    scaled = tf1.train.GradientDescentOptimizer(0.1)
    for home in (tf1.mixed_precision, tf1.train.experimental):
        if hasattr(home, 'MixedPrecisionLossScaleOptimizer'):
            scale = home.DynamicLossScale(initial_loss_scale=8.0, increment_period=1000)
            return home.MixedPrecisionLossScaleOptimizer(scaled, scale)
    return pytest.skip('TensorFlow %s has no loss-scale optimizer' % tf.__version__)


@pytest.mark.full
def test_loss_scale_optimizer_handles_an_inf_gradient_itself():
    if not hasattr(tf1, 'mixed_precision'):
        tf1.mixed_precision = tf1.train.experimental
    damage = models.Damage()
    w = tf1.get_variable('w', initializer=tf.constant([0.5, -0.5]))
    loss = tf.reduce_sum(damage.gradient(w)) + damage('loss')
    optimizer = loss_scale_optimizer()
    pairs = optimizer.compute_gradients(loss, [w])
    guarded = models.Guarded((optimizer.apply_gradients(pairs), loss))
    (scale,) = [v for v in tf1.global_variables() if 'loss_scale' in v.name]
    guarded.assert_written()
    assert guarded.sess.run(scale) == 8.0
    before = guarded.sess.run(w)
    guarded.assert_written({damage.places['gradient']: math.inf})
    assert guarded.sess.run(scale) == 4.0
    assert (guarded.sess.run(w) == before).all()
    guarded.assert_held({damage.places['loss']: math.nan}, 'a loss that no scale explains')
    guarded.assert_written()


@pytest.mark.every_cell
@pytest.mark.parametrize('use_resource', [False, True])
def test_what_is_computed_of_an_updated_variable_is_in_a_bad_step_as_it_would_be_without(
    use_resource,
):
    tf1.get_variable_scope().set_use_resource(use_resource)
    x = tf1.placeholder(tf.float32, [])
    weight = tf1.get_variable('w', initializer=3.0)
    update = tf1.train.GradientDescentOptimizer(1.0).minimize(weight * x)
    with tf.control_dependencies([update]):
        twice = weight.read_value() * 2.0
    train_op = slimguard.guard(twice)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        assert [session.run(train_op, {x: value}) for value in (1.0, np.nan, 1.0)] == [4, 4, 2]


def test_a_value_of_a_forward_pass_that_writes_is_told_what_to_pass():
    average = tf1.get_variable('average', initializer=1.0, trainable=False)
    x = tf1.placeholder_with_default(1.0, [])
    with tf.control_dependencies([tf1.assign(average, x)]):
        loss = tf.identity(x) * 2.0
    with pytest.raises(ValueError, match=r"trains nothing.*writes 'average'.*tf\.group\(value\)"):
        slimguard.guard(loss)
    evaluation = slimguard.guard(tf.group(loss))
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        session.run(evaluation, {x: np.nan})
        assert session.run(average) == 1.0
        session.run(evaluation, {x: 3.0})
        assert session.run(average) == 3.0

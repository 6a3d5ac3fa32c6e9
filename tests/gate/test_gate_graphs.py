"""The gate around train ops of every build: a bad step changes no bit, a good one writes all.

Each function below builds one training and names the places where it can be hurt.
"""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import function
from tensorflow.python.ops import gen_resource_variable_ops as resource_ops
from tensorflow.python.training import moving_averages

from slimguard import compat, gate
from tests.helpers import gate_models as models

tf1 = tf.compat.v1
slim = compat.import_slim()

ONE = tf.constant_initializer(1.0)
MODELS = {}
IN_CONTROL_FLOW = {}


def model(build):
    MODELS[build.__name__] = build
    return build


def in_control_flow(build):
    """A model with a branch or a loop, to be built with either control flow."""
    IN_CONTROL_FLOW[build.__name__] = build
    return build


def weight(name='w', value=(0.5, -0.25, 0.75), **kwargs):
    return tf1.get_variable(name, initializer=tf.constant(value), **kwargs)


def simple_loss(damage, w, scope=''):
    error = damage.gradient(w, scope + 'gradient') - [1.0, 2.0, 3.0]
    return tf.reduce_sum(tf.tanh(error)) + damage(scope + 'loss')


def sgd(loss, **kwargs):
    return tf1.train.GradientDescentOptimizer(0.1).minimize(loss, **kwargs)


# Train ops as slim and users' scripts make them.


@model
def slim_clipping_and_multipliers(damage):
    w, v = weight(), weight('v')
    loss = simple_loss(damage, w) + tf.reduce_sum(tf.square(damage.gradient(v, 'other gradient')))
    return slim.learning.create_train_op(
        loss,
        tf1.train.MomentumOptimizer(0.1, 0.9),
        clip_gradient_norm=0.5,
        gradient_multipliers={w.op.name: 0.25},
        summarize_gradients=True,
    )


@model
def clipping_by_global_norm_and_a_decayed_learning_rate(damage):
    w, v = weight(), weight('v')
    step = tf1.train.get_or_create_global_step()
    loss = simple_loss(damage, w) + tf.reduce_sum(tf.square(damage.gradient(v, 'other gradient')))
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, [w, v]), 1.0)
    rate = tf1.train.exponential_decay(0.1, step, 2, 0.5) + damage('learning rate')
    optimizer = tf1.train.AdagradOptimizer(rate)
    return optimizer.apply_gradients(zip(gradients, [w, v]), step), loss


@model
def global_step_before(damage):
    loss = simple_loss(damage, weight())
    with tf.control_dependencies([tf1.assign_add(tf1.train.get_or_create_global_step(), 1)]):
        return sgd(loss), loss


@model
def hand_made_adam_weight_decay(damage):
    w = weight()
    m = weight('m', (0.0, 0.0, 0.0), trainable=False)
    v = weight('v', (0.0, 0.0, 0.0), trainable=False)
    loss = simple_loss(damage, w)
    gradient = tf.clip_by_global_norm(tf.gradients(loss, [w]), 1.0)[0][0]
    next_m = tf.multiply(0.9, m) + tf.multiply(0.1, gradient)
    next_v = tf.multiply(0.999, v) + tf.multiply(0.001, tf.square(gradient))
    update = next_m / (tf.sqrt(next_v) + 1e-6) + 0.01 * w
    step = tf1.train.get_or_create_global_step()
    train = tf.group(w.assign(w - 0.1 * update), m.assign(next_m), v.assign(next_v))
    return tf.group(train, [step.assign(step + 1)]), loss


@model
def scattered_by_hand(damage):
    """A product of finite numbers can overflow."""
    table = weight('table', ((1.0, 2.0), (3.0, 4.0), (5.0, 6.0)), use_resource=False)
    other = weight('other', (1.0, 2.0, 3.0), use_resource=False)
    rows = damage.gradient(tf.gather(table, [0, 2]))
    loss = tf.reduce_sum(tf.square(rows)) + damage('loss')
    slices = tf.gradients(loss, table)[0]
    products = tf1.scatter_mul(other, [0, 2], 2.0 + tf.stack([damage('factor'), 0.0]))
    return tf.group(tf1.scatter_sub(table, slices.indices, 0.01 * slices.values), products), loss


@model
def slice_assign(damage):
    w = weight(use_resource=False)
    loss = simple_loss(damage, w)
    return w[:2].assign((w - tf.gradients(loss, w)[0])[:2]), loss


@model
def partitioned(damage):
    partitioner = tf1.fixed_size_partitioner(2)
    with tf1.variable_scope('parts', partitioner=partitioner):
        w = tf1.get_variable('w', [4, 3], initializer=ONE)
        table = tf1.get_variable('table', [4, 3], initializer=ONE)
    rows = tf.nn.embedding_lookup(table, [0, 3])
    whole = damage.gradient(tf.convert_to_tensor(w))
    loss = tf.reduce_sum(tf.square(whole)) + tf.reduce_sum(damage.gradient(rows, 'rows'))
    return tf1.train.AdamOptimizer(0.01).minimize(loss + damage('loss')), loss + damage('loss')


@model
def other_state(damage):
    """Integer variables, and local ones."""
    flag = tf1.get_variable('flag', initializer=False, trainable=False)
    text = tf1.get_variable('text', initializer='a', trainable=False, use_resource=False)
    count = tf1.get_variable(
        'count', initializer=0, trainable=False, collections=[tf1.GraphKeys.LOCAL_VARIABLES]
    )
    loss = simple_loss(damage, weight('w/with/slashes'))
    other = [flag.assign(tf.logical_not(flag)), count.assign_add(1)]
    other.append(tf1.assign(text, tf.strings.join([text, 'b'])))
    return tf.group(sgd(loss), *other), loss


# Moving averages.


def only_finite(x):
    """Drops the NaN, as a ReLU or a max-pooling kernel may do."""
    return tf.where(tf.math.is_finite(x), x, tf.zeros_like(x))


def with_average(damage, x):
    """`x`, and a moving average of it that has a place for damage of its own."""
    average = tf1.get_variable('average', [3], trainable=False, initializer=ONE)
    mean = tf.reduce_mean(x, [0, 1, 2]) + damage('average')
    return moving_averages.assign_moving_average(average, mean, 0.9, zero_debias=False)


def image(damage):
    data = tf.constant(np.linspace(-1, 1, 24).reshape(2, 2, 2, 3), tf.float32)
    return data * tf1.get_variable('scale', [3], initializer=ONE)


def trained(damage, x):
    gradient = damage.gradient(x)
    return tf.reduce_mean(tf.square(gradient - 1.0)) + damage('loss')


@model
def average_before_minimize(damage):
    x = image(damage)
    update = with_average(damage, x)
    loss = trained(damage, x)
    with tf.control_dependencies([update]):
        return tf1.train.AdamOptimizer(0.1).minimize(loss), loss


@model
def average_before_minimize_ref(damage):
    with tf1.variable_scope('', use_resource=False):
        return average_before_minimize(damage)


@model
def average_in_the_forward_pass(damage):
    x = image(damage)
    with tf.control_dependencies([with_average(damage, x)]):
        x = tf.identity(x)
    loss = trained(damage, x)
    with tf.control_dependencies([sgd(loss)]):
        return tf.identity(loss)


@model
def average_with_zero_debias(damage):
    x = image(damage)
    average = tf1.get_variable('average', [], trainable=False, initializer=ONE)
    value = tf.reduce_mean(x) + damage('average')
    update = moving_averages.assign_moving_average(average, value, 0.9, zero_debias=True)
    loss = trained(damage, x)
    return tf.group(sgd(loss), update), loss


@model
def exponential_moving_average(damage):
    w = weight()
    loss = simple_loss(damage, w)
    step = tf1.train.get_or_create_global_step()
    ema = tf1.train.ExponentialMovingAverage(0.9, step)
    with tf.control_dependencies([sgd(loss, global_step=step)]):
        return ema.apply([w]), loss


# Batch normalization.


def normalized(damage, x, is_training=True, **kwargs):
    hurt_update = x + damage('average')  # reaches the moving averages
    return slim.batch_norm(hurt_update, decay=0.9, is_training=is_training, **kwargs)


def batch_norm_model(is_training=None, around_minimize=False, **kwargs):
    def build(damage):
        net = image(damage)
        training = True if is_training is None else is_training()
        net = normalized(damage, net, training, **kwargs)
        loss = trained(damage, only_finite(net))
        updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
        if around_minimize:
            with tf.control_dependencies(updates):
                return tf1.train.MomentumOptimizer(0.1, 0.9).minimize(loss), loss
        tf1.train.get_or_create_global_step()
        return slim.learning.create_train_op(loss, tf1.train.MomentumOptimizer(0.1, 0.9))

    return build


def is_training_tensor():
    return tf1.placeholder_with_default(True, [], 'is_training')


MODELS['batch_norm_fused'] = batch_norm_model(fused=True)
MODELS['batch_norm_in_forward_pass_zero_debias'] = batch_norm_model(
    fused=False, updates_collections=None, zero_debias_moving_mean=True
)
MODELS['batch_renorm'] = batch_norm_model(fused=False, renorm=True)
IN_CONTROL_FLOW['batch_norm_around_minimize'] = batch_norm_model(
    is_training_tensor, fused=True, around_minimize=True
)
IN_CONTROL_FLOW['batch_norm_in_forward_pass'] = batch_norm_model(
    is_training_tensor, fused=False, updates_collections=None
)


# Control flow.


@in_control_flow
def update_in_a_branch_of_a_branch(damage):
    w = weight()
    loss = simple_loss(damage, w)
    optimizer = tf1.train.AdamOptimizer(0.1)
    pairs = optimizer.compute_gradients(loss, [w])
    optimizer._create_slots([w])  # variables made in a branch could not be initialized
    yes = tf1.placeholder_with_default(True, [])

    def update():
        with tf.control_dependencies([optimizer.apply_gradients(pairs)]):
            return tf.constant(1)

    def inner():
        return tf.cond(yes, update, lambda: tf.constant(0))

    return tf.cond(yes, inner, lambda: tf.constant(0)), loss


@in_control_flow
def training_in_while_loop(damage):
    w, hurt = weight(), damage('loss')

    def body(i):
        loss = tf.reduce_sum(tf.square(w - 1.0 + hurt))
        with tf.control_dependencies([tf1.assign_sub(w, 0.1 * tf.gradients(loss, w)[0])]):
            return i + 1

    return tf.group(tf.while_loop(lambda i: i < 3, body, [tf.constant(0)], parallel_iterations=1))


@model
def training_in_function(damage):
    w = weight(use_resource=True)

    @tf.function(autograph=False)
    def update(hurt):
        gradient = 2.0 * (w - 1.0) + hurt
        w.assign_sub(0.1 * gradient)
        return tf.reduce_sum(gradient)

    return update(damage('gradient'))


@in_control_flow
def forward_while_loop_then_average(damage):
    """As in a recurrent net: a loop computes, and the moving average is written after it."""
    w = weight()

    def body(i, state):
        return i + 1, tf.tanh(state * w + 0.1)

    _, state = tf.while_loop(lambda i, _: i < 3, body, [tf.constant(0), tf.ones([3])])
    average = tf1.get_variable('average', [3], trainable=False, initializer=ONE)
    update = moving_averages.assign_moving_average(
        average, state + damage('average'), 0.9, zero_debias=False
    )
    loss = tf.reduce_sum(damage.gradient(state)) + damage('loss')
    with tf.control_dependencies([update]):
        return sgd(loss), loss


@in_control_flow
def average_written_in_forward_while_loop(damage):
    w = weight()
    average = tf1.get_variable('average', [3], trainable=False, initializer=ONE)
    hurt = damage('average')

    def body(i, state):
        update = tf1.assign(average, 0.9 * average + 0.1 * state + hurt)
        with tf.control_dependencies([update]):
            return i + 1, tf.tanh(state * w + 0.1)

    _, state = tf.while_loop(
        lambda i, _: i < 3, body, [tf.constant(0), tf.ones([3])], parallel_iterations=1
    )
    loss = tf.reduce_sum(damage.gradient(state)) + damage('loss')
    return sgd(loss), loss


# Several trainings in one graph.


@model
def one_train_op_for_both_players(damage):
    """The second loss is computed from what the first training wrote."""
    g, d = weight('g'), weight('d', (1.0, 2.0, -1.0))
    d_loss = tf.reduce_sum(tf.square(damage.gradient(d, 'd gradient') * g))
    hurt_g, hurt_loss = damage.gradient(g, 'g gradient'), damage('g loss')
    with tf.control_dependencies([sgd(d_loss, var_list=[d])]):
        g_loss = tf.reduce_sum(tf.sin(hurt_g * d.read_value())) + hurt_loss
        g_step = sgd(g_loss, var_list=[g])
    with tf.control_dependencies([g_step]):
        return tf.identity(g_loss)


@model
def average_after_guarded_ops(damage):
    g, d = weight('g'), weight('d')
    g_loss, d_loss = simple_loss(damage, g, 'g '), simple_loss(damage, d, 'd ')
    guarded = [
        gate.guard(sgd(d_loss, var_list=[d]), d_loss),
        gate.guard(sgd(g_loss, var_list=[g]), g_loss),
    ]
    with tf.control_dependencies(guarded):
        return tf1.train.ExponentialMovingAverage(0.9).apply([g, d]), d_loss + g_loss


@pytest.mark.full
@pytest.mark.parametrize('build', MODELS.values(), ids=MODELS.keys())
def test_finite_steps_give_the_same_bits_and_bad_ones_change_nothing(build):
    models.check_bits_and_damage(build, steps=20)


@pytest.mark.full
@pytest.mark.parametrize('build', IN_CONTROL_FLOW.values(), ids=IN_CONTROL_FLOW.keys())
def test_the_same_in_branches_and_loops(build, control_flow):
    # The branches and loops of v2 are functions, which take no ref variable.
    tf1.get_variable_scope().set_use_resource(control_flow == 'v2')
    models.check_bits_and_damage(build, steps=5)


def test_a_train_op_that_only_counts_is_guarded_like_any_other():
    step = tf1.train.get_or_create_global_step()
    guarded = gate.guard(step.assign_add(1))
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for _ in range(3):
            session.run(guarded)
        assert session.run(step) == 3


def test_two_graphs_may_mean_other_functions_by_one_name():
    """The type of the op that calls a `Defun` is the function's name."""
    for count in (1, 2):
        with tf.Graph().as_default():

            @function.Defun(tf.resource, *[tf.float32] * count, func_name='update')
            def update(handle, *amounts):
                amount = tf.add_n(amounts)
                with tf.control_dependencies([resource_ops.assign_sub_variable_op(handle, amount)]):
                    return tf.identity(amount)

            hurt = tf1.placeholder_with_default(0.0, [])
            w = weight(use_resource=True)
            guarded = models.Guarded(update(w.handle, *[hurt + tf.ones([3])] * count))
            guarded.assert_written({hurt: 0.0})
            guarded.assert_held({hurt: np.nan}, 'nan in what a function writes')


kinds = pytest.mark.parametrize('use_resource', [False, True], ids=['ref', 'resource'])
loops_as_ops = pytest.mark.parametrize('control_flow', ['v1'], indirect=True)


def loop_of_three(body):
    count = tf1.while_loop(lambda i: i < 3, body, [tf.constant(0)])
    return count[0] if isinstance(count, list) else count


@kinds
@loops_as_ops
def test_a_loop_never_writes_more_than_is_seen(use_resource, control_flow):
    """Many steps, since a read that comes too early does not fail each time."""
    hurt = tf1.placeholder_with_default(0.0, [])
    w = weight(use_resource=use_resource)

    def body(i):
        with tf.control_dependencies([tf1.assign_sub(w, 0.1 * (w + hurt))]):
            return [i + 1]

    guarded = models.Guarded(loop_of_three(body))
    for _ in range(60):
        guarded.assert_held({hurt: np.nan}, 'nan in the loop')
    guarded.assert_written({hurt: 0.0})


@kinds
@loops_as_ops
def test_a_forward_write_in_a_loop_that_only_the_update_waits_for(use_resource, control_flow):
    """Neither the loss nor a gradient is computed from a result of the loop."""
    hurt = tf1.placeholder_with_default(0.0, [])
    w = weight(use_resource=use_resource)
    average = weight('average', trainable=False, use_resource=use_resource)

    def body(i):
        slow = tf.linalg.matmul(tf.ones([60, 60]) * hurt, tf.ones([60, 60]))
        update = tf1.assign(average, 0.9 * average + 0.1 * slow[0, 0])
        with tf.control_dependencies([update]):
            return [i + 1]

    count = loop_of_three(body)
    gradient = w * 0.5
    with tf.control_dependencies([count]):
        train_op = tf1.assign_sub(w, gradient)
    guarded = models.Guarded(tf.group(train_op))
    guarded.assert_written({hurt: 0.0})
    for _ in range(60):
        guarded.assert_held({hurt: np.nan}, 'nan in the loop')


def test_a_loss_that_waits_for_a_write_is_checked_after_it():
    """The loss of the second of two trainings is NaN, and its update is undone.

    The reason does not say that its weights were bad before.
    """
    noise = tf1.placeholder(tf.float32, [3])
    first, second = weight('first'), weight('second')
    with tf.control_dependencies([sgd(tf.reduce_sum(tf.square(first)), var_list=[first])]):
        loss = tf.reduce_sum(tf.sin(second * first.read_value()) * noise)
        train_op = sgd(loss, var_list=[second])
    guarded = models.Guarded((train_op, loss))
    guarded.assert_written({noise: [1.0] * 3})
    guarded.assert_held({noise: [np.nan] * 3}, 'nan in the second loss')
    finding = guarded.finding()
    assert 'not finite: loss (Sum_1); not finite once updated: second' in finding.reason
    assert not finding.state_lost

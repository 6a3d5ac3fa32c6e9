"""Fetches beside a train op that would run the original of an op that the gate holds back.

Each function below builds a training with such a fetch, and returns the fetches.
"""

import math
import re

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard.gate.written_beside import OutsideTheGateError
from tests.helpers.gate_models import new_session
from tests.helpers.models import LogLines, records_in

tf1 = tf.compat.v1
BUILDS = {}


def build(make):
    BUILDS[make.__name__] = make
    return make


def weight(name='w', **kwargs):
    return tf1.get_variable(name, [2, 2], initializer=tf1.ones_initializer(), **kwargs)


def statistic(name='center', **kwargs):
    """A variable that is no weight, although it is trainable."""
    return tf1.get_variable(name, [2], initializer=tf1.zeros_initializer(), **kwargs)


def mixed(center, x):
    return tf1.assign(center, 0.9 * center + 0.1 * tf.reduce_mean(x, 0))


def sgd(loss, *variables):
    return tf1.train.GradientDescentOptimizer(0.1).minimize(loss, var_list=variables)


@build
def a_loss_that_waits_for_a_statistic(x):
    w = weight()
    with tf.control_dependencies([mixed(statistic(), tf.matmul(x, w))]):
        loss = tf.reduce_mean(tf.matmul(x, w) ** 2)
    return [sgd(loss, w), loss]


@build
def one_that_waits_where_its_gradient_does_not(x):
    w, center = weight(), statistic(use_resource=True)
    error = tf.matmul(x, w)
    with tf.control_dependencies([mixed(center, error)]):
        loss = tf.reduce_mean(tf.square(error))
    return [sgd(loss, w), loss]


@build
def the_same_with_an_update_by_hand(x):
    w = weight()
    with tf.control_dependencies([mixed(statistic(), tf.matmul(x, w))]):
        loss = tf.reduce_mean(tf.matmul(x, w) ** 2)
    (gradient,) = tf1.gradients(loss, [w])
    return [tf1.assign_sub(w, 0.1 * gradient).op, loss]


@build
def a_statistic_that_the_loss_is_computed_from_in_a_branch(x):
    w, center = weight(), statistic(use_resource=True)
    centered = tf1.cond(
        tf.shape(x)[0] > 1, lambda: tf.identity(mixed(center, x)), center.read_value
    )
    loss = tf.reduce_mean((tf.matmul(x, w) - centered) ** 2)
    return [sgd(loss, w), loss]


@build
def a_value_that_waits_for_a_statistic(x):
    w = weight()
    loss = tf.reduce_mean(tf.matmul(x, w) ** 2)
    trained = sgd(loss, w)
    with tf.control_dependencies([mixed(statistic(trainable=False), x)]):
        return [trained, tf.identity(loss)]


@build
def an_update_op_that_the_train_op_runs_too(x):
    w = weight()
    loss = tf.reduce_mean(tf.matmul(x, w) ** 2)
    update = mixed(statistic(trainable=False), x)
    return [tf.group(sgd(loss, w), update), update]


@build
def an_average_of_the_weights(x):
    w = weight()
    loss = tf.reduce_mean(tf.matmul(x, w) ** 2)
    trained = sgd(loss, w)
    with tf.control_dependencies([trained]):
        average = tf1.train.ExponentialMovingAverage(0.9).apply([w])
    return [tf.group(trained, average), average]


@build
def a_counter_of_two_train_ops(x):
    count = statistic('count').assign_add([1.0, 1.0])
    losses = [tf.reduce_mean(tf.matmul(x, weight(name)) ** 2) for name in 'vw']
    variables = tf1.trainable_variables()[1:]
    return [tf.group(sgd(loss, v), count) for loss, v in zip(losses, variables)]


@build
def an_op_that_writes_something_of_its_own_too(x):
    w = weight()
    loss = tf.reduce_mean(tf.matmul(x, w) ** 2)
    update = mixed(statistic(trainable=False), x)
    other = mixed(statistic('other', trainable=False), x)
    return [tf.group(sgd(loss, w), update), tf.group(update, other), other]


def batches():
    for number in range(4):
        batch = np.random.RandomState(number).rand(4, 2).astype(np.float32)
        if number == 2:
            batch[1, 1] = math.nan
        yield batch


def all_variables():
    """Reads of all variables of the default graph, by name."""
    return {v.op.name: v.read_value() for v in tf1.global_variables()}


def values_of(make, leaves_out=()):
    """The values that each step fetched, and all variables after the last step."""
    with tf.Graph().as_default(), new_session() as session:
        x = tf1.placeholder(tf.float32, [4, 2])
        fetches, read = make(x), all_variables()
        session.run(tf1.global_variables_initializer())
        fetched = [
            session.run(fetches, {x: batch})
            for number, batch in enumerate(batches())
            if number not in leaves_out
        ]
        return fetched, session.run(read)


@pytest.mark.every_cell
@pytest.mark.parametrize('name', sorted(BUILDS))
def test_a_bad_step_is_as_if_it_had_not_been(name, tmp_path):
    expected, variables = values_of(BUILDS[name], leaves_out=[2])
    with slimguard.instrument('skip', logdir=str(tmp_path), capture=False), LogLines() as lines:
        fetched, guarded_variables = values_of(BUILDS[name])
    assert not [line for line in lines if 'NOT guarded' in line]
    assert [record['action'] for record in records_in(tmp_path)] == ['skip']
    del fetched[2]
    np.testing.assert_equal([row[1:] for row in fetched], [row[1:] for row in expected])
    np.testing.assert_equal(guarded_variables, variables)


@pytest.mark.parametrize('use_resource', [False, True])
def test_a_step_that_does_not_fetch_the_loss_does_not_make_a_write_that_it_alone_waits_for(
    use_resource,
):
    tf1.get_variable_scope().set_use_resource(use_resource)
    with slimguard.instrument('skip', capture=False), new_session() as session:
        x = tf1.placeholder(tf.float32, [4, 2])
        train_op, _ = one_that_waits_where_its_gradient_does_not(x)
        session.run(tf1.global_variables_initializer())
        session.run(train_op, {x: np.ones([4, 2])})
        values = session.run(all_variables())
        assert np.all(values['center'] == 0) and np.all(values['w'] != 1)


@pytest.mark.full
@pytest.mark.parametrize('use_resource', [False, True])
def test_guard_puts_back_a_trainable_statistic_that_the_loss_waits_for(use_resource, caplog):
    x = tf1.placeholder(tf.float32, [4, 2])
    tf1.get_variable_scope().set_use_resource(use_resource)
    train_op, loss = a_loss_that_waits_for_a_statistic(x)
    hook = slimguard.NanLossHook(loss, on_nan='skip')
    guarded, read = slimguard.guard(train_op, loss=loss), all_variables()
    with tf1.train.SingularMonitoredSession(hooks=[hook]) as session:
        fetched = [session.run([guarded, loss], {x: batch})[1] for batch in batches()]
        variables = session.raw_session().run(read)
    assert not [each for each in caplog.records if 'NOT guarded' in each.getMessage()]
    expected, plain = values_of(a_loss_that_waits_for_a_statistic, leaves_out=[2])
    assert np.isnan(fetched.pop(2)) and fetched == [row[1] for row in expected]
    np.testing.assert_equal(variables, plain)


def run_under_a_hook(fetches_of, x):
    """The values of `fetches_of` in each step, under a hook, and all variables after the last."""
    fetches, read = fetches_of(), all_variables()
    with slimguard.watch(new_session(), on_nan='skip') as session:
        session.run(tf1.global_variables_initializer())
        before = session.run(read)
        try:
            fetched = [session.run(fetches, {x: batch}) for batch in batches()]
        except OutsideTheGateError as error:
            np.testing.assert_equal(session.run(read), before)
            return str(error), None
        return fetched, session.run(read)


@pytest.mark.every_cell
@pytest.mark.parametrize('name', sorted(BUILDS))
def test_what_a_hook_refuses_goes_through_the_gate_as_its_message_says(name):
    expected, variables = values_of(BUILDS[name], leaves_out=[2])
    x = tf1.placeholder(tf.float32, [4, 2])
    train_op, *others = BUILDS[name](x)
    is_op = isinstance(others[0], tf.Operation)
    guarded = slimguard.guard(train_op)
    fetched, read = run_under_a_hook(lambda: [guarded, *others], x)
    if read is None:
        assert 'nothing of it has run' in fetched and repr(others[0].name) in fetched
        assert ('tf.identity(value)' in fetched) == (not is_op)
        assert ('loss=it' in fetched) == (not is_op and others[0].shape.rank == 0)

        def as_told():
            if 'loss=it' in fetched:
                return [slimguard.guard(train_op, loss=others[0]), *others]
            if is_op or len(others) > 1:
                return [slimguard.guard(tf.group(train_op, *others))]
            with tf.control_dependencies([train_op]):
                step = tf.identity(others[0])
            return [tf.no_op(), slimguard.guard(step)]

        fetched, read = run_under_a_hook(as_told, x)
    else:
        assert name in NOT_REFUSED
    np.testing.assert_equal(read, variables)
    del fetched[2]
    if not is_op and len(others) == 1:
        np.testing.assert_equal([row[1:] for row in fetched], [row[1:] for row in expected])


# In these the gradients wait for the write, so the gate can put it back.
NOT_REFUSED = [each for each in BUILDS if re.match('a_(loss|stat)|the_same', each)]


def test_of_two_guarded_train_ops_that_share_a_write_one_gate_is_asked_for():
    x = tf1.placeholder(tf.float32, [4, 2])
    train_ops = a_counter_of_two_train_ops(x)
    first, second = map(slimguard.guard, train_ops)
    ones = {x: np.ones([4, 2])}
    with slimguard.watch(new_session(), on_nan='skip') as session:
        session.run(tf1.global_variables_initializer())
        session.run(first, ones)
        session.run(second, ones)
        with pytest.raises(OutsideTheGateError, match=r"which writes 'count'.*tf.group\(first"):
            session.run([first, second], ones)
    both = slimguard.guard(tf.group(*train_ops))
    fetched, values = run_under_a_hook(lambda: both, x)
    np.testing.assert_equal(values['count'], [3.0, 3.0])


def test_what_is_set_or_read_beside_the_train_op_is_not_refused(caplog):
    """A learning rate, a metric, a counter of the script's own, a value of the forward pass."""
    x = tf1.placeholder(tf.float32, [4, 2])
    rate = tf1.get_variable('rate', initializer=0.1, trainable=False)
    count = tf1.get_variable('count', initializer=0, trainable=False)
    loss = tf.reduce_mean(tf.matmul(x, weight()) ** 2)
    train_op = slimguard.guard(tf1.train.GradientDescentOptimizer(rate).minimize(loss))
    _, metric = tf1.metrics.mean(x)
    beside = [tf1.assign(rate, 0.5 * rate), metric, loss, tf1.assign_add(count, 1)]
    with slimguard.watch(new_session(), on_nan='skip') as session:
        session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
        session.run([train_op, *beside], {x: np.ones([4, 2])})
        assert session.run(count) == 1
        with pytest.raises(OutsideTheGateError):
            session.run([train_op, tf1.assign(rate, loss)], {x: np.ones([4, 2])})
        session.run([train_op, tf1.assign(rate, loss)], {x: np.ones([4, 2]), loss: 0.1})
    told = [each.getMessage() for each in caplog.records if 'NOT guarded' in each.getMessage()]
    assert ["'count'" in each for each in told] == [True]

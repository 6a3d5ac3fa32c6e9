"""Writes of a script in the run of its train op that the train op does not need."""

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard import compat
from tests.helpers.models import LogLines, records_in

tf1 = tf.compat.v1
slim = compat.import_slim()
STEPS, BAD = 6, 3


class Script:
    """A model of one layer, and a mean of its input, which may normalize the input."""

    def __init__(self, reads_mean=False):
        self.x = tf1.placeholder(tf.float32, [None, 4])
        self.mean = tf1.get_variable(
            'mean', [4], initializer=tf1.zeros_initializer(), trainable=False
        )
        self.counter = tf1.get_variable(
            'counter', [], initializer=tf1.zeros_initializer(), trainable=False
        )
        self.rate = tf1.get_variable(
            'rate', [], initializer=tf1.constant_initializer(0.1), trainable=False
        )
        weights = tf1.get_variable('weights', [4, 1], initializer=tf1.ones_initializer())
        x = self.x - self.mean.read_value() if reads_mean else self.x
        self.loss = tf.reduce_mean(tf.square(tf.matmul(x, weights) - 1.0))
        step = tf1.train.get_or_create_global_step()
        self.optimizer = tf1.train.MomentumOptimizer(self.rate, 0.9)
        self.train_op = self.optimizer.minimize(self.loss, global_step=step)
        mixed = 0.9 * self.mean + 0.1 * tf.reduce_mean(self.x, axis=0)
        self.update = tf1.assign(self.mean, mixed)
        self.count = tf1.assign_add(self.counter, 1.0)

    def run(self, fetches, bad=(BAD,)):
        """The values of all variables after the steps, by name."""
        random = np.random.RandomState(0)
        one = tf1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
        with tf1.Session(config=one) as session:
            session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
            for number in range(STEPS):
                batch = random.randn(8, 4).astype(np.float32)
                if number in bad:
                    batch[1] = np.nan
                first = session.run(fetches, {self.x: batch})[0]
            variables = tf1.global_variables() + tf1.local_variables()
            values = {each.op.name: session.run(each) for each in variables}
            return dict(values, seen=np.float32(0) if first is None else first)


def guarded(tmp_path):
    return slimguard.instrument('skip', logdir=str(tmp_path), capture=False)


def by_optimizer(script):
    return script.train_op


def by_slim(script):
    return slim.learning.create_train_op(script.loss, script.optimizer)


def by_guard(script):
    return slimguard.guard(script.train_op, loss=script.loss)


def by_create_train_op(script):
    return slimguard.create_train_op(script.loss, script.optimizer, check_numerics=True)


@pytest.mark.full
@pytest.mark.parametrize(
    'make', [by_optimizer, by_slim, by_guard, by_create_train_op], ids=lambda f: f.__name__
)
def test_a_bad_step_leaves_it_as_it_was_whoever_made_the_train_op(make, tmp_path):
    with guarded(tmp_path):
        script = Script()
        train_op = make(script)
        values = script.run([train_op, script.update, script.count])
    assert all(np.isfinite(value).all() for value in values.values())
    assert values['counter'] == values['global_step'] == STEPS - 1
    assert np.abs(values['mean']).max() > 0
    assert [record['action'] for record in records_in(tmp_path)] == ['skip']


@pytest.mark.full
def test_beside_a_hook_of_the_scripts_own_it_is_refused_by_name(tmp_path):
    with guarded(tmp_path):
        script = Script()
        train_op = by_guard(script)
        hook = slimguard.NanLossHook(script.loss, on_nan='skip')
        with tf1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            with pytest.raises(ValueError, match='It writes mean, with values made of the same'):
                session.run([train_op, script.update], {script.x: np.ones([1, 4])})


@pytest.mark.full
def test_it_is_an_incident_where_the_loss_is_finite(tmp_path):
    with guarded(tmp_path):
        script = Script()
        finite = tf.where(tf.math.is_finite(script.x), script.x, tf.zeros_like(script.x))
        bad_mean = tf1.assign(script.mean, tf.reduce_mean(script.x, axis=0))
        loss = tf.reduce_mean(tf.square(tf.matmul(finite, tf1.trainable_variables()[0])))
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
        values = script.run([train_op, bad_mean])
    assert np.isfinite(values['mean']).all()
    (record,) = records_in(tmp_path)
    assert 'update of mean' in record['reason']


@pytest.mark.full
def test_a_metric_is_the_scripts_own(tmp_path):
    with guarded(tmp_path):
        script = Script()
        _, update = tf1.metrics.mean(script.x)
        values = script.run([script.train_op, update])
    (total,) = [value for name, value in values.items() if name.endswith('/total')]
    assert np.isnan(total) and np.isfinite(values['weights']).all()
    (record,) = records_in(tmp_path)
    assert 'total' not in record['reason']


def test_what_the_step_reads_is_refused_by_name(tmp_path, caplog):
    with guarded(tmp_path):
        script = Script(reads_mean=True)
        script.run([script.train_op, script.update], bad=())
    (told,) = [each.getMessage() for each in caplog.records if 'NOT guarded' in each.getMessage()]
    assert "the update of 'mean' is NOT guarded: the train op, beside which it is fetched" in told


def test_a_learning_rate_that_is_set_in_the_same_run_is_left_alone(tmp_path, caplog):
    with guarded(tmp_path):
        script = Script()
        rate = tf1.placeholder_with_default(0.05, [])
        values = script.run([script.train_op, tf1.assign(script.rate, rate)], bad=())
    assert values['rate'] == np.float32(0.05) and values['global_step'] == STEPS
    assert not [each for each in caplog.records if 'NOT guarded' in each.getMessage()]


def recurrent(reads_again=False):
    """A train op, the op that keeps the two states of a layer, and the placeholder."""
    x = tf1.placeholder(tf.float32, [4])
    states = [
        tf1.get_variable(name, [4], initializer=tf1.zeros_initializer(), trainable=False)
        for name in 'hc'
    ]
    weights = tf1.get_variable('w', [4], initializer=tf1.ones_initializer())
    read = [state.read_value() for state in states]
    new = [tf.tanh(weights * state + x) for state in read]
    again = [state.read_value() for state in states] if reads_again else [0.0]
    loss = tf.reduce_sum(new) + tf.add_n([weights * value for value in again])[0]
    train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
    keep = tf.group(*[state.assign(value) for state, value in zip(states, new)])
    return train_op, keep, x


@pytest.mark.parametrize('use_resource', [True, False])
@pytest.mark.parametrize('takes_it_in', [False, True])
def test_only_an_update_that_takes_in_the_batch_is_said_to_see_it(
    tmp_path, caplog, takes_it_in, use_resource
):
    """An update may only wait for the batch, or read a variable that was written from the batch."""
    tf1.get_variable_scope().set_use_resource(use_resource)
    with guarded(tmp_path), tf1.Session() as session:
        x = tf1.placeholder(tf.float32, [4])
        w, rate, mean = (tf1.get_variable(n, initializer=0.1) for n in ('w', 'rate', 'mean'))
        update = tf1.assign(mean, 0.9 * mean + 0.1 * tf.reduce_mean(x))
        with tf.control_dependencies([update]):
            loss = tf.reduce_mean(tf.square(w * x - 1.0))
            set_rate = tf1.assign(rate, mean.read_value() if takes_it_in else 0.9 * rate)
        train_op = tf1.train.GradientDescentOptimizer(rate).minimize(loss, var_list=[w])
        session.run(tf1.global_variables_initializer())
        session.run([train_op, set_rate.op], {x: np.ones([4])})
    told = [each.getMessage() for each in caplog.records if 'NOT guarded' in each.getMessage()]
    assert ["the update of 'rate' is NOT guarded" in line for line in told] == [True] * takes_it_in


@pytest.mark.full
def test_the_state_of_a_recurrent_layer_is_carried_on_behind_the_gate(tmp_path):
    def values_after(batches):
        with tf1.Graph().as_default(), tf1.Session() as session:
            tf1.get_variable_scope().set_use_resource(True)
            train_op, keep, x = recurrent()
            session.run(tf1.global_variables_initializer())
            for batch in batches:
                session.run([train_op, keep], {x: batch})
            return session.run(tf1.global_variables())

    good = [np.full(4, value) for value in (0.1, 0.2, 0.3)]
    with guarded(tmp_path), LogLines() as lines:
        held = values_after(good[:1] + [np.full(4, np.nan)] + good[1:])
    assert not [line for line in lines if 'NOT guarded' in line]
    for value, expected in zip(held, values_after(good)):
        assert (value == expected).all() and value.any()
    assert [record['action'] for record in records_in(tmp_path)] == ['skip']


@pytest.mark.full
@pytest.mark.parametrize('use_resource, reads_again', [(True, True), (False, False)])
def test_each_variable_that_stays_outside_is_named(tmp_path, use_resource, reads_again):
    """The gradient of the weights reads the states again, or reads a ref variable's memory."""
    tf1.get_variable_scope().set_use_resource(use_resource)
    with guarded(tmp_path) as guards, LogLines() as lines, tf1.Session() as session:
        train_op, keep, x = recurrent(reads_again)
        session.run(tf1.global_variables_initializer())
        session.run([train_op, keep], {x: np.ones(4)})
    (line,) = [line for line in lines if 'NOT guarded' in line]
    assert "the update of 'c, h' is NOT guarded" in line
    assert str(guards.sessions.seen).endswith('NOT guarded: c, h')


def table():
    key_type, value_type = tf.string, tf.float32
    if tf.__version__.startswith('1.'):
        from tensorflow.contrib.lookup import MutableHashTable
    else:
        from tensorflow.python.ops.lookup_ops import MutableHashTable
    return MutableHashTable(key_type, value_type, 0.0)


@pytest.mark.full
@pytest.mark.parametrize('is_read', [False, True])
def test_a_table_is_written_behind_the_gate_as_variables_are(tmp_path, is_read):
    """Such as the priorities of samples that are drawn again."""
    with guarded(tmp_path), LogLines() as lines, tf1.Session() as session:
        x = tf1.placeholder(tf.float32, [2, 3])
        weights = tf1.get_variable('w', [3, 1])
        errors = tf.matmul(x, weights)[:, 0] ** 2
        priorities = table()
        keys = tf.constant(['a', 'b'])
        scale = priorities.lookup(keys) if is_read else 1.0
        train_op = tf1.train.AdamOptimizer().minimize(tf.reduce_mean(errors * scale))
        insert = priorities.insert(keys, errors)
        session.run(tf1.global_variables_initializer())
        session.run([train_op, insert], {x: np.ones([2, 3])})
        session.run([train_op, insert], {x: [[1, 1, np.nan], [1, 1, 1]]})
        values = session.run(priorities.export()[1])
    refused = [line for line in lines if 'NOT guarded' in line]
    assert bool(refused) == is_read and np.isfinite(values).all() == (not is_read)
    assert [record['action'] for record in records_in(tmp_path)] == ['skip']

"""Learning rates times a factor: the same updates as those of a smaller learning rate."""

import pytest
import tensorflow as tf

from slimguard import gate
from slimguard.incidents import history
from tests.helpers import gate_models as models

tf1 = tf.compat.v1

OPTIMIZERS = {
    'GradientDescent': tf1.train.GradientDescentOptimizer,
    'Momentum': lambda rate: tf1.train.MomentumOptimizer(rate, 0.9),
    'Nesterov': lambda rate: tf1.train.MomentumOptimizer(rate, 0.9, use_nesterov=True),
    'Adam': tf1.train.AdamOptimizer,
    'RMSProp': lambda rate: tf1.train.RMSPropOptimizer(rate, momentum=0.5),
    'CenteredRMSProp': lambda rate: tf1.train.RMSPropOptimizer(rate, centered=True, epsilon=1.0),
    'Adagrad': tf1.train.AdagradOptimizer,
    'AdagradDA': lambda rate: tf1.train.AdagradDAOptimizer(
        rate, tf1.train.get_or_create_global_step()
    ),
    'Adadelta': tf1.train.AdadeltaOptimizer,
    'Ftrl': lambda rate: tf1.train.FtrlOptimizer(rate, l1_regularization_strength=0.01),
    'ProximalGradientDescent': lambda rate: tf1.train.ProximalGradientDescentOptimizer(rate, 0.01),
    'ProximalAdagrad': lambda rate: tf1.train.ProximalAdagradOptimizer(rate, 0.1, 0.01),
}


class Training:
    """Trains a dense weight and an embedding; its learning rate can be fed."""

    def __init__(self, make_optimizer, use_resource=True, scales=True):
        tf1.set_random_seed(1)
        self.rate = tf1.placeholder_with_default(0.1, [])
        train_op, loss = models.two_weights(
            models.Damage(), lambda: make_optimizer(self.rate), use_resource=use_resource
        )
        self.train_op = gate.guard(train_op, loss)
        graph = self.train_op.graph
        self.rates = gate.scale_learning_rates(graph, is_shared=False) if scales else None
        self.snapshot = models.Snapshot()

    def bits(self, fed, factors=None):
        """The bits after each step of a session of its own.

        Args:
          fed: for each step its learning rate.
          factors: for each step the factor; None leaves it as it is.
        """
        found = []
        with self.train_op.graph.as_default(), models.new_session() as sess:
            models.initialize(sess)
            for rate, factor in zip(fed, factors or [None] * len(fed)):
                if factor is not None:
                    self.rates.set(sess, factor)
                sess.run(self.train_op, {self.rate: rate})
                found.append(self.snapshot(sess))
        return found


def training_of(*args, **kwargs):
    with tf.Graph().as_default():
        return Training(*args, **kwargs)


@pytest.mark.full
@pytest.mark.parametrize(
    'optimizer, use_resource', [(name, number % 2 == 1) for number, name in enumerate(OPTIMIZERS)]
)
def test_half_the_factor_is_half_the_learning_rate_and_one_changes_no_bit(optimizer, use_resource):
    make = OPTIMIZERS[optimizer]
    plain = training_of(make, use_resource, scales=False)
    scaled = training_of(make, use_resource)
    full = [0.1] * 20
    assert scaled.bits(full, [None] * 10 + [1.0] * 10) == plain.bits(full)
    half = plain.bits([0.1] * 5 + [0.05] * 10 + [0.025] * 5)
    assert scaled.bits(full, [None] * 5 + [0.5] * 10 + [0.25] * 5) == half


@pytest.mark.parametrize('dtype', [tf.float32, tf.float64])
@pytest.mark.every_cell
def test_the_rate_in_the_row_of_a_step_is_that_of_its_update(dtype):
    """Also where the gradients, of another dtype, come from elsewhere than the loss."""
    weight = tf1.get_variable('weight', initializer=tf.constant(4.0, dtype))
    rate = tf1.placeholder(tf.float32, [])
    loss = tf.cast(1.0 * weight, tf.float32)
    update = tf1.train.GradientDescentOptimizer(rate).minimize(loss)
    guarded = gate.gate_of(gate.guard(update, loss=loss))
    rates = gate.scale_learning_rates(weight.graph, is_shared=False)
    with models.new_session() as sess:
        models.initialize(sess)
        for factor, fed in [(1.0, 2.0), (0.25, 2.0), (0.25, 1.0)]:
            rates.set(sess, factor)
            before = sess.run(weight)
            _, row = sess.run([guarded.train_op, guarded.row], {rate: fed})
            assert row[history.LEARNING_RATE] == before - sess.run(weight) == factor * fed


def test_a_graph_that_does_not_ask_for_it_has_no_factor():
    Training(OPTIMIZERS['Adam'], scales=False)
    graph = tf1.get_default_graph()
    assert gate.learning_rates_of(graph) is None
    assert not [op.name for op in graph.get_operations() if 'learning_rates' in op.name]


@pytest.mark.full
def test_no_variable_is_added():
    before = Training(OPTIMIZERS['Adam'], scales=False).snapshot.reads
    with tf.Graph().as_default():
        training = Training(OPTIMIZERS['Adam'])
        assert training.snapshot.reads.keys() == before.keys()
        assert not tf1.get_collection(tf1.GraphKeys.SAVEABLE_OBJECTS)


@pytest.mark.full
def test_what_is_guarded_later_and_again_is_multiplied_once():
    training = Training(tf1.train.GradientDescentOptimizer)
    weight = tf1.get_variable('weight', initializer=1.0)
    update = tf1.train.GradientDescentOptimizer(0.5).minimize(weight)
    later = gate.guard(update, loss=weight * 1.0)
    around = gate.guard(tf.group(later, training.train_op))
    with models.new_session() as sess:
        models.initialize(sess)
        training.rates.set(sess, 0.5)
        assert training.rates.get(sess) == 0.5
        sess.run(later)
        assert sess.run(weight) == 0.75
        sess.run(around)
        assert sess.run(weight) == 0.5


def test_gradients_written_by_hand_and_a_constraint():
    weight = tf1.get_variable(
        'weight', initializer=4.0, constraint=lambda w: tf.minimum(w, 3.5), use_resource=True
    )
    other = tf1.get_variable('other', initializer=4.0)
    average = tf1.get_variable('average', initializer=0.0, trainable=False)
    loss = weight + other
    update = tf1.train.GradientDescentOptimizer(1.0).minimize(loss, var_list=[weight])
    by_hand = tf1.assign_sub(other, 1.0 * tf.gradients(loss, other)[0])
    train_op = gate.guard(tf.group(update, by_hand, tf1.assign_add(average, loss)), loss=loss)
    rates = gate.scale_learning_rates(weight.graph, is_shared=False)
    with models.new_session() as sess:
        models.initialize(sess)
        rates.set(sess, 0.25)
        sess.run(train_op)
        assert sess.run([weight, other, average]) == [3.5, 3.75, 8.0]
        sess.run(train_op)
        assert sess.run([weight, other]) == [3.25, 3.5]


def test_a_bad_step_changes_nothing():
    def build(damage):
        return models.two_weights(damage, lambda: tf1.train.AdamOptimizer(0.1))

    with tf.Graph().as_default() as graph:
        gate.scale_learning_rates(graph, is_shared=False)
        models.check_every_damage(build)
        assert gate.learning_rates_of(graph).is_used


def test_an_op_that_takes_no_learning_rate_is_named():
    weight = tf1.get_variable('weight', initializer=1.0)
    gate.guard(tf1.assign(weight, weight * 0.5).op)
    with pytest.raises(ValueError, match=r"Assign\w* 'Assign\w*', which .* takes none"):
        gate.scale_learning_rates(weight.graph, is_shared=False)
    assert gate.learning_rates_of(weight.graph) is None


def test_a_loop_is_refused_before_anything_is_trained():
    weight = tf1.get_variable('weight', initializer=1.0, use_resource=True)
    gate.scale_learning_rates(weight.graph, is_shared=False)

    def body(i):
        with tf.control_dependencies([weight.assign_sub(0.1 * tf.sin(weight))]):
            return i + 1

    (loop,) = tf.nest.flatten(tf.while_loop(lambda i: i < 3, body, [tf.constant(0)]))
    with pytest.raises(gate.NoLearningRateError, match='inside of a loop or a function'):
        gate.guard(loop.op)


def test_what_a_session_has_seen_is_refused_there_and_in_no_other():
    weight = tf1.get_variable('weight', initializer=1.0)
    train_op = gate.guard(tf1.train.GradientDescentOptimizer(0.5).minimize(weight))
    with tf1.Session() as old, tf1.Session() as new:
        old.run(weight.initializer)
        rates = gate.scale_learning_rates(weight.graph, is_shared=False)
        with pytest.raises(gate.NoLearningRateError, match='has run something before it was'):
            rates.set(old, 0.5)
        rates.set(new, 0.5)
        new.run(weight.initializer)
        new.run(train_op)
        assert new.run(weight) == 0.75

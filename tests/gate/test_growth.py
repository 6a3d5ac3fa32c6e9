"""What grows from step to step, with gradients that are finite and small, until it is Inf."""

import pytest
import tensorflow as tf

from slimguard.gate.plan import make_plan
from tests.helpers import gate_models as models

tf1 = tf.compat.v1
train = tf1.train

kinds = pytest.mark.parametrize('use_resource', [False, True], ids=['ref', 'resource'])


class AfterTheUpdate:
    """A weight that is trained, and variables that are written once that is done.

    Attributes:
      factor: a scalar that is fed.
    """

    def __init__(self, use_resource):
        self.factor = tf1.placeholder_with_default(0.5, [])
        self.step = train.get_or_create_global_step()
        with tf1.variable_scope('', use_resource=use_resource):
            self.w = tf1.get_variable('w', initializer=tf.constant([1.0, 1.0, 1.0]))
            self.m, self.n = [
                tf1.get_variable(name, initializer=tf.ones([3]), trainable=False) for name in 'mn'
            ]
            self.scale = tf1.get_variable('scale', initializer=2.0, trainable=False)
        self.loss = tf.reduce_sum(tf.square(self.w))
        self.update = train.GradientDescentOptimizer(0.1).minimize(self.loss, self.step)

    def then(self, write):
        """A train op that writes what `write` makes of the variables after the update."""
        with tf.control_dependencies([self.update]):
            return tf.group(write(self)), self.loss


def now(variable):
    return variable.read_value()


def mutual(model):
    first = tf1.assign(model.m, now(model.n) * 4.0)
    with tf.control_dependencies([first]):
        return tf1.assign(model.n, now(model.m) * 0.5)


def overshoot(variable, value):
    return tf1.assign_sub(variable, (now(variable) - value) * (1.0 - 10.0))


def turned(tensor):
    return tf.gather(tensor, [1, 2, 0])


def average(decay, **kwargs):
    return lambda model: train.ExponentialMovingAverage(decay, **kwargs).apply([model.w])


def counted(model):
    return train.ExponentialMovingAverage(0.9, num_updates=model.step).apply([model.w])


def lookahead(model):
    slow = tf1.assign_add(model.m, 0.8 * (now(model.w) - now(model.m)))
    with tf.control_dependencies([slow]):
        return tf1.assign(model.w, now(model.m))


GROWING = {
    'times ten': lambda model: tf1.assign(model.m, now(model.m) * 10.0),
    'ten times more': lambda model: tf1.assign_add(model.m, now(model.m) * 9.0),
    'an average with a decay of ten': lambda model: overshoot(model.m, now(model.w)),
    'added to itself': lambda model: tf1.assign(model.m, now(model.m) + now(model.m)),
    'by way of another': mutual,
    'rows of itself': lambda model: tf1.scatter_add(model.m, [0], tf.gather(now(model.m), [0])),
    'other elements': lambda model: tf1.assign_sub(model.m, turned(-3.0 * now(model.m))),
    'a loss scale': lambda model: tf1.assign(model.scale, now(model.scale) * 2.0),
}


@kinds
@pytest.mark.parametrize('name', GROWING, ids=[name.replace(' ', '_') for name in GROWING])
def test_what_would_be_inf_is_not_written(name, use_resource):
    model = AfterTheUpdate(use_resource).then(GROWING[name])
    assert not make_plan(*model, {}).trial  # it is looked at once it is large
    guarded = models.Guarded(model)
    steps = 0
    while guarded.step():
        steps += 1
        assert steps < 300, 'it does not grow'
        assert not guarded.snapshot.not_finite(guarded.sess)
    guarded.assert_held({}, 'once more')
    assert not guarded.snapshot.not_finite(guarded.sess)


STEADY = {
    'an average': average(0.99),
    'an average with a count': counted,
    'an average that begins at zero': average(0.9, zero_debias=True),
    'slow weights': lookahead,
}

# These are as large as what they are of, some times over: not for ever, but how large is that?
LARGER = {
    'a part': lambda model: tf1.assign(model.m, now(model.m) * 0.5 + now(model.w) * 30.0),
    'another': lambda model: tf1.assign(model.m, now(model.n) * 30.0 + now(model.w)),
    'a sum': lambda model: tf1.assign_add(model.m, now(model.w)),
}


@kinds
@pytest.mark.parametrize('name', STEADY, ids=[name.replace(' ', '_') for name in STEADY])
def test_what_does_not_grow_costs_nothing(name, use_resource):
    plan = make_plan(*AfterTheUpdate(use_resource).then(STEADY[name]), {})
    assert not plan.trial and not plan.growing


@kinds
@pytest.mark.parametrize('name', LARGER, ids=[name.replace(' ', '_') for name in LARGER])
def test_what_is_larger_than_its_parts_is_looked_at(name, use_resource):
    plan = make_plan(*AfterTheUpdate(use_resource).then(LARGER[name]), {})
    assert not plan.trial and len(plan.growing) == 2


@kinds
@pytest.mark.parametrize('value', [3.4e38, float('inf')])
def test_an_average_of_what_others_write(value, use_resource):
    """The difference of two finite numbers overflows, and an average of an Inf is none."""

    def write(model):
        return tf1.assign_sub(model.n, 0.5 * (now(model.n) - now(model.m)))

    model = AfterTheUpdate(use_resource)
    guarded = models.Guarded(model.then(write))
    for number in (3e38, 3e38, 1.0):
        guarded.sess.run(tf1.assign(model.m, [number, 1.0, 1.0]))
        guarded.assert_written()
    guarded.sess.run(tf1.assign(model.m, [-value, 1.0, 1.0]))
    guarded.sess.run(tf1.assign(model.n, [3.4e38, 1.0, 1.0]))
    guarded.assert_held({}, 'm')
    finding = 'variable m' if value == float('inf') else 'not finite once updated'
    assert finding in str(guarded.finding())
    guarded.sess.run(tf1.assign(model.m, [2.0, 1.0, 1.0]))
    guarded.assert_written()


@kinds
def test_an_average_in_16_bits(use_resource):
    """The difference of two weights soon overflows there, however small the gradients are."""
    with tf1.variable_scope('', use_resource=use_resource):
        w = tf1.get_variable('w', initializer=tf.constant([60000.0, 1.0], tf.float16))
        m = tf1.get_variable('m', initializer=tf.zeros([2], tf.float16), trainable=False)
    loss = tf.reduce_sum(0.0 * tf.cast(w, tf.float32))
    update = train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.control_dependencies([update]):
        train_op = tf1.assign_sub(m, 0.5 * (now(m) - now(w)))
    guarded = models.Guarded((tf.group(train_op), loss))
    guarded.sess.run(tf1.assign(m, [-60000.0, 3.0]))
    guarded.assert_held({}, 'w')
    guarded.sess.run(tf1.assign(m, [60000.0, 3.0]))
    guarded.assert_written()


def halves(write):
    """A train op that writes what `write` makes of weights in float16, and a copy of others."""
    make = tf1.get_variable
    w = make('w', initializer=tf.constant([200.0, 1.0], tf.float16))
    m = make('m', initializer=tf.constant([65000.0, 1.0], tf.float16), trainable=False)
    wide = make('wide', initializer=tf.constant([65000.0, 1.0]), trainable=False)
    loss = tf.reduce_sum(w)
    update = train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.control_dependencies([update]):
        return tf.group(write(w, m, wide)), loss


@pytest.mark.parametrize(
    'write',
    [
        lambda w, m, wide: tf1.assign_add(m, now(w)),
        lambda w, m, wide: tf1.assign(m, now(w) * 400.0),
        lambda w, m, wide: tf1.assign_add(m, now(m) * 0.0 + 1000.0),
        lambda w, m, wide: tf1.assign(m, tf.cast(now(wide) + 600.0, tf.float16)),
        lambda w, m, wide: tf1.assign(m, tf.maximum(now(w) * 400.0, 0.0)),
        lambda w, m, wide: tf1.assign_sub(m, 0.5 * (now(m) - -1.0 * now(m))),
    ],
    ids=['a sum', 'a product', 'a number', 'a copy', 'the larger', 'a difference'],
)
def test_sums_and_products_of_16_bits(write):
    guarded = models.Guarded(halves(write))
    for _ in range(3):
        guarded.step()
        assert not guarded.snapshot.not_finite(guarded.sess)


@kinds
@pytest.mark.parametrize('factor', [1.05, 0.9])
def test_the_root_of_what_may_be_below_zero_is_judged_afterwards(factor, use_resource):
    """Adam by hand: one minus a decay above one makes the second moment negative."""

    gradient = tf.constant([9.0, 1e-3, 0.0])
    square = tf.square(gradient)

    def write(model):
        moment = tf1.assign(model.m, factor * now(model.m) + (1 - factor) * square)
        with tf.control_dependencies([moment]):
            return tf1.assign_sub(model.w, 0.1 * gradient / (tf.sqrt(now(model.m)) + 1e-8))

    model = AfterTheUpdate(use_resource).then(write)
    assert make_plan(*model, {}).trial == (factor > 1)
    guarded = models.Guarded(model)
    for _ in range(100):
        guarded.step()
        assert not guarded.snapshot.not_finite(guarded.sess)


@pytest.mark.parametrize('number', [float('inf'), 1e38])
def test_a_constant_that_is_too_large(number):
    def write(model):
        return tf1.assign(model.m, tf.minimum(now(model.w), 5.0) + tf.constant([0.0, number, 0.0]))

    guarded = models.Guarded(AfterTheUpdate(True).then(write))
    for _ in range(3):
        guarded.step()
        assert not guarded.snapshot.not_finite(guarded.sess)


def test_complex_constants_are_taken():
    model = AfterTheUpdate(True)
    c = tf1.get_variable('c', initializer=tf.constant([1j, 1.0]), trainable=False)
    guarded = models.Guarded(model.then(lambda m: tf1.assign(c, now(c) * (0.6 + 0.8j))))
    guarded.assert_written()


@kinds
def test_an_average_with_a_decay_above_one_may_grow(use_resource):
    model = AfterTheUpdate(use_resource)
    plan = make_plan(*model.then(average(10.0)), {})
    assert [variable.name for variable in plan.growing] == ['w/ExponentialMovingAverage', 'w']


@pytest.mark.full
@kinds
def test_a_factor_that_is_fed_may_make_it_grow(use_resource):
    model = AfterTheUpdate(use_resource)
    guarded = models.Guarded(model.then(lambda m: tf1.assign(m.m, now(m.m) * model.factor)))
    for _ in range(3):
        guarded.assert_written({model.factor: 1e12})
    guarded.assert_held({model.factor: 1e12}, '1e48')
    guarded.assert_written({model.factor: 1e-12})


@kinds
def test_a_factor_in_a_variable_may_as_well(use_resource):
    model = AfterTheUpdate(use_resource)
    rate = model.scale * 1.0  # ahead of the update
    train_op = model.then(lambda m: tf1.assign(m.m, now(m.m) * rate))
    guarded = models.Guarded(train_op)
    guarded.sess.run(tf1.assign(model.scale, 1e12))
    for _ in range(3):
        guarded.assert_written()
    guarded.assert_held({}, '1e48')


@kinds
def test_what_is_multiplied_by_a_variable_that_is_written_is_always_looked_at(use_resource):
    def write(model):
        return tf1.assign(model.scale, now(model.scale) * now(model.scale))

    model = AfterTheUpdate(use_resource).then(write)
    assert make_plan(*model, {}).trial
    guarded = models.Guarded(model)
    while guarded.step():
        assert not guarded.snapshot.not_finite(guarded.sess)


@kinds
def test_what_grows_too_far_in_one_step_is_always_looked_at(use_resource):
    def write(model):
        return tf1.assign(model.m, now(model.m) * 1e30)

    model = AfterTheUpdate(use_resource).then(write)
    assert make_plan(*model, {}).trial
    guarded = models.Guarded(model)
    guarded.assert_written()
    guarded.assert_held({}, '1e60')

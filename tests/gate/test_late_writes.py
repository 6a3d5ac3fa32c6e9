"""Writes of values computed from variables that the step has just updated, with small gradients."""

import pytest
import tensorflow as tf

from slimguard.gate.reading.plan import make_plan
from tests.helpers import gate_models as models

tf1 = tf.compat.v1
train = tf1.train

kinds = pytest.mark.parametrize('use_resource', [False, True], ids=['ref', 'resource'])


class AfterTheUpdate:
    """A weight that is trained, and variables that are written after its update.

    Attributes:
      factor: a scalar that is fed.
      ahead, smaller, smaller_rows, rows, squares: values computed before the update.
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
            self.below = tf1.get_variable(
                'below', initializer=tf.constant([-1.0, 1.0, 1.0]), trainable=False
            )
        self.ahead = self.scale.value()
        self.smaller = now(self.m) * 0.9
        self.rows = tf.constant([0, 2])
        self.smaller_rows = tf.gather(self.smaller, self.rows)
        self.squares = tf.square(now(self.w))
        self.loss = tf.reduce_sum(tf.square(self.w))
        self.update = train.GradientDescentOptimizer(0.1).minimize(self.loss, self.step)

    def then(self, write):
        """A train op with the writes that `write` makes, which run after the update."""
        with tf.control_dependencies([self.update]):
            return tf.group(write(self)), self.loss


def now(variable):
    return variable.read_value()


def in_turn(*writes):
    """Makes writes, each after the one before."""
    made = [writes[0]()]
    for write in writes[1:]:
        with tf.control_dependencies(made[-1:]):
            made.append(write())
    return made


def moved(variable, to, share):
    return tf1.assign_sub(variable, (now(variable) - to) * share)


def average(decay, **kwargs):
    return lambda model: train.ExponentialMovingAverage(decay, **kwargs).apply([model.w])


def counted(decay):
    def write(model):
        return train.ExponentialMovingAverage(decay, num_updates=model.step).apply([model.w])

    return write


def lookahead(model):
    return in_turn(
        lambda: tf1.assign_add(model.m, 0.8 * (now(model.w) - now(model.m))),
        lambda: tf1.assign(model.w, now(model.m)),
    )


def adam(
    make=lambda model: tf1.assign(model.m, model.smaller),
    square=lambda model: tf1.assign_add(model.n, model.squares),
    root='n',
    epsilon=1e-8,
):
    """Moves the weight as Adam moves rows: by `m` over the square root of the variable `root`."""

    def write(model):
        def move():
            divisor = tf.sqrt(now(getattr(model, root))) + epsilon
            return tf1.assign_sub(model.w, model.factor * now(model.m) / divisor)

        return in_turn(lambda: tf.group(make(model), square(model)), move)

    return write


def adam_of_rows(read):
    """The same for the rows of `m` that `read` selects, after a write to some rows of `m`."""

    def write(model):
        rows = read(model)
        made = tf1.scatter_update(model.m, model.rows, model.smaller_rows)

        def move():
            divisor = tf.sqrt(tf.gather(now(model.n), rows)) + 1e-8
            step = model.factor * tf.gather(now(model.m), rows) / divisor
            return tf1.scatter_sub(model.w, rows, step)

        return in_turn(lambda: tf.group(made, tf1.assign_add(model.n, model.squares)), move)

    return write


STAY_FINITE = {
    'an average': average(0.99),
    'an average with a count': counted(0.99),
    'an average of all values so far': counted(1.0),
    'slow weights': lookahead,
    'a mean': lambda model: tf1.assign(model.m, now(model.m) * 0.9 + 0.1 * now(model.w)),
    'a part that is fed': lambda model: tf1.assign(model.m, now(model.m) * model.factor),
    'within bounds': lambda model: tf1.assign(model.w, tf.clip_by_value(now(model.w), -0.01, 0.01)),
    'the least so far': lambda model: tf1.assign(
        model.scale, tf.minimum(now(model.scale), model.loss)
    ),
    'a constant': lambda model: tf1.assign(model.scale, 2.0),
    'a count': lambda model: tf1.assign_add(model.scale, 1.0),
    'what is checked, and a part': lambda model: tf1.assign(
        model.m, now(model.m) * 0.9 + model.squares
    ),
    'Adam': adam(),
    'Adam of rows': adam_of_rows(lambda model: model.rows),
}

# The gate cannot know that these writes stay finite, though some do. Each makes the step a trial,
# which costs a copy.
UNKNOWN = {
    'times ten': lambda model: tf1.assign(model.m, now(model.m) * 10.0),
    'ten times more': lambda model: tf1.assign_add(model.m, now(model.m) * 9.0),
    'an average with a decay of ten': average(10.0),
    'an average with a count and a decay of two': counted(2.0),
    'added to itself': lambda model: tf1.assign(model.m, now(model.m) + now(model.m)),
    'by way of another': lambda model: in_turn(
        lambda: tf1.assign(model.m, now(model.n) * 4.0),
        lambda: tf1.assign(model.n, now(model.m) * 0.5),
    ),
    'rows of itself': lambda model: tf1.scatter_add(model.m, [0], tf.gather(now(model.m), [0])),
    'other elements': lambda model: tf1.assign_sub(
        model.m, tf.gather(-3.0 * now(model.m), [1, 2, 0])
    ),
    'an average of what others write': lambda model: tf1.assign_sub(
        model.n, 0.5 * (now(model.n) - now(model.m))
    ),
    'a loss scale': lambda model: tf1.assign(model.scale, now(model.scale) * 2.0),
    'its square': lambda model: tf1.assign(model.scale, now(model.scale) * now(model.scale)),
    'far too much': lambda model: tf1.assign(model.m, now(model.m) * 1e30),
    'a sum': lambda model: tf1.assign_add(model.m, now(model.w)),
    'more than a bound': lambda model: tf1.assign(
        model.m, tf.maximum(now(model.m) * 2.0, model.squares)
    ),
    'a bound of what may be a NaN': lambda model: tf1.assign(
        model.scale, tf.maximum(now(model.scale), 0.0 * (now(model.scale) * now(model.scale)))
    ),
    'a part of what may overflow': lambda model: tf1.assign(
        model.m, 0.3 * (now(model.m) + now(model.n) + now(model.w))
    ),
    'a mean of too many': lambda model: tf1.assign(model.m, now(model.m) * 0.9 + now(model.w)),
    'away from another': lambda model: tf1.assign_add(model.m, (now(model.m) - now(model.w)) * 0.1),
    'towards what another is to be': lambda model: tf1.assign_sub(
        model.m, (now(model.n) - now(model.w)) * 0.5
    ),
    'an average of too much': lambda model: moved(model.m, now(model.w) * 10.0, 0.5),
    'an average in other rows': lambda model: tf1.scatter_sub(
        model.m, [2, 1, 0], (now(model.m) - now(model.w)) * 0.5
    ),
    'a share that may be below zero': lambda model: moved(
        model.m, now(model.w), tf.minimum(0.9, now(model.scale))
    ),
    'an average that is written twice': lambda model: in_turn(
        lambda: moved(model.m, now(model.w), 0.5),
        lambda: moved(model.m, now(model.w), 0.5),
    ),
    'a share that is written': lambda model: in_turn(
        lambda: tf1.assign_add(model.scale, 1.0),
        lambda: tf1.assign(model.m, now(model.m) * now(model.scale)),
    ),
    'a share that is about to be written': lambda model: in_turn(
        lambda: tf1.assign_add(model.scale, 1.0),
        lambda: tf1.assign(model.m, now(model.m) * model.ahead),
    ),
    'Adam with a tiny epsilon': adam(epsilon=1e-30),
    'Adam with a root of what is subtracted': adam(
        square=lambda model: tf1.assign_sub(model.n, model.squares)
    ),
    'Adam with a root of what begins below zero': adam(
        square=lambda model: tf1.assign_add(model.below, model.squares), root='below'
    ),
    'Adam with what adds up': adam(make=lambda model: tf1.assign_add(model.m, model.smaller)),
    'Adam with what is made of a weight': adam(lambda model: tf1.assign(model.m, now(model.w))),
    'Adam with what is made later': lambda model: [
        adam(make=lambda model: model.smaller)(model),
        tf1.assign(model.m, model.smaller),
    ],
    'Adam with a root of what others write': adam(square=lambda model: model.squares),
    'Adam of other rows': adam_of_rows(lambda model: model.rows + 0),
    'Adam with what was there before': adam(make=lambda model: model.smaller),
}

GROW = ['times ten', 'by way of another', 'a loss scale', 'its square']


def plans(writes, use_resource):
    for name, write in writes.items():
        with tf.Graph().as_default():
            yield name, make_plan(*AfterTheUpdate(use_resource).then(write), {})


@kinds
def test_what_is_known_to_stay_finite_takes_the_fast_path(use_resource):
    for name, plan in plans(STAY_FINITE, use_resource):
        assert not plan.trial, name


@kinds
def test_whatever_else_is_written_of_updated_variables_is_a_trial(use_resource):
    for name, plan in plans(UNKNOWN, use_resource):
        assert plan.trial, name


@kinds
@pytest.mark.parametrize('name', GROW, ids=[name.replace(' ', '_') for name in GROW])
def test_what_would_be_inf_is_not_written(name, use_resource):
    guarded = models.Guarded(AfterTheUpdate(use_resource).then(UNKNOWN[name]))
    steps = 0
    while guarded.step():
        steps += 1
        assert steps < 300, 'it does not grow'
        assert not guarded.snapshot.not_finite(guarded.sess)
    guarded.assert_held({}, 'once more')
    assert not guarded.snapshot.not_finite(guarded.sess)


@kinds
@pytest.mark.parametrize('value', [3.4e38, float('inf')])
def test_an_average_of_what_others_write(value, use_resource):
    """The difference of two finite numbers may overflow; or the other writer may write an Inf."""

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
    assert 'not finite once updated: n' in str(guarded.finding())
    guarded.sess.run(tf1.assign(model.m, [2.0, 1.0, 1.0]))
    guarded.assert_written()


@kinds
def test_an_average_in_16_bits(use_resource):
    """In float16 the difference of two weights soon overflows, even with small gradients."""
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
    """A train op with writes that `write` makes of float16 variables and a wider one."""
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
    rate = model.scale * 1.0  # computed before the update
    train_op = model.then(lambda m: tf1.assign(m.m, now(m.m) * rate))
    guarded = models.Guarded(train_op)
    guarded.sess.run(tf1.assign(model.scale, 1e12))
    for _ in range(3):
        guarded.assert_written()
    guarded.assert_held({}, '1e48')

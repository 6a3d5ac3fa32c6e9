"""Gradients that a script writes to variables itself: alone, in branches and loops, in values."""

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from tests.helpers.models import LogLines

tf1 = tf.compat.v1
VALUES = [1.0, 2.0, 0.5, 3.0]
WITH_BAD = [np.nan, 1.0, 2.0, np.inf, 0.5, np.nan, 3.0]


class Model:
    """A weight, the sum of its gradients and a scale, and a placeholder for the batch."""

    def __init__(self, use_resource):
        self.by_handle = use_resource
        self.x = tf1.placeholder(tf.float32, [])
        self.first = tf1.placeholder_with_default(False, [])
        with tf1.variable_scope('model', use_resource=use_resource):
            self.weight = tf1.get_variable('w', initializer=1.0)
            self.sum = tf1.get_variable('sum', initializer=0.0, trainable=False)
            self.scale = tf1.get_variable('scale', initializer=8.0, trainable=False)

    def gradient(self):
        return tf1.gradients(tf.square(self.weight * self.x), [self.weight])[0]

    def update(self, gradient):
        return tf.identity(self.weight.assign_sub(0.01 * gradient))


def alone(model):
    return model.update(model.gradient())


def of_a_tape_in_a_function(model):
    @tf.function(autograph=False)
    def descend(x):
        with tf.GradientTape() as tape:
            loss = tf.square(model.weight * x)
        return tf.identity(model.weight.assign_sub(0.01 * tape.gradient(loss, model.weight)))

    return descend(model.x)


def first_assigns(model):
    """Sums gradients up: the first overwrites the sum, the others are added."""
    gradient = model.gradient()
    return tf.cond(
        model.first, lambda: model.sum.assign(gradient), lambda: model.sum.assign_add(gradient)
    )


def a_sum_in_a_branch(model):
    """The script fetches the sum itself, not the result of the write."""
    gradient = model.gradient()
    written = tf.cond(
        model.first,
        lambda: tf.identity(model.sum.assign(gradient)),
        lambda: tf.identity(model.sum.assign_add(gradient)),
    )
    with tf.control_dependencies([written]):
        return tf.identity(model.sum)


def a_sum(model):
    with tf.control_dependencies([model.sum.assign_add(model.gradient())]):
        return tf.identity(model.sum)


def every_second_sum(model):
    """Two sums and a count, with a write in each branch: around them are many reads."""
    gradient = model.gradient()
    other = tf1.get_variable(
        'other', initializer=0.0, trainable=False, use_resource=model.by_handle
    )
    with tf.control_dependencies([model.sum.assign_add(gradient), other.assign_add(gradient)]):
        count = model.scale.assign_add(1.0)

    def descend():
        with tf.control_dependencies([count]):
            update = model.weight.assign_sub(0.01 * (model.sum.read_value() + other.read_value()))
        with tf.control_dependencies([update]):
            return tf.group(model.sum.assign(0.0), other.assign(0.0))

    return tf.cond(tf.equal(count % 2, 0), descend, tf.no_op)


def in_a_branch(model):
    gradient = model.gradient()
    return tf.cond(model.first, lambda: tf.identity(model.weight), lambda: model.update(gradient))


def in_a_map(model):
    gradient = model.gradient()
    return tf.map_fn(lambda i: model.update(i * gradient), tf.ones([2]))


def with_its_gradient_in_a_branch(model):
    return tf.cond(
        model.first,
        lambda: tf.identity(model.weight),
        lambda: model.update(model.gradient()),
    )


def with_its_gradient_in_a_loop(model):
    def body(number):
        with tf.control_dependencies([model.update(model.gradient())]):
            return number + 1

    return tf.while_loop(lambda number: number < 2, body, [0])


def run(build, kind, values, logdir):
    """The values of all variables after a run for each of `values`, and what was seen."""
    with tf.Graph().as_default(), slimguard.instrument('skip', logdir=str(logdir)) as guards:
        model = Model(kind != 'ref')
        fetched = build(model)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            for number, value in enumerate(values):
                session.run(fetched, {model.x: value, model.first: number == 0})
            return session.run([model.weight, model.sum, model.scale]), guards.sessions.seen


@pytest.mark.full
@pytest.mark.parametrize(
    'build, kind',
    [
        (alone, 'ref'),
        (of_a_tape_in_a_function, 'resource'),
        (first_assigns, 'ref'),
        (first_assigns, 'functions'),
        (a_sum_in_a_branch, 'resource'),
        (a_sum, 'ref'),
        (every_second_sum, 'resource'),
        (in_a_branch, 'functions'),
        (in_a_map, 'resource'),
        (with_its_gradient_in_a_branch, 'ref'),
        (with_its_gradient_in_a_loop, 'functions'),
    ],
    indirect=['kind'],
    ids=lambda each: getattr(each, '__name__', each),
)
def test_a_bad_batch_is_not_written(build, kind, tmp_path):
    # The first value only starts the script: some builds write nothing then.
    good, _ = run(build, kind, [0.0, *VALUES], tmp_path)
    values = [0.0, *WITH_BAD]
    with_bad, seen = run(build, kind, values, tmp_path)
    assert with_bad == good
    assert good[:2] != [1.0, 0.0]
    # slimguard does not recognize gradients of a tape, or gradients in a function, as such: their
    # runs count as runs that only write.
    assert seen.actions == {'skip': 3}
    assert seen.writing_runs + sum(seen.train_ops.values()) == len(values)
    assert kind == 'functions' or bool(seen.train_ops) == (build is not of_a_tape_in_a_function)


@pytest.mark.full
@pytest.mark.parametrize('kind', ['resource'], indirect=True)
def test_the_first_of_a_sum_may_be_bad(kind, tmp_path):
    values, seen = run(first_assigns, kind, [np.nan, 1.0, 2.0], tmp_path)
    assert values == [1.0, 2.0 + 8.0, 8.0]
    assert seen.actions == {'skip': 1}


def test_what_is_written_because_of_a_gradient_is_the_scripts_own(control_flow_v1, tmp_path):
    """The script lowers a scale if a gradient is not finite: the scale has no gradient in it."""

    def build(model):
        is_finite = tf.math.is_finite(model.gradient())
        return tf.cond(
            is_finite,
            lambda: model.scale.assign_add(1.0),
            lambda: model.scale.assign(model.scale * 0.5),
        )

    values, seen = run(build, 'resource', [1.0, np.nan, 1.0], tmp_path)
    assert values[2] == 9.0 / 2 + 1
    assert not seen.train_ops and not seen.refused


@pytest.mark.parametrize('kind', ['ref', 'functions'], indirect=True)
def test_a_branch_that_writes_no_gradient_is_guarded_and_no_step(kind, tmp_path):
    def build(model):
        model.gradient()
        return tf.cond(
            model.first,
            lambda: model.scale.assign(model.x),
            lambda: model.scale.assign_add(model.x),
        )

    values, seen = run(build, kind, [1.0, np.nan], tmp_path)
    assert values[2] == 1.0
    assert seen.actions == {'skip': 1} and seen.writing_runs == 2
    assert not seen.train_ops and not seen.refused


@pytest.mark.parametrize('kind', ['ref'], indirect=True)
def test_a_copy_of_a_weight_is_no_training(kind, tmp_path):
    def build(model):
        model.gradient()
        return model.scale.assign(model.weight)

    values, seen = run(build, kind, [1.0], tmp_path)
    assert values == [1.0, 0.0, 1.0]
    assert seen.train_ops == {}


@pytest.mark.full
@pytest.mark.parametrize('kind', ['ref', 'functions'], indirect=True)
def test_what_a_branch_or_a_loop_writes_ahead_of_the_gradient_is_none(kind):
    """For the gradient, TensorFlow adds lists and stacks to them, which are no gradients either."""
    with slimguard.instrument('skip') as guards:
        model = Model(kind != 'ref')

        def body(number, value):
            with tf.control_dependencies([model.scale.assign_add(1.0)]):
                return number + 1, tf.sin(value) * model.weight

        def branch():
            with tf.control_dependencies([model.sum.assign_add(1.0)]):
                return tf.sin(model.weight)

        _, value = tf.while_loop(lambda number, _: number < 2, body, [0, model.x])
        chosen = tf.cond(model.first, branch, lambda: tf.cos(model.weight))
        mean = model.scale.assign(value * chosen)
        (gradient,) = tf1.gradients(value * chosen, [model.weight])
        update = model.weight.assign_sub(gradient)
    found = guards.sessions._notes.writes_of_gradients(tf1.get_default_graph())
    assert found and all('AssignSub' in op.type for op in found)
    assert update.op in found or update.op.type == 'ReadVariableOp'
    assert mean.op not in found


def test_what_keras_runs_in_a_graph_is_named_once(tmp_path):
    if not tf.__version__.startswith('1.'):
        pytest.skip('only the Keras of TensorFlow 1 trains in a graph and a session')
    keras = tf.keras
    with slimguard.instrument(on_nan='skip', logdir=tmp_path) as guards:
        with tf1.Session() as session, LogLines() as lines:
            keras.backend.set_session(session)
            model = keras.Sequential([keras.layers.Dense(1, input_shape=(2,))])
            model.compile('sgd', 'mse')
            for _ in range(2):
                model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    (line,) = [line for line in lines if 'NOT guarded' in line]
    assert 'as in the fit of Keras' in line
    assert len(guards.sessions.seen.refused) == 1

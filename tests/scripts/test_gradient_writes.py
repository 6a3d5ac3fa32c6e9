"""Scripts that write gradients themselves, and what runs without `Session.run`."""

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from tests.helpers.models import LogLines

tf1 = tf.compat.v1


class OwnUpdates:
    """A weight, a sum of gradients and a copy, which no optimizer writes."""

    def __init__(self, use_resource):
        self.x = tf1.placeholder(tf.float32, [])
        with tf1.variable_scope('own', use_resource=use_resource):
            self.weight = tf1.get_variable('w', initializer=1.0)
            self.sum = tf1.get_variable('sum', initializer=0.0, trainable=False)
            self.target = tf1.get_variable('target', initializer=5.0)
        self.loss = tf.square(self.weight * self.x)
        (gradient,) = tf1.gradients(self.loss, [self.weight])
        self.train_op = self.weight.assign_sub(0.1 * gradient)
        self.add = self.sum.assign_add(gradient)
        self.copy = self.target.assign(self.weight)

    def values(self, session):
        return session.run([self.weight, self.sum, self.target])


@pytest.fixture
def logdir(tmp_path):
    return tmp_path


@pytest.mark.parametrize('use_resource', [False, True])
class TestGradientsThatTheScriptWrites:
    def run(self, use_resource, logdir, fetch, values):
        """The values after a run of what `fetch` gives for each of `values`, and what was seen."""
        with slimguard.instrument(on_nan='skip', logdir=logdir) as guards:
            model = OwnUpdates(use_resource)
            with tf1.Session() as session:
                session.run(tf1.global_variables_initializer())
                for value in values:
                    session.run(fetch(model), {model.x: value})
                return model.values(session), guards.sessions.seen

    def test_an_update_is_guarded(self, use_resource, logdir):
        def fetch(model):
            return [model.train_op, model.loss]

        good, _ = self.run(use_resource, logdir, fetch, [1.0, 2.0])
        with tf.Graph().as_default():
            with_bad, seen = self.run(use_resource, logdir, fetch, [1.0, np.nan, 2.0])
        assert with_bad == good
        assert seen.actions == {'skip': 1}
        write = 'AssignSubVariableOp' if use_resource else 'AssignSub'
        assert list(seen.train_ops) == [write]
        assert sum(seen.train_ops.values()) == 3

    def test_a_sum_of_gradients_in_a_run_of_its_own_is_guarded(self, use_resource, logdir):
        good, _ = self.run(use_resource, logdir, lambda model: model.add, [1.0, 2.0])
        with tf.Graph().as_default():
            bad = [1.0, np.inf, 2.0]
            with_bad, seen = self.run(use_resource, logdir, lambda model: model.add, bad)
        assert with_bad == good
        assert seen.actions == {'skip': 1}

    def test_a_copy_of_a_weight_is_no_training(self, use_resource, logdir):
        values, seen = self.run(use_resource, logdir, lambda model: model.copy, [0.0])
        assert values == [1.0, 0.0, 1.0]
        assert seen.train_ops == {}


def in_a_loop(step, x):
    def body(number):
        with tf.control_dependencies([step(x)]):
            return number + 1

    return tf1.while_loop(lambda number: number < 2, body, [0])


PLACES = {
    'alone': lambda step, x: step(x),
    'in a function': lambda step, x: tf.function(step, autograph=False)(x),
    'in a branch': lambda step, x: tf1.cond(x < 1e9, lambda: step(x), lambda: step(-x)),
    'in a loop': in_a_loop,
}


@pytest.mark.parametrize('place', PLACES)
def test_a_gradient_of_a_tape_is_guarded(place, logdir):
    def weights(values):
        with tf.Graph().as_default(), slimguard.instrument(on_nan='skip', logdir=logdir) as guards:
            x = tf1.placeholder(tf.float32, [])
            weight = tf1.get_variable('w', initializer=1.0, use_resource=True)

            def descend(x):
                with tf.GradientTape() as tape:
                    loss = tf.square(weight * x)
                return tf.identity(weight.assign_sub(0.1 * tape.gradient(loss, weight)))

            fetch = PLACES[place](descend, x)
            with tf1.Session() as session:
                session.run(tf1.global_variables_initializer())
                for value in values:
                    session.run(fetch, {x: value})
                return session.run(weight), guards.sessions.seen

    good, _ = weights([1.0, 2.0])
    with_bad, seen = weights([1.0, np.nan, 2.0])
    assert with_bad == good
    assert seen.actions == {'skip': 1}
    assert not seen.refused


def test_what_keras_runs_in_a_graph_is_named_once(logdir):
    if not tf.__version__.startswith('1.'):
        pytest.skip('only the Keras of TensorFlow 1 trains in a graph and a session')
    keras = tf.keras
    with slimguard.instrument(on_nan='skip', logdir=logdir) as guards:
        with tf1.Session() as session, LogLines() as lines:
            keras.backend.set_session(session)
            model = keras.Sequential([keras.layers.Dense(1, input_shape=(2,))])
            model.compile('sgd', 'mse')
            for _ in range(2):
                model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    (line,) = [line for line in lines if 'NOT guarded' in line]
    assert 'as Keras does in fit' in line
    assert len(guards.sessions.seen.refused) == 1

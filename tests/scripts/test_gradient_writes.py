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


def decayed(weight, other):
    decay = tf1.placeholder_with_default(0.9, [])
    return decay * weight + (1 - decay) * other


def zero_debiased(weight):
    averages = tf1.train.ExponentialMovingAverage(0.9, zero_debias=True)
    return averages.apply([tf.identity(weight)])


def doubled_while(condition, weight):
    is_good = tf.reduce_all(tf.math.is_finite(condition))
    return tf.cond(is_good, lambda: weight * 2.0, lambda: weight / 2.0)


def masked_by(x):
    """A mask that another run sets, in a variable that is not trained."""
    mask = tf1.get_variable('mask', [2], initializer=tf1.ones_initializer(), trainable=False)
    mask.assign(x)
    tf1.train.Saver([mask])
    return mask


def statistic(**kwargs):
    with tf1.variable_scope('own', reuse=tf1.AUTO_REUSE):
        return tf1.get_variable('n', [2], trainable=False, **kwargs)


class TestWritesThatNobodyGuards:
    """Fed gradients, and other updates by `assign`: named once, unless they train nothing."""

    @pytest.fixture(params=[False, True])
    def said(self, request, logdir):
        """A function: the lines about a run of what `make` gives, and what was seen."""

        def run(make):
            with slimguard.instrument(on_nan='skip', logdir=logdir) as guards:
                x = tf1.placeholder(tf.float32, [2])
                with tf1.variable_scope('own', use_resource=request.param):
                    weight = tf1.get_variable('w', initializer=[1.0, 1.0])
                    other = tf1.get_variable('other', initializer=[2.0, 2.0])
                fetch = make(x, weight, other)
                initializers = tf1.global_variables_initializer(), tf1.local_variables_initializer()
                with tf1.Session() as session, LogLines() as lines:
                    session.run(initializers)
                    for _ in range(2):
                        session.run(fetch, {x: [1.0, 1.0]})
                    weight.load([3.0, 3.0], session)
            return [each for each in lines if 'NOT guarded' in each], guards.sessions.seen

        return run

    def test_a_fed_gradient(self, said):
        (line,), seen = said(lambda x, weight, other: weight.assign_sub(0.1 * x))
        assert "the update of 'own/w' is NOT guarded: a run writes it with what is fed," in line
        assert list(seen.refused) == ['own/w']
        assert "the update of 'own/w' cannot be" in str(seen)

    @pytest.mark.parametrize(
        'make',
        [
            lambda x, weight, other: statistic().assign_add(x),
            lambda x, weight, other: statistic().assign(decayed(statistic(), x)),
            lambda x, weight, other: tf.group(tf1.assign(statistic(), statistic() + x)),
            lambda x, weight, other: tf1.assign(statistic(), tf.abs(weight - x)),
        ],
        ids=['a sum', 'a running mean', 'a group', 'errors'],
    )
    def test_a_statistic_in_a_run_of_its_own(self, make, said):
        (line,), seen = said(make)
        assert "the update of 'own/n' is NOT guarded: a run that trains nothing writes it" in line
        assert list(seen.refused) == ['own/n']

    @pytest.mark.parametrize(
        'make',
        [
            lambda x, weight, other: weight.assign(weight / tf.norm(weight)),
            lambda x, weight, other: weight.assign_add(tf1.log(weight)),
            lambda x, weight, other: weight.assign(weight * tf1.rsqrt(tf.reduce_sum(other))),
            lambda x, weight, other: weight.assign(other / tf.norm(other)),
            lambda x, weight, other: weight.assign(tf.sqrt(weight - 2.0)),
            lambda x, weight, other: weight.assign(weight * tf.pow(tf.square(other), -0.5)),
            lambda x, weight, other: weight.assign((weight - 2.0) ** 0.5),
            lambda x, weight, other: weight.assign(
                tf.sqrt(other - tf.square(tf.identity(weight)) + 1e-8)
            ),
            lambda x, weight, other: tf1.scatter_div(weight, [0], [other[0] - 0.5 * other[1]]),
            lambda x, weight, other: weight.assign(tf.acos(weight)),
            lambda x, weight, other: weight.assign(weight % other),
            lambda x, weight, other: weight.assign(
                tf.cast(tf.cast(weight, tf.float16), tf.float32)
            ),
        ],
        ids='a quotient|a logarithm|one by a root|of another|a root|a power|a power below 1|'
        'a variance|a row|'
        'an angle|a rest|half the bits'.split('|'),
    )
    def test_what_may_be_a_division_by_zero(self, make, said):
        (line,), seen = said(make)
        assert "the update of 'own/w' is NOT guarded: a run that trains nothing comp" in line
        assert list(seen.refused) == ['own/w']

    @pytest.mark.parametrize(
        'make',
        [
            lambda x, weight, other: weight.assign(weight * 1e20),
            lambda x, weight, other: weight.assign_add(tf.identity(weight) * 0.5),
            lambda x, weight, other: tf1.assign(weight, 2.0 * weight - 0.5 * other),
            lambda x, weight, other: weight.assign(tf.exp(weight)),
            lambda x, weight, other: weight.assign(other * tf.exp(-1.0 * other)),
            lambda x, weight, other: weight.assign_sub(weight * weight),
            lambda x, weight, other: weight.assign(weight**3.0),
            lambda x, weight, other: weight.assign(2.0**other),
            lambda x, weight, other: weight.assign(tf.minimum(2.0 * weight, other)),
            lambda x, weight, other: weight.assign(weight / 0.5),
            lambda x, weight, other: weight.assign(
                tf.where(other > 1.0, weight * 2.0, weight / 2.0)
            ),
            lambda x, weight, other: tf1.scatter_mul(weight, [0], [2.0]),
            lambda x, weight, other: weight[:1].assign(weight[:1] * 2.0),
            lambda x, weight, other: weight.assign(tf.nn.relu(weight) * tf.exp(0.7)),
        ],
        ids='a product|a half more|a sum|an exponential|of another|a square|a cube|a power|'
        'not by a number|a quotient|where|a row|a slice|a relu'.split('|'),
    )
    def test_what_grows_each_time(self, make, said):
        (line,), seen = said(make)
        assert "the update of 'own/w' is NOT guarded: a run that trains nothing makes" in line
        assert list(seen.refused) == ['own/w']

    def test_what_grows_in_a_branch(self, said):
        """A branch of a v2 `tf.cond` is a function, which may draw a batch for all one can see."""
        (line,), seen = said(lambda x, weight, other: weight.assign(doubled_while(other, weight)))
        assert list(seen.refused) == ['own/w'] and "the update of 'own/w' is NOT" in line

    def test_a_loss_scale_that_is_doubled(self, said):
        def make(x, weight, other):
            scale = tf1.get_variable('scale', initializer=2.0, trainable=False)
            rate = tf1.get_variable('rate', initializer=0.5, trainable=False)
            return [scale.assign(2 * scale), rate.assign(0.5 * rate)]

        (line,), seen = said(make)
        assert list(seen.refused) == ['scale'] and "the update of 'scale' is NOT" in line

    def test_a_mean_of_what_may_be_nothing(self, said):
        def make(x, weight, other):
            return statistic().assign(other * tf.reduce_mean(tf.boolean_mask(other, other > 2)))

        (line,), seen = said(make)
        assert list(seen.refused) == ['own/n'] and "the update of 'own/n' is NOT" in line

    def test_several_in_one_run(self, said):
        def make(x, weight, other):
            return [weight.assign(other - x), other.assign_add(x)]

        (line,), _ = said(make)
        assert "the update of 'own/other, own/w' is NOT guarded" in line

    def test_a_batch_that_a_counter_picks(self, said):
        def make(x, weight, other):
            number = tf1.get_variable('number', initializer=0, trainable=False)
            batch = tf.constant([[1.0, 2.0], [3.0, 4.0]])[number]
            return weight.assign_sub(0.1 * batch * weight)

        (line,), seen = said(make)
        assert list(seen.refused) == ['own/w'] and "the update of 'own/w' is NOT" in line

    def test_a_batch_that_another_run_has_drawn(self, said):
        def make(x, weight, other):
            drawn = tf1.data.make_one_shot_iterator(
                tf1.data.Dataset.from_tensors([1.0, 2.0]).repeat()
            ).get_next()
            batch = tf1.get_variable('batch', [2], trainable=False)
            batch.assign(drawn)
            return weight.assign(weight - 0.1 * batch * weight)

        (line,), seen = said(make)
        assert list(seen.refused) == ['own/w'] and "the update of 'own/w' is NOT" in line

    @pytest.mark.parametrize(
        'make',
        [
            lambda x, weight, other: weight.assign(x),
            lambda x, weight, other: weight.assign(weight * masked_by(x)),
            lambda x, weight, other: weight.assign_sub(weight[: tf.shape(other)[0]]),
            lambda x, weight, other: weight.assign(0.9 * weight + 0.1 * other),
            lambda x, weight, other: weight.assign(decayed(weight, other)),
            lambda x, weight, other: weight.assign(other + tf1.random_normal([2])),
            lambda x, weight, other: weight.assign(tf.clip_by_value(weight, -1.0, 1.0)),
            lambda x, weight, other: weight.assign(tf.nn.l2_normalize(weight)),
            lambda x, weight, other: weight.assign(tf.clip_by_norm(weight, 1.0)),
            lambda x, weight, other: weight.assign(weight / (1e-8 + tf.norm(weight))),
            lambda x, weight, other: weight.assign(weight / 3.0),
            lambda x, weight, other: weight.assign_sub(0.5 * weight - 0.5 * other),
            lambda x, weight, other: weight.assign(tf.minimum(2.0 * weight, 5.0)),
            lambda x, weight, other: weight.assign(weight * tf.exp(-tf.square(other) / 2.0)),
            lambda x, weight, other: weight.assign(tf.exp(other - tf.reduce_max(other))),
            lambda x, weight, other: weight.assign(tf.exp(tf.minimum(other, 10.0))),
            lambda x, weight, other: weight.assign(weight * 0.5**other),
            lambda x, weight, other: weight.assign(weight / tf.maximum(1.0, tf.abs(weight))),
            lambda x, weight, other: statistic().assign_add(weight),
            lambda x, weight, other: weight.assign(tf.clip_by_global_norm([weight], 1.0)[0][0]),
            lambda x, weight, other: weight.assign(
                weight / tf.sqrt(tf.reduce_sum(weight**2) + 1e-8)
            ),
            lambda x, weight, other: weight.assign(
                tf.keras.constraints.UnitNorm()(tf.identity(weight))
            ),
            lambda x, weight, other: weight.assign(weight - tf.reduce_logsumexp(weight)),
            lambda x, weight, other: statistic().assign_add(
                (weight - statistic())
                / tf.cast(tf1.train.get_or_create_global_step() + 1, tf.float32)
            ),
            lambda x, weight, other: zero_debiased(weight),
            lambda x, weight, other: weight.assign(
                weight * tf.cast(tf.abs(weight) > tf.reduce_min(other), tf.float32)
            ),
            lambda x, weight, other: weight.assign(tf.sqrt(tf.reduce_sum(other * other)) + other),
            lambda x, weight, other: statistic(collections=['local_variables']).assign_add(x),
            lambda x, weight, other: statistic(dtype=tf.int64).assign_add(tf.cast(x, tf.int64)),
            lambda x, weight, other: statistic().assign(x),
            lambda x, weight, other: statistic().assign_add(0.5 * weight),
            lambda x, weight, other: statistic().assign(decayed(statistic(), other)),
        ],
        ids='a value|a mask|a part|moving average|fed decay|parameter noise|clipping|a sphere|'
        'a ball|small number|a third|nearer|bounded|a kernel|a softmax|a bounded power|a decay|'
        'a box|weights|a global norm|a root|of Keras|probabilities|a mean of weights|debiased|'
        'pruned|a norm|a metric|a count|a buffer|a copy|of weights'.split('|'),
    )
    def test_what_trains_nothing_is_not_named(self, make, said):
        lines, seen = said(make)
        assert not lines
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

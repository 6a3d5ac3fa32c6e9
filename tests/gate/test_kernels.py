"""Optimizers' kernels that make a NaN or Inf of gradients that are finite and small."""

import pytest
import tensorflow as tf

from slimguard import graph as graphs
from slimguard.gate.reading.plan import make_plan
from tests.helpers import gate_models as models

tf1 = tf.compat.v1
train = tf1.train


def da(start):
    step = train.get_or_create_global_step()
    return train.AdagradDAOptimizer(0.1, step, initial_gradient_squared_accumulator_value=start)


ODD = {
    'Adam with a beta1 of one': lambda: train.AdamOptimizer(0.01, beta1=1.0),
    'Adam with a beta2 above one': lambda: train.AdamOptimizer(0.01, beta2=1.5),
    'Adam with an epsilon below zero': lambda: train.AdamOptimizer(0.01, epsilon=-1e-8),
    'RMSProp with a decay above one': lambda: train.RMSPropOptimizer(0.01, decay=1.5),
    'RMSProp with an epsilon below zero': lambda: train.RMSPropOptimizer(0.01, epsilon=-5.0),
    'Adadelta with a rho of two': lambda: train.AdadeltaOptimizer(1.0, rho=2.0),
    'Momentum of ten': lambda: train.MomentumOptimizer(0.0, 10.0),
    'FTRL with a rate of zero': lambda: train.FtrlOptimizer(0.0),
    'FTRL with a tiny rate': lambda: train.FtrlOptimizer(1e-38),
    'FTRL with a large power': lambda: train.FtrlOptimizer(0.1, learning_rate_power=-60.0),
    'FTRL that begins at zero': lambda: train.FtrlOptimizer(0.1, initial_accumulator_value=0.0),
    'Adagrad that begins at nearly zero': lambda: train.AdagradOptimizer(0.1, 1e-45),
    'ProximalAdagrad that does': lambda: train.ProximalAdagradOptimizer(0.1, 1e-45),
    'AdagradDA that does': lambda: da(1e-45),
}


def weights(optimizer, is_sparse, use_resource):
    """Trains four weights, the last of which has a gradient of zero."""
    start = tf.constant([0.1, -0.2, 0.3, 0.0])
    w = tf1.get_variable('w', initializer=start, use_resource=use_resource)
    used = tf.gather(w, [0, 1, 1, 3]) if is_sparse else w
    loss = tf.reduce_sum(tf.square(used * tf.constant([1.0, 1.0, 2.0, 0.0])))
    return optimizer.minimize(loss, train.get_or_create_global_step()), loss


# Dense and sparse gradients, ref and resource variables, in turn.
@pytest.mark.parametrize(
    'name, is_sparse, use_resource',
    [(name, number % 4 in (1, 2), number % 2 == 0) for number, name in enumerate(ODD)],
    ids=[name.replace(' ', '_') for name in ODD],
)
def test_no_step_writes_what_it_makes(name, is_sparse, use_resource):
    try:
        model = weights(ODD[name](), is_sparse, use_resource)
    except ValueError:
        pytest.skip('TensorFlow %s refuses this itself' % tf.__version__)
    guarded = models.Guarded(model)
    for _ in range(60):
        try:
            guarded.step()
        except tf.errors.InvalidArgumentError:
            pass  # TensorFlow 1.15 raises for some of them when it runs them
        assert not guarded.snapshot.not_finite(guarded.sess)


# By argument: the optimizer, its other arguments, a good value, and one that soon makes a NaN.
FED = {
    'learning_rate': (train.FtrlOptimizer, {}, 0.1, 0.0),
    'beta2': (train.AdamOptimizer, {'learning_rate': 0.1}, 0.9, 1.5),
    'decay': (train.RMSPropOptimizer, {'learning_rate': 0.1}, 0.9, -1.0),
}


@pytest.mark.parametrize(
    'name, use_resource', [('beta2', True), ('learning_rate', False), ('decay', False)]
)
def test_an_argument_that_is_fed_is_compared_in_each_step(name, use_resource):
    optimizer, others, good, bad = FED[name]
    argument = tf1.placeholder_with_default(good, [])
    model = weights(optimizer(**others, **{name: argument}), False, use_resource)
    assert not make_plan(*model, {}).trial
    guarded = models.Guarded(model)
    guarded.assert_written()
    try:
        for _ in range(100):
            if not guarded.step({argument: bad}):
                break
            assert not guarded.snapshot.not_finite(guarded.sess)
        guarded.assert_held({argument: bad}, '%s of %s' % (name, bad))
        assert 'w' in str(guarded.finding())
    except tf.errors.InvalidArgumentError:
        assert name == 'learning_rate' and tf.__version__.startswith('1.')  # it checks the rate
    assert not guarded.snapshot.not_finite(guarded.sess)


@pytest.mark.parametrize('dtype', [tf.bfloat16, tf.float16])
def test_what_is_rounded_to_one_or_zero(dtype):
    w = tf1.get_variable('w', initializer=tf.constant([0.5, 0.5], dtype), use_resource=True)
    loss = tf.reduce_sum(tf.cast(tf.square(w), tf.float32))
    guarded = models.Guarded((train.AdamOptimizer(0.01, beta1=0.9999).minimize(loss), loss))
    for _ in range(3):
        guarded.step()
        assert not guarded.snapshot.not_finite(guarded.sess)


@pytest.mark.full
def test_what_is_usual_takes_the_fast_path():
    for number, (name, make) in enumerate(models.OPTIMIZERS.items()):
        for is_sparse in (False, True):
            with tf.Graph().as_default():
                plan = make_plan(*weights(make(), is_sparse, (number + is_sparse) % 2 == 0), {})
                assert plan.trial == (name == 'CenteredRMSProp'), (name, is_sparse)


def test_the_least_of_a_constant():
    lowest = graphs.lowest_constant
    for dtype in (tf.float32, tf.float64, tf.float16, tf.bfloat16):
        assert lowest(tf.constant([[3.0, -0.5], [2.0, 1.0]], dtype)) == -0.5
        assert lowest(tf.constant([2.0, 1.0, 1.0, 1.0], dtype)) == 1.0
        assert lowest(tf.constant(0.5, dtype, [100, 100])) == 0.5
        assert lowest(tf.fill([3], tf.constant(0.25, dtype))) == 0.25
        assert lowest(tf.ones([3], dtype) * tf.constant(0.25, dtype)) == 0.25
        assert lowest(tf.constant([-1.0, 1.0], dtype) * tf.constant([-1.0, 1.0], dtype)) is None
        assert lowest(tf1.placeholder(dtype)) is None

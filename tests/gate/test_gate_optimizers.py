"""The gate under every optimizer of `tf.compat.v1.train`: a bad step leaves every bit."""

import functools

import pytest
import tensorflow as tf

from tests.helpers import gate_models as models

tf1 = tf.compat.v1

optimizers = pytest.mark.parametrize('optimizer', sorted(models.OPTIMIZERS))
kinds = pytest.mark.parametrize('use_resource', [False, True], ids=['ref', 'resource'])
# By dtype, the optimizers that some TensorFlow has no kernels for.
OTHER_DTYPES = {
    'float16': {'AdagradDA', 'ProximalAdagrad', 'ProximalGradientDescent'},
    'bfloat16': {
        'AdagradDA',
        'CenteredRMSProp',
        'ProximalAdagrad',
        'ProximalGradientDescent',
        'RMSProp',
    },
    'float64': {'ProximalAdagrad', 'ProximalGradientDescent'},
}


def model(optimizer, **kwargs):
    return functools.partial(
        models.two_weights, make_optimizer=models.OPTIMIZERS[optimizer], **kwargs
    )


@optimizers
@kinds
def test_finite_steps_give_the_same_bits_and_bad_ones_change_nothing(optimizer, use_resource):
    models.check_bits_and_damage(model(optimizer, use_resource=use_resource), steps=200)


@pytest.mark.parametrize(
    'optimizer, dtype',
    [
        pytest.param(name, dtype, marks=[pytest.mark.not_shared] * (name in without_kernels))
        for dtype, without_kernels in sorted(OTHER_DTYPES.items())
        for name in sorted(models.OPTIMIZERS)
    ],
)
def test_bad_step_changes_nothing_in_other_dtypes(optimizer, dtype):
    def build(damage):
        steps, losses = [], []
        for use_resource in (False, True):
            with tf1.variable_scope('resource' if use_resource else 'ref'):
                one = model(optimizer, dtype=tf.as_dtype(dtype), use_resource=use_resource)
                step, loss = one(damage)
            steps.append(step)
            losses.append(loss)
        return tf.group(*steps), tf.add_n(losses)

    models.check_every_damage(build, skips=True)

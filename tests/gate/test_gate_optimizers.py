"""The gate under every optimizer of `tf.compat.v1.train`: a bad step changes no bit."""

import functools

import pytest
import tensorflow as tf

from tests.helpers import gate_models as models

tf1 = tf.compat.v1

USUAL = ['GradientDescent', 'Momentum', 'Adam', 'RMSProp', 'Adagrad']
RARER = [name for name in models.OPTIMIZERS if name not in USUAL]
# The usual optimizers with ref and with resource variables, the rarer ones with these in turn.
CASES = [(name, by_handle) for by_handle in (False, True) for name in USUAL]
CASES += [
    pytest.param(name, number % 2 == 0, marks=pytest.mark.full) for number, name in enumerate(RARER)
]


def model(optimizer, **kwargs):
    return functools.partial(
        models.two_weights, make_optimizer=models.OPTIMIZERS[optimizer], **kwargs
    )


@pytest.mark.every_cell
@pytest.mark.parametrize('optimizer, use_resource', CASES)
def test_finite_steps_give_the_same_bits_and_bad_ones_change_nothing(optimizer, use_resource):
    models.check_bits_and_damage(model(optimizer, use_resource=use_resource), steps=50)


@pytest.mark.parametrize(
    'optimizer, dtype, use_resource',
    [
        ('Adam', 'float16', True),
        ('GradientDescent', 'bfloat16', False),
        ('Momentum', 'float64', False),
        ('Nesterov', 'bfloat16', True),
        ('RMSProp', 'float16', False),
        ('CenteredRMSProp', 'float64', True),
        ('Adagrad', 'float16', False),
        ('Adadelta', 'bfloat16', True),
        ('Ftrl', 'float64', False),
        ('ProximalAdagrad', 'float64', True),
    ],
)
def test_bad_step_changes_nothing_in_other_dtypes(optimizer, dtype, use_resource):
    build = model(optimizer, dtype=tf.as_dtype(dtype), use_resource=use_resource)
    models.check_every_damage(build, skips=True)

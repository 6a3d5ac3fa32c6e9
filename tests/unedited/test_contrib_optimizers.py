"""Unedited scripts, guarded: the bits of the optimizers of `tf.contrib.opt`."""

import numpy as np
import pytest
import tensorflow as tf

import slimguard

tf1 = tf.compat.v1
train = tf1.train

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not tf.__version__.startswith('1.'), reason='tf.contrib.opt is gone'),
]


def inner():
    return train.MomentumOptimizer(0.1, 0.9)


# MomentumW and AdamW are not among them: they decay a weight while the forward pass reads it, so
# that in plain TensorFlow the bits are those of whichever comes first.
CONTRIBS = {
    # For reference variables alone, as plain TensorFlow has it.
    'AddSign': lambda opt: opt.AddSignOptimizer(0.1),
    'LARS': lambda opt: opt.LARSOptimizer(0.1),
    'MovingAverage': lambda opt: opt.MovingAverageOptimizer(inner()),
    'Shampoo': lambda opt: opt.ShampooOptimizer(train.get_or_create_global_step()),
    'VariableClipping': lambda opt: opt.VariableClippingOptimizer(inner(), {}, 1.0),
}


def states_of(make, batches, use_resource):
    """The bits of all variables after each batch; None is one with a NaN."""
    tf1.set_random_seed(1)
    train.get_or_create_global_step()
    x = tf1.placeholder(tf.float32, [4, 3])
    with tf1.variable_scope('m', use_resource=use_resource):
        matrix = np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2)
        w = tf1.get_variable('w', initializer=matrix)
        b = tf1.get_variable('b', initializer=np.zeros(2, np.float32))
        e = tf1.get_variable('e', initializer=np.ones((5, 2), np.float32))
    y = tf.tanh(tf.matmul(x, w) + b) * tf.nn.embedding_lookup(e, [0, 3, 3, 1])
    loss = tf.reduce_mean(tf.square(y - 0.3))
    train_op = make().minimize(loss, global_step=train.get_or_create_global_step())
    config = tf1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    states = []
    with tf1.Session(config=config) as session:
        variables = tf1.global_variables() + tf1.local_variables()
        session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
        for batch in batches:
            value = np.random.RandomState(batch or 0).randn(4, 3).astype(np.float32)
            if batch is None:
                value[0, 0] = np.nan
            session.run([train_op, loss], {x: value})
            states.append([np.asarray(each).tobytes() for each in session.run(variables)])
    return states


def compare(make, use_resource, logdir):
    with tf.Graph().as_default():
        plain = states_of(make, [1, 2, 3], use_resource)
    with slimguard.instrument(on_nan='skip', logdir=logdir) as guards:
        with tf.Graph().as_default():
            good = states_of(make, [1, 2, 3], use_resource)
        with tf.Graph().as_default():
            first, after_bad, second, after_worse, third = states_of(
                make, [1, None, 2, None, 3], use_resource
            )
    assert good == plain == [first, second, third]
    assert after_bad == first and after_worse == second
    assert guards.sessions.seen.actions == {'skip': 2}


# By turns of reference variables, and by handle.
@pytest.mark.parametrize('name, use_resource', zip(CONTRIBS, [False, True] * 6))
def test_of_contrib(name, use_resource, tmp_path):
    from tensorflow.contrib import opt

    compare(lambda: CONTRIBS[name](opt), use_resource, tmp_path)

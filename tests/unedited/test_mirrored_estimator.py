"""A distribution strategy in an unedited script: an Estimator with mirrored variables."""

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from tests.helpers.models import records_in

tf1 = tf.compat.v1

pytestmark = pytest.mark.skipif(
    not tf.__version__.startswith('1.'), reason='TensorFlow 2 has no strategies in its Estimators'
)
BATCHES, BAD, DEVICES = 12, 7, 2


def batches(bad):
    of_rows = [np.full([4, 3], np.nan if n in bad else n, np.float32) for n in range(BATCHES)]
    rows = tf.data.Dataset.from_tensor_slices(np.concatenate(of_rows))
    return rows.batch(4, drop_remainder=True)


def model_fn(features, mode):
    hidden = tf1.layers.batch_normalization(tf1.layers.dense(features, 2), training=True)
    loss = tf.reduce_sum(tf.square(hidden - 3))
    with tf.control_dependencies(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)):
        optimizer = tf1.train.AdamOptimizer(0.1)
        train_op = optimizer.minimize(loss, tf1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def train(folder, bad=()):
    """Trains on two devices, each with batches of its own; returns the checkpoint's values."""
    devices = ['/cpu:%d' % number for number in range(DEVICES)]
    config = tf.estimator.RunConfig(
        train_distribute=tf.distribute.MirroredStrategy(devices),
        tf_random_seed=1,
        session_config=tf1.ConfigProto(device_count={'CPU': DEVICES}),
    )
    estimator = tf.estimator.Estimator(model_fn, str(folder), config)
    estimator.train(lambda: batches(bad))
    return {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}


@pytest.mark.full
def test_mirrored_variables_are_guarded_on_each_device(tmp_path):
    on_nan = 'rollback'
    with slimguard.instrument(on_nan, capture=False):
        values = train(tmp_path, bad={BAD})
    assert [record['action'] for record in records_in(tmp_path)] == [on_nan]
    assert not [name for name, value in values.items() if not np.isfinite(value).all()]


@pytest.mark.full
def test_good_steps_of_mirrored_variables_keep_their_bits(tmp_path):
    plain = train(tmp_path / 'plain')
    with slimguard.instrument('raise', capture=False):
        guarded = train(tmp_path / 'guarded')
    assert plain['global_step'] == BATCHES // DEVICES
    assert {name: value.tobytes() for name, value in plain.items()} == {
        name: value.tobytes() for name, value in guarded.items()
    }

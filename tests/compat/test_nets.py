"""The networks of tf_slim.nets: each is built, trained a guarded step, and skips a bad one."""

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard import compat, gate
from tests.helpers.models import state

tf1 = tf.compat.v1
slim = compat.import_slim()
nets = pytest.importorskip('tf_slim.nets', reason='tf.contrib.slim keeps its nets elsewhere')


def resnet_50(images):
    with slim.arg_scope(nets.resnet_v1.resnet_arg_scope()):
        return nets.resnet_v1.resnet_v1_50(images, 10, is_training=True)[0]


def alexnet_v2(images):
    with slim.arg_scope(nets.alexnet.alexnet_v2_arg_scope()):
        return nets.alexnet.alexnet_v2(images, 10, is_training=True)[0]


@pytest.mark.full
@pytest.mark.parametrize(
    'net, batch, size',
    [(resnet_50, 2, 32), (alexnet_v2, 1, 224)],
    ids=lambda value: getattr(value, '__name__', None),
)
def test_a_good_step_trains_and_a_bad_one_changes_no_bit(net, batch, size):
    images = tf1.placeholder(tf.float32, [batch, size, size, 3])
    logits = tf.reshape(net(images), [batch, 10])
    tf1.losses.sparse_softmax_cross_entropy(tf.zeros([batch], tf.int32), logits)
    loss = tf1.losses.get_total_loss()
    optimizer = tf1.train.GradientDescentOptimizer(1e-3)
    train_op = slimguard.create_train_op(loss, optimizer, check_numerics=False)
    found = gate.gate_of(train_op)
    good = np.random.RandomState(0).randn(*images.shape.as_list()).astype(np.float32)
    bad = good.copy()
    bad[0, 5, 5, 0] = np.nan
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        first = state(session)
        assert session.run(found.written, {images: good})
        trained = state(session)
        changed = [name for name in first if first[name] != trained[name]]
        assert len(changed) > 0.8 * len(first)
        assert not session.run(found.written, {images: bad, found.watched: True})
        assert state(session) == trained

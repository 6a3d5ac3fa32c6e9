"""A program, since XLA reads the environment: trainings that XLA compiles, damaged in every place.

    python -m tests.helpers.compiled [--scope] [--without-grappler] [--good-steps]

It prints ``held NUMBER`` if every bad step was held, and fails otherwise. With ``--good-steps`` it
prints ``the same NUMBER`` if good steps give the bits of the unguarded ones, for every optimizer.
"""

import contextlib
import math
import sys
import tempfile

import numpy as np
import tensorflow as tf

import slimguard
from tests.helpers import gate_models as models

tf1 = tf.compat.v1

MODELS = [
    # optimizer, dtype, use_resource
    ('Momentum', tf.float32, True),
    ('Momentum', tf.float32, False),
    ('Adam', tf.float64, True),
    ('RMSProp', tf.float16, False),
]

REF_OPTIMIZERS = ['GradientDescent', 'Nesterov', 'Adam', 'RMSProp']


def scope():
    return tf.xla.experimental.jit_scope() if '--scope' in sys.argv else contextlib.ExitStack()


def session():
    options = tf1.GraphOptions()
    options.rewrite_options.disable_meta_optimizer = '--without-grappler' in sys.argv
    return models.new_session(graph_options=options)


def require_compiled(guarded):
    """Fails if XLA compiled nothing of the step: then nothing would be tested."""
    options, found = tf1.RunOptions(output_partition_graphs=True), tf1.RunMetadata()
    guarded.sess.run(guarded.train_op, options=options, run_metadata=found)
    require_clusters(found)


def require_clusters(found):
    nodes = [node for graph in found.partition_graphs for node in graph.node]
    is_compiled = any('xla' in node.op.lower() for node in nodes)
    assert is_compiled, sorted({node.op for node in nodes})


def check_model(optimizer, dtype, use_resource):
    def build(damage):
        with scope():
            make = models.OPTIMIZERS[optimizer]
            return models.two_weights(damage, make, dtype, use_resource)

    with tf.Graph().as_default(), session() as sess:
        guarded = models.check_every_damage(build, sess=sess)
        require_compiled(guarded)
        check_save(sess)


def check_save(sess):
    """Both checks of a saver, the fast one and the exact one, refuse a non-finite variable."""
    saver = slimguard.FiniteSaver()
    dense = next(v for v in tf1.global_variables() if v.op.name == 'dense')
    largest = dense.dtype.base_dtype.max
    with tempfile.TemporaryDirectory() as folder:
        for number, value in enumerate([math.nan, math.inf, largest, -math.inf, math.nan]):
            dense.load(np.full(3, value, dense.dtype.as_numpy_dtype), sess)
            path = saver.save(sess, folder + '/model.ckpt', number)
            assert (path is not None) == (value == largest), (value, path)


def check_limit():
    """The limit of a loss, in a step whose gradients are all fine."""
    damage = models.Damage()
    with tf.Graph().as_default(), session() as sess:
        with scope():
            model = models.two_weights(damage, models.OPTIMIZERS['GradientDescent'])
        guarded = models.Guarded(model, sess, max_loss=1e3)
        loss = damage.places['loss']
        guarded.assert_written({loss: 10.0})
        for value in (2e3, 1e30, math.inf, math.nan):
            guarded.assert_held({loss: value}, 'a loss of %s' % value)
        guarded.assert_written({loss: -1e30})


def network(make_optimizer):
    """Convolutions with ref variables, as slim makes them: XLA compiles no update of these."""
    x = tf1.placeholder(tf.float32, [4, 8, 8, 3], name='x')
    y = x
    for number, width in enumerate([6, 2]):
        kernel = np.random.RandomState(number).randn(3, 3, y.shape[-1], width) / 5
        kernel = tf.constant(kernel, tf.float32)
        w = tf1.get_variable('w%d' % number, initializer=kernel, use_resource=False)
        b = tf1.get_variable('b%d' % number, initializer=tf.zeros([width]), use_resource=False)
        y = tf.tanh(tf.nn.conv2d(y, w, strides=2, padding='SAME') + b)
    mean = tf1.get_variable('mean', initializer=tf.zeros([2]), use_resource=False)
    update = mean.assign_sub((mean - tf.reduce_mean(y, [0, 1, 2])) * 0.1)
    loss = tf.reduce_mean(tf.square(y - 0.3))
    step = make_optimizer().minimize(loss, tf1.train.get_or_create_global_step())
    return tf.group(step, update), loss


def check_good_bits(optimizer):
    random = np.random.RandomState(0)
    feeds = [{'x:0': random.randn(4, 8, 8, 3).astype(np.float32)} for _ in range(4)]
    with tf.Graph().as_default(), session() as sess:
        with scope():
            model = network(models.OPTIMIZERS[optimizer])
        unguarded = models.Unguarded(model[0]).bits(feeds)
        guarded = models.Guarded(model, sess)
        for number, (feed, bits) in enumerate(zip(feeds, unguarded)):
            assert guarded.step(feed), optimizer
            differ = models.changed(bits, guarded.snapshot(sess))
            assert not differ, (optimizer, number, differ)
        options, found = tf1.RunOptions(output_partition_graphs=True), tf1.RunMetadata()
        sess.run(guarded.train_op, feeds[0], options=options, run_metadata=found)
        require_clusters(found)


def main():
    tf1.disable_eager_execution()
    if '--good-steps' in sys.argv:
        for optimizer in REF_OPTIMIZERS:
            check_good_bits(optimizer)
        print('the same %d' % len(REF_OPTIMIZERS))
        return
    for model in MODELS:
        check_model(*model)
    check_limit()
    print('held %d' % len(MODELS))


if __name__ == '__main__':
    main()

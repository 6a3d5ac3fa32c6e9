"""Trainings that XLA compiles, hurt in every place. A program of its own: XLA asks its environment.

    python -m tests.helpers.compiled [--scope] [--without-grappler] [--uncompiled]

It says ``held NUMBER`` when all was held, and fails otherwise.
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


def scope():
    return tf.xla.experimental.jit_scope() if '--scope' in sys.argv else contextlib.ExitStack()


def session():
    options = tf1.GraphOptions()
    options.rewrite_options.disable_meta_optimizer = '--without-grappler' in sys.argv
    return models.new_session(graph_options=options)


def require_compiled(guarded):
    """Without a cluster in the step, nothing would be tested."""
    options, found = tf1.RunOptions(output_partition_graphs=True), tf1.RunMetadata()
    guarded.sess.run(guarded.train_op, options=options, run_metadata=found)
    nodes = [node for graph in found.partition_graphs for node in graph.node]
    is_compiled = any('xla' in node.op.lower() for node in nodes)
    assert is_compiled != ('--uncompiled' in sys.argv), sorted({node.op for node in nodes})


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
    """A variable that is not finite is refused, by the first check and by the exact one."""
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


def main():
    tf1.disable_eager_execution()
    for model in MODELS:
        check_model(*model)
    check_limit()
    print('held %d' % len(MODELS))


if __name__ == '__main__':
    main()

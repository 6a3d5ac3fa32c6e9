"""A training with bad batches on a device that has memory and kernels of its own.

    python -m tests.helpers.second_device LOGDIR POLICY SOFT

It needs TF_XLA_FLAGS=--tf_xla_enable_xla_devices. POLICY is an `on_nan`; SOFT is 1 if ops for which
the device has no kernel may run elsewhere.
"""

import json
import sys

import numpy as np
import tensorflow as tf

import slimguard
from slimguard import compat
from slimguard import graph as graphs

tf1 = tf.compat.v1
slim = compat.import_slim()

DEVICE = '/device:XLA_CPU:0'
STEPS = 10


def draw(number=[0]):  # noqa: B006  (it counts)
    number[0] += 1
    batch = np.random.RandomState(number[0]).uniform(0.1, 1.0, [6, 4]).astype(np.float32)
    if number[0] in (4, 8):
        batch[2, 1] = 0.0
    return batch


def network(x):
    features = tf.math.log(x)  # at fault
    hidden = slim.fully_connected(features, 3, normalizer_fn=slim.batch_norm)
    outputs = slim.fully_connected(hidden, 1, activation_fn=None)
    return tf.reduce_mean(tf.square(outputs - 1.0))


def main(logdir, policy, soft):
    tf1.disable_eager_execution()
    with tf.device('/device:CPU:0'):
        step = tf1.train.get_or_create_global_step()
        x = tf1.py_func(draw, [], tf.float32)
        x.set_shape([6, 4])
    with tf.device(DEVICE):
        loss = network(x)
        optimizer = tf1.train.MomentumOptimizer(0.01, 0.9)
        train_op = slimguard.create_train_op(loss, optimizer, global_step=step)
    last = slimguard.train(
        train_op,
        logdir,
        number_of_steps=STEPS,
        on_nan=policy,
        session_config=tf1.ConfigProto(allow_soft_placement=soft == '1'),
        save_summaries_secs=0,
    )
    ours = [op for op in loss.graph.get_operations() if op.name.startswith(graphs.OURS)]
    there = sum('XLA_CPU' in op.device for op in ours)
    print(json.dumps({'last': float(last), 'ours': len(ours), 'there': there}))


if __name__ == '__main__':
    main(*sys.argv[1:])

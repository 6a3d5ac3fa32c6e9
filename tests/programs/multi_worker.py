"""An Estimator with a MultiWorkerMirroredStrategy, as one of two workers; TF_CONFIG says which.

    multi_worker.py FOLDER DOOR ON_NAN

The loss of worker 1 alone is NaN at one draw. DOOR is `hook`, or `unedited`.
"""

import hashlib
import json
import os
import sys

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np
import tensorflow as tf

import slimguard

tf1 = tf.compat.v1
RANK = json.loads(os.environ['TF_CONFIG'])['task']['index']


class Bits(tf1.train.SessionRunHook):
    """The bits of all variables at the end."""

    def __init__(self):
        self.bits = ''

    def end(self, session):
        values = session.run(session.graph.get_collection('variables'))
        self.bits = hashlib.md5(b''.join(np.asarray(v).tobytes() for v in values)).hexdigest()


def batches():
    for draw in range(40):
        x = np.random.RandomState(1000 * RANK + draw).rand(4, 3).astype(np.float32)
        offset = np.full(4, np.nan if RANK == 1 and draw == 5 else 0, np.float32)
        yield {'x': x, 'offset': offset}, np.zeros(4, np.float32)


def input_fn():
    types = ({'x': tf.float32, 'offset': tf.float32}, tf.float32)
    data = tf.data.Dataset.from_generator(batches, types, ({'x': [4, 3], 'offset': [4]}, [4]))
    options = tf.data.Options()
    if hasattr(tf.data.experimental, 'AutoShardPolicy'):
        off = tf.data.experimental.AutoShardPolicy.OFF
        options.experimental_distribute.auto_shard_policy = off
    else:
        options.experimental_distribute.auto_shard = False
    return data.with_options(options)


def main(folder, door, on_nan):
    hooks, bits = [], Bits()
    if door == 'unedited':
        slimguard.instrument(on_nan=on_nan)

    def model_fn(features, labels, mode):
        w = tf1.get_variable('w', [3, 1], initializer=tf1.ones_initializer())
        loss = tf.reduce_mean(tf.square(tf.matmul(features['x'], w) - 1))
        loss += tf.reduce_mean(features['offset'])
        optimizer = tf1.train.GradientDescentOptimizer(0.01)
        train_op = optimizer.minimize(loss, tf1.train.get_global_step())
        shown = loss
        if door == 'hook':
            train_op = slimguard.guard(train_op, loss=loss)
            hooks.append(slimguard.NanLossHook(loss, on_nan=on_nan))
            shown = tf.where(tf.math.is_finite(loss), loss, tf.zeros_like(loss))
        return tf.estimator.EstimatorSpec(
            mode, loss=shown, train_op=train_op, training_hooks=[*hooks, bits]
        )

    strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
    folder = os.path.join(folder, str(RANK))
    config = tf.estimator.RunConfig(folder, train_distribute=strategy, save_checkpoints_steps=8)
    estimator = tf.estimator.Estimator(model_fn, config=config)
    train = tf.estimator.TrainSpec(input_fn, max_steps=20)
    error = ''
    try:
        tf.estimator.train_and_evaluate(estimator, train, tf.estimator.EvalSpec(input_fn, steps=1))
    except slimguard.NanLossError as raised:
        error = raised.incident.reason
    told = [[each.reason, each.action, each.restored] for hook in hooks for each in hook.incidents]
    with open('%s.json' % folder, 'w') as file:
        json.dump({'bits': bits.bits, 'error': error, 'incidents': told}, file)


if __name__ == '__main__':
    main(*sys.argv[1:])

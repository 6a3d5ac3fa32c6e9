"""What the capture of bad steps costs: in good steps, and in a bad one.

    python benchmarks/capture_cost.py [--rounds 40] [--size 64]

The bounds to hold: a good step takes at most 1.02 times as long as without capture with ResNet-50,
and 1.05 times with a tiny model. From incident to diagnosis it takes at most 20 steps, and at most
1.5 times the memory of the training. The row "without, again" shows the error of the measurement.
"""

import argparse
import os
import resource
import statistics
import sys
import time

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np
import tensorflow as tf
from measure import interleave, table

import slimguard
from slimguard import compat, gate
from slimguard.diagnosis.capture import BadStep, Capture
from slimguard.diagnosis.diagnose import diagnose

tf1 = tf.compat.v1
tf1.disable_eager_execution()
tf1.logging.set_verbosity(tf1.logging.ERROR)
slim = compat.import_slim()

BATCH = 8
ONE_THREAD = tf1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--rounds', type=int, default=40)
    parser.add_argument('--size', type=int, default=64, help='height and width of the images')
    options = parser.parse_args()
    print('TensorFlow %s, Python %s\n' % (tf.__version__, sys.version.split()[0]))
    rows = [['a good step', 'of one without capture (quartiles)', 'milliseconds']]
    resnet = Training(resnet_50(options.size))
    rows += resnet.cost('ResNet-50', options.rounds, 1)
    bad = resnet.bad_step()
    tiny = Training(tiny_model(), ONE_THREAD)
    rows += tiny.cost('tiny model', options.rounds, 200)
    print(table(rows) + '\n')
    print(table([['after a bad step of ResNet-50', ''], *bad]))


class Training:
    """A guarded training with a capture, in a session."""

    def __init__(self, built, config=None):
        self.graph, train_op, self.images = built
        with self.graph.as_default():
            self.gate = gate.gate_of(train_op)
            self.capture = Capture(self.gate)
            self.session = tf1.Session(config=config)
            self.session.run(tf1.global_variables_initializer())
            self.graph.finalize()
        self._without = self.session.make_callable([train_op, self.gate.row])
        self._with = self.session.make_callable([train_op, self.capture.row])

    def cost(self, name, rounds, per_round):
        kinds = {
            'without': self._without,
            'with capture': self._with,
            'without, again': lambda: self._without(),
        }
        found = interleave(kinds, rounds, per_round)
        return [['%s, %s' % (name, k), r, '%.3f' % (r.seconds * 1e3)] for k, r in found.items()]

    def bad_step(self):
        """The table's rows about a step in which one pixel of row 5 is NaN."""
        step = statistics.median(timed(self._with)[0] for _ in range(5))
        batch = self.session.run(self.images)
        batch[5, 7, 7, 1] = np.nan
        bad = self._fail(batch)
        trained = peak_memory()
        labels = [label for label, is_bad in zip(self.gate.labels, bad) if is_bad]
        seconds, found = timed(self._explain, labels)
        self._fail(batch)
        again, _ = timed(self._explain, labels)
        return [
            ['diagnosis', found.trouble],
            ['tensor', found.tensor],
            ['first time, in steps', '%.1f' % (seconds / step)],
            ['a second time, in steps', '%.1f' % (again / step)],
            ['peak memory, of the training', '%.2f' % (peak_memory() / trained)],
        ]

    def _explain(self, labels):
        values = self.capture.take(self.session)
        return diagnose(BadStep(self.session, self.capture, values, labels))

    def _fail(self, batch):
        feed = {self.images: batch, self.gate.watched: True}
        fetches = [self.gate.written, self.gate.bad, self.capture.row]
        written, bad, _ = self.session.run(fetches, feed)
        assert not written
        return bad


def resnet_50(size):
    from tf_slim import nets

    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        images = np.random.RandomState(0).randn(BATCH, size, size, 3).astype(np.float32)
        dataset = tf.data.Dataset.from_tensors((images, np.arange(BATCH, dtype=np.int32)))
        x, y = tf1.data.make_one_shot_iterator(dataset.repeat()).get_next()
        with slim.arg_scope(nets.resnet_v1.resnet_arg_scope()):
            logits = nets.resnet_v1.resnet_v1_50(x, 10, is_training=True)[0]
        tf1.losses.sparse_softmax_cross_entropy(y, tf.reshape(logits, [BATCH, 10]))
        optimizer = tf1.train.MomentumOptimizer(1e-4, 0.9)
        loss = tf1.losses.get_total_loss()
        return graph, slimguard.create_train_op(loss, optimizer, check_numerics=False), x


def tiny_model():
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        random = np.random.RandomState(0)
        batch = (random.randn(32, 64).astype(np.float32), random.randint(0, 10, 32))
        dataset = tf.data.Dataset.from_tensors(batch).repeat()
        x, y = tf1.data.make_one_shot_iterator(dataset).get_next()
        hidden = slim.fully_connected(x, 64)
        logits = slim.fully_connected(hidden, 10, activation_fn=None)
        loss = tf1.losses.sparse_softmax_cross_entropy(y, logits)
        optimizer = tf1.train.MomentumOptimizer(0.01, 0.9)
        return graph, slimguard.create_train_op(loss, optimizer, check_numerics=False), x


def timed(call, *args):
    start = time.perf_counter()
    result = call(*args)
    return time.perf_counter() - start, result


def peak_memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == '__main__':
    main()

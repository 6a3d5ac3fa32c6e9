"""Slimguard on a GPU: what holds there, and what it costs. Prints one table.

    python benchmarks/gpu.py [--quick] [--device=/gpu:0] [holds] [cost] [memory] [loops]

Without a GPU, `--quick --device=/cpu:0` runs the same with small models. The parts, all of them if
none is named:

* *holds*: models are pinned to the device without soft placement, and trained by a plain session
  under `slimguard.watch`. A row passes if the training starts, a bad step keeps every bit of every
  variable, its incident is diagnosed and leaves a bundle, and a save afterwards is finite. The same
  with XLA's automatic clustering, with mixed precision and its loss scale, and with a rollback.
* *cost*, *loops*: guarded over unguarded, medians of runs that take turns, with quartiles; *again*
  is the unguarded training once more, and its distance from 1 is the error of the measurement. The
  history and the capture are on, as they are by default; `spike` is a row of its own.
* *memory*: the most bytes of tensors on the device in a good step, as TensorFlow traces them, and
  the bytes that cross to the host in it.

A row that fails says why, and makes the exit status 1.
"""

import argparse
import os
import sys
import tempfile
import time
import warnings

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import device_cost
import loop_cost
import measure
import numpy as np
import tensorflow as tf
from tensorflow.python.client import device_lib

import slimguard
from slimguard import compat

slim = compat.import_slim()
tf1 = tf.compat.v1

MIXED = 'mixed precision'
XLA = 'XLA'
PARTS = ['holds', 'cost', 'memory', 'loops']


def convnet(images):
    hidden = slim.conv2d(images, 16, 3)
    hidden = slim.batch_norm(slim.max_pool2d(hidden, 2), is_training=True)
    return slim.fully_connected(tf.reduce_mean(hidden, [1, 2]), 10, activation_fn=None)


def resnet_50(images):
    from tf_slim import nets

    with slim.arg_scope(nets.resnet_v1.resnet_arg_scope(1e-4)):
        logits, _ = nets.resnet_v1.resnet_v1_50(images, 10, is_training=True)
    return tf.reshape(logits, [-1, 10])


class Training:
    """A model on the device in a session of its own, watched if there are `arguments` for that.

    Args:
      model: makes logits of images.
      size: the height and width of the images, in pixels.
      batches: the sizes of the batches that are on the device; `batch` picks one of them.
      kind: '', MIXED or XLA.
      arguments: the arguments of `slimguard.watch`; None for an unguarded training.
    """

    def __init__(self, device, model, size, batches, kind='', arguments=None):
        self.batch = min(batches)
        with tf.Graph().as_default():
            tf1.set_random_seed(1)
            with tf.device(device):
                images = np.random.RandomState(0).randn(max(batches), size, size, 3)
                self._images = tf.constant(images.astype(np.float32))
                self._count = tf1.placeholder(tf.int32, [])
                self._factor = tf1.placeholder(tf.float32, [])
                x = self._images[: self._count] * self._factor
                labels = tf.zeros([self._count], tf.int64)
                # The NaN is added to the logits, too: an activation may drop the NaN of the images.
                tf1.losses.sparse_softmax_cross_entropy(labels, model(x) + (self._factor - 1.0))
                loss = tf1.losses.get_total_loss()
                optimizer = tf1.train.MomentumOptimizer(1e-3, 0.9)
                if kind == MIXED:
                    rewrite = tf1.train.experimental.enable_mixed_precision_graph_rewrite
                    optimizer = rewrite(optimizer)
                self.train_op = slim.learning.create_train_op(loss, optimizer, check_numerics=False)
                if arguments is not None:
                    self.train_op = slimguard.guard(self.train_op, loss=loss)
                self.variables = tf1.global_variables()
            config = tf1.ConfigProto()
            config.gpu_options.allow_growth = True
            if kind == XLA:
                options = config.graph_options.optimizer_options
                options.global_jit_level = tf1.OptimizerOptions.ON_2
            initialize, self._saver = tf1.global_variables_initializer(), tf1.train.Saver()
            self.plain = self.session = tf1.Session(config=config)
            self.session.run(initialize)
            if arguments is not None:
                self.session = slimguard.watch(self.session, **arguments).__enter__()
        if kind == MIXED:
            tf1.train.experimental.disable_mixed_precision_graph_rewrite()

    def close(self):
        """Ends the training. Of several trainings, the last made must be closed first."""
        if self.session is not self.plain:
            self.session.__exit__(None, None, None)
        self.plain.close()

    def feeds(self, factor=1.0):
        return {self._count: self.batch, self._factor: factor}

    def step(self):
        return self.session.run(self.train_op, self.feeds())

    def bad_step(self):
        """Returns the seconds of a step with NaN images, its handling included."""
        start = time.perf_counter()
        self.session.run(self.train_op, self.feeds(np.nan))
        return time.perf_counter() - start

    def bits(self):
        return [np.asarray(value).tobytes() for value in self.plain.run(self.variables)]

    def save(self, folder):
        return slimguard.FiniteSaver(self._saver).save(self.plain, os.path.join(folder, 'model'), 1)

    def traced(self, device):
        """The most bytes of tensors on the device in a step, and the bytes it sends to the host."""
        metadata = tf1.RunMetadata()
        options = tf1.RunOptions(
            trace_level=tf1.RunOptions.FULL_TRACE, output_partition_graphs=True
        )
        self.plain.run(self.train_op, self.feeds(), options=options, run_metadata=metadata)
        name = '/device:' + device.strip('/').upper()
        sent = device_cost.crossing(metadata, name, device_cost.HOST)
        return device_cost.peak(metadata, name), sum(sent.copies)


class Table:
    """Prints rows as they come; `failed` says whether one of them failed."""

    def __init__(self):
        self.failed = False
        print(measure.table([['', 'result']]), flush=True)

    def rows(self, what, make_rows, *arguments):
        """Prints the rows of `make_rows(*arguments)`: a result, or pairs of a name and a result."""
        try:
            made = make_rows(*arguments)
            results = [('', made)] if isinstance(made, str) else made
        except Exception as error:
            self.failed = True
            first = (str(error).splitlines() or [''])[0]
            results = [('', '**fail**: %s: %s' % (type(error).__name__, first[:200]))]
        for name, result in results:
            print('| %s%s | %s |' % (what, name, result), flush=True)


def require(holds, what):
    if not holds:
        raise AssertionError(what)


def bad_step_holds(device, model, size, batches, kind=''):
    """A bad step under 'skip'. Returns how long it took, in good steps."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = dict(on_nan='skip', logdir=folder)
        training = Training(device, model, size, batches, kind, arguments)
        for _ in range(3):
            training.step()
        good = measure.time_of(training.step)[0]
        before = training.bits()
        seconds = training.bad_step()
        require(training.bits() == before, 'a bit of a variable changed')
        (incident,) = slimguard.read_incidents(folder)
        require(incident.bundle, 'no bundle')
        require(incident.diagnosis, 'no diagnosis')
        training.step()
        require(training.bits() != before, 'the training does not go on')
        path = training.save(folder)
        require(slimguard.latest_finite_checkpoint(folder) == path, 'the save is not found')
        training.close()
        return 'pass; with diagnosis and bundle %.2f s, %.0f steps' % (seconds, seconds / good)


def rollback_holds(device, model, size, batches):
    """A rollback to a state in memory. Returns how long it took, in good steps."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = dict(on_nan='rollback', logdir=folder, capture=False)
        training = Training(device, model, size, batches, '', arguments)
        for _ in range(100):
            training.step()
        good = measure.time_of(training.step, 3)[0]
        seconds = training.bad_step()
        (incident,) = slimguard.read_incidents(folder)
        require(incident.action == 'rollback', 'the action is %s' % incident.action)
        require(all(np.isfinite(v).all() for v in training.plain.run(training.variables)), 'NaN')
        training.step()
        training.close()
        return 'pass; %.2f s, %.0f steps' % (seconds, seconds / good)


def step_cost(device, model, size, batches, kind, rounds):
    """The step's cost for each size of a batch. Returns rows."""
    make = dict(device=device, model=model, size=size, batches=batches, kind=kind)
    trainings = {
        'unguarded': Training(**make),
        'again': Training(**make),
        'guarded': Training(arguments=dict(on_nan='skip'), **make),
        'guarded, spike': Training(arguments=dict(on_nan='skip', spike=True), **make),
    }
    rows = []
    for batch in batches:
        for training in trainings.values():
            training.batch = batch
        ratios = measure.interleave({n: t.step for n, t in trainings.items()}, rounds)
        for what, ratio in ratios.items():
            result = '%s (%.2f ms)' % (ratio, 1e3 * ratio.seconds)
            rows.append((', batch %d: %s' % (batch, what), result))
    for training in reversed(list(trainings.values())):
        training.close()
    return rows


def memory(device, model, size, batches, kind):
    """The device's memory in a step, and what the step sends to the host. Returns rows."""
    make = dict(device=device, model=model, size=size, batches=batches, kind=kind)
    trainings = [Training(**make), Training(arguments=dict(on_nan='skip'), **make)]
    rows = []
    for batch in batches:
        for training in trainings:
            training.batch = batch
            training.step()
        (peak, sent), (guarded_peak, guarded_sent) = [t.traced(device) for t in trainings]
        ratio = '%.3f' % (guarded_peak / peak) if peak else 'not traced'
        result = '%s of %.0f MiB; %d bytes to the host, unguarded %d' % (
            (ratio, peak / 2**20, guarded_sent, sent)
        )
        rows.append((', batch %d' % batch, result))
    for training in reversed(trainings):
        training.close()
    return rows


def loop_costs(device, rounds):
    """The tiny model in each loop, with soft placement of ops that the device cannot run."""
    chosen = [
        'session.run(train_op)',
        'MonitoredTrainingSession, NanTensorHook',
        'MonitoredTrainingSession, guarded, NanLossHook',
        'slim.learning.train',
        'slimguard.train, NanLossHook',
    ]
    loop_cost.ONE_THREAD.allow_soft_placement = True

    def loops(ticks):
        return {n: on_device(device, t) for n, t in loop_cost.loops(ticks).items() if n in chosen}

    times = loop_cost.step_costs(rounds, loops)
    return [(name, measure.ratio(times[name], times[chosen[0]])) for name in chosen]


def on_device(device, train):
    def pinned(tick):
        with tf.device(device):
            train(tick)

    return pinned


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--quick', action='store_true', help='small models and few rounds')
    parser.add_argument('--device', default='/gpu:0', help='where the models are pinned to')
    parser.add_argument('parts', nargs='*', metavar='part', help='one of %s' % ', '.join(PARTS))
    options = parser.parse_args()
    if not set(options.parts) <= set(PARTS):
        parser.error('parts are %s' % ', '.join(PARTS))
    warnings.filterwarnings('ignore')
    tf1.disable_v2_behavior()
    tf1.logging.set_verbosity(tf1.logging.FATAL)
    device, quick, parts = options.device, options.quick, options.parts or PARTS
    there = [each.physical_device_desc or each.name for each in device_lib.list_local_devices()]
    print('TensorFlow %s; %s\n' % (tf.__version__, '; '.join(there)), flush=True)
    table = Table()
    large = (resnet_50, 32, [2]) if quick else (resnet_50, 224, [32, 128])
    for model, size, batches in ((convnet, 32, [8]), large):
        case, name = (device, model, size, batches[:1]), 'holds: ' + model.__name__
        if 'holds' in parts:
            for kind in ('', XLA, MIXED):
                table.rows(name + (kind and ', ' + kind), bad_step_holds, *case, kind)
            table.rows(name + ', rollback', rollback_holds, *case)
    for model, size, batches, kind in ((convnet, 32, [8], ''), (*large, ''), (*large, MIXED)):
        case = (device, model, size, batches, kind)
        name = '%s, %d pixels%s' % (model.__name__, size, kind and ', ' + kind)
        if 'cost' in parts:
            table.rows('cost: ' + name, step_cost, *case, 2 if quick else 20)
        if 'memory' in parts:
            table.rows('memory: ' + name, memory, *case)
    if 'loops' in parts:
        table.rows('cost: tiny model, ', loop_costs, device, 4 if quick else 60)
    sys.exit(table.failed)


if __name__ == '__main__':
    main()

"""What a gate costs: in steps, in building, in memory, and how that grows. Prints tables.

    python benchmarks/gate_cost.py [--quick] [step] [tiny] [trial] [growth] [build] [memory]

All steps are finite, as nearly all are in a training. Each table compares with the same train op
unguarded, in turns in one process; memory in turns of fresh processes. `wall` is the median ratio
of the time a step takes, with its quartiles; `cpu` is the ratio of the time that all cores spend on
it, which other load on the machine changes less. *Unguarded again* is a second build of the
unguarded train op: its distance from 1 is the error of the measurement.

What limits it: every gradient is read once more, and no update can begin before the last gradient
is known. So updates no longer run beside the backward pass, and at its end all gradients are in
memory. With weight decay this hardly raises the peak, which comes earlier: at the beginning of the
backward pass all activations and all gradients of the regularizers are in memory, and each of these
later makes room for its sum with the gradient of the loss. Without weight decay the peak grows by
up to the size of the weights, unless the activations are much larger. A process also grows by the
gate's part of the graph (some 10 KB an op, in all of TensorFlow's copies of it), and since malloc
gets its requests in another order. So `memory` prints the peak of the process, and the peak of all
tensors and variables as TensorFlow counts them, which a GPU's memory has to hold.

`step` also prints the cost of checks that were not chosen:

* `reduce_all(is_finite)` reads each value, writes a temporary of booleans, and reads that;
* `DebugNumericSummaryV2`, an op of TensorFlow's debugger, is exact in one pass, but runs on one
  core, and is not in TensorFlow 1.15;
* *the loss alone* checks no gradient, so it shows the cost of waiting for the last gradient.
"""

import itertools
import os
import resource
import statistics
import subprocess
import sys
import warnings

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import measure
import numpy as np
import tensorflow as tf

from slimguard import compat, gate
from slimguard.gate.building import fast_path

slim = compat.import_slim()
tf1 = tf.compat.v1

QUICK = '--quick' in sys.argv
HEAD = ['', 'wall', 'cpu', 'one step']


# The trainings.


def network(name, size=64, batch=8, weight_decay=1e-4, library=slim.learning):
    """The train op of a network of tf_slim.nets, with Momentum and moving averages.

    The `create_train_op` of `library` makes it.
    """
    from tf_slim import nets

    images = tf.constant(np.random.RandomState(0).randn(batch, size, size, 3).astype(np.float32))
    if name == 'inception_v3':
        with slim.arg_scope(nets.inception.inception_v3_arg_scope(weight_decay)):
            logits, _ = nets.inception.inception_v3(images, 10, is_training=True)
    else:
        with slim.arg_scope(nets.resnet_v1.resnet_arg_scope(weight_decay)):
            logits, _ = getattr(nets.resnet_v1, name)(images, 10, is_training=True)
    logits = tf.reshape(logits, [batch, 10])
    tf1.losses.sparse_softmax_cross_entropy(tf.zeros([batch], tf.int32), logits)
    return train_op_of(tf1.losses.get_total_loss(), library)


def two_layers(batch=32, width=64):
    rng = np.random.RandomState(0)
    x = tf.constant(rng.randn(batch, 64).astype(np.float32))
    y = tf.constant(rng.randint(0, 10, batch))
    logits = slim.fully_connected(slim.fully_connected(x, width), 10, activation_fn=None)
    return train_op_of(tf1.losses.sparse_softmax_cross_entropy(y, logits))


def convnet(after, size=24, batch=8):
    """Three small convolutions; `after` makes the writes that follow the update of the weights."""
    images = tf.constant(np.random.RandomState(0).randn(batch, size, size, 3).astype(np.float32))
    net = slim.stack(images, slim.conv2d, [(16, 3), (32, 3), (64, 3)])
    logits = slim.fully_connected(slim.flatten(net), 10, activation_fn=None)
    loss = tf1.losses.sparse_softmax_cross_entropy(tf.zeros([batch], tf.int32), logits)
    with tf.control_dependencies([train_op_of(loss)]):
        return tf.group(*after(tf1.trainable_variables()))


def averages(weights):
    return [tf1.train.ExponentialMovingAverage(0.99).apply(weights)]


def totals(weights):
    """Sums that may overflow: each step is a trial."""
    sums = [
        tf1.get_variable(
            'total_%d' % i, w.shape, initializer=tf1.zeros_initializer(), trainable=False
        )
        for i, w in enumerate(list(weights))
    ]
    return [tf1.assign_add(total, weight) for total, weight in zip(sums, weights)]


def many_weights(number, size):
    """A training that does little but update `number` variables of `size` floats each."""
    weights = [
        tf1.get_variable('w%d' % i, [size], initializer=tf1.ones_initializer())
        for i in range(number)
    ]
    return train_op_of(tf.add_n([tf.nn.l2_loss(w) for w in weights]) * 1e-3)


def train_op_of(loss, library=slim.learning):
    optimizer = tf1.train.MomentumOptimizer(1e-4, 0.9)
    return library.create_train_op(loss, optimizer, check_numerics=False)


class Stepper:
    """A training in a session of its own, in finite steps."""

    def __init__(self, build, guarded=False, threads=0, all_are_small=None):
        with tf.Graph().as_default():
            tf1.set_random_seed(1)
            train_op = build()
            step = tf1.train.get_global_step()
            fetches = [train_op, step]
            if guarded:
                with looking_by(all_are_small):
                    gated = gate.gate_of(gate.guard(train_op))
                fetches = [gated.train_op, gated.bad, gated.step]
            config = tf1.ConfigProto(
                intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads
            )
            self.session = tf1.Session(config=config)
            self.session.run(tf1.global_variables_initializer())
            self.fetches = fetches
            self.step = self.session.make_callable(fetches)
        assert not guarded or not self.step()[1].any(), 'a step was not finite'


# Checks that were not chosen.


class looking_by:
    """A context in which gates are built with another check of all values; None keeps it."""

    def __init__(self, all_are_small):
        self._other = all_are_small

    def __enter__(self):
        self._chosen = fast_path.all_are_small
        if self._other is not None:
            fast_path.all_are_small = self._other

    def __exit__(self, *_):
        fast_path.all_are_small = self._chosen


def looked_at(plan):
    return list(plan.losses) + [check.tensor for check in plan.checks]


def by_reduction(plan, *_):
    tensors = looked_at(plan)
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(t)) for t in tensors])


def by_debug_numerics(plan, *_):
    three_slots = 8
    summaries = [
        tf.raw_ops.DebugNumericSummaryV2(input=t, tensor_debug_mode=three_slots)
        for t in looked_at(plan)
    ]
    return tf.reduce_all(tf.equal(tf.stack(summaries), 0.0))


def by_loss_alone(plan, *_):
    return tf.reduce_all([tf.math.is_finite(t) for t in plan.losses])


OTHER_LOOKS = {'`reduce_all(is_finite)`': by_reduction, 'the loss alone': by_loss_alone}
if hasattr(tf.raw_ops, 'DebugNumericSummaryV2'):
    OTHER_LOOKS['`DebugNumericSummaryV2`'] = by_debug_numerics


# The tables.


def interleave(steppers, rounds, per_round):
    calls = {what: stepper.step for what, stepper in steppers.items()}
    return measure.interleave(calls, rounds, per_round)


def rows_of(steppers, rounds, per_round=1, unit=(1e3, 'ms')):
    ratios = interleave(steppers, rounds, per_round)
    factor, name = unit
    return [
        [what, r, '%.3f' % r.cpu, '%.1f %s' % (r.seconds * factor, name)]
        for what, r in ratios.items()
    ]


def step():
    for size, rounds in ((64, 8 if QUICK else 40), (160, 4 if QUICK else 40)):

        def build(size=size):
            return network('resnet_v1_50', size)

        steppers = {
            'unguarded': Stepper(build),
            'unguarded again': Stepper(build),
            'guarded': Stepper(build, guarded=True),
        }
        if size == 64:
            for what, all_are_small in OTHER_LOOKS.items():
                steppers['looking by ' + what] = Stepper(
                    build, guarded=True, all_are_small=all_are_small
                )
        print('\nResNet-50, Momentum, 8 x %d x %d x 3\n' % (size, size))
        print(measure.table([HEAD] + rows_of(steppers, rounds)), flush=True)


def tiny():
    steppers = {
        'unguarded': Stepper(two_layers, threads=1),
        'unguarded again': Stepper(two_layers, threads=1),
        'guarded': Stepper(two_layers, guarded=True, threads=1),
    }
    print('\nTwo small layers on one thread, `make_callable([train_op, bad, step])`\n')
    rows = rows_of(steppers, 40 if QUICK else 200, per_round=100, unit=(1e6, 'us'))
    print(measure.table([HEAD] + rows), flush=True)


def trial():
    for what, after in (('averages', averages), ('sums (a trial)', totals)):

        def build(after=after):
            return convnet(after)

        steppers = {
            'unguarded': Stepper(build),
            'unguarded again': Stepper(build),
            'guarded': Stepper(build, guarded=True),
        }
        print('\nA small convnet that writes %s of its weights after the update\n' % what)
        print(measure.table([HEAD] + rows_of(steppers, 10 if QUICK else 60, 5)), flush=True)


def growth():
    print('\nMore variables of 100 floats each, Momentum, one thread\n')
    rows = [['variables', 'wall', 'cpu', 'added for each variable']]
    for number in (10, 100, 1000) if QUICK else (10, 100, 1000, 3000):
        rows.append(_added(lambda n=number: many_weights(n, 100), number, 1e6, 'us'))
    print(measure.table(rows), flush=True)
    print('\nMore parameters in 10 variables, Momentum, one thread\n')
    rows = [['parameters', 'wall', 'cpu', 'added for each parameter']]
    for number in (10**4, 10**6) if QUICK else (10**4, 10**5, 10**6, 10**7, 10**8):
        rows.append(_added(lambda n=number: many_weights(10, n // 10), number, 1e9, 'ns'))
    print(measure.table(rows), flush=True)
    print('\nMore examples in a batch, two layers of 1024, one thread\n')
    rows = [['batch', 'wall', 'cpu', 'added for each example']]
    for number in (8, 64, 512):
        rows.append(_added(lambda n=number: two_layers(n, 1024), number, 1e6, 'us'))
    print(measure.table(rows), flush=True)


def _added(build, number, factor, unit):
    steppers = {'unguarded': Stepper(build, threads=1)}
    steppers['guarded'] = Stepper(build, guarded=True, threads=1)
    once = max(measure.time_of(stepper.step)[0] for stepper in steppers.values())
    per_round = max(1, int(0.02 / once))
    ratios = interleave(steppers, 10 if QUICK else 40 if once < 0.1 else 12, per_round)
    for stepper in steppers.values():
        stepper.session.close()
    guarded = ratios['guarded']
    # With one thread, its CPU time is the time of a step on a core that nothing else uses.
    added = (guarded.cpu - 1) * ratios['unguarded'].cpu_seconds / number
    return ['%d' % number, guarded, '%.3f' % guarded.cpu, '%.2f %s' % (added * factor, unit)]


def build():
    print('\nBuilding: time of `guard()` over the time to build the graph with its train op\n')
    rows = [['', 'wall', 'cpu', 'ops in the graph', 'ops added', '`guard()`']]
    names = ['resnet_v1_50'] if QUICK else ['inception_v3', 'resnet_v1_152']
    for name in names:
        builds = [_build_times(name) for _ in range(4)][1:]  # the first warms up
        wall = [second[0] / first[0] for first, second, _, _ in builds]
        cpu = statistics.median(second[1] / first[1] for first, second, _, _ in builds)
        seconds = statistics.median(second[0] for _, second, _, _ in builds)
        low, middle, high = measure.quartiles(wall)
        spread = '%.3f (%.3f to %.3f)' % (middle, low, high)
        rows.append([name, spread, '%.3f' % cpu, *builds[0][2:], '%.2f s' % seconds])
    print(measure.table(rows), flush=True)


def _build_times(name):
    """Times to build and to guard a network, and how many ops each of them made."""
    made = []
    with tf.Graph().as_default() as graph:
        size = 107 if name == 'inception_v3' else 64
        first = measure.time_of(lambda: made.append(network(name, size, 2)))
        built = len(graph.get_operations())
        second = measure.time_of(lambda: gate.guard(made[0]))
        return first, second, built, len(graph.get_operations()) - built


def memory():
    for size, weight_decay in ((64, 1e-4), (160, 1e-4), (64, 0.0), (160, 0.0)):
        print(
            '\nPeak memory of training ResNet-50 for 5 steps, 8 x %d x %d x 3, weight decay %g\n'
            % (size, size, weight_decay)
        )
        peaks = {'unguarded': [], 'unguarded again': [], 'guarded': []}
        tensors = {what: [] for what in peaks}
        for _ in range(1 if QUICK else 4):
            for what in peaks:
                command = [sys.executable, os.path.abspath(__file__), '--peak']
                command += [str(size), str(weight_decay), what]
                run = subprocess.run(command, stdout=subprocess.PIPE, check=True)
                peak, of_tensors = map(float, run.stdout.split()[-2:])
                peaks[what].append(peak)
                tensors[what].append(of_tensors)
        rows = [['', 'process', 'peak', 'tensors', 'peak']]
        for what in peaks:
            row = [what]
            for found in (peaks, tensors):
                row.append(measure.ratio(found[what], found['unguarded']))
                row.append('%.0f MiB' % statistics.median(found[what]))
            rows.append(row)
        print(measure.table(rows), flush=True)


def print_peaks(size, weight_decay, guarded):
    """The largest sizes in MiB: of this process, and of all tensors and variables in it."""
    stepper = Stepper(
        lambda: network('resnet_v1_50', size, weight_decay=weight_decay), guarded=guarded
    )
    for _ in range(5):
        stepper.step()
    process = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # KiB on Linux
    print(process, _most_in_tensors(stepper) / 2**20)


def _most_in_tensors(stepper):
    options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
    metadata = tf1.RunMetadata()
    stepper.session.run(stepper.fetches, options=options, run_metadata=metadata)
    records = [
        (record.alloc_micros, record.alloc_bytes)
        for device in metadata.step_stats.dev_stats
        for node in device.node_stats
        for used in node.memory
        for record in used.allocation_records
    ]
    variables = stepper.session.graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES)
    held = sum(v.shape.num_elements() * v.dtype.base_dtype.size for v in variables)
    return max(itertools.accumulate([held] + [size for _, size in sorted(records)]))


def main():
    warnings.filterwarnings('ignore')
    tf1.disable_eager_execution()
    tf1.logging.set_verbosity(tf1.logging.FATAL)
    if '--peak' in sys.argv:
        size, weight_decay, what = sys.argv[-3:]
        return print_peaks(int(size), float(weight_decay), what == 'guarded')
    tables = [step, tiny, trial, growth, build, memory]
    measure.require_arguments(__doc__, '--quick', *[table.__name__ for table in tables])
    wanted = [table for table in tables if table.__name__ in sys.argv]
    print('TensorFlow %s, %d cores' % (tf.__version__, os.cpu_count()))
    for table in wanted or tables:
        table()


if __name__ == '__main__':
    main()

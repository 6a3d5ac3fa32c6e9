"""What a guarded step costs a device: ops, copies to and from the host, memory. Prints tables.

    python benchmarks/device_cost.py [--quick]

No GPU is needed. Each model is pinned to the second of two CPU devices, which plays the part of the
GPU: TensorFlow places, prunes and cuts the graph as it does for any two devices, and each value
that crosses is a pair of a _Send and a _Recv. The trace of a good step is counted, after
TensorFlow's own optimizations of the graph. The step keeps the history of the last steps.

* *ops* are all that run, without constants and ops that only pass a value on: an upper bound of the
  kernels that a GPU launches, since it leaves shapes and small integers to the host.
* *copies* are the values that cross, with the bytes of all of them. *signals* cross without a
  value: they say that an op may begin. The decision of a gate reaches the device as a signal.
* *memory* is the most bytes at one time on the device: of all tensors and variables in a good step;
  of all tensors in a save, with the stock `Saver` and with `FiniteSaver`.
"""

import argparse
import itertools
import os
import tempfile
import warnings
from typing import Dict, List, NamedTuple

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import gate_cost
import measure
import numpy as np
import tensorflow as tf

import slimguard
from slimguard import compat, gate
from slimguard.diagnosis.capture import Capture

slim = compat.import_slim()
tf1 = tf.compat.v1

DEVICE, HOST = '/device:CPU:1', '/device:CPU:0'
TASK = '/job:localhost/replica:0/task:0'
# Ops that do no work of their own, on any device.
_NO_WORK = frozenset(
    'Const NoOp Identity IdentityN VarHandleOp Variable VariableV2 _Retval _Arg Switch RefSwitch '
    'Merge RefMerge ControlTrigger PreventGradient StopGradient'.split()
)


class Crossing(NamedTuple):
    """The copies from one device to the other in a step: how many values, and their bytes."""

    copies: List[int]
    signals: int

    def __str__(self) -> str:
        return '%d (%s)' % (len(self.copies), _bytes(sum(self.copies)))


class Step(NamedTuple):
    """The counts of a good step."""

    ops: Dict[str, int]  # by device
    to_host: Crossing
    to_device: Crossing
    peak: int  # bytes of tensors on the device, without the variables


# The models.


def alexnet():
    from tf_slim import nets

    images = tf.constant(np.random.RandomState(0).randn(4, 224, 224, 3).astype(np.float32))
    with slim.arg_scope(nets.alexnet.alexnet_v2_arg_scope()):
        logits, _ = nets.alexnet.alexnet_v2(images, 10)
    tf1.losses.sparse_softmax_cross_entropy(tf.zeros([4], tf.int32), logits)
    return gate_cost.train_op_of(tf1.losses.get_total_loss())


MODELS = {
    'two layers': gate_cost.two_layers,
    'ResNet-50': lambda: gate_cost.network('resnet_v1_50'),
    'ResNet-152': lambda: gate_cost.network('resnet_v1_152', batch=2),
    'Inception-v3': lambda: gate_cost.network('inception_v3', 107, 2),
    'AlexNet': alexnet,
}
QUICK_MODELS = ('two layers', 'ResNet-50')


class Training:
    """A model on the device, in a session of its own.

    Args:
      make: builds the model, and returns its train op.
      guarded: whether the train op is guarded, with a history.
      captured: whether the values that a bad step draws would be kept.
    """

    def __init__(self, make, guarded: bool = False, captured: bool = False) -> None:
        with tf.Graph().as_default():
            tf1.set_random_seed(1)
            with tf.device(DEVICE):
                train_op = make()
                self.fetches = [train_op, tf1.train.get_global_step()]
            self.bad = None
            if guarded:
                gated = gate.gate_of(gate.guard(train_op))
                self.fetches = [gated.train_op, gated.step, gated.measures.vector, gated.bad]
                self.bad = gated.bad
                if captured:
                    self.fetches.append(Capture(gated).row)
            self.stock = tf1.train.Saver()
            self.checked = slimguard.FiniteSaver(tf1.train.Saver())
            config = tf1.ConfigProto(device_count={'CPU': 2})
            self.session = tf1.Session(config=config)
            self.session.run(tf1.global_variables_initializer())
            self.variables = sum(
                v.shape.num_elements() * v.dtype.base_dtype.size for v in tf1.global_variables()
            )

    def step(self) -> Step:
        self._run()  # the first run prepares the kernels
        metadata, values = self._run(trace=True)
        assert self.bad is None or not values[self.fetches.index(self.bad)].any(), 'a bad step'
        nodes = {}
        for device, node in _nodes_of(metadata):
            nodes.setdefault(device, []).append(node)
        return Step(
            {device: sum(map(_works, nodes.get(device, ()))) for device in (DEVICE, HOST)},
            crossing(metadata, DEVICE, HOST),
            crossing(metadata, HOST, DEVICE),
            peak(metadata, DEVICE),
        )

    def _run(self, trace: bool = False):
        options = tf1.RunOptions(output_partition_graphs=trace)
        if trace:
            options.trace_level = tf1.RunOptions.FULL_TRACE
        metadata = tf1.RunMetadata()
        values = self.session.run(self.fetches, options=options, run_metadata=metadata)
        return metadata, values

    def save(self, saver) -> int:
        """Saves; returns the most bytes that the tensors of the save took on the device."""
        seen = []
        run = self.session.run

        def traced(fetches, feed_dict=None, **_):
            metadata = tf1.RunMetadata()
            options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
            values = run(fetches, feed_dict, options=options, run_metadata=metadata)
            seen.append(peak(metadata, DEVICE))
            return values

        self.session.run = traced
        try:
            with tempfile.TemporaryDirectory() as folder:
                saver.save(self.session, os.path.join(folder, 'model'), 0, write_meta_graph=False)
        finally:
            del self.session.run
        return max(seen)


def _nodes_of(metadata):
    for device in metadata.step_stats.dev_stats:
        for node in device.node_stats:
            yield device.device[len(TASK) :], node


def _works(node) -> bool:
    label = node.timeline_label.partition(' = ')[2]
    return label.partition('(')[0] not in _NO_WORK and node.node_name != '_SOURCE'


def crossing(metadata, sender: str, receiver: str) -> Crossing:
    """The copies that one device sent to another in a run: a dead branch sends nothing.

    Args:
      metadata: the `RunMetadata` of a run with a full trace and its partition graphs.
      sender, receiver: devices, such as '/device:GPU:0'.
    """
    copies, signals, sizes = [], 0, {}
    for _, node in _nodes_of(metadata):
        for output in node.output:
            described = output.tensor_description.allocation_description
            sizes[node.node_name, output.slot] = described.requested_bytes
    for graph in metadata.partition_graphs:
        for node in graph.node:
            if node.op not in ('_Send', '_HostSend'):
                continue
            places = [node.attr[name].s.decode() for name in ('send_device', 'recv_device')]
            if places != [TASK + sender, TASK + receiver]:
                continue
            name, _, slot = node.input[0].partition(':')
            size = sizes.get((name, int(slot or 0)))
            if size:
                copies.append(size)
            elif size == 0:
                signals += 1
    return Crossing(copies, signals)


def peak(metadata, device: str) -> int:
    """The most bytes of tensors on a device at one time, in a run with a full trace."""
    records = sorted(
        (record.alloc_micros, record.alloc_bytes)
        for place, node in _nodes_of(metadata)
        if place == device
        for used in node.memory
        for record in used.allocation_records
    )
    return max(itertools.accumulate([size for _, size in records]), default=0)


def _bytes(number: float) -> str:
    for unit in ('B', 'KiB'):
        if number < 1024:
            return '%.4g %s' % (number, unit)
        number /= 1024
    return '%.4g MiB' % number


# The tables.


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--quick', action='store_true', help=' and '.join(QUICK_MODELS) + ' only')
    options = parser.parse_args()
    warnings.filterwarnings('ignore')
    tf1.disable_eager_execution()
    tf1.logging.set_verbosity(tf1.logging.FATAL)
    print('TensorFlow %s\n' % tf.__version__, flush=True)
    steps = [
        [
            '',
            '',
            'ops on the device',
            'on the host',
            'copies to the host',
            'to the device',
            'signals',
        ]
    ]
    memory = [['', 'variables', 'a step', 'guarded', 'and captured', 'Saver', 'FiniteSaver']]
    for name in QUICK_MODELS if options.quick else MODELS:
        trainings = [Training(MODELS[name], *how) for how in ((), (True,), (True, True))]
        found = [training.step() for training in trainings]
        for what, step in zip(('unguarded', 'guarded', 'and captured'), found):
            first = name if step is found[0] else ''
            signals = step.to_host.signals + step.to_device.signals
            steps.append([first, what, *step.ops.values(), step.to_host, step.to_device, signals])
        guarded = trainings[1]
        held = [guarded.save(saver) for saver in (guarded.stock, guarded.checked)]
        peaks = [step.peak for step in found]
        memory.append([name] + [_bytes(n) for n in [guarded.variables, *peaks, *held]])
    print(measure.table(steps))
    print('\nThe most bytes of tensors on the device, without the variables\n')
    print(measure.table(memory))


if __name__ == '__main__':
    main()

"""Whether a graph that is pinned to GPUs could start, on a machine that has none.

`tests/data/gpu_kernels` has the GPU kernels that each TensorFlow registers, and the program that
listed them.
"""

import functools
import pathlib
from typing import Any, Callable, Dict, FrozenSet, List, NamedTuple

import tensorflow as tf

from slimguard import graph as graphs

tf1 = tf.compat.v1

_TABLES = pathlib.Path(__file__).resolve().parents[1] / 'data' / 'gpu_kernels'
_VERSION = '1.15.5' if tf.__version__.startswith('1.') else '2.21.0'
# Ops that may be on another device than their variable: they ask whether it is initialized, or hand
# it to a function.
_ANYWHERE = frozenset(
    'VarIsInitializedOp IsVariableInitialized While StatelessWhile If StatelessIf Case '
    'PartitionedCall StatefulPartitionedCall'.split()
)


class Kernel(NamedTuple):
    """A kernel: the dtypes that each attribute may have, and the arguments in host memory."""

    dtypes: Dict[str, FrozenSet[str]]
    host: FrozenSet[str]


@functools.lru_cache(maxsize=None)
def table() -> Dict[str, List[Kernel]]:
    """The kernels for GPUs of this TensorFlow, by type of op."""
    found: Dict[str, List[Kernel]] = {}
    for line in (_TABLES / ('tensorflow-%s.txt' % _VERSION)).read_text().splitlines():
        if not line.startswith('#'):
            kind, *words = line.split()
            dtypes = {name: frozenset(of.split(',')) for name, _, of in map(_halves, words)}
            host = dtypes.pop('host', frozenset())
            found.setdefault(kind, []).append(Kernel(dtypes, host))
    return found


def _halves(word):
    return word.partition('=')


def has_kernel(op: tf.Operation) -> bool:
    """Whether an op has a kernel for GPUs, for its dtypes."""
    node = op.node_def
    return any(
        all(_dtypes_of(node, name) <= allowed for name, allowed in kernel.dtypes.items())
        for kernel in table().get(op.type, ())
    )


def _dtypes_of(node, name):
    attribute = node.attr[name]
    types = [attribute.type] if attribute.type else list(attribute.list.type)
    return {tf.as_dtype(each).base_dtype.name for each in types}


class Places:
    """Where TensorFlow's placer has to put the ops of a graph.

    Ops that name each other in ``_class`` are on one device. An op that takes a variable, a queue
    or another resource is on the device of the resource, whatever its own device is.
    """

    def __init__(self, graph: tf.Graph):
        self._leads_to: Dict[tf.Operation, tf.Operation] = {}
        for op in graph.get_operations():
            for name in op.colocation_groups():
                self._join(op, graph.get_operation_by_name(tf.compat.as_str(name)[len('loc:@') :]))
            for index, tensor in enumerate(op.inputs):
                if op.type in _ANYWHERE:
                    continue
                if tensor.dtype == tf.resource or graphs.takes_reference(op, index):
                    self._join(op, tensor.op)
        self.together: Dict[tf.Operation, List[tf.Operation]] = {}
        for op in graph.get_operations():
            self.together.setdefault(self._first(op), []).append(op)

    def of(self, op: tf.Operation) -> tf1.DeviceSpec:
        """The device that `op`, and the ops colocated with it, ask for."""
        found = tf1.DeviceSpec()
        for each in self.with_it(op):
            takes = any(t.dtype == tf.resource for t in each.inputs)
            asked = tf1.DeviceSpec.from_string('' if takes else each.device)
            for part in ('job', 'replica', 'task', 'device_type', 'device_index'):
                known, other = getattr(found, part), getattr(asked, part)
                same = known is None or other is None or known == other
                assert same, '%s and %s are colocated: %s, %s' % (op.name, each.name, known, other)
            found = _merged(found, asked)
        return found

    def with_it(self, op: tf.Operation) -> List[tf.Operation]:
        """The ops that are colocated with `op`, itself among them."""
        return self.together[self._first(op)]

    def _first(self, op):
        while op in self._leads_to:
            op = self._leads_to[op]
        return op

    def _join(self, one, other):
        one, other = self._first(one), self._first(other)
        if one is not other:
            self._leads_to[one] = other


def _merged(one, other):
    parts = ('job', 'replica', 'task', 'device_type', 'device_index')
    known = [getattr(other if getattr(one, p) is None else one, p) for p in parts]
    return tf1.DeviceSpec(*known)


def pinned(build: Callable[[], Any], gpu: str = '/device:GPU:0', cpu: str = '/device:CPU:0') -> Any:
    """Calls `build` so that ops are pinned: to a GPU if they can run there, else to a CPU.

    Ops that `build` itself puts on a device stay there.

    Args:
      build: called twice, in two graphs. The first graph shows which ops can be on a GPU together
        with all ops that are colocated with them.
      gpu, cpu: devices.
    """
    with tf.Graph().as_default() as graph:
        build()
        places = Places(graph)
        names = {
            op.name for op in graph.get_operations() if all(map(has_kernel, places.with_it(op)))
        }
    with tf1.device(lambda op: op.device or (gpu if op.name in names else cpu)):
        return build()

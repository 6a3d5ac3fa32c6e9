"""A cluster in this process, and the messages between its tasks in a step."""

import re
from typing import Iterator, NamedTuple, Set, Tuple

import tensorflow as tf

from tests.helpers.jobs import free_ports

tf1 = tf.compat.v1

_TENSOR = re.compile(r'edge_\d+_(\S+)')
_LABEL = re.compile(r'\[(\d+)B\].* ' + _TENSOR.pattern + r' from (\S+) to (\S+)')


class Cluster:
    """Parameter servers and workers, each a server of this process.

    TensorFlow has no way to end such a server: make one cluster for many tests.
    """

    def __init__(self, ps: int = 2, workers: int = 1):
        addresses = ['127.0.0.1:%d' % port for port in free_ports(ps + workers)]
        self.spec = tf1.train.ClusterSpec({'ps': addresses[:ps], 'worker': addresses[ps:]})
        tasks = [(job, task) for job in self.spec.jobs for task in range(self.spec.num_tasks(job))]
        self._servers = {task: tf1.train.Server(self.spec, *task) for task in tasks}

    def master(self, worker: int = 0) -> str:
        return self._servers['worker', worker].target

    def session(self, worker: int = 0) -> tf1.Session:
        return tf1.Session(self.master(worker))

    def device(self, worker: int = 0):
        """Variables in turn on the parameter servers, everything else on the worker."""
        setter = tf1.train.replica_device_setter(
            cluster=self.spec, worker_device='/job:worker/task:%d' % worker
        )
        return tf1.device(setter)


class Message(NamedTuple):
    """A message from one task to another in a step. A dead tensor, or a signal, has no bytes."""

    bytes: int
    tensor: str
    source: str
    target: str


def messages(session, fetches, feed=None):
    """Runs a step until its trace is whole. Returns its last values, and the messages."""
    options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE, output_partition_graphs=True)
    found: Set[Message] = set()
    for _ in range(1000):  # TensorFlow's trace may end before the last message is noted
        metadata = tf1.RunMetadata()
        values = session.run(fetches, feed, options=options, run_metadata=metadata)
        found.update(_messages_in(metadata))
        missing = _edges_in(metadata) - {message[1:] for message in found}
        if not missing:
            return values, found
    raise AssertionError('never traced: %s' % sorted(missing))


def _edges_in(metadata) -> Set[Tuple[str, str, str]]:
    """The tensor, source and target of each message between the devices of a step."""
    nodes = [node for graph in metadata.partition_graphs for node in graph.node]
    return {
        (
            _TENSOR.match(node.attr['tensor_name'].s.decode()).group(1),
            node.attr['send_device'].s.decode(),
            node.device,
        )
        for node in nodes
        if node.op == '_Recv' and not node.attr['client_terminated'].b
    }


def _messages_in(metadata) -> Iterator[Message]:
    for device in metadata.step_stats.dev_stats:
        for node in device.node_stats:
            match = _LABEL.match(node.timeline_label)
            if node.node_name == 'RecvTensor' and match:
                size, *rest = match.groups()
                yield Message(int(size), *rest)

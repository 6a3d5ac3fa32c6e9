"""The accumulators and tokens that a `SyncReplicasOptimizer` keeps on the parameter servers.

Its workers put gradients into *accumulators*, and wait for a *token* from a queue; the chief takes
the gradients, updates the variables, and hands out tokens. Accumulators and queue outlive the
sessions that made them, and have names that all processes share, so another graph can reach them.
"""

from typing import List

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.cluster.job_table import SharedTable
from slimguard.compat import tf_private
from slimguard.graph import ops
from slimguard.graph.token_queues import (
    has_token_queue,
    is_token_queue,
    queue_of,
    queue_runners_in,
)

# Kinds of accumulators, and the ops that count and take their gradients.
_ACCUMULATORS = {
    'ConditionalAccumulator': ('AccumulatorNumAccumulated', 'AccumulatorTakeGradient'),
    'SparseConditionalAccumulator': (
        'AccumulatorNumAccumulated',
        'SparseAccumulatorTakeGradient',
    ),
    'ResourceConditionalAccumulator': (
        'ResourceAccumulatorNumAccumulated',
        'ResourceAccumulatorTakeGradient',
    ),
}
# How many times to clear gradients: a process that was just killed may still add some.
_MOST = 100


def keep_tokens_open(graph: tf.Graph) -> None:
    """Lets the queue of tokens live on when a chief ends its session.

    On TensorFlow 2 the chief's queue runner closes the queue when it is told to stop. The queue
    stays closed on the parameter server, and no chief can train with it again.
    """
    if not has_token_queue(graph):
        return
    for runner in queue_runners_in(graph):
        if is_token_queue(queue_of(runner)):
            with ops.our_scope(graph, 'job'):
                tf_private.run_at_end(runner, tf.no_op(name='keep_open'))


class Replicas:
    """Reaches the accumulators and the tokens of a graph's `SyncReplicasOptimizer`s.

    Args:
      graph: the graph of the training; it is only read.
      table: the `SharedTable` whose graph and session are used.
    """

    def __init__(self, graph: tf.Graph, table: SharedTable):
        self._table = table
        self._counts: List[tf.Tensor] = []
        self._takes: List[tf.Operation] = []
        self._waiting: List[tf.Tensor] = []
        self._token: List[tf.Operation] = []
        self._drain: List[tf.Operation] = []
        with table.graph.as_default():
            for op in graph.get_operations():
                if op.type in _ACCUMULATORS:
                    self._add_accumulator(op)
                elif is_token_queue(op):
                    self._add_queue(op)

    def __bool__(self) -> bool:
        return bool(self._token)

    def release(self) -> None:
        """Adds a token for one waiting process, if the queue is empty."""
        if any(size == 0 for size in self._table.run(self._waiting)):
            self._table.run(self._token)

    def have_gradients(self) -> bool:
        """Whether gradients wait to be taken."""
        return any(self._table.run(self._counts))

    def clear(self) -> None:
        """Discards gradients and tokens. No process may take gradients at the same time.

        Next, run the optimizer's initializer, which sets the accumulators' global step.
        """
        for _ in range(_MOST):
            counts = self._table.run(self._counts)
            takes = [take for count, take in zip(counts, self._takes) if count]
            if not takes:
                break
            self._table.run(takes)
        self._table.run(self._drain)

    def _add_accumulator(self, op: tf.Operation) -> None:
        handle = _same(op).outputs[0]
        count, take = [getattr(tf.raw_ops, name) for name in _ACCUMULATORS[op.type]]
        with tf.device(op.device):
            self._counts.append(count(handle=handle))
            taken = take(handle=handle, num_required=tf.constant(1), dtype=op.get_attr('dtype'))
        self._takes.append(taken[0].op if isinstance(taken, tuple) else taken.op)

    def _add_queue(self, op: tf.Operation) -> None:
        handle = _same(op).outputs[0]
        raw, dtype = tf.raw_ops, op.get_attr('component_types')[0]
        is_ref = handle.dtype != tf.resource
        with tf.device(op.device):
            size = (raw.QueueSize if is_ref else raw.QueueSizeV2)(handle=handle)
            put = raw.QueueEnqueue if is_ref else raw.QueueEnqueueV2
            take = raw.QueueDequeueMany if is_ref else raw.QueueDequeueManyV2
            # A token is a step number, which a worker sends with its gradient. A gradient with the
            # largest number is never too old.
            token = tf.constant(tf.dtypes.as_dtype(dtype).max, dtype)
            self._token.append(put(handle=handle, components=[token]))
            drained = take(handle=handle, n=size, component_types=[dtype])
        self._waiting.append(size)
        self._drain.append(drained[0].op)


def _same(op: tf.Operation) -> tf.Operation:
    """An op of the present graph that returns the same shared resource as `op` of another graph."""
    node = tf1.NodeDef()
    node.CopyFrom(op.node_def)
    node.attr.pop('_class', None)  # this attribute names ops of the other graph
    graph = tf1.GraphDef(node=[node])
    return tf1.import_graph_def(graph, name='', return_elements=[op.name])[0]

"""Histograms of what is not finite.

TensorFlow's op for a histogram summary raises "Nan in summary histogram for: ..." where it should
draw one. A Supervisor's thread or a `SummarySaverHook` that runs it then ends the training for a
batch that the gate would have kept from doing harm.
"""

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.compat import tf_private
from slimguard.graph import ops
from slimguard.graph.sessions import unseen_by_sessions


def leave_out_bad_values(graph: tf.Graph) -> None:
    """Lets the graph's histogram summaries show the finite ones of their values, and never raise.

    The same histogram is drawn where all values are finite. Ops that a session may have seen stay
    as they are: they cannot be wired any more.
    """
    histograms = [op for op in graph.get_operations() if _may_raise(op)]
    if not histograms or graph.finalized:
        return
    histograms = list(filter(unseen_by_sessions(graph), histograms))
    with tf_private.lock_against_sessions(
        graph
    ):  # no session of another thread may see the half of it
        for op in histograms:
            tf_private.replace_input(op, 1, _finite_values(op))


def _may_raise(op: tf.Operation) -> bool:
    if op.type != 'HistogramSummary':
        return False
    values = op.inputs[1]
    return graphs.is_float(values) and not values.op.name.startswith(graphs.OURS)


def _finite_values(op: tf.Operation) -> tf.Tensor:
    values, context = op.inputs[1], graphs.flow_around(op)
    with ops.our_scope(op.graph, 'histograms'), tf.device(op.device or None):
        if context is not None:
            context.Enter()
        try:
            values = tf.reshape(values, [-1])  # a mask needs a known rank
            finite = tf.boolean_mask(values, tf.math.is_finite(values))
            # Of no known shape: TensorFlow takes no other in the place of the one it knows.
            return tf1.placeholder_with_default(finite, None)
        finally:
            if context is not None:
                context.Exit()

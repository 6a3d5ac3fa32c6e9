"""Histogram summaries of values that are not finite.

TensorFlow's op raises "Nan in summary histogram for: ..." for such values. In a Supervisor's thread
or a `SummarySaverHook` this ends the training, although the gate would hold the step.
"""

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.compat import tf_private
from slimguard.graph import ops
from slimguard.graph.sessions import unseen_by_sessions


def leave_out_bad_values(graph: tf.Graph) -> None:
    """Makes histogram summaries of the graph show only finite values, instead of raising.

    If all values are finite, the histogram is unchanged. Ops that a session may have seen stay as
    they are, since they can get no new inputs.
    """
    histograms = [op for op in graph.get_operations() if _may_raise(op)]
    if not histograms or graph.finalized:
        return
    histograms = list(filter(unseen_by_sessions(graph), histograms))
    # No session of another thread may see half of the changes.
    with tf_private.lock_against_sessions(graph), ops.our_scope(graph, 'histograms'):
        for op in histograms:
            tf_private.replace_input(op, 1, _finite_values(op))


def _may_raise(op: tf.Operation) -> bool:
    if op.type != 'HistogramSummary':
        return False
    values = op.inputs[1]
    return graphs.is_float(values) and not values.op.name.startswith(graphs.OURS)


def _finite_values(op: tf.Operation) -> tf.Tensor:
    context = graphs.flow_around(op)
    if context is not None:
        context.Enter()
    try:
        with ops.at(op):
            values = op.inputs[1]
            which = tf.raw_ops.Where(condition=tf.math.is_finite(ops.for_arithmetic(values)))
            # Hide the shape: TensorFlow refuses a new input whose static shape differs.
            return tf1.placeholder_with_default(tf.gather_nd(values, which), None)
    finally:
        if context is not None:
            context.Exit()

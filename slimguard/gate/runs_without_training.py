"""Guards runs that write but do not train, each by a gate of its own.

Examples are a run of slim's update ops alone, and an evaluation whose forward pass updates batch
norm's moving averages, if the gate of a train op restores these after a bad step.
:mod:`slimguard.unedited.own_updates` finds the updates that a script computes itself.
"""

from typing import Any, Optional, Sequence

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.gate.building.copies import copies_ahead, copy_ahead_of_others, is_put_back
from slimguard.gate.gate import Gate, gate_of
from slimguard.gate.guard import guard_with_values
from slimguard.graph import TrainOp, op_of, ops


def guard_writes(elements: Sequence[TrainOp], fed: Sequence[tf.Tensor] = ()) -> Gate:
    """The gate of a run that writes but does not train: no bad value is written.

    Args:
      elements: the elements that are fetched together.
      fed: as for `guard_with_values`.

    Raises:
      ValueError: if the gate can neither hold back nor undo one of their writes.
    """
    values = [element for element in elements if isinstance(element, tf.Tensor)]
    with ops.our_scope(elements[0].graph, 'step'):
        together = ops.group(dict.fromkeys(map(op_of, elements)), 'writes')
    return guard_with_values(together, None, None, values, fed, trains=False)


def guard_summary(
    summary_op: Any, train_op: TrainOp, default: object = None
) -> Optional[tf.Tensor]:
    """Guards a summary op that writes variables; watchers of the train op learn of its bad runs.

    A Supervisor runs the summary op in a thread, on a batch that no step sees.

    Args:
      summary_op: a string Tensor, or nothing.
      train_op: the guarded train op.
      default: the summary op that stands for all summaries of the graph.

    Returns:
      A string Tensor; None if the given summary op writes nothing.
    """
    gate, graph = gate_of(train_op), train_op.graph
    if gate is None or not copies_ahead(graph):
        return None
    if summary_op is default:
        with graph.as_default():
            summary_op = tf1.summary.merge_all()
    is_op = isinstance(summary_op, tf.Tensor) and summary_op.graph is graph
    copy_ahead_of_others(graph)
    if not is_op or not _makes_updates(summary_op.op):
        return None
    of_summary = guard_writes([summary_op])
    gate.run_beside(of_summary)
    with ops.our_scope(graph, 'summary'), tf.device(summary_op.device):
        return ops.after([of_summary.train_op], summary_op, 'written')


def _makes_updates(op: tf.Operation) -> bool:
    """Whether a run of `op` runs update ops, or forward writes of a guarded train op.

    Update ops that write only local variables, as a metric's do, are left out.
    """
    needed = graphs.ancestors([op])
    if any(map(is_put_back, needed)):
        return True
    update_ops = {op_of(each) for each in op.graph.get_collection(tf1.GraphKeys.UPDATE_OPS)}
    writes, local = graphs.Writes(op.graph), graphs.local_in(op.graph)
    is_kept = any(not local.issuperset(writes.variables(each)) for each in needed)
    return is_kept and not update_ops.isdisjoint(needed)

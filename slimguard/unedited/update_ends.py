"""What a script builds around an update: the ops that it is likely to fetch."""

from typing import List

import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.compat import tf_private
from slimguard.gate.arguments import is_made_inside
from slimguard.graph import TrainOp, op_of

# How many ops that a script built around an update are guarded before one of them runs.
_MOST_ENDS = 4


def ends_of(update: TrainOp) -> List[TrainOp]:
    """The train ops that a script may have built around an update; of many, the update alone."""
    wanted = {op_of(e): e for e in op_of(update).graph.get_collection(tf1.GraphKeys.TRAIN_OP)}
    seen = {op_of(update)}
    waiting = [op_of(update)]
    ends: List[TrainOp] = []
    while waiting:
        op = waiting.pop()
        after = [taker for tensor in op.outputs for taker in tensor.consumers()]
        after += tf_private.ops_waiting_for(op)
        after = [each for each in after if not each.name.startswith(graphs.OURS)]
        # A queue runner fills queues in a thread of its own. SyncReplicasOptimizer's chief updates
        # so; its workers wait for the tokens that follow, which a gate of all of it would keep from
        # them. So the update is guarded with the train op of the workers.
        if (not after or op in wanted) and not graphs.is_enqueue(op):
            is_value = op.type in ('Identity', 'CheckNumerics') and op not in wanted
            ends.append(op.outputs[0] if is_value else wanted.get(op, op))
        waiting.extend(each for each in after if each not in seen)
        seen.update(after)
    if len(ends) > _MOST_ENDS:  # a write to a resource variable makes a read that few ask for
        ends = [each for each in ends if not graphs.is_variable_read(op_of(each))]
    if len(ends) <= _MOST_ENDS:
        return ends
    return [] if is_made_inside(update) else [update]

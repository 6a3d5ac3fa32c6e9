"""Finds the update that the chief of synchronous replicas makes, and puts it behind a gate.

The workers of a `SyncReplicasOptimizer` put gradients into accumulators and wait for a token. The
chief has a queue runner, whose thread runs one op again and again, the *sync op*: it takes the mean
of the gradients, updates the variables and the global step, hands out the tokens, and updates
moving averages of the variables.

The writes of that op go behind a gate of their own. The chief then always hands out the tokens, so
that no worker waits forever; but only after the decision, so that no worker reads a value that is
about to be undone. Each accumulator counts how often gradients are taken from it, and drops
gradients of earlier steps. A bad update leaves the global step as it was, so the gate sets the
accumulators back to that step; else they would drop all later gradients.
"""

from typing import Dict, List, NamedTuple, Sequence, Set

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.compat import tf_private
from slimguard.gate.reading.step_graph import GuardedBefore
from slimguard.graph import TrainOp, op_of, ops
from slimguard.graph.devices import processor_of, task_of
from slimguard.graph.token_queues import has_token_queue, is_token_queue, queue_runners_in

_ENQUEUES = frozenset(['QueueEnqueueMany', 'QueueEnqueueManyV2'])


class ChiefUpdate(NamedTuple):
    """The update of one `SyncReplicasOptimizer`.

    Attributes:
      runner: runs the sync op.
      sync_op: the sync op.
      enqueue: the op that hands out the tokens; the sync op runs it.
      update: the op that the tokens wait for; it updates all variables and the global step.
      accumulators: the accumulators that the sync op takes the gradients from.
    """

    runner: tf1.train.QueueRunner
    sync_op: tf.Operation
    enqueue: tf.Operation
    update: tf.Operation
    accumulators: Sequence[tf.Operation]

    @property
    def train_op(self) -> tf.Operation:
        """The op to guard: it needs all writes of the sync op."""
        return self.update if self.sync_op is self.enqueue else self.sync_op

    @property
    def without_tokens(self) -> Dict[tf.Operation, GuardedBefore]:
        """For the plan, an op that waits for the tokens counts as waiting for the update."""
        return {self.enqueue: GuardedBefore(self.update, frozenset())}


def find_chief_updates(graph: tf.Graph, filled: Set[tf.Operation]) -> List[ChiefUpdate]:
    """The unguarded updates that take gradients from the accumulators `filled`.

    Raises:
      ValueError: if an update has no queue runner, or is not the update of TensorFlow's
        `SyncReplicasOptimizer`.
    """
    if not has_token_queue(graph):
        return []  # accumulators of the user's own
    found = []
    is_known = False
    for runner in queue_runners_in(graph):
        for sync_op in runner.enqueue_ops:
            needed = graphs.ancestors([sync_op])
            accumulators = accumulators_of(needed)
            if filled.isdisjoint(accumulators):
                continue
            is_known = True
            if not sync_op.name.startswith(graphs.OURS):
                enqueue = _only([op for op in needed if _hands_out_tokens(op)], sync_op)
                update = _update_before(enqueue)
                found.append(ChiefUpdate(runner, sync_op, enqueue, update, accumulators))
    if not is_known:
        raise ValueError('there is no queue runner that makes it')
    return found


def accumulators_of(order: Sequence[tf.Operation]) -> List[tf.Operation]:
    """The accumulators that some ops take gradients from."""
    return [op.inputs[0].op for op in order if op.type.endswith('AccumulatorTakeGradient')]


def takes_accumulated(update: tf.Operation) -> bool:
    """Whether an update takes its gradients from accumulators."""
    return bool(accumulators_of(graphs.ancestors([update])))


def _hands_out_tokens(op: tf.Operation) -> bool:
    return op.type in _ENQUEUES and is_token_queue(op.inputs[0].op)


def _update_before(enqueue: tf.Operation) -> tf.Operation:
    """The update that the tokens, or the ops that make them, wait for."""
    made = [enqueue]
    for op in made:  # the list grows in the loop
        made.extend(t.op for t in op.inputs if t.op not in made)
    waited_for = dict.fromkeys(control for op in made for control in op.control_inputs)
    updates = [op for op in waited_for if takes_accumulated(op)]
    return _only(updates, enqueue)


def _only(found: Sequence[tf.Operation], sync_op: tf.Operation) -> tf.Operation:
    if len(found) != 1:
        raise ValueError('%r is not made as TensorFlow makes it' % sync_op.name)
    return found[0]


def run_gated(update: ChiefUpdate, guarded: TrainOp, written: tf.Tensor) -> bool:
    """Makes the chief run the guarded update, and hand out the tokens even if it wrote nothing.

    Args:
      guarded: the train op that runs the guarded update.
      written: bool scalar, whether the guarded update wrote anything.

    Returns:
      Whether the call came in time: False if a thread already runs the unguarded update.
    """
    graph, enqueue = guarded.graph, update.enqueue
    with ops.our_scope(graph, 'chief'):
        number, step_before = enqueue.inputs[1].op.inputs  # of a Fill
        with tf.control_dependencies([op_of(guarded)]):
            step = _read(step_before)
        settled = _settle_accumulators(update.accumulators, step, written)
        with tf.device(enqueue.device or None):
            tokens = tf.fill(tf.constant(tf.get_static_value(number)), step)
        made = ops.create_like(enqueue, [enqueue.inputs[0], tokens], [t.op for t in settled])
    tf_private.replace_enqueue_op(update.runner, update.sync_op, made)
    return not tf_private.has_threads(update.runner)


def _read(read: tf.Tensor) -> tf.Tensor:
    """Reads again the variable that a tensor was read from."""
    variable = graphs.variable_read(read)
    if variable is None:
        raise ValueError('%r, which the tokens tell, is the value of no variable' % read.name)
    return ops.copy_of(variable)


def _settle_accumulators(
    accumulators: Sequence[tf.Operation], step: tf.Tensor, written: tf.Tensor
) -> List[tf.Tensor]:
    """By task, a token: it arrives when no accumulator of the task is ahead of the global step."""
    by_task: Dict[tuple, List[tf.Operation]] = {}
    for accumulator in accumulators:
        by_task.setdefault(task_of(accumulator.device), []).append(accumulator)
    settled = []
    for there in by_task.values():
        with tf.device(processor_of(there[0].device)):
            at = tf.cast(tf.identity(step), tf.int64)
            good, bad = ops.branch(at, tf.identity(written), 'written')
            setting = [_set_step(accumulator, bad) for accumulator in there]
            settled.append(ops.merge([good, ops.after(setting, bad, 'set_back')], 'settled'))
    return settled


def _set_step(accumulator: tf.Operation, step: tf.Tensor) -> tf.Operation:
    is_resource = accumulator.type.startswith('Resource')
    raw = tf.raw_ops
    set_step = raw.ResourceAccumulatorSetGlobalStep if is_resource else raw.AccumulatorSetGlobalStep
    with tf.device(accumulator.device or None):
        return set_step(handle=accumulator.outputs[0], new_global_step=step)

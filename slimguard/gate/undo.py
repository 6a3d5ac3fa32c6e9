"""What each task does after the update: it keeps what was written, or puts its variables back."""

from typing import NamedTuple, Sequence

import tensorflow as tf

from slimguard.gate.copies import Copy, restore
from slimguard.gate.decision_at_tasks import Decision
from slimguard.gate.tasks import Task
from slimguard.graph import ops, plain_ops


class Settled(NamedTuple):
    """Tokens that say how a step ended in a task that does not hold the loss.

    Attributes:
      undone: arrives after a bad step, when the variables of the task are as they were.
      settled: arrives after any step, once all writes there are done.
    """

    undone: tf.Tensor
    settled: tf.Tensor


def undo_here(
    make: ops.Maker,
    task: Task,
    ahead: Sequence[Copy],
    copies: Sequence[Copy],
    undo: tf.Tensor,
    unwritten: tf.Tensor,
) -> tf.Tensor:
    """Puts the variables of a task back; the returned token arrives when that is done.

    Args:
      make: makes the ops.
      task: the task.
      ahead: the copies made ahead of forward writes, of all tasks.
      copies: the copies made before the update, of this task.
      undo: arrives if the update ran and was bad.
      unwritten: arrives if the update was refused.
    """
    undone = plain_ops.merge([restore(make, copies, undo, 'undone'), unwritten], 'held')
    ahead_here = [copy for copy in ahead if copy.variables[0] in task.put_back]
    return restore(make, ahead_here, undone, 'put_back')


def settle_there(
    make: ops.Maker,
    task: Task,
    ahead: Sequence[Copy],
    decision: Decision,
    written: Sequence[tf.Operation],
    end: tf.Tensor,
) -> Settled:
    """Tells another task how the step ended: `end` is 2 for good, 1 for undo, 0 for refused.

    The task does not wait until the update has run everywhere: on the fast path it is told nothing,
    and it would wait for that message alone.
    """
    assert decision.fast is not None, 'a trial has one task'
    with tf.device(task.device):
        end = plain_ops.identity(end)
        good, bad = ops.branch(end, plain_ops.greater(end, 1.5), 'good')
        undo, unwritten = ops.branch(bad, plain_ops.greater(end, 0.5), 'undo')
        undo = ops.after(written, undo, 'undo')
        undone = undo_here(make, task, ahead, decision.copies, undo, unwritten)
        fast = ops.after(written, decision.fast, 'ran_calm')
        good = ops.after(written, good, 'ran_good')
        return Settled(undone, plain_ops.merge([fast, good, undone], 'settled'))

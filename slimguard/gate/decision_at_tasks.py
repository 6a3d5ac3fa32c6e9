"""Carries the decision to each task: run the update, run it with copies at hand, or refuse it.

builder.py makes the decision, by the checks of fast_path.py and step_checks.py. Off the fast path a
task is told twice: when to copy its variables, and when all copies are known to be good.
"""

from typing import NamedTuple, Optional, Sequence

import tensorflow as tf

from slimguard.gate.copies import Copy, copy
from slimguard.gate.finite_checks import SMALL_32, Moment
from slimguard.gate.plan import Plan
from slimguard.gate.tasks import Task
from slimguard.graph import ops, plain_ops


class Checked(NamedTuple):
    """The result of the checks of the values, as tokens in one task; one of them arrives.

    Attributes:
      fast: arrives if the step takes the fast path; None if no step of the gate does.
      fine: arrives if the exact check found nothing bad.
      refused: arrives if the exact check found something.
    """

    fast: Optional[tf.Tensor]
    fine: tf.Tensor
    refused: tf.Tensor


class Decision(NamedTuple):
    """The decision, as tokens in one task; a token arrives if what it stands for is true.

    Attributes:
      fast: arrives if the step takes the fast path; None if no step of the gate does.
      prepared: arrives if nothing bad was found, and `copies` are made.
      refused: arrives if something bad was found, in a value or in a copy.
      go: starts the update: `fast` or `prepared`.
      copies: the variables of the task as they were before the update.
    """

    fast: Optional[tf.Tensor]
    prepared: tf.Tensor
    refused: tf.Tensor
    go: tf.Tensor
    copies: Sequence[Copy]


def tell(task: Task, fast: tf.Tensor, is_fine: tf.Tensor) -> Checked:
    """Tells another task in one number: 2 for the fast path, 1 for nothing bad, 0 for bad."""
    with tf.control_dependencies([fast]):
        no_check = plain_ops.constant(2.0, tf.float32)
    told = plain_ops.merge([no_check, plain_ops.cast(is_fine, tf.float32)], 'verdict')
    with tf.device(task.device):
        told = plain_ops.identity(told)
        token = plain_ops.feedable(plain_ops.constant(SMALL_32, tf.float32), name='token')
        fast_there, checked = ops.branch(token, plain_ops.greater(told, 1.5), 'calm')
        return Checked(fast_there, *ops.branch(checked, plain_ops.greater(told, 0.5), 'fine'))


def copy_at(make: ops.Maker, plan: Plan, task: Task, fine: tf.Tensor) -> Sequence[Copy]:
    """Copies a task's variables once `fine` is there; those to check apart from the others."""
    moment = Moment(fine)
    changed = [variable for variable in task.variables if variable in plan.changed]
    others = [variable for variable in task.variables if variable not in plan.changed]
    with tf.device(task.device):
        return copy(make, changed, moment) + copy(make, others, moment)


def decide(
    task: Task, checked: Checked, copies: Sequence[Copy], are_good: Optional[tf.Tensor]
) -> Decision:
    """Starts a task's update, or refuses it, once all copies are checked.

    Args:
      task: the task.
      checked: what the checks of the values found.
      copies: the copies made there.
      are_good: a bool scalar, whether the copies of all tasks are good; None if none is checked.
    """
    with tf.device(task.device):
        made = ops.after([copy.value for copy in copies], checked.fine, 'copied')
        if are_good is None:
            prepared, refused = made, checked.refused
        else:
            told = plain_ops.greater(plain_ops.identity(plain_ops.cast(are_good, tf.float32)), 0.5)
            prepared, not_good = ops.branch(made, told, 'prepared')
            refused = plain_ops.merge([checked.refused, not_good], 'refused')
        go = prepared if checked.fast is None else plain_ops.merge([checked.fast, prepared], 'go')
    return Decision(checked.fast, prepared, refused, go, copies)

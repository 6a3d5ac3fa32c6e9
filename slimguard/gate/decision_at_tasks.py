"""Carries the decision to each task: run the update, run it with copies at hand, or refuse it.

The decision itself is made in builder.py, by the checks of fast_path.py and step_checks.py.
"""

from typing import NamedTuple, Optional, Sequence

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.gate.copies import Copy, copy
from slimguard.gate.finite_checks import SMALL_32, Moment
from slimguard.gate.tasks import Task
from slimguard.graph import ops


class Decision(NamedTuple):
    """The decision as it is known in one task: tokens, of which those that are true arrive.

    Attributes:
      fast: arrives if the step takes the fast path; None if no step of the gate does.
      prepared: arrives if the exact check found nothing bad, once `copies` are made.
      refused: arrives if the exact check found something.
      go: starts the update: `fast` or `prepared`.
      copies: the variables of the task as they were before the update.
    """

    fast: Optional[tf.Tensor]
    prepared: tf.Tensor
    refused: tf.Tensor
    go: tf.Tensor
    copies: Sequence[Copy]


def decide_here(
    make: ops.Maker, task: Task, fast: Optional[tf.Tensor], fine: tf.Tensor, refused: tf.Tensor
) -> Decision:
    """What a task does once the decision is known there: it copies, and then lets the update go."""
    copies = copy(make, task.variables, Moment(fine))
    prepared = ops.after([made.value for made in copies], fine, 'prepared')
    go = prepared if fast is None else ops.merge([fast, prepared], 'go')
    return Decision(fast, prepared, refused, go, copies)


def decide_there(make: ops.Maker, task: Task, fast: tf.Tensor, is_fine: tf.Tensor) -> Decision:
    """Tells another task, in one number, what the exact check found: 2 if there was none."""
    with tf.control_dependencies([fast]):
        no_check = tf.constant(2.0)
    told = ops.merge([no_check, tf.cast(is_fine, tf.float32)], 'verdict')
    with tf.device(task.device):
        told = tf.identity(told)
        token = tf1.placeholder_with_default(SMALL_32, [], name='token')
        fast_there, checked = ops.branch(token, tf.greater(told, 1.5), 'calm')
        fine, refused = ops.branch(checked, tf.greater(told, 0.5), 'fine')
        return decide_here(make, task, fast_there, fine, refused)

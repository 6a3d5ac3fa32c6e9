"""The exact checks of a step: of all values before the update, of the variables after it."""

from typing import List, Optional, Sequence

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.gate.building.copies import Copies
from slimguard.gate.building.fast_path import Limits
from slimguard.gate.building.finite_checks import FiniteCheck
from slimguard.gate.building.flags import GRADIENT_NORM, Flags, Label, join_flags
from slimguard.gate.building.tasks import Task
from slimguard.gate.reading.checked_values import Check
from slimguard.gate.reading.losses import label_of
from slimguard.gate.reading.plan import Plan
from slimguard.graph import key, ops
from slimguard.graph.devices import Home


class StepChecks:
    """Checks one step.

    Args:
      plan: the plan of the gate.
      limits: the limits of the loss and of the gradients' norm.
      home: where the findings come together.
    """

    def __init__(self, plan: Plan, limits: Limits, home: Home):
        self._plan = plan
        self._limits = limits
        self._home = home

    def before_update(
        self, checks: Sequence[Check], token: tf.Tensor, half_square: Optional[tf.Tensor]
    ) -> Flags:
        """Checks losses, values and squares once `token` is there.

        Args:
          checks: the values.
          token: arrives when they are to be checked.
          half_square: half the square of the gradients' norm; None without gradients.
        """
        plan = self._plan
        losses = [Check(loss, label_of(loss)) for loss in plan.losses]
        values = losses + list(checks)
        check = FiniteCheck([value.tensor for value in values], token, self._home)
        labels = [Label('value', value.name) for value in values]
        found = [Flags(labels, check.not_finite())]
        if self._limits.loss is not None:
            found.append(_check_limit(losses[0], self._limits.loss, token))
        if half_square is not None:
            found.append(_check_norm(half_square, self._limits.half_square, token))
        if plan.squares:
            found.append(_check_squares(check, values, plan.squares))
        return join_flags(found)

    def of_copies(self, copies: Copies, token: tf.Tensor) -> Flags:
        """Checks the copies of the plan's `changed` variables, once `token` is there.

        If a copy is not finite, its variable is lost, or another process or thread is about to put
        it back; no step may put it back from this copy.
        """
        changed = [variable for variable in copies if variable in self._plan.changed]
        check = FiniteCheck([copies[each] for each in changed], token, Home(token.op))
        return Flags([Label('before', each.name) for each in changed], check.not_finite())

    def after_update(self, task: Task, token: tf.Tensor, ahead: Copies) -> Flags:
        """Checks the variables of a task once `token` is there.

        Variables that the forward pass writes are checked twice, now and as they were ahead of it:
        this tells a variable that was not finite before the step from one that the step made so.

        Args:
          task: the task.
          token: arrives when the update has run or was refused.
          ahead: the copies made ahead of forward writes, of all tasks.
        """
        written = dict.fromkeys([*task.variables, *task.put_back])
        floats = [variable for variable in written if graphs.is_float_variable(variable)]
        before = [variable for variable in floats if variable in task.put_back]
        floats = [variable for variable in floats if variable not in before] + before
        with tf.control_dependencies([token]):
            values = [_now(variable) for variable in floats] + [ahead[each] for each in before]
        found = FiniteCheck(values, token, Home(token.op)).not_finite()
        if not before:
            return Flags([Label('state', variable.name) for variable in floats], found)
        labels = [Label('state', v.name) for v in floats]
        labels += [Label('written', v.name) for v in before]
        # If a variable is checked twice, `state` says that it is bad now and was bad before,
        # `written` that it was not. One vector without a concatenation: Grappler would take this
        # apart, and each part would cross the network by itself.
        first, last = len(floats) - len(before), len(floats)
        twice = list(range(first, last))
        was = list(range(last, last + len(before)))
        now = tf.gather(found, list(range(last)) + twice)
        other = tf.gather(found, list(range(first)) + was + was)
        was_bad = tf.constant([False] * last + [True] * len(before), tf.bool)
        is_other = tf.not_equal(other, was_bad)
        return Flags(labels, tf.logical_and(now, is_other))


def _now(variable: tf.Operation) -> tf.Tensor:
    """The value of a variable; for a ref variable its memory, which is read when it is checked."""
    return ops.copy_of(variable) if graphs.is_resource(variable) else variable.outputs[0]


def check_late_loss(loss: tf.Tensor, value: tf.Tensor, refused: tf.Tensor) -> Flags:
    """The flag of a loss that comes out of the update; false if the update was refused.

    Args:
      loss: the loss that was given.
      value: its value in the guarded step.
      refused: arrives if the update is refused.
    """
    with tf.control_dependencies([refused]):
        unknown = tf.constant(False, tf.bool)
    is_bad = tf.logical_not(tf.reduce_all(tf.math.is_finite(ops.for_arithmetic(value))))
    flag = tf.stack([ops.merge([is_bad, unknown], 'bad_late_loss')])
    return Flags([Label('late', label_of(loss))], flag)


def _check_limit(loss: Check, max_loss: tf.Tensor, token: tf.Tensor) -> Flags:
    with tf.control_dependencies([token]):
        above = tf.greater(tf.cast(loss.tensor, tf.float64), max_loss)
    return Flags([Label('limit', loss.name)], tf.stack([above]))


def _check_norm(half_square: tf.Tensor, limit: tf.Tensor, token: tf.Tensor) -> Flags:
    with tf.control_dependencies([token]):
        above = tf.greater(half_square, limit)
    return Flags([Label('norm', GRADIENT_NORM)], tf.stack([above]))


def _check_squares(check: FiniteCheck, values: Sequence[Check], squares: Sequence[Check]) -> Flags:
    """Checks which of `squares`, all of them checked `values`, are too large to be squared."""
    numbers = {key(value.tensor): number for number, value in enumerate(values)}
    chosen: List[int] = [numbers[key(square.tensor)] for square in squares]
    labels = [Label('square', square.name) for square in squares]
    return Flags(labels, check.overflows(chosen))


def read_opaque_writes(plan: Plan, known: tf.Tensor) -> List[Check]:
    """Reads the variables of the forward pass whose new value is known only after the write.

    Args:
      plan: the plan of the gate.
      known: a bool scalar that is there from the beginning.
    """
    if not plan.opaque_forward:
        return []
    written = ops.after(plan.barrier, known, 'written_forward')
    return [
        Check(_read_after(written, variable), 'update of ' + variable.name)
        for variable in plan.opaque_forward
    ]


def _read_after(token: tf.Tensor, variable: tf.Operation) -> tf.Tensor:
    """The value a variable has once `token`, a bool scalar, is there."""
    if graphs.is_resource(variable):
        with tf.control_dependencies([token]):
            return ops.copy_of(variable)
    with ops.at(variable):
        # Grappler may swap a copy with the op after it (see `finite_checks.Moment`). It leaves a
        # switch in its place, since the side is not known before it runs.
        switch = tf.raw_ops.Switch(data=variable.outputs[0], pred=token)
        return ops.merge([switch.output_false, switch.output_true], 'written')

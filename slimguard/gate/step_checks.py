"""The exact checks of a step: of all values before the update, of the variables after it."""

from typing import List, Optional, Sequence

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.gate.checked_values import Check
from slimguard.gate.copies import Copy, values_of
from slimguard.gate.finite_checks import FiniteCheck, Moment
from slimguard.gate.flags import Flags, join_flags
from slimguard.gate.flags_in_words import GRADIENT_NORM, Label
from slimguard.gate.limits import Limits
from slimguard.gate.losses import label_of
from slimguard.gate.plan import Plan
from slimguard.gate.tasks import Task
from slimguard.graph import key, ops, plain_ops
from slimguard.graph.devices import Home


class StepChecks:
    """Checks one step.

    Args:
      plan: the plan of the gate.
      limits: the limits of the loss and of the gradients' norm.
      make: makes the ops.
      home: where the findings come together.
    """

    def __init__(self, plan: Plan, limits: Limits, make: ops.Maker, home: Home):
        self._plan = plan
        self._limits = limits
        self._make = make
        self._home = home

    def before_update(
        self, checks: Sequence[Check], token: tf.Tensor, half_square: Optional[tf.Tensor]
    ) -> Flags:
        """Checks losses, values, squares and clones once `token` is there.

        Args:
          checks: the values.
          token: arrives when they are to be checked.
          half_square: half the square of the gradients' norm; None without gradients.
        """
        plan = self._plan
        losses = [Check(loss, label_of(loss)) for loss in plan.losses]
        values = losses + list(checks)
        tensors = [value.tensor for value in values]
        check = FiniteCheck(self._make, tensors, Moment(token), self._home)
        labels = [Label('value', value.name) for value in values]
        found = [Flags(labels, check.not_finite())]
        if self._limits.loss is not None:
            found.append(_check_limit(losses[0], self._limits.loss, token))
        if half_square is not None:
            found.append(_check_norm(half_square, self._limits.half_square, token))
        if plan.squares:
            found.append(_check_squares(check, values, plan.squares))
        if plan.model_clones:
            found.append(self._check_model_clones(token))
        return join_flags(found)

    def of_copies(self, copies: Sequence[Copy], token: tf.Tensor) -> Flags:
        """Checks the copies of the plan's `changed` variables, once `token` is there.

        If a copy is not finite, its variable is lost, or another process or thread is about to put
        it back; no step may put it back from this copy.
        """
        check = FiniteCheck(self._make, [], Moment(token), Home(token.op))
        labels = []
        for variables, value in copies:
            if variables[0] in self._plan.changed:
                check.add_joined(value, len(variables))
                labels += [Label('before', variable.name) for variable in variables]
        return Flags(labels, check.not_finite())

    def after_update(self, task: Task, token: tf.Tensor, ahead: Sequence[Copy]) -> Flags:
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
        with tf.control_dependencies([token]):
            here = [copy for copy in ahead if copy.variables[0] in task.put_back]
            before = {
                variable: value
                for variable, value in values_of(self._make, here).items()
                if variable in floats
            }
            floats = [v for v in floats if v not in before] + list(before)  # checked twice: last
            values = [self._now(v) for v in floats] + list(before.values())
        found = FiniteCheck(self._make, values, Moment(token), Home(token.op)).not_finite()
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
        now = plain_ops.gather(found, list(range(last)) + twice)
        other = plain_ops.gather(found, list(range(first)) + was + was)
        was_bad = plain_ops.constant([False] * last + [True] * len(before), tf.bool)
        is_other = tf.not_equal(other, was_bad)
        return Flags(labels, plain_ops.logical_and(now, is_other))

    def _now(self, variable: tf.Operation) -> tf.Tensor:
        is_resource = graphs.is_resource(variable)
        return self._make.copy(variable) if is_resource else variable.outputs[0]

    def _check_model_clones(self, token: tf.Tensor) -> Flags:
        """Checks which clones of the model made a non-finite summand of a gradient or a loss."""
        clones = self._plan.model_clones
        summands = [summand for given in clones.values() for summand in given]
        found = FiniteCheck(self._make, summands, Moment(token), self._home).not_finite()
        sizes = [len(given) for given in clones.values()]
        labels = [Label('clone', name) for name in clones]
        return Flags(labels, tf.stack([tf.reduce_any(part) for part in tf.split(found, sizes)]))


def check_late_loss(loss: tf.Tensor, value: tf.Tensor, refused: tf.Tensor) -> Flags:
    """The flag of a loss that comes out of the update; false if the update was refused.

    Args:
      loss: the loss that was given.
      value: its value in the guarded step.
      refused: arrives if the update is refused.
    """
    with tf.control_dependencies([refused]):
        unknown = plain_ops.constant(False, tf.bool)
    is_bad = tf.logical_not(tf.reduce_all(tf.math.is_finite(ops.for_arithmetic(value))))
    flag = plain_ops.stack([plain_ops.merge([is_bad, unknown], 'bad_late_loss')])
    return Flags([Label('late', label_of(loss))], flag)


def _check_limit(loss: Check, max_loss: tf.Tensor, token: tf.Tensor) -> Flags:
    with tf.control_dependencies([token]):
        above = plain_ops.greater(plain_ops.cast(loss.tensor, tf.float64), max_loss)
    return Flags([Label('limit', loss.name)], plain_ops.stack([above]))


def _check_norm(half_square: tf.Tensor, limit: tf.Tensor, token: tf.Tensor) -> Flags:
    with tf.control_dependencies([token]):
        above = plain_ops.greater(half_square, limit)
    return Flags([Label('norm', GRADIENT_NORM)], plain_ops.stack([above]))


def _check_squares(check: FiniteCheck, values: Sequence[Check], squares: Sequence[Check]) -> Flags:
    """Checks which of `squares`, all of them checked `values`, are too large to be squared."""
    numbers = {key(value.tensor): number for number, value in enumerate(values)}
    chosen: List[int] = [numbers[key(square.tensor)] for square in squares]
    labels = [Label('square', square.name) for square in squares]
    return Flags(labels, check.overflows(chosen))

"""The exact checks of a step: all values before the update, the variables after it.

Each value is scaled down, so that the sum of its squares is finite if all its elements are; short
vectors of one length are joined, and summed up by rows. In nearly all steps the fast path decides,
and these ops are on a dead branch.
"""

from typing import Dict, List, Optional, Sequence, Tuple

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.gate.building.copies import Copies
from slimguard.gate.building.fast_path import Limits
from slimguard.gate.building.flags import GRADIENT_NORM, Flags, Label, join_flags
from slimguard.gate.reading.checked_values import Check
from slimguard.gate.reading.losses import label_of
from slimguard.gate.reading.plan import Plan
from slimguard.graph import ops
from slimguard.graph.devices import Home

# Finite numbers times this factor have a finite sum, and a finite sum of squares.
SMALL_32 = 2.0**-100  # for dtypes that `_SMALL` does not name
_SMALL = {tf.float64: 2.0**-600, tf.complex128: 2.0**-600, tf.float16: 2.0**-24}


class Moment:
    """A moment of the step: scalars that arrive at that moment, and are dead if it never comes.

    Ops that consume these scalars cannot run early. Ops that have only a control input can run
    early: Grappler removes a waiting Identity of a ref variable (seen on TensorFlow 1.15), and
    swaps a waiting DeepCopy with the IsFinite after it (on 2.21).

    Args:
      token: the float32 scalar that arrives at that moment; its value is `SMALL_32`.
    """

    def __init__(self, token: tf.Tensor):
        self._token = token
        self._small: Dict[tf.DType, tf.Tensor] = {tf.float32: token}
        self._first_axis: Optional[tf.Tensor] = None

    def small(self, dtype: tf.DType) -> tf.Tensor:
        """A scalar: a factor that makes any finite number of a dtype small."""
        if dtype not in self._small:
            number = tf.multiply(
                tf.cast(self._token, tf.float64), _SMALL.get(dtype, SMALL_32) / SMALL_32
            )
            self._small[dtype] = tf.cast(number, dtype)
        return self._small[dtype]

    @property
    def first_axis(self) -> tf.Tensor:
        """The int32 scalar 0, to pass as an axis."""
        if self._first_axis is None:
            self._first_axis = tf.cast(self._token, tf.int32)
        return self._first_axis


def not_finite(tensors: Sequence[tf.Tensor], token: tf.Tensor, home: Home) -> tf.Tensor:
    """A bool vector: for each of `tensors`, whether an element of it is not finite.

    Args:
      tensors: the tensors. Each is checked on its own device; for scalars see `Home.near`.
      token: arrives when they are to be checked, see `Moment`.
      home: where the findings come together.
    """
    moment = Moment(token)
    # Sums on one device are joined there, to be sent as one tensor.
    places: Dict[Tuple[str, tf.DType, str], List[Tuple[List[int], tf.Tensor]]] = {}
    for numbers in ops.short_together(tensors):
        sums = _sums_of([tensors[number] for number in numbers], moment, home)
        place = home.joins_at(sums), sums.dtype, home.device_near(sums)
        places.setdefault(place, []).append((numbers, sums))
    vectors: List[tf.Tensor] = []
    order: List[int] = []
    for (_, _, device), found in places.items():
        alone = [each for each in found if len(each[0]) == 1]
        joined = [each for each in found if len(each[0]) > 1]
        with ops.at(found[0][1].op):
            parts = [sums for _, sums in joined]
            parts += [tf.stack([scalar for _, scalar in alone])] if alone else []
            vector = parts[0] if len(parts) == 1 else tf.concat(parts, 0)
        with tf.device(device):
            vectors.append(tf.logical_not(tf.math.is_finite(vector)))
        order.extend(number for numbers, _ in joined + alone for number in numbers)
    if not vectors:
        return tf.constant([], tf.bool)
    flags = vectors[0] if len(vectors) == 1 else tf.concat(vectors, 0)
    places_in_it = sorted(range(len(order)), key=order.__getitem__)
    return flags if places_in_it == list(range(len(order))) else tf.gather(flags, places_in_it)


def _sums_of(tensors: Sequence[tf.Tensor], moment: Moment, home: Home) -> tf.Tensor:
    """The sums of squares, scaled down: a scalar for one tensor, else a vector."""
    tensor, near = tensors[0], home.near(tensors[0])
    dtype = tensor.dtype.base_dtype
    if len(tensors) > 1:
        with ops.at(near):
            joined = tf.raw_ops.ConcatV2(values=tensors, axis=moment.first_axis)
            tensor = tf.reshape(joined, [len(tensors), -1])
    scaled = ops.create_at(near, 'Mul', [tensor, moment.small(dtype)], [dtype]).outputs[0]
    if dtype.is_complex or dtype == tf.bfloat16:
        with ops.at(near):
            scaled = ops.for_arithmetic(scaled)
    if len(tensors) > 1:
        with ops.at(near):
            return tf.reduce_sum(tf.square(scaled), 1)
    size = ops.create_at(near, 'L2Loss', [scaled], [scaled.dtype]).outputs[0]
    return ops.lift(size, tensor.op, 0.0)


class StepChecks:
    """Checks one step; its findings come together at `home`."""

    def __init__(self, plan: Plan, limits: Limits, home: Home):
        self._plan = plan
        self._limits = limits
        self._home = home

    def before_update(
        self, checks: Sequence[Check], token: tf.Tensor, half_square: Optional[tf.Tensor]
    ) -> Flags:
        """Checks losses and values once `token` arrives.

        Args:
          half_square: half the square of the gradients' norm; None without gradients.
        """
        plan = self._plan
        losses = [Check(loss, label_of(loss)) for loss in plan.losses]
        values = losses + list(checks)
        labels = [Label(Label.VALUE, value.name) for value in values]
        tensors = [value.tensor for value in values]
        found = [Flags(labels, not_finite(tensors, token, self._home))]
        if self._limits.loss is not None:
            found.append(_check_limit(losses[0], self._limits.loss, token))
        if half_square is not None:
            found.append(_check_norm(half_square, self._limits.half_square, token))
        return join_flags(found)

    def of_copies(self, copies: Copies, token: tf.Tensor) -> Flags:
        """Checks the copies of the plan's `changed` variables once `token` arrives.

        If a copy is not finite, the variable is lost, or another process or thread is about to
        restore it. In both cases no step may write this copy back.
        """
        changed = [variable for variable in copies if variable in self._plan.changed]
        bad = not_finite([copies[each] for each in changed], token, Home(token.op))
        return Flags([Label(Label.BEFORE, each.name) for each in changed], bad)

    def after_update(self, token: tf.Tensor, ahead: Copies) -> Flags:
        """Checks the variables once `token` arrives.

        Variables that the forward pass writes are checked twice, by their values now and by their
        copies: this tells whether a bad variable was bad before the step.

        Args:
          token: arrives when the update has run or was refused.
          ahead: the copies made ahead of forward writes.
        """
        written = dict.fromkeys([*self._plan.variables, *ahead])
        floats = [variable for variable in written if graphs.is_float_variable(variable)]
        before = [variable for variable in floats if variable in ahead]
        floats = [variable for variable in floats if variable not in before] + before
        with tf.control_dependencies([token]):
            values = [_now(variable) for variable in floats] + [ahead[each] for each in before]
        found = not_finite(values, token, Home(token.op))
        if not before:
            return Flags([Label(Label.STATE, variable.name) for variable in floats], found)
        labels = [Label(Label.STATE, v.name) for v in floats]
        labels += [Label(Label.WRITTEN, v.name) for v in before]
        # If a variable is checked twice, `state` means bad now and bad before, `written` means bad
        # now and good before. Do not concatenate these: Grappler would split the concatenation, and
        # each part would cross the network by itself.
        first, last = len(floats) - len(before), len(floats)
        twice = list(range(first, last))
        was = list(range(last, last + len(before)))
        now = tf.gather(found, list(range(last)) + twice)
        other = tf.gather(found, list(range(first)) + was + was)
        was_bad = tf.constant([False] * last + [True] * len(before), tf.bool)
        is_other = tf.not_equal(other, was_bad)
        return Flags(labels, tf.logical_and(now, is_other))


def _now(variable: tf.Operation) -> tf.Tensor:
    """The value of a variable; for a ref variable its memory, which the check then reads."""
    return ops.copy_of(variable) if graphs.is_resource(variable) else variable.outputs[0]


def check_late_loss(loss: tf.Tensor, value: tf.Tensor, refused: tf.Tensor) -> Flags:
    """The flag of a loss that ops after the update compute; false if the update was refused.

    Args:
      value: the value of `loss` in the guarded step.
      refused: arrives if the update is refused.
    """
    with tf.control_dependencies([refused]):
        unknown = tf.constant(False, tf.bool)
    is_bad = tf.logical_not(tf.reduce_all(tf.math.is_finite(ops.for_arithmetic(value))))
    flag = tf.stack([ops.merge([is_bad, unknown], 'bad_late_loss')])
    return Flags([Label(Label.LATE, label_of(loss))], flag)


def _check_limit(loss: Check, max_loss: tf.Tensor, token: tf.Tensor) -> Flags:
    with tf.control_dependencies([token]):
        above = tf.greater(tf.cast(loss.tensor, tf.float64), max_loss)
    return Flags([Label(Label.LIMIT, loss.name)], tf.stack([above]))


def _check_norm(half_square: tf.Tensor, limit: tf.Tensor, token: tf.Tensor) -> Flags:
    with tf.control_dependencies([token]):
        above = tf.greater(half_square, limit)
    return Flags([Label(Label.NORM, GRADIENT_NORM)], tf.stack([above]))


def read_opaque_writes(plan: Plan, known: tf.Tensor) -> List[Check]:
    """Reads the forward pass's variables whose new value is known only after the write.

    Args:
      known: a bool scalar that is available before the ops of the step run.
    """
    if not plan.opaque_forward:
        return []
    written = ops.after(plan.barrier, known, 'written_forward')
    return [
        Check(_read_after(written, variable), 'update of ' + variable.name)
        for variable in plan.opaque_forward
    ]


def _read_after(token: tf.Tensor, variable: tf.Operation) -> tf.Tensor:
    """The value of a variable when `token`, a bool scalar, arrives."""
    if graphs.is_resource(variable):
        with tf.control_dependencies([token]):
            return ops.copy_of(variable)
    with ops.at(variable):
        # Grappler may swap a copy with the op after it (see `Moment`). It does not move a switch,
        # since only the run shows which output of the switch is alive.
        switch = tf.raw_ops.Switch(data=variable.outputs[0], pred=token)
        return ops.merge([switch.output_false, switch.output_true], 'written')

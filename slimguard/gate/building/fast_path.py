"""The cheap check that nearly every step passes: one sum of squares for each value.

If all are small, all values are finite, and a sum of such steps cannot overflow either. Then the
update runs without the exact check, and without copies.
"""

import math
from typing import NamedTuple, Optional

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.gate.building.square_sums import Kind, SquareSums
from slimguard.gate.reading.kernels import Range
from slimguard.gate.reading.plan import Plan
from slimguard.graph import ops


class Limits(NamedTuple):
    """Float64 scalars to feed, each Inf unless it is fed.

    Attributes:
      loss: the largest loss that is no incident; None without a loss.
      half_square: half the square of the largest norm of all gradients that is no incident.
    """

    loss: Optional[tf.Tensor]
    half_square: tf.Tensor


def make_limits(has_loss: bool, max_loss: Optional[float]) -> Limits:
    """Creates the limits.

    Args:
      has_loss: whether there is a loss.
      max_loss: the limit of the loss unless it is fed; None for Inf.
    """
    no_limit = tf.constant(math.inf, tf.float64)
    loss = None
    if has_loss:
        limit = no_limit if max_loss is None else tf.constant(max_loss, tf.float64)
        loss = tf1.placeholder_with_default(limit, [], 'max_loss')
    half_square = tf1.placeholder_with_default(no_limit, [], 'max_half_square')
    return Limits(loss, half_square)


def all_are_small(plan: Plan, sums: SquareSums, limits: Limits) -> tf.Tensor:
    """Bool scalar: whether a step takes the fast path.

    It does if all values in `sums` are small, loss and gradient norm are below their limits, and
    the plan's `ranges` hold (kernels.py, late_writes.py).
    """
    gradients = [kind for kind in sums.kinds if kind.is_gradient]
    # Gradients of one kind are compared with both limits at once.
    is_one = len(gradients) == 1
    small = [_are_below(kind, sums) for kind in sums.kinds if not (is_one and kind.is_gradient)]
    total = sums.of_gradients()
    if total is not None:
        largest = limits.half_square
        if is_one:
            largest = tf.minimum(largest, gradients[0].limit)
        small.append(tf.less(total, largest))
    if limits.loss is not None:
        # A loss that equals the limit in its own dtype is left to the exact check.
        loss = plan.losses[0]
        small.append(tf.less(loss, tf.cast(limits.loss, loss.dtype)))
    small += map(_is_between, plan.ranges)
    # A train op that only counts has nothing to compare.
    all_small = small[0] if small else tf.constant(True, tf.bool)
    for more in small[1:]:
        all_small = tf.logical_and(all_small, more)
    return ops.after(plan.barrier, all_small, 'is_fast')


def _is_between(allowed: Range) -> tf.Tensor:
    scalar = allowed.tensor
    with scalar.graph.colocate_with(scalar.op):
        number = tf.cast(scalar, tf.float64)
        is_high = tf.logical_not(tf.less(number, allowed.low))
        is_low = tf.logical_not(tf.greater(number, allowed.high))
        return ops.lift(tf.logical_and(is_high, is_low), scalar.op, True)


def _are_below(kind: Kind, sums: SquareSums) -> tf.Tensor:
    # No sum of squares is negative: if their total is below the limit, so is each.
    total = sums.total_of(kind)
    with tf.device(kind.device):
        return tf.less(total, kind.limit)

"""The cheap check that nearly every step passes: one sum of squares for each value.

If all are small, all values are finite, and a sum of such steps cannot overflow either. Then the
update runs without the exact check, and without copies.
"""

from typing import List

import tensorflow as tf

from slimguard.gate.kernels import Range
from slimguard.gate.limits import Limits
from slimguard.gate.plan import Plan
from slimguard.gate.square_sums import Kind, SquareSums
from slimguard.graph import ops, plain_ops


def all_are_small(plan: Plan, sums: SquareSums, limits: Limits) -> tf.Tensor:
    """Bool scalar: whether a step takes the fast path.

    It does if all values in `sums` are small, loss and gradient norm are below their limits, and
    the plan's `ranges` hold (kernels.py, late_writes.py).
    """
    gradients = [kind for kind in sums.kinds if kind.is_gradient]
    # Gradients of one kind are compared with both limits at once.
    is_one = len(gradients) == 1 and not gradients[0].is_low
    small = [_are_below(kind, sums) for kind in sums.kinds if not (is_one and kind.is_gradient)]
    total = sums.of_gradients()
    if total is not None:
        largest = limits.half_square
        if is_one:
            largest = plain_ops.minimum(largest, gradients[0].limit)
        small.append(plain_ops.less(total, largest))
    if limits.loss is not None:
        # A loss that equals the limit in its own dtype is left to the exact check.
        loss = plan.losses[0]
        small.append(plain_ops.less(loss, plain_ops.cast(limits.loss, loss.dtype)))
    small += map(_is_between, plan.ranges)
    # A train op that only counts has nothing to compare.
    all_small = small[0] if small else plain_ops.constant(True, tf.bool)
    for more in small[1:]:
        all_small = plain_ops.logical_and(all_small, more)
    return ops.after(plan.barrier, all_small, 'is_calm')


def _is_between(allowed: Range) -> tf.Tensor:
    scalar = allowed.tensor
    with scalar.graph.colocate_with(scalar.op):
        number = plain_ops.cast(scalar, tf.float64)
        is_high = plain_ops.logical_not(plain_ops.less(number, allowed.low))
        is_low = plain_ops.logical_not(plain_ops.greater(number, allowed.high))
        return ops.lift(plain_ops.logical_and(is_high, is_low), scalar.op, True)


def _are_below(kind: Kind, sums: SquareSums) -> tf.Tensor:
    # No sum of squares is negative: if their total is below the limit, so is each.
    joined = sums.total_of(kind) if not kind.is_low else _stacked(kind, sums)
    with tf.device(kind.device):
        is_below = plain_ops.less(joined, kind.limit)
        return plain_ops.all_of(is_below) if kind.is_low else is_below


def _stacked(kind: Kind, sums: SquareSums) -> tf.Tensor:
    sizes: List[tf.Tensor] = [each.size for each in sums.kinds[kind]]
    with sizes[0].graph.colocate_with(sizes[0].op):
        return plain_ops.stack(sizes)

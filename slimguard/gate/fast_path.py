"""The cheap check that nearly every step passes: one sum of squares for each value.

If all are small, all values are finite, and a sum of such steps cannot overflow either. Then the
update runs without the exact check, and without copies.
"""

from typing import Dict, List, NamedTuple, Optional, Sequence

import tensorflow as tf

from slimguard.gate.checked_values import Check
from slimguard.gate.plan import Plan
from slimguard.graph import ops
from slimguard.graph.devices import Home

# A step takes the fast path if every value's sum of squares (halved) is below this. With p bits of
# precision, adding what is smaller than x / 2**(p+1) leaves x as it is, so accumulated values and
# squares stay in range for ever if twice this limit times 2**(p+1) does.
_LIMITS = {tf.float64: 1e280, tf.float32: 1e28, tf.bfloat16: 1e28, tf.float16: 4.0}
# The same for a learning rate and the like, which multiply what was checked.
_LIMIT_OF_FACTORS = 1e12


class _Kind(NamedTuple):
    """The properties that sums of squares share if they are compared together.

    Attributes:
      place: where they are, as `Home.joins_at` tells.
      device: where they are compared.
    """

    place: str
    device: str
    dtype: tf.DType
    limit: float


def all_are_small(
    plan: Plan, checks: Sequence[Check], max_loss: Optional[tf.Tensor], make: ops.Maker, home: Home
) -> tf.Tensor:
    """Bool scalar: whether the losses and all values of `checks` are small."""
    values = [Check(loss, 'loss') for loss in plan.losses] + list(checks)
    small = [_are_below(kind, sums) for kind, sums in _sums_of(values, make, home).items()]
    if max_loss is not None:
        # What equals the limit in the loss's dtype is left to the exact check.
        loss = plan.losses[0]
        small.append(tf.less(loss, tf.cast(max_loss, loss.dtype)))
    all_small = small[0] if small else tf.constant(True)  # a train op that only counts
    for more in small[1:]:
        all_small = tf.logical_and(all_small, more)
    return ops.after(plan.barrier, all_small, 'is_calm')


def _sums_of(values: Sequence[Check], make: ops.Maker, home: Home) -> Dict[_Kind, List[tf.Tensor]]:
    """The sums of squares of all values, short vectors together."""
    sums: Dict[_Kind, List[tf.Tensor]] = {}
    for group in make.small([value.tensor for value in values]):
        together = [values[number] for number in group]
        tensor = together[0].tensor
        near = home.near(tensor)
        if len(together) > 1:
            axis = make.constant(0, near)
            tensor = make.join([value.tensor for value in together], axis, near)
        size = make.sum_of_squares(ops.for_arithmetic(tensor), near)
        size = ops.lift(size, tensor.op, 0.0)
        place, device = home.joins_at(size), home.device_near(size)
        kind = _Kind(place, device, size.dtype, _limit_of(together, tensor))
        sums.setdefault(kind, []).append(size)
    return sums


def _limit_of(together: Sequence[Check], tensor: tf.Tensor) -> float:
    if any(value.is_factor for value in together):
        return _LIMIT_OF_FACTORS
    return _LIMITS.get(tensor.dtype.base_dtype, _LIMITS[tf.float32])


def _are_below(kind: _Kind, sums: List[tf.Tensor]) -> tf.Tensor:
    is_float16 = kind.dtype == tf.float16  # whose limit is so low that a sum is soon above it
    with sums[0].graph.colocate_with(sums[0].op):
        # No sum of squares is negative, so each is below what their sum is below.
        joined = tf.stack(sums) if is_float16 else tf.add_n(sums)
    with tf.device(kind.device):
        is_below = tf.less(joined, kind.limit)
        return tf.reduce_all(is_below) if is_float16 else is_below

"""The cheap check that nearly every step passes: one sum of squares for each value.

If all sums are small, all values are finite, and even many such steps cannot overflow a variable.
Then the update runs without the exact check, and without copies. The check of the gradients' norm
(exact_checks.py) and the measures of a step (outcome.py) use the same sums.
"""

import math
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.gate.reading.checked_values import Check
from slimguard.gate.reading.kernels import Range
from slimguard.gate.reading.plan import Plan
from slimguard.graph import key, ops
from slimguard.graph.devices import Home

# A step takes the fast path if every value's sum of squares (halved) is below this. With p bits of
# precision, adding a number below x / 2**(p+1) leaves x as it is. So accumulated values and squares
# always stay in range if twice this limit times 2**(p+1) is in range.
_LIMITS = {tf.float64: 1e280, tf.float32: 1e28, tf.bfloat16: 1e28, tf.float16: 4.0}
# The limit for learning rates and other factors of checked values.
_LIMIT_OF_FACTORS = 1e12


class Sum(NamedTuple):
    """`size`, a float scalar: half the sum of squares of one value, or of several joined values."""

    names: Tuple[str, ...]
    size: tf.Tensor


class Kind(NamedTuple):
    """Sums of squares with equal properties are compared together.

    Attributes:
      place: the key by which they are joined, see `Home.joins_at`.
      device: where they are compared.
      dtype: of the sums.
      limit: sums below this limit are small.
      is_gradient: whether these are sums of gradients that optimizers take.
    """

    place: str
    device: str
    dtype: tf.DType
    limit: float
    is_gradient: bool


class SquareSums:
    """The halved sums of squares of values, by their kinds.

    Args:
      losses: the losses among `values`. The first is squared at home, where its limit is compared.
      home: where the findings come together.

    Attributes:
      kinds: the sums, by their kind.
    """

    def __init__(self, values: Sequence[Check], losses: Sequence[tf.Tensor], home: Home):
        self._home = home
        self._loss = key(losses[0]) if losses else None
        self._totals: Dict[Kind, tf.Tensor] = {}
        self._of_gradients: Optional[tf.Tensor] = None
        self.kinds: Dict[Kind, List[Sum]] = {}
        gradients = [value for value in values if value.gradient_of]
        others = [value for value in values if not value.gradient_of]
        for same in (others, gradients):
            for group in ops.short_together([value.tensor for value in same]):
                self._add([same[number] for number in group])

    def _add(self, together: Sequence[Check]) -> None:
        home, tensor = self._home, together[0].tensor
        is_gradient = bool(together[0].gradient_of)
        with ops.at(home.op if key(tensor) == self._loss else home.near(tensor)):
            if len(together) > 1:
                tensor = tf.concat([value.tensor for value in together], 0)
            numbers = ops.for_arithmetic(tensor)
            if is_gradient and numbers.dtype.base_dtype == tf.float16:  # float16 ends at 65504
                numbers = tf.cast(numbers, tf.float32)
            size = tf.nn.l2_loss(numbers)
        size = ops.lift(size, tensor.op, 0.0)
        place, device = home.joins_at(size), home.device_near(size)
        kind = Kind(place, device, size.dtype, _limit_of(together, tensor), is_gradient)
        names = tuple(value.gradient_of or value.name for value in together)
        self.kinds.setdefault(kind, []).append(Sum(names, size))

    def total_of(self, kind: Kind) -> tf.Tensor:
        """The total of all sums of one kind, on their device."""
        if kind not in self._totals:
            sizes = [each.size for each in self.kinds[kind]]
            with sizes[0].graph.colocate_with(sizes[0].op):
                self._totals[kind] = tf.add_n(sizes)
        return self._totals[kind]

    def of_gradients(self) -> Optional[tf.Tensor]:
        """Half the sum of squares of all gradients: a float64 scalar at home, or None."""
        if self._of_gradients is None:
            kinds = [kind for kind in self.kinds if kind.is_gradient]
            with tf.device(self._home.device):
                totals = [tf.cast(self.total_of(kind), tf.float64) for kind in kinds]
                self._of_gradients = tf.add_n(totals) if totals else None
        return self._of_gradients


def _limit_of(together: Sequence[Check], tensor: tf.Tensor) -> float:
    if any(value.is_factor for value in together):
        return _LIMIT_OF_FACTORS
    return _LIMITS.get(tensor.dtype.base_dtype, _LIMITS[tf.float32])


class Limits(NamedTuple):
    """Float64 scalars to feed. Defaults: `loss` is the given `max_loss` or Inf, `half_square` Inf.

    Attributes:
      loss: the largest loss that is no incident; None without a loss.
      half_square: half the square of the largest gradient norm that is no incident.
    """

    loss: Optional[tf.Tensor]
    half_square: tf.Tensor


def make_limits(has_loss: bool, max_loss: Optional[float]) -> Limits:
    """Creates the limits; `max_loss` is the default of the loss's limit (None for Inf)."""
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
    all factors are in the plan's `ranges` (kernels.py, late_writes.py).
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
    # No sum of squares is negative: if their total is below the limit, each sum is.
    total = sums.total_of(kind)
    with tf.device(kind.device):
        return tf.less(total, kind.limit)

""":class:`Measures`: loss, learning rate and gradients of a step, in one small vector."""

import math
from typing import NamedTuple, Optional, Sequence, Tuple

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.gate.building.outcome import Outcome
from slimguard.gate.building.square_sums import SquareSums
from slimguard.gate.building.untold import Untold
from slimguard.gate.reading.plan import Plan
from slimguard.graph.control_flow import SWITCHES
from slimguard.graph.devices import Home


class Measures(NamedTuple):
    """The loss, the learning rate and the gradients of a step, as tensors to fetch.

    Attributes:
      gradients: for each gradient in `vector` the names of its variables; several if the gradients
        of short vectors are summed together.
      vector: float32 or float64, [2 + len(gradients)]: the loss, the learning rate, and for each
        gradient, as the optimizer takes it, half the sum of its squares. NaN where there is no
        loss, or the learning rate is no tensor.
      step: float64 scalar, the global step after the step; NaN if there is none.
      written: float64 scalar, 1.0 if the step was written, else 0.0.
    """

    gradients: Tuple[Tuple[str, ...], ...]
    vector: tf.Tensor
    step: tf.Tensor
    written: tf.Tensor

    def counted_row(self, untold: Untold, count: tf.Tensor) -> tf.Tensor:
        """All that a watcher needs of a step, in one vector, which arrives once the step is done.

        A session takes longer to fetch a second tensor than a step takes to join the two.

        Args:
          untold: the untold bad steps of the gate.
          count: how many these are after the step.

        Returns:
          float64: `count`, `step`, `written`, and then `vector`.
        """
        head = tf.stack([tf.cast(count, tf.float64), self.step, self.written])
        row = tf.concat([head, tf.cast(self.vector, tf.float64)], 0, name='row')
        untold.counts.add(row.name)
        return row


def measure(plan: Plan, sums: SquareSums, home: Home, announced: Outcome) -> Measures:
    """Adds the ops of the measures; in a run that fetches none, none of them runs.

    On a small model one more op shows in the time of a step. So numbers in one place and of one
    dtype, as nearly always, are stacked by one op and not converted.

    Args:
      plan: the plan of the gate.
      sums: the sums of squares of at least its gradients.
      home: where the vector is made.
      announced: the outcome that is fetched beside the row.
    """
    kinds = [kind for kind in sums.kinds if kind.is_gradient]
    names = [each.names for kind in kinds for each in sums.kinds[kind]]
    of_kinds = [[each.size for each in sums.kinds[kind]] for kind in kinds]
    loss, rate = _loss_and_rate(plan)
    vector = None
    if len(kinds) <= 1:
        vector = _stacked(loss, rate, [size for sizes in of_kinds for size in sizes], home)
    if vector is None:
        parts = [tf.stack([_as_float(loss), _as_float(rate)])]
        for sizes in of_kinds:
            with sizes[0].graph.colocate_with(sizes[0].op):
                joined = tf.stack(sizes)
            with tf.device(home.device):
                parts.append(tf.cast(joined, tf.float64))
        vector = tf.concat(parts, 0, name='measures')
    with tf.control_dependencies([announced.written]):
        step = _as_float(announced.step)
    written = tf.cast(announced.written, tf.float64)
    return Measures(tuple(names), vector, step, written)


def _loss_and_rate(plan: Plan) -> Tuple[Optional[tf.Tensor], Optional[tf.Tensor]]:
    rates = [check.tensor for check in plan.checks if check.is_learning_rate]
    # If there are several, the first: most weights have it.
    scalars = [_outside(rate) for rate in rates if rate.shape.rank == 0]
    known = [rate for rate in scalars if rate is not None]
    return (plan.losses[0] if plan.losses else None), (known[0] if known else None)


def _outside(tensor: tf.Tensor) -> Optional[tf.Tensor]:
    """The tensor outside of a branch that enters it as `tensor`; None if it is made inside.

    A tensor in a branch that is not taken has no value, and the stacked vector would have none.
    """
    while graphs.flow_around(tensor.op) is not None:
        if tensor.op.type not in ('Identity', *SWITCHES):
            return None
        tensor = tensor.op.inputs[0]
    return tensor


def _stacked(
    loss: Optional[tf.Tensor],
    rate: Optional[tf.Tensor],
    sizes: Sequence[tf.Tensor],
    home: Home,
) -> Optional[tf.Tensor]:
    """Loss, rate and sizes in one vector; None unless they are of one dtype and at one place."""
    known = [scalar for scalar in (loss, rate) if scalar is not None] + list(sizes)
    dtypes = {scalar.dtype.base_dtype for scalar in known}
    if len(dtypes) != 1 or len({home.joins_at(scalar) for scalar in known}) != 1:
        return None
    (dtype,) = dtypes
    if dtype not in (tf.float32, tf.float64):
        return None
    with known[-1].graph.colocate_with(known[-1].op):
        unknown = tf.constant(math.nan, dtype)
        pair = [unknown if scalar is None else scalar for scalar in (loss, rate)]
        return tf.stack(pair + list(sizes), name='measures')


def _as_float(scalar: Optional[tf.Tensor]) -> tf.Tensor:
    if scalar is None:
        return tf.constant(math.nan, tf.float64)
    return tf.cast(scalar, tf.float64)

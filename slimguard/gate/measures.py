"""What is known of a step once it is over, in one small vector: :class:`Measures`."""

import math
from typing import List, NamedTuple, Optional, Sequence, Tuple

import tensorflow as tf

from slimguard.gate.outcome import Outcome
from slimguard.gate.plan import Plan
from slimguard.gate.square_sums import SquareSums
from slimguard.graph.devices import Home


class Measures(NamedTuple):
    """The loss, the learning rate and the gradients of a step, as tensors to fetch.

    Attributes:
      gradients: the names of the variables that each gradient is of, by the order of the vector;
        several where the gradients of short vectors are summed together.
      vector: float64, [2 + len(gradients)]: the loss, the learning rate, and of each gradient half
        the sum of its squares, as the optimizer takes it. NaN for a loss that there is not, or a
        learning rate that is no tensor.
      row: float64, two longer: the global step after the step, NaN if there is none; 1.0 if the
        step was written, else 0.0; and then `vector`. It comes once the step is done.
    """

    gradients: Tuple[Tuple[str, ...], ...]
    vector: tf.Tensor
    row: tf.Tensor


def measure(plan: Plan, sums: SquareSums, home: Home, announced: Outcome) -> Measures:
    """Adds what there is to fetch; where nobody fetches it, none of it runs.

    Args:
      plan: the plan of the gate.
      sums: the sums of squares of at least its gradients.
      home: where the vector is made.
      announced: what is fetched of the step beside the row.
    """
    names: List[Tuple[str, ...]] = []
    parts = [_pair(plan)]
    for kind, same in sums.kinds.items():
        if kind.is_gradient:
            names.extend(each.names for each in same)
            sizes = [each.size for each in same]
            with sizes[0].graph.colocate_with(sizes[0].op):
                joined = tf.stack(sizes)
            with tf.device(home.device):
                parts.append(tf.cast(joined, tf.float64))
    vector = tf.concat(parts, 0, name='measures')
    with tf.control_dependencies([announced.written]):
        step = _as_float(announced.step)
        ended = tf.stack([step, tf.cast(announced.written, tf.float64)])
    return Measures(tuple(names), vector, tf.concat([ended, vector], 0, name='row'))


def _pair(plan: Plan) -> tf.Tensor:
    """The loss and the learning rate."""
    rates = [check.tensor for check in plan.checks if check.is_learning_rate]
    # That of most weights, where there are several: the first.
    scalars: Sequence[tf.Tensor] = [rate for rate in rates if rate.shape.rank == 0]
    loss = plan.losses[0] if plan.losses else None
    return tf.stack([_as_float(loss), _as_float(scalars[0] if scalars else None)])


def _as_float(scalar: Optional[tf.Tensor]) -> tf.Tensor:
    if scalar is None:
        return tf.constant(math.nan, tf.float64)
    return tf.cast(scalar, tf.float64)

"""What a step must not exceed: limits that are fed, and that nothing exceeds where they are not."""

import math
from typing import NamedTuple, Optional

import tensorflow as tf
import tensorflow.compat.v1 as tf1


class Limits(NamedTuple):
    """Float64 scalars to feed, each Inf unless it is fed.

    Attributes:
      loss: the largest loss that is no incident; None without a loss.
      half_square: half the square of the largest norm of all gradients that is no incident.
    """

    loss: Optional[tf.Tensor]
    half_square: tf.Tensor


def make_limits(has_loss: bool, max_loss: Optional[float]) -> Limits:
    """Creates them.

    Args:
      has_loss: whether there is a loss.
      max_loss: the limit of the loss where it is not fed; None for Inf.
    """
    no_limit = tf.constant(math.inf, tf.float64)
    loss = None
    if has_loss:
        limit = no_limit if max_loss is None else tf.constant(max_loss, tf.float64)
        loss = tf1.placeholder_with_default(limit, [], name='max_loss')
    half_square = tf1.placeholder_with_default(no_limit, [], name='max_half_square')
    return Limits(loss, half_square)

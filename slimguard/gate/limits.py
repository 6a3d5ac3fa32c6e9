"""The limits that a step must not exceed: a run may feed them; their default may be Inf."""

import math
from typing import NamedTuple, Optional

import tensorflow as tf

from slimguard.graph import plain_ops


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
    no_limit = plain_ops.constant(math.inf, tf.float64)
    loss = None
    if has_loss:
        limit = no_limit if max_loss is None else plain_ops.constant(max_loss, tf.float64)
        loss = plain_ops.feedable(limit, name='max_loss')
    half_square = plain_ops.feedable(no_limit, name='max_half_square')
    return Limits(loss, half_square)

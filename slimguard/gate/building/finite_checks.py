"""Exact finite checks of many values, each where it is, at one moment of the step.

A value is scaled down, so that the sum of its squares is finite if all of it is. In nearly all
steps the fast path has answered before, and these ops are on a dead branch.
"""

from typing import Callable, Dict, List, Sequence, Tuple

import numpy as np
import tensorflow as tf

from slimguard.graph import ops
from slimguard.graph.devices import Home

# Finite numbers times this factor have a finite sum, and a finite sum of squares.
SMALL_32 = 2.0**-100  # for dtypes that this table does not name
_SMALL = {tf.float64: 2.0**-600, tf.complex128: 2.0**-600, tf.float16: 2.0**-24}
# The largest square that is rounded to a finite number in the optimizer's dtype.
_LARGEST_SQUARE = {
    tf.float64: float(np.finfo(np.float64).max),
    tf.float32: float(np.finfo(np.float32).max),
    tf.bfloat16: float(np.nextafter(np.float32(2.0**127 * (2 - 2.0**-8)), np.float32(0))),
    tf.float16: float(np.nextafter(np.float32(65520), np.float32(0))),
}


class Moment:
    """A moment of the step, as scalars that arrive then, and are dead if it never comes.

    Ops that consume these scalars cannot run early. Ops with a control input can: Grappler removes
    a waiting Identity of a ref variable (seen on TensorFlow 1.15), and swaps a waiting DeepCopy
    with the IsFinite after it (on 2.21).

    Args:
      token: the float32 scalar that arrives at that moment; its value is `SMALL_32`.
    """

    def __init__(self, token: tf.Tensor):
        self._token = token
        self._small: Dict[Tuple[tf.DType, float], tf.Tensor] = {}

    def small(self, wide: tf.DType, dtype: tf.DType) -> tf.Tensor:
        """A scalar of dtype `wide`: a factor that makes any finite number of `dtype` small."""
        value = _SMALL.get(dtype, SMALL_32)
        if (wide, value) not in self._small:
            number = self._token
            if (wide, value) != (tf.float32, SMALL_32):
                scaled = tf.multiply(tf.cast(number, tf.float64), value / SMALL_32)
                number = tf.cast(scaled, wide)
            self._small[wide, value] = number
        return self._small[wide, value]


class FiniteCheck:
    """Checks float tensors once `token` is there; `home` is where the findings come together."""

    def __init__(self, tensors: Sequence[tf.Tensor], token: tf.Tensor, home: Home):
        self._tensors = tensors
        self._moment = Moment(token)
        self._home = home

    def not_finite(self) -> tf.Tensor:
        """A bool vector: for each tensor, whether an element is not finite."""
        sizes = []
        for tensor in self._tensors:
            dtype = tensor.dtype.base_dtype
            near = self._home.near(tensor)
            factor = self._moment.small(dtype, dtype)
            scaled = ops.create_at(near, 'Mul', [tensor, factor], [dtype]).outputs[0]
            if dtype.is_complex or dtype == tf.bfloat16:
                with ops.at(near):
                    scaled = ops.for_arithmetic(scaled)
            size = ops.create_at(near, 'L2Loss', [scaled], [scaled.dtype]).outputs[0]
            sizes.append(ops.lift(size, tensor.op, 0.0))
        return self._flags(sizes, lambda vector, numbers: tf.logical_not(tf.math.is_finite(vector)))

    def overflows(self, chosen: Sequence[int]) -> tf.Tensor:
        """A bool vector: for each tensor `chosen`, whether a finite element's square overflows."""
        largest, limits = [], []
        for number in chosen:
            tensor = self._tensors[number]
            dtype = tensor.dtype.base_dtype
            with ops.at(self._home.near(tensor)):
                # In a dtype in which the square of a scaled element is exact.
                wide = tf.abs(tensor) if dtype.is_complex else tensor
                wide = tf.cast(wide, tf.float32) if dtype.size == 2 else wide
                scaled = tf.multiply(wide, self._moment.small(wide.dtype.base_dtype, dtype))
                square = tf.reduce_max(tf.square(scaled))
            largest.append(ops.lift(square, tensor.op, 0.0))
            # The factor is a power of two, so numbers are rounded as without it.
            limit = _LARGEST_SQUARE[dtype if dtype in _LARGEST_SQUARE else square.dtype]
            limits.append(limit * _SMALL.get(dtype, SMALL_32) ** 2)

        def are_too_large(vector: tf.Tensor, numbers: Sequence[int]) -> tf.Tensor:
            too_large = tf.greater(vector, [limits[number] for number in numbers])
            # A tensor that is not finite has another flag.
            return tf.logical_and(too_large, tf.math.is_finite(vector))

        return self._flags(largest, are_too_large)

    def _flags(
        self,
        scalars: Sequence[tf.Tensor],
        judge: Callable[[tf.Tensor, Sequence[int]], tf.Tensor],
    ) -> tf.Tensor:
        """One vector of flags, in the order of `scalars`.

        Args:
          scalars: a finding about each tensor. Findings in one place are joined, and then sent.
          judge: makes the flags of some of them from their vector and their indices.
        """
        places: Dict[Tuple[str, tf.DType, str], List[int]] = {}
        for number, scalar in enumerate(scalars):
            place = self._home.joins_at(scalar), scalar.dtype, self._home.device_near(scalar)
            places.setdefault(place, []).append(number)
        vectors: List[tf.Tensor] = []
        for (_, _, device), numbers in places.items():
            with ops.at(scalars[numbers[0]].op):
                vector = tf.stack([scalars[number] for number in numbers])
            with tf.device(device):
                vectors.append(judge(vector, numbers))
        if len(vectors) <= 1:
            return vectors[0] if vectors else tf.constant([], tf.bool)
        order = [number for numbers in places.values() for number in numbers]
        return tf.gather(tf.concat(vectors, 0), sorted(range(len(order)), key=order.__getitem__))

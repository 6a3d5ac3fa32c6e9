"""Exact finite checks, batched: tensors of one shape, dtype and device are checked together.

A gate's exact check tells for each value whether all of it is finite. In nearly all steps the fast
path has answered before, but each op of the exact check still takes time to build, and a little of
each step. So tensors are joined where they can be, and a network takes few ops.
"""

from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

from slimguard.graph import ops, plain_ops
from slimguard.graph.devices import Home

# Finite numbers times this factor have a finite sum, and a finite sum of squares.
SMALL_32 = 2.0**-100  # for dtypes that are not named here
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

    Attributes:
      token: the float32 scalar that arrives at that moment; its value is `SMALL_32`.
    """

    def __init__(self, token: tf.Tensor):
        self.token = token
        self._small = {}
        self._zero = None

    def small(self, wide: tf.DType, dtype: tf.DType) -> tf.Tensor:
        """A scalar of dtype `wide`: a factor that makes any finite number of `dtype` small."""
        value = _SMALL.get(dtype, SMALL_32)
        if (wide, value) not in self._small:
            number = self.token
            if (wide, value) != (tf.float32, SMALL_32):
                scaled = plain_ops.multiply(plain_ops.cast(number, tf.float64), value / SMALL_32)
                number = plain_ops.cast(scaled, wide)
            self._small[wide, value] = number
        return self._small[wide, value]

    @property
    def zero(self) -> tf.Tensor:
        """An int32 scalar, 0: the first axis of a tensor."""
        if self._zero is None:
            with tf.control_dependencies(None):
                self._zero = plain_ops.cast(self.token, tf.int32)
        return self._zero


class _Part(NamedTuple):
    """Values that are checked together: one as it is, or several as the rows of a matrix."""

    numbers: List[int]
    scaled: tf.Tensor
    dtype: tf.DType
    near: tf.Operation


class FiniteCheck:
    """Checks float tensors, each where it is, at one moment of the step."""

    def __init__(self, make: ops.Maker, tensors: Sequence[tf.Tensor], moment: Moment, home: Home):
        self._make = make
        self._home = home
        self._tensors = list(tensors)
        self._moment = moment
        self._parts = [self._part(numbers) for numbers in make.alike(tensors)]

    def add_joined(self, joined: tf.Tensor, number: int) -> None:
        """Adds `number` more tensors, of one shape, that are joined along their first axis."""
        first = len(self._tensors)
        self._tensors += [joined] * number
        self._parts.append(self._part(list(range(first, first + number)), joined))

    def not_finite(self) -> tf.Tensor:
        """A bool vector: for each tensor, whether an element is not finite."""
        make, home = self._make, self._home
        sums: Dict[_Place, List[_Found]] = {}
        for part in self._parts:
            numbers, scaled, _, near = part
            if len(numbers) > 1:
                size = make.sum_of(scaled, self._constant((1,), near), near)
            else:
                size = make.sum_of_squares(ops.for_arithmetic(scaled), near)
                size = ops.lift(size, self._tensors[numbers[0]].op, 0.0)
            sums.setdefault(_place_of(size, home), []).append(
                _Found(numbers, size, len(numbers) == 1)
            )
        flags = []
        for place, found in sums.items():
            with found[0].vector.graph.colocate_with(found[0].vector.op):
                numbers, vector, _ = _join(found)
            with tf.device(place.device):
                is_bad = plain_ops.logical_not(plain_ops.is_finite(vector))
                flags.append(_Found(numbers, is_bad))
        return _in_order(flags, range(len(self._tensors)))

    def overflows(self, chosen: Sequence[int]) -> tf.Tensor:
        """A bool vector: for each tensor `chosen`, whether a finite element's square overflows."""
        wanted = set(chosen)
        largest: Dict[Tuple[str, tf.DType], List[_Found]] = {}
        limits: Dict[int, float] = {}
        for part in self._parts:
            if not wanted.isdisjoint(part.numbers):
                device = self._home.device_near(part.scaled)
                with tf.device(device):
                    found = _Found(part.numbers, *self._largest_squares(part))
                largest.setdefault((device, found.vector.dtype), []).append(found)
                limits.update(dict.fromkeys(part.numbers, _square_limit(part.dtype, found.vector)))
        flags = []
        for (device, _), found in largest.items():
            with tf.device(device):
                numbers, vector, _ = _join(found)
                too_large = plain_ops.greater(vector, [limits[number] for number in numbers])
                # A tensor that is not finite has another flag.
                too_large = plain_ops.logical_and(too_large, plain_ops.is_finite(vector))
                flags.append(_Found(numbers, too_large))
        return _in_order(flags, chosen)

    def _part(self, numbers: List[int], joined: Optional[tf.Tensor] = None) -> _Part:
        make, moment = self._make, self._moment
        tensors = [self._tensors[number] for number in numbers]
        dtype, near = tensors[0].dtype.base_dtype, tensors[0].op
        if len(tensors) == 1:
            near = self._home.near(tensors[0])
            scaled = make.multiply(tensors[0], moment.small(dtype, dtype), near)
            return _Part(numbers, scaled, dtype, near)
        if joined is None:
            joined = make.join(tensors, moment.zero, near)
        wide = make.rows(joined, len(tensors), near, moment.token.op)
        if dtype.size == 2:
            wide = make.cast(wide, tf.float32, near)
        return _Part(
            numbers, make.multiply(wide, moment.small(wide.dtype, dtype), near), dtype, near
        )

    def _largest_squares(self, part: _Part) -> Tuple[tf.Tensor, bool]:
        """For each tensor, the largest square of its scaled elements.

        Returns a vector and False; for a part of one tensor a scalar and True.
        """
        make, near = self._make, part.near
        scaled, axes = part.scaled, self._constant((1,), near)
        if len(part.numbers) == 1:
            scaled, axes = self._wide(part), self._axes(part)
        largest = make.largest(make.square(scaled, near), axes, near)
        if len(part.numbers) > 1:
            return largest, False
        return ops.lift(largest, self._tensors[part.numbers[0]].op, 0.0), True

    def _wide(self, part: _Part) -> tf.Tensor:
        """The value of a part of one, scaled in a dtype in which its scaled square is exact."""
        tensor = self._tensors[part.numbers[0]]
        if part.dtype.size > 2 and not part.dtype.is_complex:
            return part.scaled
        with part.near.graph.colocate_with(part.near):
            wide = tf.cast(tensor, tf.float32) if part.dtype.size == 2 else tf.abs(tensor)
        return self._make.multiply(wide, self._moment.small(wide.dtype, part.dtype), part.near)

    def _constant(self, value: Tuple[int, ...], near: tf.Operation) -> tf.Tensor:
        return self._make.constant(value, near, self._moment.token.op)

    def _axes(self, part: _Part) -> tf.Tensor:
        """All axes of the value of a part of one."""
        tensor = self._tensors[part.numbers[0]]
        if tensor.shape.rank is not None:
            return self._constant(tuple(range(tensor.shape.rank)), part.near)
        with part.near.graph.colocate_with(part.near):
            return tf.range(tf.rank(tensor))


def _square_limit(dtype: tf.DType, scaled: tf.Tensor) -> float:
    """The largest square of an element of `dtype` that is no Inf, scaled as `scaled` is."""
    # The factor is a power of two, so numbers are rounded as without it.
    largest = _LARGEST_SQUARE[dtype if dtype in _LARGEST_SQUARE else scaled.dtype]
    return largest * _SMALL.get(dtype, SMALL_32) ** 2


class _Place(NamedTuple):
    """The key by which sums are joined (`Home.joins_at`), their dtype, the device they go to."""

    joins_at: str
    dtype: tf.DType
    device: str


def _place_of(tensor: tf.Tensor, home: Home) -> _Place:
    return _Place(home.joins_at(tensor), tensor.dtype, home.device_near(tensor))


class _Found(NamedTuple):
    """A vector with an element for each of the tensors `numbers`."""

    numbers: List[int]
    vector: tf.Tensor
    is_scalar: bool = False  # whether `vector` is a scalar, for one tensor


def _join(found: Sequence[_Found]) -> _Found:
    scalars = [each for each in found if each.is_scalar]
    vectors = [each for each in found if not each.is_scalar]
    if scalars:
        alone = [number for each in scalars for number in each.numbers]
        vectors.append(_Found(alone, plain_ops.stack([each.vector for each in scalars])))
    numbers = [number for each in vectors for number in each.numbers]
    joined = [each.vector for each in vectors]
    return _Found(numbers, plain_ops.concat(joined))


def _in_order(flags: Sequence[_Found], wanted: Sequence[int]) -> tf.Tensor:
    """One vector of the flags of the tensors `wanted`, in that order."""
    if not flags:
        return plain_ops.constant([], tf.bool)
    numbers, vector, _ = _join(flags)
    places = {number: place for place, number in enumerate(numbers)}
    order = [places[number] for number in wanted]
    return vector if order == list(range(len(numbers))) else plain_ops.gather(vector, order)

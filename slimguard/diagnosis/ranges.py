"""Describes an array of numbers in a line: its range, and its non-finite values."""

from typing import List, NamedTuple, Optional, Tuple

import numpy as np

FLOATS_OF_NUMPY = 'fc'


class Range(NamedTuple):
    """The range of a float array.

    Attributes:
      dtype: the name of TensorFlow's dtype.
      shape: the shape.
      min, max: of the finite elements (of the absolute values, if they are complex); None if no
        element is finite.
      nan, inf: how many elements are NaN, and how many are infinite.
    """

    dtype: str
    shape: Tuple[int, ...]
    min: Optional[float]
    max: Optional[float]
    nan: int
    inf: int

    @property
    def is_finite(self) -> bool:
        return not (self.nan or self.inf)

    @property
    def bad(self) -> List[str]:
        """How many elements are not finite, in words: '2 NaN', '1 Inf'."""
        counts = ((self.nan, 'NaN'), (self.inf, 'Inf'))
        return ['%d %s' % (count, word) for count, word in counts if count]

    @property
    def largest(self) -> float:
        """The largest absolute value among the finite elements; 0 if there are none."""
        if self.min is None or self.max is None:
            return 0.0
        return max(abs(self.min), abs(self.max))

    def __str__(self) -> str:
        size = int(np.prod(self.shape, dtype=np.int64))
        parts = ['%s%s' % (self.dtype, list(self.shape))]
        if self.min is not None:
            ends = '%.6g' % self.min, '%.6g' % self.max
            parts.append(ends[0] if ends[0] == ends[1] else 'from %s to %s' % ends)
        if not size:
            parts.append('empty')
        parts += [count.replace(' ', ' of %d ' % size) for count in self.bad]
        return ', '.join(parts)


def numbers(value: np.ndarray) -> np.ndarray:
    """The same numbers in a dtype that numpy can compare: it cannot compare bfloat16."""
    value = np.asarray(value)
    return value if value.dtype.kind in FLOATS_OF_NUMPY else value.astype(np.float32)


def measure(value: np.ndarray, dtype: str) -> Range:
    """The range of a float array; `dtype` is the name of its TensorFlow dtype."""
    value = numbers(value)
    shape = tuple(value.shape)
    if not value.size:
        return Range(dtype, shape, None, None, 0, 0)
    if value.dtype.kind == 'c':
        value = np.abs(value)
    with np.errstate(all='ignore'):
        smallest, largest = value.min(), value.max()  # NaN, if there is one
    if np.isfinite(smallest) and np.isfinite(largest):
        return Range(dtype, shape, float(smallest), float(largest), 0, 0)
    nan = int(np.isnan(value).sum())
    finite = value[np.isfinite(value)]
    inf = value.size - nan - finite.size
    if not finite.size:
        return Range(dtype, shape, None, None, nan, inf)
    return Range(dtype, shape, float(finite.min()), float(finite.max()), nan, inf)


class NonFinite(NamedTuple):
    """Where an array is not finite.

    Attributes:
      rows: the indices along the first dimension, all of them; empty for a scalar.
      positions: the first positions, and the value at each.
      count: how many positions there are.
    """

    rows: List[int]
    positions: List[Tuple[Tuple[int, ...], float]]
    count: int

"""Finds rows of the batch, and weights, that are far larger than they should be."""

from typing import Sequence, Tuple

import numpy as np
import tensorflow as tf

from slimguard import graph as graphs
from slimguard.diagnosis.measured_step import MeasuredStep
from slimguard.diagnosis.ranges import measure, numbers
from slimguard.incidents import advice

# Weights grow this large only in a training that diverges.
LARGE_WEIGHT = 1e6
_MOST_NAMED = 4  # name at most so many rows; of more, only count them
# A row is far larger than others if it is this many times as large as their median. Most healthy
# data stay below: numbers of a uniform, a normal or a lognormal distribution, counts, pixels,
# classes. Others have longer tails, so a row is named only if the step is good without it.
_FAR = 100.0
_MENDED = 10.0  # a finite number that was too large is this many times as small without the row


def rows_in_words(rows: Sequence[int], of: int) -> str:
    """Where in a batch of `of` rows something is: ', in row 2', ', in 14 of 16 rows'."""
    if len(rows) > _MOST_NAMED:
        return ', in %d of %d rows' % (len(rows), of)
    return ', in row%s %s' % ('s' if len(rows) > 1 else '', ', '.join(map(str, rows)))


def outlier(measured: MeasuredStep, tensor: tf.Tensor) -> str:
    """Rows of the batch that are far larger than the others, in words; '' if there are none.

    Rows count only if `tensor`, which is not finite or too large, is neither once others stand in
    their place.
    """
    step = measured.step
    for given in step.in_chunks(measured.data()):
        for name, value in zip(map(step.name_of, given), step.fetch(given)):
            sizes = np.zeros([1]) if value is None else _sizes_of_rows(value)
            usual = np.median(sizes)
            far = np.flatnonzero(sizes > _FAR * usual).tolist() if usual else []
            if far and _mends(measured, tensor, far, len(sizes)):
                told = '; %s is as large as %.6g%s, and %.3g at most in the other rows'
                rows, others = rows_in_words(far, len(sizes)), np.delete(sizes, far).max()
                return told % (name, sizes.max(), rows, others)
    return ''


def _sizes_of_rows(value: np.ndarray) -> np.ndarray:
    return np.abs(numbers(value).reshape(len(value), -1)).max(axis=1, initial=0)


def _mends(measured: MeasuredStep, tensor: tf.Tensor, rows: Sequence[int], of: int) -> bool:
    """Whether `tensor` is as it should be with others in the place of these rows of the batch."""
    without, bad = measured.step.fetch_without(tensor, rows, of), measured.range_of(tensor)
    if without is None or bad is None:
        return False
    found = measure(without, bad.dtype)
    return found.is_finite and (not bad.is_finite or _MENDED * found.largest < bad.largest)


def has_exploded(measured: MeasuredStep) -> bool:
    """Whether the steps before, or the weights, show that the training had exploded."""
    return bool(measured.explosion or large_weights(measured))


def large_weights(measured: MeasuredStep) -> str:
    """The largest weight, in words; '' if it is of normal size."""
    largest, name = _largest_weight(measured)
    if largest < LARGE_WEIGHT:
        return ''
    return '. %s %.3g (%s)' % (advice.LARGE_WEIGHTS, largest, name)


def _largest_weight(measured: MeasuredStep) -> Tuple[float, str]:
    found = (0.0, '')
    for op in measured.step.ops:
        weights = measured.range_of(op.outputs[0]) if graphs.is_variable_read(op) else None
        if weights is not None:
            variable = graphs.variable_read(op.outputs[0])
            if variable is not None and measured.is_trained(op, variable):
                found = max(found, (weights.largest, variable.name))
    return found

"""Which rows of the batch are at fault: those without which the step is good.

This module tries rows of finite batches; :func:`ranges.find_non_finite` finds the rows of a batch
that hold a NaN or Inf themselves.

Where an op's output has a row for each of the batch, its bad rows are tried (:func:`with_rows`). Of
a number that is too large, the rows that are far larger than the others are tried
(:func:`outlier`). Another row of the batch takes the place of those that are tried.
"""

from typing import Sequence, Tuple

import numpy as np
import tensorflow as tf

from slimguard.diagnosis.diagnosis import Diagnosis
from slimguard.diagnosis.measured_step import MeasuredStep
from slimguard.diagnosis.ranges import measure, numbers

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


def with_rows(measured: MeasuredStep, told: Diagnosis, tensor: tf.Tensor) -> Tuple[Diagnosis, str]:
    """A diagnosis, and the bad rows of the batch in words; '' if all are bad, or none is at fault.

    The rows of `tensor` are rows of the batch if it turns finite once other rows replace them. If
    it does not, the diagnosis names no rows.
    """
    found = told.non_finite
    if found is None:
        return told, ''
    rows, of = found.rows, measured.batch_size or 0
    # After an explosion no row is at fault, except where the data alone make it bad.
    is_weighted = measured.step.is_fed(tensor) or measured.made_of(tensor).floats
    has_rows = told.output is not None and told.output.shape[:1] == (of,) and 0 < len(rows) < of
    if has_rows and not (is_weighted and measured.has_exploded):
        if _mends(measured, tensor, rows, of):
            return told, rows_in_words(rows, of)
    return told._replace(non_finite=found._replace(rows=[])), ''


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

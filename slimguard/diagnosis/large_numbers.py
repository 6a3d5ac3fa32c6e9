"""Finds rows of the batch, and weights, that are far larger than they should be."""

from typing import Sequence, Tuple

import numpy as np

from slimguard import graph as graphs
from slimguard.diagnosis.measured_step import MeasuredStep
from slimguard.diagnosis.ranges import numbers
from slimguard.incidents import advice

# Weights grow this large only in a training that diverges.
LARGE_WEIGHT = 1e6
_MOST_NAMED = 4  # name at most so many rows; of more, only count them
# A row is far larger than others if it is this many times as large as their median.
_FAR = 1e4


def rows_in_words(rows: Sequence[int], of: int) -> str:
    """Where in a batch of `of` rows something is: ', in row 2', ', in 14 of 16 rows'."""
    if len(rows) > _MOST_NAMED:
        return ', in %d of %d rows' % (len(rows), of)
    return ', in row%s %s' % ('s' if len(rows) > 1 else '', ', '.join(map(str, rows)))


def outlier(measured: MeasuredStep) -> str:
    """Rows of the batch that are far larger than the others, in words; '' if there are none."""
    for tensor in measured.data():
        value = np.atleast_1d(np.asarray(measured.step.fetch([tensor])[0]))
        sizes = np.abs(numbers(value).reshape(len(value), -1)).max(axis=1)
        usual = np.median(sizes)
        far = [int(row) for row in np.flatnonzero(sizes > _FAR * usual)] if usual else []
        if far:
            told = '; %s is as large as %.6g%s, and %.3g at most in the other rows'
            others = np.delete(sizes, far).max()
            rows = rows_in_words(far, len(sizes))
            return told % (measured.step.name_of(tensor), sizes.max(), rows, others)
    return ''


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
            if variable is not None:
                found = max(found, (weights.largest, variable.name))
    return found

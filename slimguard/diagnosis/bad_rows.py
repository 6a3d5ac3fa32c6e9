"""Which rows of the batch are at fault.

Rows of the batch with NaN or Inf are at fault (:func:`find_non_finite`). If the batch is finite,
the step is run again with suspected rows replaced by copies of another row; the rows are at fault
if this makes the bad tensor good. Suspects are the bad rows of an op's output, if it has a row for
each sample (:func:`with_rows`), and rows that are far larger than the others (:func:`outlier`).
"""

import hashlib
from typing import Dict, Iterator, Optional, Sequence, Set, Tuple

import numpy as np
import tensorflow as tf

from slimguard import graph as graphs
from slimguard.diagnosis.diagnosis import Diagnosis
from slimguard.diagnosis.draws import is_from_outside
from slimguard.diagnosis.measured_step import MeasuredStep
from slimguard.diagnosis.ranges import NonFinite, measure, numbers
from slimguard.diagnosis.rerun_step import Feed, Step

_MOST_NAMED = 4  # a message lists up to four row numbers; for more rows it says how many
# A row is an outlier if its largest number is this many times the median of all rows. Most healthy
# data stay below: uniform, normal or lognormal numbers, counts, pixels, classes. Data with longer
# tails do not, so `outlier` also runs the step without the row.
_FAR = 100.0
_MENDED = 10.0  # without its bad rows, a finite tensor must become this many times smaller


def rows_in_words(rows: Sequence[int], of: int) -> str:
    """Names up to four rows of a batch of `of`: ', in row 2'; else counts: ', in 14 of 16 rows'."""
    if len(rows) > _MOST_NAMED:
        return ', in %d of %d rows' % (len(rows), of)
    return ', in row%s %s' % ('s' if len(rows) > 1 else '', ', '.join(map(str, rows)))


# If the batch is not finite.


def find_non_finite(value: np.ndarray, most: int = 20) -> NonFinite:
    """Where `value` is not finite; `most` is how many positions are listed."""
    value = numbers(value)
    where = np.argwhere(~np.isfinite(value))
    if value.dtype.kind == 'c':
        value = np.abs(value)
    rows = sorted(set(where[:, 0].tolist())) if value.ndim else []
    positions = [(tuple(int(i) for i in p), float(value[tuple(p)])) for p in where[:most]]
    return NonFinite(rows, positions, len(where))


def bad_row_digests(value: np.ndarray, most: int = 20) -> Dict[int, str]:
    """Digests of a batch's bad rows, by index, to recognize a row that is drawn again.

    Rows without two different finite numbers are left out: other samples may have the same row.

    Args:
      value: an array, with a row for each sample.
      most: how many bad rows are examined.
    """
    value, digests = np.asarray(value), {}
    if value.ndim > 1:
        for index in find_non_finite(value, most=0).rows[:most]:
            row = numbers(value[index])
            if len(np.unique(row[np.isfinite(row)])) > 1:
                digests[index] = hashlib.sha256(value[index].tobytes()).hexdigest()
    return digests


def bad_shares(value: np.ndarray) -> Tuple[float, float]:
    """The share of an array's rows that is not finite, and the share of its values.

    The bad array with the smallest shares is nearest to the cause: what a script computes from a
    bad array has at least the same shares.
    """
    value = np.asarray(value)
    bad = find_non_finite(value, most=0)
    rows = len(bad.rows) / len(value) if value.ndim and len(value) else 1.0
    return rows, bad.count / max(value.size, 1)


# If the batch is finite.


def with_rows(
    measured: MeasuredStep, diagnosis: Diagnosis, tensor: tf.Tensor
) -> Tuple[Diagnosis, str]:
    """The diagnosis, and the bad rows in words; '' if all rows are bad, or none is at fault.

    The bad rows of `tensor` count as rows of the batch if replacing them in the batch makes
    `tensor` finite. Else the returned diagnosis names no rows.
    """
    bad = diagnosis.non_finite
    if bad is None:
        return diagnosis, ''
    rows, of = bad.rows, batch_size(measured.step) or 0
    # After an explosion the weights are at fault, not rows, unless `tensor` depends on no weight.
    is_weighted = measured.step.is_fed(tensor) or measured.made_of(tensor).floats
    output = diagnosis.output
    has_rows = output is not None and output.shape[:1] == (of,) and 0 < len(rows) < of
    if has_rows and not (is_weighted and measured.has_exploded):
        if _mends(measured, tensor, rows, of):
            return diagnosis, rows_in_words(rows, of)
    return diagnosis._replace(non_finite=bad._replace(rows=[])), ''


def outlier(measured: MeasuredStep, tensor: tf.Tensor) -> str:
    """Rows of the batch that are far larger than the others, in words; '' if there are none.

    `tensor` is not finite, or too large. The rows count only if replacing them mends `tensor`.
    """
    step = measured.step
    for given in step.in_chunks(_data(measured)):
        for name, value in zip(map(step.name_of, given), step.fetch(given)):
            sizes = np.zeros([1]) if value is None else _sizes_of_rows(value)
            usual = np.median(sizes)
            far = np.flatnonzero(sizes > _FAR * usual).tolist() if usual else []
            if far and _mends(measured, tensor, far, len(sizes)):
                words = '; %s is as large as %.6g%s, and %.3g at most in the other rows'
                rows, others = rows_in_words(far, len(sizes)), np.delete(sizes, far).max()
                return words % (name, sizes.max(), rows, others)
    return ''


def _sizes_of_rows(value: np.ndarray) -> np.ndarray:
    return np.abs(numbers(value).reshape(len(value), -1)).max(axis=1, initial=0)


def _mends(measured: MeasuredStep, tensor: tf.Tensor, rows: Sequence[int], of: int) -> bool:
    """Whether `tensor` is finite, and not too large, once another row replaces these rows."""
    _, feed = without_rows(measured.step, rows, of)
    (without,), bad = measured.step.fetch([tensor], feed), measured.range_of(tensor)
    if without is None or bad is None:
        return False
    mended = measure(without, bad.dtype)
    return mended.is_finite and (not bad.is_finite or _MENDED * mended.largest < bad.largest)


def _data(measured: MeasuredStep) -> Iterator[tf.Tensor]:
    """Yields finite tensors with a row for each sample that need no weight; drawn ones first."""
    step = measured.step
    size = batch_size(step)
    weighted: Set[tf.Operation] = set()
    for op in step.ops:
        needed = (t.op for t in op.inputs if not step.is_fed(t))
        is_weight = op.type in graphs.VARIABLES and graphs.dtype_of(op).is_floating
        if is_weight or any(each in weighted for each in needed):
            weighted.add(op)
    tensors = [t for t, _ in _drawn(step)]
    tensors += [t for op in step.ops if op not in weighted for t in op.outputs]
    for tensor in tensors:
        its_range = measured.range_of(tensor)
        if step.givens_of(tensor) or tensor.op in measured.fixed or its_range is None:
            continue
        if its_range.is_finite and its_range.shape[:1] == (size,):
            yield tensor


def _drawn(step: Step) -> Iterator[Tuple[tf.Tensor, np.ndarray]]:
    """Yields the fed tensors that hold input or random numbers, with their values."""
    for tensor, value in step.feed.items():
        is_ours = tensor.op.name.startswith(graphs.OURS)  # a limit of the gate
        if not is_ours and is_from_outside(step.type_of(tensor.op)):
            yield tensor, value


def batch_size(step: Step) -> Optional[int]:
    """The first dimension of the batch; None if the step drew only scalars.

    The first dimensions of the drawn arrays vote: bad arrays count most, random ones least.
    """
    sizes: Dict[int, float] = {}
    for tensor, value in _drawn(step):
        if np.ndim(value):
            is_bad = value.dtype.kind not in 'OSUbiu' and not np.isfinite(numbers(value)).all()
            is_random = 'Random' in step.type_of(tensor.op)
            weight = 100.0 if is_bad else (0.01 if is_random else 1.0)
            sizes[len(value)] = sizes.get(len(value), 0.0) + weight
    return max(sizes, key=lambda size: sizes[size]) if sizes else None


def without_rows(
    step: Step, rows: Sequence[int], of: int, suspects: Sequence[int] = ()
) -> Tuple[int, Feed]:
    """The step's feed, with `rows` of the batch replaced by copies of another row.

    All arrays with the first dimension `of` belong to the batch. No row is removed, since many
    graphs are built for batches of one size.

    Returns:
      The number of the copied row (if there is one, a finite row that is not among `suspects`),
      and the values to feed.
    """
    arrays = {t: value for t, value in step.feed.items() if np.ndim(value) and len(value) == of}
    floats = [value for value in arrays.values() if value.dtype.kind not in 'OSUbiu']
    bad = {row for value in floats for row in find_non_finite(value, most=0).rows}
    bad.update(suspects)
    others = [row for row in range(of) if row not in rows]
    copied = next((row for row in others if row not in bad), others[0])
    feed = dict(step.feed)
    for tensor, value in arrays.items():
        feed[tensor] = np.array(value)
        feed[tensor][list(rows)] = value[copied]
    return copied, feed

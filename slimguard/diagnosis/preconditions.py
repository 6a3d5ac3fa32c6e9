"""Preconditions of ops: functions that find the input values that break one.

`causes` has the table. Each function takes a culprit and its inputs, in order, or returns a
function that does.
"""

from typing import Callable, NamedTuple, Optional, Sequence, Union

import numpy as np


class Culprit(NamedTuple):
    """An op that returned something non-finite: the properties that rules use.

    Attributes:
      op_type: the op's type, such as 'Log'.
      forward_type: the type of the op whose gradient it computes; empty if it computes none.
      inputs: the values of its inputs, in order; None for one that could not be measured.
      output: the value that it returned.
      dtype: the name of the output's dtype.
      is_norm: whether it computes the gradient of the root of a sum.
    """

    op_type: str
    forward_type: str
    inputs: Sequence[Optional[np.ndarray]]
    output: np.ndarray
    dtype: str
    is_norm: bool = False


# A mask of the values that break the precondition; a whole sentence if they cannot be counted; None
# if no value breaks it.
Broken = Union[np.ndarray, str, None]

_LARGEST = {
    'float16': 65504.0,
    'bfloat16': 3.3895314e38,
    'float64': float(np.finfo(np.float64).max),
    'complex128': float(np.finfo(np.float64).max),
}


def largest_of(dtype: str) -> float:
    """The largest finite number of a dtype."""
    return _LARGEST.get(dtype, float(np.finfo(np.float32).max))


# Rows of nothing but -Inf: a mask that hides a whole row makes them.


def rows_of_minus_inf(culprit: Culprit, logits: np.ndarray, *_) -> Broken:
    rows = np.isneginf(logits).all(axis=-1)
    if not rows.any():
        return None
    what = 'cross entropy' if 'CrossEntropy' in culprit.op_type else 'softmax'
    return '%s of nothing but -Inf (%d of %d rows)' % (what, rows.sum(), rows.size)


def labels_outside(culprit: Culprit, logits: np.ndarray, labels: np.ndarray) -> Broken:
    outside = (labels < 0) | (labels >= logits.shape[-1])
    return (
        None
        if not outside.any()
        else (
            'cross entropy of a label that is no class: %s, and there are classes 0 to %d '
            '(%d of %d labels)'
            % (labels[outside].ravel()[0], logits.shape[-1] - 1, outside.sum(), outside.size)
        )
    )


def labels_hidden(culprit: Culprit, logits: np.ndarray, labels: np.ndarray) -> Broken:
    if labels.ndim < logits.ndim:
        of_label = np.take_along_axis(logits, labels[..., None].astype(np.int64), -1)[..., 0]
        hidden = np.isneginf(of_label)
    else:
        hidden = np.isneginf(logits).any(axis=-1)
    return (
        None
        if not hidden.any()
        else (
            'cross entropy with a class whose logit is -Inf (%d of %d rows)'
            % (hidden.sum(), hidden.size)
        )
    )


def does_not_fit(culprit: Culprit, _, indices, labels, lengths) -> Broken:
    """A label needs a frame for each symbol, and one more between two equal symbols."""
    lengths = np.ravel(lengths)
    for row, frames in enumerate(lengths):
        symbols = np.ravel(labels)[np.asarray(indices)[:, 0] == row]
        repeated = int((symbols[1:] == symbols[:-1]).sum())
        if len(symbols) + repeated > frames:
            between = ' and %d between equal ones' % repeated if repeated else ''
            return 'CTC label that does not fit its frames: %d symbols%s, %d frames, in row %d' % (
                len(symbols),
                between,
                frames,
                row,
            )
    return None


def is_empty(what: str) -> Callable[..., Broken]:
    return lambda culprit, x, *_: '%s of an empty tensor' % what if x.size == 0 else None


# Overflows. The largest possible result is compared with the end of the dtype's range. If it is
# beyond, a non-finite result was too large: finite sums and products fail in no other way.


def overflow(size: Callable[..., float], what: str = '') -> Callable[..., Broken]:
    def breaks(culprit: Culprit, *inputs) -> Broken:
        kinds = 'fciu' if culprit.op_type == 'Cast' else 'fc'
        floats = [x for x in inputs if x.dtype.kind in kinds and x.size]
        if any(np.isnan(x).any() or np.isinf(x).any() for x in floats) or not floats:
            return None
        sizes = [float(np.abs(x).max()) for x in floats]
        terms = float(max(x.size for x in floats))
        ends = largest_of(culprit.dtype)
        if not size(terms, *sizes) > ends * 0.999:
            return None
        return 'overflow of %s: %s of numbers as large as %.6g, and %s ends at %.6g' % (
            culprit.dtype,
            what or culprit.op_type,
            max(sizes),
            culprit.dtype,
            ends,
        )

    return breaks


def function_overflows(function: Callable[..., np.ndarray]) -> Callable[..., Broken]:
    def breaks(culprit: Culprit, *inputs) -> Broken:
        values = [np.asarray(x, np.float64) for x in inputs]
        results = np.where(sum(map(np.isfinite, values)) == len(values), function(*values), 0.0)
        if not (np.abs(results) > largest_of(culprit.dtype) * 0.999).any():
            return None
        return 'overflow of %s: its input is as large as %.6g, and %s ends at %.3g' % (
            culprit.op_type.lower(),
            max(float(np.abs(x).max()) for x in values),
            culprit.dtype,
            largest_of(culprit.dtype),
        )

    return breaks


def quotient_overflows(culprit: Culprit, x, y) -> Broken:
    with np.errstate(all='ignore'):
        large = np.abs(np.asarray(x, np.float64) / np.asarray(y, np.float64))
    broken = (large > largest_of(culprit.dtype) * 0.999) & np.isfinite(x) & (np.asarray(y) != 0)
    if not broken.any():
        return None
    return 'overflow of %s: division by as little as %.3g (%d of %d values)' % (
        culprit.dtype,
        np.abs(np.broadcast_to(y, broken.shape)[broken]).min(),
        broken.sum(),
        broken.size,
    )


def zeros(is_norm: bool) -> Callable[..., Broken]:
    return lambda culprit, y, *_: (y == 0) & (culprit.is_norm == is_norm)


def times_inf(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return ((x == 0) & np.isinf(y)) | (np.isinf(x) & (y == 0))

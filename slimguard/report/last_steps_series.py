"""The loss and the gradient norm of the last steps as lines: what is drawn where, in any form."""

import math
from typing import List, NamedTuple, Optional, Tuple

import numpy as np

from slimguard.report import scales, words
from slimguard.report.last_steps import LastSteps, finite, is_bad
from slimguard.report.scales import Scale

_MOST_TICKS = 4

Spans = List[Tuple[float, float]]
Places = List[Tuple[float, float]]


class Series(NamedTuple):
    """A number of each step as a line; places are from 0 to 1, upwards and to the right.

    Attributes:
      name: what it is.
      segments: of points; a line ends where a value is not finite.
      ticks: places along the axis, and labels.
      is_log: whether the axis is logarithmic.
      bad: where values are not finite.
      said: the series in a sentence.
    """

    name: str
    segments: List[Places]
    ticks: List[Tuple[float, str]]
    is_log: bool
    bad: Spans
    said: str


def series_of(steps: LastSteps) -> List[Series]:
    """The lines that there are."""
    named = (('loss', steps.loss), ('gradient norm', steps.gradient_norm))
    return [_series(name, values) for name, values in named if values is not None]


def spans_of(where: np.ndarray) -> Spans:
    """The ends of each run of columns where something holds."""
    edges = np.diff(np.concatenate([[0], where.astype(int), [0]]))
    starts, ends = np.flatnonzero(edges > 0), np.flatnonzero(edges < 0)
    return [(start / len(where), end / len(where)) for start, end in zip(starts, ends)]


def _series(name: str, values: np.ma.MaskedArray) -> Series:
    bad = is_bad(values)
    known = finite(values)
    scale = _scale(known)
    ticks = [] if scale is None else [(scale(value), label) for value, label in scale.ticks]
    every = -(-len(ticks) // _MOST_TICKS)
    return Series(
        name=name,
        segments=[] if scale is None else _segments(values, scale),
        ticks=ticks[::every] if every else [],
        is_log=scale is not None and scale.is_log,
        bad=spans_of(bad),
        said=_said(name, values, known, int(bad.sum())),
    )


def _scale(values: np.ndarray) -> Optional[Scale]:
    if not values.size:
        return None
    positive = values[values > 0]
    if not positive.size or values.min() < 0:
        return scales.scale_of(values.tolist())
    scale = scales.scale_of(positive.tolist())
    if not scale.is_log:
        return scales.scale_of(values.tolist())
    # A zero has no place on it: it is at the end.
    return scale._replace(place=lambda value: scale.place(value) if value > 0 else 0.0)


def _segments(values: np.ma.MaskedArray, scale: Scale) -> List[Places]:
    segments: List[Places] = [[]]
    for column, value in enumerate(values.filled(np.nan).tolist()):
        if math.isfinite(value):
            segments[-1].append(((column + 0.5) / len(values), scale(value)))
        elif segments[-1]:
            segments.append([])
    return [segment for segment in segments if segment]


def _said(name: str, values: np.ma.MaskedArray, known: np.ndarray, bad: int) -> str:
    said = 'The %s of %d steps' % (name, len(values))
    if known.size:
        said += ', from %.4g to %.4g' % (known.min(), known.max())
    if bad:
        said += ', not finite in %d' % bad
    last = values[-1]
    return said if last is np.ma.masked else '%s; at last %s' % (said, words.number(float(last)))

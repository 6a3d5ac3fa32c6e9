"""The norm of each gradient by step as a picture: its colours are multiples of the row's median."""

import math
from typing import List, NamedTuple, Optional, Tuple

import numpy as np

from slimguard.report.last_steps import Gradient, LastSteps
from slimguard.report.samples import BAD

# Each line of text beside the picture stands for one gradient, or for several of a large graph.
_MOST_LINES, _MOST_IN_A_LINE = 40, 8
LINE = 16  # its height in pixels
_FAR = 2.0  # orders of magnitude above the median that no usual step has
_MOST_CALM = 4  # steps between two that are out of bounds, for both to be of one explosion
_MOST_DECADES = 6
_SHADES = 16  # on each side of the median: few colours make a small file
_BELOW = ((238, 236, 230), (150, 182, 212), (28, 74, 138))
_ABOVE = ((238, 236, 230), (252, 186, 88), (214, 92, 8), (96, 24, 6))


class Beginning(NamedTuple):
    """Where gradients leave what is usual.

    Attributes:
      column: of the step.
      gradient: the one that is farthest from its median.
      ratio: the multiple of its median, as a decimal logarithm; NaN if the norm is not finite.
      others: how many more gradients are out of bounds in the same step.
      earlier: how many steps before had some out of bounds, and came back.
      are_all: whether they are all, and several.
    """

    column: int
    gradient: Gradient
    ratio: float
    others: int
    earlier: int
    are_all: bool


class Name(NamedTuple):
    """A line of text beside the picture: variables, and whether the gradient that begins is there.

    Attributes:
      name: of one of them.
      others: how many more there are.
      is_begin: whether the gradient that begins is there. It is the one that is named.
    """

    name: str
    others: int
    is_begin: bool


class HeatMap(NamedTuple):
    """The picture.

    Attributes:
      pixels: uint8 [rows, steps, 3 or 4].
      names: beside it, from top to bottom; all but the last are for `rows_in_a_line` rows.
      rows_in_a_line: how many.
      below, above: how many orders of magnitude the colours go, on each side of the median.
      is_beyond: whether there are values above that.
      has_bad, has_unknown: whether there are norms that are not finite, or that nobody knows.
      begin: where gradients leave what is usual; None if none does.
    """

    pixels: np.ndarray
    names: List[Name]
    rows_in_a_line: int
    below: int
    above: int
    is_beyond: bool
    has_bad: bool
    has_unknown: bool
    begin: Optional[Beginning]


@np.errstate(invalid='ignore')  # older versions of NumPy warn where a NaN is compared
def heat_map_of(steps: LastSteps) -> Optional[HeatMap]:
    """The picture of the gradients; None without any."""
    if not steps.gradients:
        return None
    ratios = ratios_of(steps.norms)
    begin_at = _start_of_the_end(ratios)
    begin = _beginning(steps.gradients, ratios, begin_at)
    if begin is not None and begin.are_all:
        begin_at = None  # it tells none from the others
    shown = _merged(ratios, _rows_in_one(len(steps.gradients)))
    below, above = _decades(shown)
    in_a_line = _rows_in_a_line(shown.shape[1])
    unknown = np.ma.getmaskarray(shown)
    return HeatMap(
        pixels=_pixels(shown, below, above),
        names=_names(steps.gradients, shown.shape[1], in_a_line, begin_at),
        rows_in_a_line=in_a_line,
        below=below,
        above=above,
        is_beyond=bool((shown.filled(-1.0) > above).any()),
        has_bad=bool(np.isnan(shown.filled(0.0)).any()),
        has_unknown=bool(unknown.any()),
        begin=begin,
    )


def ratios_of(norms: np.ma.MaskedArray) -> np.ma.MaskedArray:
    """Decimal logarithms of norms [steps, gradients] by the median of their gradient.

    NaN is what is not finite. A norm of zero is at -Inf, unless most are.
    """
    with np.errstate(divide='ignore', invalid='ignore'):
        logs = np.log10(np.abs(norms.filled(np.nan)))
        logs[np.isinf(norms.filled(np.nan))] = np.nan
        medians = _medians(logs)
        ratios = logs - medians
    ratios[(logs == -np.inf) & (medians == -np.inf)] = 0.0
    return np.ma.MaskedArray(ratios, mask=np.ma.getmaskarray(norms))


def _medians(logs: np.ndarray) -> np.ndarray:
    """Of each column, of what is no NaN; NaN where all is."""
    ordered = np.sort(logs, axis=0)  # NaN comes last
    counts = np.maximum(np.count_nonzero(~np.isnan(logs), axis=0), 1)
    columns = np.arange(logs.shape[1])
    return (ordered[(counts - 1) // 2, columns] + ordered[counts // 2, columns]) / 2


def _beyond(ratios: np.ma.MaskedArray) -> np.ndarray:
    """The ratios where they are out of bounds, and 0 elsewhere; Inf for what is not finite."""
    values = np.where(np.isnan(ratios.filled(0.0)), np.inf, ratios.filled(0.0))
    return np.where(values > _FAR, values, 0.0)


def _start_of_the_end(ratios: np.ma.MaskedArray) -> Optional[Tuple[int, int]]:
    """The step from which on gradients are out of bounds to the end, and the farthest of them.

    Where they are not, at the end, it is the first such step of all.
    """
    beyond = _beyond(ratios)
    columns = np.flatnonzero(beyond.any(axis=1))
    if not columns.size:
        return None
    start = 0
    if len(beyond) - 1 - columns[-1] <= _MOST_CALM:
        gaps = np.flatnonzero(np.diff(columns) > 1 + _MOST_CALM)
        start = gaps[-1] + 1 if gaps.size else 0
    column = columns[start]
    return int(column), int(np.argmax(beyond[column]))


def _beginning(
    gradients: List[Gradient], ratios: np.ma.MaskedArray, at: Optional[Tuple[int, int]]
) -> Optional[Beginning]:
    if at is None:
        return None
    column, row = at
    beyond = _beyond(ratios)
    others = int(np.count_nonzero(beyond[column])) - 1
    return Beginning(
        column=column,
        gradient=gradients[row],
        ratio=float(ratios[column, row]),
        others=others,
        earlier=int(np.count_nonzero(beyond[:column].any(axis=1))),
        are_all=0 < others == len(gradients) - 1,
    )


# What has room on a page.


def _rows_in_one(count: int) -> int:
    """How many gradients share a row of the picture."""
    return -(-count // (_MOST_LINES * _MOST_IN_A_LINE))


def _rows_in_a_line(rows: int) -> int:
    return -(-rows // _MOST_LINES)


def _merged(ratios: np.ma.MaskedArray, size: int) -> np.ma.MaskedArray:
    """Neighbours in one: the largest of them, and NaN if there is any."""
    if size == 1:
        return ratios
    starts = np.arange(0, ratios.shape[1], size)
    largest = np.maximum.reduceat(ratios.filled(-np.inf), starts, axis=1)
    unknown = np.logical_and.reduceat(np.ma.getmaskarray(ratios), starts, axis=1)
    return np.ma.MaskedArray(largest, mask=unknown)


def _names(
    gradients: List[Gradient], rows: int, in_a_line: int, begin_at: Optional[Tuple[int, int]]
) -> List[Name]:
    size = _rows_in_one(len(gradients)) * in_a_line
    begin = None if begin_at is None else begin_at[1]
    names = []
    for start in range(0, len(gradients), size):
        members = gradients[start : start + size]
        is_begin = begin is not None and start <= begin < start + size
        first = gradients[begin] if begin is not None and is_begin else members[0]
        variables = sum(1 + member.others for member in members)
        names.append(Name(shortened(first.name), variables - 1, is_begin))
    return names


def name_of(gradient: Gradient) -> str:
    """The name of a gradient, and how many variables it is of besides."""
    name = shortened(gradient.name)
    return '%s and %d more' % (name, gradient.others) if gradient.others else name


def shortened(name: str) -> str:
    """A long name keeps its end, which tells it from others."""
    is_long = len(name) > _LONGEST
    return '\N{HORIZONTAL ELLIPSIS}' + name[-_LONGEST:] if is_long else name


_LONGEST = 120


# Colours.


def _decades(ratios: np.ma.MaskedArray) -> Tuple[int, int]:
    values = ratios.filled(0.0)
    values = values[np.isfinite(values)]
    ends = (-values.min(), values.max()) if values.size else (0.0, 0.0)
    below, above = (min(max(math.ceil(end - 1e-9), 1), _MOST_DECADES) for end in ends)
    return below, above


def _pixels(ratios: np.ma.MaskedArray, below: int, above: int) -> np.ndarray:
    """uint8 [rows, steps, 3 or 4]; what nobody knows is transparent."""
    values = ratios.filled(0.0).T
    bad = np.isnan(values)
    parts = np.clip(np.where(values < 0, values / below, values / above), -1, 1)
    shades = np.where(bad, 0, parts * _SHADES).round().astype(int)
    pixels = _palette()[shades + _SHADES]
    pixels[bad] = BAD
    unknown = np.ma.getmaskarray(ratios).T
    if not unknown.any():
        return pixels
    return np.concatenate([pixels, np.where(unknown, 0, 255).astype(np.uint8)[..., None]], 2)


def legend_pixels() -> np.ndarray:
    """The colours from the lowest to the highest, the median in the middle: uint8 [1, n, 3]."""
    return _palette()[np.newaxis]


def _palette() -> np.ndarray:
    places = np.linspace(0, 1, _SHADES + 1)
    below, above = (_interpolated(colors, places) for colors in (_BELOW, _ABOVE))
    return np.concatenate([below[:0:-1], above]).round().astype(np.uint8)


def _interpolated(colors: Tuple[Tuple[int, int, int], ...], places: np.ndarray) -> np.ndarray:
    at = np.linspace(0, 1, len(colors))
    return np.stack([np.interp(places, at, channel) for channel in zip(*colors)], axis=1)

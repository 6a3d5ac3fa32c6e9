"""Computes where the last steps before an incident go on the page, by column.

Each step has a column of the same width, whatever its number: a step that was not written has the
number of the one before. templates/last_steps.html.j2 draws the chart from these numbers.
"""

import math
from typing import List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from slimguard.report import heat_map, last_steps_series, scales, step_ticks, words
from slimguard.report.heat_map import HeatMap
from slimguard.report.last_steps import LastSteps
from slimguard.report.last_steps_series import Series, Spans
from slimguard.report.loss_chart_layout import Tick
from slimguard.report.words import percent, px

PLOT = 88  # the height of a line's plot in pixels
_FEW = 30  # points of a line, for each to be marked


class Span(NamedTuple):
    """A run of columns."""

    x: str
    width: str


class Line(NamedTuple):
    """A series as the page draws it.

    Attributes:
      name, said: as in `Series`.
      note: on its axis.
      paths: what an SVG path draws, on 1000 x 1000, for each segment.
      dots: the points, if they are few.
      ticks: of its axis.
      bad: where values are not finite.
    """

    name: str
    said: str
    note: str
    paths: List[str]
    dots: List[Tuple[str, str]]
    ticks: List[Tick]
    bad: List[Span]


class StepTick(NamedTuple):
    """A tick of the axis of steps: the side on which its label begins, and whether it is left out
    where there is little room."""

    at: str
    label: str
    side: str
    is_extra: bool


class Picture(NamedTuple):
    """The heat map on the page.

    Attributes:
      map: the picture.
      rows, columns, height: how many there are, and of all rows together in pixels.
      lowest, highest: what the ends of its colours stand for.
      caption: where it begins.
    """

    map: HeatMap
    rows: int
    columns: int
    height: str
    lowest: str
    highest: str
    caption: str


class LastStepsChart(NamedTuple):
    """All that the page shows of the last steps.

    Attributes:
      heading: how many there are.
      lines: loss and gradient norm.
      plot: the height of each.
      unwritten: where steps were not written.
      has_bad: whether any of `lines` is not finite somewhere.
      ticks: of the axis of steps.
      axis: its name.
      picture: of the gradients, if there are any.
      rate: on the learning rate; '' if nobody knows it.
    """

    heading: str
    lines: List[Line]
    plot: int
    unwritten: List[Span]
    has_bad: bool
    ticks: List[StepTick]
    axis: str
    picture: Optional[Picture]
    rate: str


def chart_of(steps: Optional[LastSteps]) -> Optional[LastStepsChart]:
    """The chart of the last steps; None if there are none."""
    if steps is None:
        return None
    series = last_steps_series.series_of(steps)
    return LastStepsChart(
        heading=heading_of(steps),
        lines=[_line(each) for each in series],
        plot=PLOT,
        unwritten=_spans(last_steps_series.spans_of(~steps.written)),
        has_bad=any(each.bad for each in series),
        ticks=_step_ticks(steps.step),
        axis=axis_of(steps),
        picture=_picture(steps),
        rate=_rate(steps.learning_rate),
    )


def heading_of(steps: LastSteps) -> str:
    """How many steps there are."""
    count = len(steps.step)
    return 'The last %d steps' % count if count > 1 else 'The last step'


def axis_of(steps: LastSteps) -> str:
    """What the axis of steps shows."""
    if None in steps.step:
        return 'steps before the last one'
    return 'global step'


def _line(series: Series) -> Line:
    count = sum(map(len, series.segments))
    points = [point for segment in series.segments for point in segment]
    alone = [segment[0] for segment in series.segments if len(segment) == 1]
    return Line(
        name=series.name,
        said=series.said,
        note='logarithmic' if series.is_log else '',
        paths=['M' + 'L'.join(map(_at, segment)) for segment in series.segments],
        dots=[(percent(x), px(PLOT * (1 - y))) for x, y in (points if count <= _FEW else alone)],
        ticks=[Tick(px(PLOT * (1 - place)), label) for place, label in series.ticks],
        bad=_spans(series.bad),
    )


def _at(point: Tuple[float, float]) -> str:
    return '%.1f %.1f' % (1000 * point[0], 1000 * (1 - point[1]))


def _spans(spans: Spans) -> List[Span]:
    return [Span(percent(start), percent(end - start)) for start, end in spans]


def _step_ticks(step: Sequence[Optional[int]]) -> List[StepTick]:
    always = step_ticks.ticks_of(step, step_ticks.NARROW)
    ticks = step_ticks.ticks_of(step, step_ticks.WIDE, always)
    return [
        StepTick(percent(at), said, side_of(at), (at, said) not in always) for at, said in ticks
    ]


def side_of(at: float) -> str:
    """Which side of a label is at its tick: labels at the ends are moved inwards."""
    return 'start' if at < 0.04 else 'end' if at > 0.96 else 'middle'


def _rate(rates: Optional[np.ma.MaskedArray]) -> str:
    values = [] if rates is None else rates.compressed().tolist()
    if not values:
        return ''
    first, last = words.number(values[0]), words.number(values[-1])
    if first == last:
        return 'The learning rate is %s at the last step.' % last
    return 'The learning rate goes from %s to %s.' % (first, last)


def _picture(steps: LastSteps) -> Optional[Picture]:
    drawn = heat_map.heat_map_of(steps)
    if drawn is None:
        return None
    rows, columns = drawn.pixels.shape[:2]
    return Picture(
        map=drawn,
        rows=rows,
        columns=columns,
        height=px(rows * heat_map.LINE / drawn.rows_in_a_line),
        lowest=scales.power_of_ten(-drawn.below),
        highest=scales.power_of_ten(drawn.above) + ('+' if drawn.is_beyond else ''),
        caption=caption_of(steps, drawn),
    )


def caption_of(steps: LastSteps, drawn: HeatMap) -> str:
    """What the heat map shows, and where it begins."""
    said = (
        'Each row is the gradient of a variable, its colour the norm as a multiple of the median '
        'of the row. '
    )
    return said + _beginning(steps, drawn)


def _beginning(steps: LastSteps, drawn: HeatMap) -> str:
    begin = drawn.begin
    if begin is None:
        return 'None is above 100 times its median, and all are finite.'
    where = _where(steps, begin.column)
    before = ' Before that %s, and came back.' % _earlier(begin.earlier) if begin.earlier else ''
    if begin.are_all:
        said = 'All are out of bounds at once, not finite or above 100 times that, %s.' % where
        return said + before
    how = 'is not finite' if math.isnan(begin.ratio) else _far(begin.ratio)
    said = 'The first one out of bounds, not finite or above 100 times that, is %s: %s it %s' % (
        heat_map.name_of(begin.gradient),
        where,
        how,
    )
    return said + (', and so %s.' % _others(begin.others) if begin.others else '.') + before


def _earlier(count: int) -> str:
    return '1 step was out of bounds' if count == 1 else '%d steps were out of bounds' % count


def _far(ratio: float) -> str:
    if not ratio < 300:
        return 'is not zero, as it was'
    return 'is %s times its median' % words.multiple(10**ratio)


def _where(steps: LastSteps, column: int) -> str:
    number = steps.step[column]
    if number is None:
        before = len(steps.step) - 1 - column
        return '%d steps before the last' % before if before else 'in the last step'
    return 'at step %d' % number


def _others(count: int) -> str:
    return 'is 1 more' if count == 1 else 'are %d more' % count

"""Computes where lines, ticks and the marks of incidents go in the chart of the loss.

templates/loss.html.j2 draws the chart on the page from these numbers, and png.py in the picture.

Places across are percentages of the chart's width, which the browser knows; places down are pixels.
"""

from typing import List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from slimguard.report import incident_marks
from slimguard.report.incident_marks import Lane, Stepped
from slimguard.report.incident_view import IncidentView
from slimguard.report.loss_history import Curve
from slimguard.report.scales import Scale, scale_of
from slimguard.report.words import percent, px
from slimguard.system.texts import cut

_PLOT, _GAP = 240, 8  # heights in pixels: of the curve, between it and the incidents
_WIDEST_LABEL = 7  # letters that the usual margin has room for
_FEW = 60  # points of the curve, for each to be marked


class Tick(NamedTuple):
    """A value on an axis: where it is, and what is written there."""

    at: str
    label: str


class Dot(NamedTuple):
    """A point of the curve."""

    x: str
    y: str


class LossChart(NamedTuple):
    """All that the chart shows.

    Attributes:
      tag: the tag of the loss; '' without a curve out of event files.
      paths: what an SVG path draws, on 1000 x 1000, for each segment of the curve.
      tails: as `paths`, for the last steps before incidents.
      dots: the points, where they are few.
      plot: the height of the curve's part; 0 without a curve.
      height: of the whole chart.
      x_ticks, y_ticks: of both axes.
      is_log: whether the axis of the loss is logarithmic.
      is_wide: whether its labels take more than the usual margin.
      lanes: of the actions that were taken.
      count: of incidents.
    """

    tag: str
    paths: List[str]
    tails: List[str]
    dots: List[Dot]
    plot: int
    height: int
    x_ticks: List[Tick]
    y_ticks: List[Tick]
    is_log: bool
    is_wide: bool
    lanes: List[Lane]
    count: int

    @property
    def has_bars(self) -> bool:
        """Whether there are too many incidents of an action for marks."""
        return any(lane.bars for lane in self.lanes)


def chart_of(curve: Optional[Curve], incidents: Sequence[IncidentView]) -> Optional[LossChart]:
    """The chart; None if there is nothing to put in it."""
    lines, stepped = lines_of(curve), with_steps(incidents)
    if not lines and not stepped:
        return None
    x, y = step_scale(lines, stepped), loss_scale(lines)
    segments, tails = ([], []) if curve is None else (curve.segments, list(curve.tails))
    plot = 0 if y is None else _PLOT
    lanes = incident_marks.lanes_of(x, stepped, plot + _GAP)
    return LossChart(
        tag=cut(curve.tag, 200) if curve is not None else '',
        paths=[] if y is None else [_path(segment, x, y) for segment in segments],
        tails=[] if y is None else [_path(tail, x, y) for tail in tails],
        dots=[] if y is None else [_dot(p, x, y) for p in points_to_mark(segments, tails)],
        plot=plot,
        height=plot + _GAP + incident_marks.LANE * len(lanes),
        x_ticks=[Tick(percent(x(value)), label) for value, label in x.ticks],
        y_ticks=[] if y is None else [Tick(px(plot * (1 - y(v))), label) for v, label in y.ticks],
        is_log=y is not None and y.is_log,
        is_wide=y is not None and any(len(label) > _WIDEST_LABEL for _, label in y.ticks),
        lanes=lanes,
        count=len(stepped),
    )


def lines_of(curve: Optional[Curve]) -> List[np.ndarray]:
    """What there is to draw of a curve."""
    return [] if curve is None else [*curve.segments, *curve.tails]


def points_to_mark(*lines: Sequence[np.ndarray]) -> List[np.ndarray]:
    """Points that a line alone would hide: all of few, and those that stand alone."""
    found: List[np.ndarray] = []
    for parts in lines:
        few = sum(map(len, parts)) <= _FEW
        found.extend(point for part in parts if few or len(part) == 1 for point in part)
    return found


def with_steps(incidents: Sequence[IncidentView]) -> List[Tuple[int, IncidentView]]:
    """The incidents that have a place on the axis of steps, and those steps."""
    return [(i.step, i) for i in incidents if i.step is not None]


def step_scale(segments: Sequence[np.ndarray], stepped: Stepped) -> Scale:
    """The axis of steps."""
    steps = [step for segment in segments for step in segment[:, 0].tolist()]
    steps.extend(step for step, _ in stepped)
    return scale_of(steps, 'linear', whole=True, padded=False)


def loss_scale(segments: Sequence[np.ndarray]) -> Optional[Scale]:
    """The axis of the loss; None without a curve."""
    losses = [loss for segment in segments for loss in segment[:, 1].tolist()]
    return scale_of(losses) if losses else None


def _path(points: np.ndarray, x: Scale, y: Scale) -> str:
    places = ['%.1f %.1f' % (1000 * x(step), 1000 * (1 - y(loss))) for step, loss in points]
    if len(places) == 1:
        places.append(places[0])
    return 'M' + 'L'.join(places)


def _dot(point: np.ndarray, x: Scale, y: Scale) -> Dot:
    step, loss = point.tolist()
    return Dot(percent(x(step)), px(_PLOT * (1 - y(loss))))

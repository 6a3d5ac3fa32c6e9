"""Computes where lines, ticks and the marks of incidents go in the chart of the loss.

templates/loss.html.j2 draws the chart on the page from these numbers, and png.py in the picture.

Places across are percentages of the chart's width, which the browser knows; places down are pixels.
"""

from typing import List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from slimguard.report import words
from slimguard.report.incident_view import ACTIONS, IncidentView
from slimguard.report.loss_history import Curve
from slimguard.report.scales import Scale, scale_of
from slimguard.system.texts import cut

_PLOT, _LANE, _GAP = 240, 20, 8  # heights in pixels: of the curve, of an action, between them
_NEAREST = 0.006  # marks that are closer, as a part of the width, become one
_WIDEST_LABEL = 7  # letters that the usual margin has room for


class Tick(NamedTuple):
    """A value on an axis: where it is, and what is written there."""

    at: str
    label: str


class Mark(NamedTuple):
    """One incident, or several that would lie on one another.

    Attributes:
      x: the place.
      said: what it stands for.
      number: of the first incident.
    """

    x: str
    said: str
    number: int


class Lane(NamedTuple):
    """The marks of one action.

    Attributes:
      kind: one of `ACTIONS`.
      name: as the legend has it.
      count: of incidents.
      y: the place down.
      marks: from left to right.
    """

    kind: str
    name: str
    count: int
    y: str
    marks: List[Mark]


class LossChart(NamedTuple):
    """All that the chart shows.

    Attributes:
      tag: the tag of the loss; '' without a curve.
      paths: what an SVG path draws, on 1000 x 1000, for each segment of the curve.
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
    plot: int
    height: int
    x_ticks: List[Tick]
    y_ticks: List[Tick]
    is_log: bool
    is_wide: bool
    lanes: List[Lane]
    count: int


Stepped = List[Tuple[int, IncidentView]]


def chart_of(curve: Optional[Curve], incidents: Sequence[IncidentView]) -> Optional[LossChart]:
    """The chart; None if there is nothing to put in it."""
    segments = segments_of(curve)
    stepped = with_steps(incidents)
    if not segments and not stepped:
        return None
    x, y = step_scale(segments, stepped), loss_scale(segments)
    plot = _PLOT if segments else 0
    lanes = _lanes(x, stepped, plot + _GAP)
    return LossChart(
        tag=cut(curve.tag, 200) if curve is not None else '',
        paths=[] if y is None else [_path(segment, x, y) for segment in segments],
        plot=plot,
        height=plot + _GAP + _LANE * len(lanes),
        x_ticks=[Tick(percent(x(value)), label) for value, label in x.ticks],
        y_ticks=[] if y is None else [Tick(_px(plot * (1 - y(v))), label) for v, label in y.ticks],
        is_log=y is not None and y.is_log,
        is_wide=y is not None and any(len(label) > _WIDEST_LABEL for _, label in y.ticks),
        lanes=lanes,
        count=len(stepped),
    )


def segments_of(curve: Optional[Curve]) -> List[np.ndarray]:
    """What there is of a curve to draw."""
    return [] if curve is None else curve.segments


def with_steps(incidents: Sequence[IncidentView]) -> Stepped:
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


def percent(fraction: float) -> str:
    """A part of a width, for an attribute."""
    return '%.2f%%' % (100 * fraction)


def _px(value: float) -> str:
    return '%.1f' % value


def _path(points: np.ndarray, x: Scale, y: Scale) -> str:
    places = ['%.1f %.1f' % (1000 * x(step), 1000 * (1 - y(loss))) for step, loss in points]
    if len(places) == 1:
        places.append(places[0])
    return 'M' + 'L'.join(places)


def _lanes(x: Scale, stepped: Stepped, top: int) -> List[Lane]:
    lanes: List[Lane] = []
    for kind in ACTIONS:
        alike = [(step, i) for step, i in stepped if i.kind == kind]
        if alike:
            y = _px(top + _LANE * (len(lanes) + 0.5))
            lanes.append(Lane(kind, words.name_of(kind), len(alike), y, _marks(x, alike)))
    return lanes


def _marks(x: Scale, stepped: Stepped) -> List[Mark]:
    """Incidents that would lie on one another share a mark."""
    groups: List[Tuple[float, Stepped]] = []
    for step, incident in sorted(stepped, key=lambda pair: (pair[0], pair[1].number)):
        at = x(step)
        if not groups or at - groups[-1][0] >= _NEAREST:
            groups.append((at, []))
        groups[-1][1].append((step, incident))
    return [Mark(percent(at), _said(group), group[0][1].number) for at, group in groups]


def _said(group: Stepped) -> str:
    (first_step, first), (last_step, _) = group[0], group[-1]
    action = words.action_of(first)
    if len(group) == 1:
        return 'step %d, %s: %s' % (first_step, action, cut(first.reason, 200))
    return 'steps %d to %d: %d incidents, %s' % (first_step, last_step, len(group), action)

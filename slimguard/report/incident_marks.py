"""Computes where the marks of incidents go along an axis of steps: a lane for each action.

Few incidents are marked one by one. Many are counted: a bar for each part of the axis that has any.
"""

from typing import List, NamedTuple, Sequence, Tuple

from slimguard.report import words
from slimguard.report.incident_view import ACTIONS, IncidentView
from slimguard.report.scales import Scale
from slimguard.report.words import percent, px
from slimguard.system.texts import cut

LANE = 20  # the height of an action's lane in pixels
_MOST_MARKS = 30
# Marks that are closer, as a part of the width, become one: on a phone they would overlap.
_NEAREST = 0.045
_BINS, _GAP = 48, 0.15  # of the axis; between two bars, as a part of a bin
_TALLEST, _SHORTEST = 16, 3  # bars, in pixels

Stepped = Sequence[Tuple[int, IncidentView]]


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


class Bar(NamedTuple):
    """The incidents in a part of the axis.

    Attributes:
      x, width, y, height: its place; `y` is that of the upper end, from that of the lane.
      said: what it stands for.
      number: of the first incident.
    """

    x: str
    width: str
    y: str
    height: str
    said: str
    number: int


class Lane(NamedTuple):
    """The incidents of one action.

    Attributes:
      kind: one of `ACTIONS`.
      name: as the legend has it.
      count: of incidents.
      top, y: the places down of its upper end and its middle.
      hairs: the places of incidents, if they are few.
      marks: from left to right, if they are few.
      bars: from left to right, if they are many.
      most: how many incidents the tallest bar stands for; 0 without bars.
    """

    kind: str
    name: str
    count: int
    top: str
    y: str
    hairs: List[str]
    marks: List[Mark]
    bars: List[Bar]
    most: int


def lanes_of(x: Scale, stepped: Stepped, top: int) -> List[Lane]:
    """The lanes, from `top` downwards."""
    lanes: List[Lane] = []
    for kind in ACTIONS:
        alike = [(step, i) for step, i in stepped if i.kind == kind]
        if alike:
            lanes.append(_lane(kind, x, alike, top + LANE * len(lanes)))
    return lanes


def most_in_a_bin(x: Scale, stepped: Stepped) -> int:
    """How many incidents the fullest part of the axis has."""
    return max((len(members) for _, members in bins_of(x, stepped)), default=0)


def are_few(stepped: Stepped) -> bool:
    """Whether each incident has room for a mark."""
    return len(stepped) <= _MOST_MARKS


def _lane(kind: str, x: Scale, stepped: Stepped, top: int) -> Lane:
    few = are_few(stepped)
    return Lane(
        kind=kind,
        name=words.name_of(kind),
        count=len(stepped),
        top=px(top),
        y=px(top + LANE / 2),
        hairs=sorted({percent(x(step)) for step, _ in stepped}) if few else [],
        marks=_marks(x, stepped) if few else [],
        bars=[] if few else bars_of(x, stepped),
        most=0 if few else most_in_a_bin(x, stepped),
    )


def _marks(x: Scale, stepped: Stepped) -> List[Mark]:
    """Incidents that would lie on one another share a mark."""
    groups: List[Tuple[float, List[Tuple[int, IncidentView]]]] = []
    for step, incident in sorted(stepped, key=lambda pair: (pair[0], pair[1].number)):
        at = x(step)
        if not groups or at - groups[-1][0] >= _NEAREST:
            groups.append((at, []))
        groups[-1][1].append((step, incident))
    return [Mark(percent(at), _said(group), group[0][1].number) for at, group in groups]


def bins_of(x: Scale, stepped: Stepped) -> List[Tuple[float, List[Tuple[int, IncidentView]]]]:
    """The parts of the axis that have incidents: where each begins, and which they are."""
    bins: List[List[Tuple[int, IncidentView]]] = [[] for _ in range(_BINS)]
    for step, incident in sorted(stepped, key=lambda pair: (pair[0], pair[1].number)):
        bins[min(int(x(step) * _BINS), _BINS - 1)].append((step, incident))
    return [(place / _BINS, members) for place, members in enumerate(bins) if members]


def bars_of(x: Scale, stepped: Stepped) -> List[Bar]:
    """A bar for each part of the axis that has incidents, as high as they are many."""
    most = most_in_a_bin(x, stepped)
    return [_bar(start, members, most) for start, members in bins_of(x, stepped)]


def _bar(start: float, members: Stepped, most: int) -> Bar:
    height = max(_SHORTEST, _TALLEST * len(members) / most)
    return Bar(
        x=percent(start + _GAP / 2 / _BINS),
        width=percent((1 - _GAP) / _BINS),
        y=px(LANE - 2 - height),
        height=px(height),
        said=_said(members),
        number=members[0][1].number,
    )


def bin_ends(start: float) -> Tuple[float, float]:
    """Where the bar of a bin begins and ends."""
    return start + _GAP / 2 / _BINS, start + (1 - _GAP / 2) / _BINS


def _said(group: Stepped) -> str:
    (first_step, first), (last_step, _) = group[0], group[-1]
    action = words.action_of(first)
    if len(group) == 1:
        return 'step %d, %s: %s' % (first_step, action, cut(first.reason, 200))
    return 'steps %d to %d: %d incidents, %s' % (first_step, last_step, len(group), action)

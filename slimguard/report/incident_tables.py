"""The tables of incidents on the page: the kinds there are, and the incidents one by one."""

from typing import Callable, List, NamedTuple, Optional, Sequence

from slimguard.incidents import record_table
from slimguard.report import incident_marks, lead, loss_chart_layout, words
from slimguard.report.bundle_view import AnyBundle
from slimguard.report.incident_marks import Bar
from slimguard.report.incident_view import ACTIONS, IncidentView
from slimguard.report.loss_history import Curve
from slimguard.report.scales import Scale
from slimguard.system.texts import cut

_MOST_ROWS = 200
_MOST_KINDS = 20
LEFT_OUT = 'rows-left-out'


class Row(NamedTuple):
    """A line of the table; `bundle` is the name of the incident's bundle on the page, or ''."""

    incident: IncidentView
    action: str
    loss: str
    why: str
    notes: List[str]
    when: str
    bundle: str


class Table(NamedTuple):
    """The first lines and the last, and how many there are between them."""

    first: List[Row]
    left_out: int
    last: List[Row]


def table_of(incidents: Sequence[IncidentView], bundles: Sequence[AnyBundle]) -> Table:
    """The incidents one by one; of very many only the first and the last."""
    names = {n: b.name for n, b in lead.bundles_by_number(incidents, bundles).items()}
    half = _MOST_ROWS // 2
    is_long = len(incidents) > _MOST_ROWS
    first, last = (incidents[:half], incidents[-half:]) if is_long else (incidents, ())
    return Table(
        first=[_row(incident, names.get(incident.number, '')) for incident in first],
        left_out=len(incidents) - 2 * half if is_long else 0,
        last=[_row(incident, names.get(incident.number, '')) for incident in last],
    )


def row_finder(count: int) -> Callable[[int], str]:
    """Gives the id of the row that an incident is in, of `count` incidents."""
    half = _MOST_ROWS // 2

    def row_of(number: int) -> str:
        left_out = count > _MOST_ROWS and half < number <= count - half
        return LEFT_OUT if left_out else 'row-%d' % number

    return row_of


def _row(incident: IncidentView, bundle: str) -> Row:
    norm = words.norm_of(incident)
    return Row(
        incident=incident,
        action=words.action_of(incident),
        loss=words.number(incident.loss),
        why=cut(incident.reason, 400),
        notes=[*incident.notes, *(['gradient norm ' + norm] if norm else [])],
        when=record_table.when(incident.time),
        bundle=bundle,
    )


class KindRow(NamedTuple):
    """Incidents whose reasons differ in numbers at most.

    Attributes:
      count: how many.
      why: the reason of the first.
      steps: from the first to the last.
      done: which actions were taken, and how often.
      bars: where they are on the axis of the loss chart.
      number: of the first.
    """

    count: int
    why: str
    steps: str
    done: str
    bars: List[Bar]
    number: int


class Kinds(NamedTuple):
    """The kinds of most incidents; and how many more kinds and incidents there are."""

    rows: List[KindRow]
    left_out: int
    incidents_left_out: int


def kinds_of(curve: Optional[Curve], incidents: Sequence[IncidentView]) -> Optional[Kinds]:
    """The kinds of incidents; None where they would tell no more than the incidents do."""
    kinds = lead.kinds_of(incidents)
    if len(kinds) == len(incidents):
        return None
    stepped = loss_chart_layout.with_steps(incidents)
    # Without steps there is nothing to place.
    x = (
        loss_chart_layout.step_scale(loss_chart_layout.lines_of(curve), stepped)
        if stepped
        else None
    )
    more = kinds[_MOST_KINDS:]
    return Kinds(
        rows=[_kind_row(kind.members, x) for kind in kinds[:_MOST_KINDS]],
        left_out=len(more),
        incidents_left_out=sum(len(kind.members) for kind in more),
    )


def _kind_row(members: Sequence[IncidentView], x: Optional[Scale]) -> KindRow:
    stepped = loss_chart_layout.with_steps(members)
    counts = [(kind, sum(i.kind == kind for i in members)) for kind in ACTIONS]
    taken = ['%s %d' % (words.name_of(kind), count) for kind, count in counts if count]
    return KindRow(
        count=len(members),
        why=cut(members[0].reason, 400),
        steps=_steps(sorted(step for step, _ in stepped)),
        done=', '.join(taken),
        bars=[] if x is None else incident_marks.bars_of(x, stepped),
        number=members[0].number,
    )


def _steps(steps: Sequence[int]) -> str:
    if not steps:
        return ''
    if steps[0] == steps[-1]:
        return 'step %d' % steps[0]
    return 'steps %d to %d' % (steps[0], steps[-1])

"""The report as one HTML page. It loads nothing: no script, no font, no image.

Its looks are in ``templates/``. The template engine escapes all text that comes from the run; the
library that writes the charts as XML escapes the text in them.
"""

import functools
from typing import Any, Callable, Dict, List, NamedTuple

import jinja2
import markupsafe

from slimguard.incidents import record_table
from slimguard.report import cards, report_data, words
from slimguard.report.report_data import IncidentView, ReportData
from slimguard.system.texts import cut, visible

_MOST_ROWS = 200
_LONGEST = 1000  # characters of a text


def render(data: ReportData) -> str:
    """The page, as text."""
    return environment().get_template('page.html.j2').render(_content(data))


def _content(data: ReportData) -> Dict[str, Any]:
    """All that the page shows, by the names that the template uses."""
    row_of = _row_finder(len(data.incidents))
    links = cards.links_of(data, row_of)
    loss = None
    if cards.charts is not None:
        chart = cards.charts.loss_chart(data.curve, data.incidents, links)
        loss = None if chart is None else _svg(chart, 'loss')
    half = _MOST_ROWS // 2
    left_out = max(0, len(data.incidents) - _MOST_ROWS)
    first = data.incidents[:half] if left_out else data.incidents
    return {
        'data': data,
        'summary': report_data.summary(data),
        'kinds': cards.kinds_of(data, None if cards.charts is None else _svg),
        'broken': cards.broken(data),
        'loss': loss,
        'curve_note': _curve_note(data),
        'no_charts': cards.no_charts,
        'rows': [_row(incident, links) for incident in first],
        'left_out': left_out,
        'last_rows': [_row(i, links) for i in data.incidents[-half:]] if left_out else [],
    }


def _curve_note(data: ReportData) -> str:
    curve = data.curve
    if curve is None:
        return words.NO_CURVE
    said = '%d of the %d recorded values were not finite, and are not in the curve.'
    return said % (curve.bad, curve.points) if curve.bad else ''


def _svg(chart: Any, name: str) -> Any:
    """A chart for a desk and one for a phone; the page shows one of them."""
    widths = (cards.charts.WIDE, cards.charts.NARROW)
    return markupsafe.Markup(''.join(cards.charts.svg(chart, name, width) for width in widths))


@functools.lru_cache(maxsize=None)
def environment() -> jinja2.Environment:
    """The template engine: it escapes all that it is given, and fails for a name without a value.

    Invisible characters, and those that change the direction of text, are written as escapes, so
    that no name in a run looks like another. A longer text is cut, since a damaged record may hold
    any.
    """
    return jinja2.Environment(
        loader=jinja2.PackageLoader('slimguard.report', 'templates'),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_visible,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _visible(value: Any) -> Any:
    # A macro returns HTML already.
    return value if hasattr(value, '__html__') else visible(cut(value, _LONGEST))


# The table.


class Row(NamedTuple):
    """An incident; `link` leads to its card, and is '' if it has none."""

    number: int
    step: str
    kind: str
    action: str
    loss: str
    why: str
    notes: List[str]
    when: str
    link: str


def _row_finder(count: int) -> Callable[[int], str]:
    """Returns a function from an incident's number to its row's id; there are `count` incidents."""
    half = _MOST_ROWS // 2

    def row_of(number: int) -> str:
        is_left_out = count > _MOST_ROWS and half < number <= count - half
        return 'rows-left-out' if is_left_out else 'row-%d' % number

    return row_of


def _row(incident: IncidentView, links: Dict[int, str]) -> Row:
    norm = words.norm_of(incident)
    link = links[incident.number]
    return Row(
        number=incident.number,
        step='' if incident.step is None else str(incident.step),
        kind=incident.kind.replace(' ', '-'),
        action=incident.action or 'not said',
        loss=words.number(incident.loss),
        why=cut(incident.cause, 400),
        notes=[*incident.notes, *(['gradient norm ' + norm] if norm else [])],
        when=record_table.when(incident.time),
        link='' if link.startswith('#row') else link,
    )

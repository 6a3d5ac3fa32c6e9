"""The report as one HTML page. It loads nothing: no script, no font, no image.

Its HTML and its styles are in ``templates/``. The template engine escapes all text that comes from
the run; the library that writes the charts as XML escapes the text in them.
"""

import functools
from typing import Any, Dict

import jinja2
import markupsafe

from slimguard.incidents import record_file
from slimguard.report import cards, report_data, words
from slimguard.report.report_data import ReportData
from slimguard.system.texts import cut, visible

_MOST_ROWS = 200
_LONGEST = 2000  # characters of a text


def render(data: ReportData) -> str:
    """The page, as text."""
    return environment().get_template('page.html.j2').render(_content(data))


def _content(data: ReportData) -> Dict[str, Any]:
    """All that the page shows, by the names that the template uses."""
    links = cards.links_of(data, lambda number: 'row-%d' % min(number, _MOST_ROWS + 1))
    loss = None
    if cards.charts is not None:
        chart = cards.charts.loss_chart(data.curve, data.incidents, links)
        loss = None if chart is None else _svg(chart, 'loss')
    return {
        'data': data,
        'summary': report_data.summary(data),
        'kinds': cards.kinds_of(data, None if cards.charts is None else _svg),
        'loss': loss,
        'no_charts': cards.no_charts,
        'rows': data.incidents[:_MOST_ROWS],
        'left_out': data.incidents[_MOST_ROWS:],
        'links': links,
        'number': words.number,
        'norm_of': words.norm_of,
        'when': record_file.when,
    }


def _svg(chart: Any, name: str) -> Any:
    """A chart for a desk and one for a phone; the page shows one of them."""
    widths = (cards.charts.WIDE, cards.charts.NARROW)
    return markupsafe.Markup(''.join(cards.charts.svg(chart, name, width) for width in widths))


@functools.lru_cache(maxsize=None)
def environment() -> jinja2.Environment:
    """The template engine: it escapes every value, and fails for a name without a value.

    Invisible characters, and those that change the direction of text, are written as escapes, so
    that no name in a run looks like another. A longer text is cut, since a damaged record may hold
    texts of any length.
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

"""The page, and the picture of its beginning.

The page loads nothing: no script, no font, no image. Its HTML and its styles are in ``templates/``.
The template engine escapes all text that comes from the run; the library that writes the charts as
XML escapes the text in them. The picture has the loss and the most important incident.
"""

import functools
import io
import itertools
import re
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Tuple

import jinja2
import markupsafe
import numpy as np

from slimguard.incidents import record_file
from slimguard.incidents.incident_groups import kind_of, without_rows
from slimguard.report import last_steps, report_data, samples
from slimguard.report.cards import IncidentView
from slimguard.report.report_data import ReportData
from slimguard.system.texts import cut, visible

_MOST_ROWS = 200
_LONGEST = 2000  # characters of a text
_MARGIN = 40  # pixels, of the picture


def _imported() -> Tuple[Any, str]:
    try:
        from slimguard.report import charts
    except ImportError as error:
        return None, (
            'The page has no charts and no samples: matplotlib draws them, and it cannot be '
            'imported (%s). Install it with: pip install matplotlib' % error
        )
    return charts, ''


# Without matplotlib, `charts` is None, and `no_charts` is a sentence on why.
charts, no_charts = _imported()


class Drawing(NamedTuple):
    """A drawn chart, with the heading or the name of an array above it, and the caption below."""

    heading: str
    code: str
    drawn: Any
    caption: str


def _drawings(
    it: IncidentView, draw: Callable[[Any, str], Any], is_alike: bool = False
) -> Iterator[Drawing]:
    """Yields the charts of an incident's bundle; only the samples if `is_alike`.

    Args:
      it: the incident.
      draw: draws a chart; its second argument is a name that no other chart has.
      is_alike: whether the page shows another incident of the same kind first.
    """
    if it.opened is None or charts is None:
        return
    steps = it.opened.steps
    if steps is not None and last_steps.lines(steps) and not is_alike:
        chart = charts.last_steps_chart(steps, it.is_explosion)
        heading = 'The last %d steps' % len(steps.step)
        yield Drawing(heading, '', draw(chart, it.opened.name + '-steps'), chart.said)
    for number, sheet in enumerate(it.opened.sheets):
        drawn = draw(charts.samples_chart(sheet), '%s-batch%d' % (it.opened.name, number))
        shape = ' \N{MULTIPLICATION SIGN} '.join(map(str, sheet.shape))
        code = '%s, %s, %s' % (sheet.name, sheet.dtype, shape)
        yield Drawing('', code, drawn, samples.caption(sheet))


# The page.


def render(data: ReportData) -> str:
    """The page, as text."""
    return environment().get_template('page.html.j2').render(_content(data))


def _content(data: ReportData) -> Dict[str, Any]:
    """The contents of the page, by the names that the template uses."""
    rows = _rows(data.incidents)
    left_out = list(itertools.chain.from_iterable(rows[_MOST_ROWS:]))
    links = {
        it.number: '#row-%d' % row[0].number if it.opened is None else '#' + it.opened.name
        for row in [*rows[:_MOST_ROWS], left_out]
        for it in row
    }
    loss = None
    if charts is not None:
        chart = charts.loss_chart(data.curve, data.incidents, links)
        loss = chart and Drawing('Loss', '', _svg(chart, 'loss'), chart.said)
    kinds = report_data.kinds_of(data)
    return {
        'data': data,
        'summary': report_data.told(data),
        'kinds': kinds,
        'drawings_of': lambda it, is_alike: _drawings(it, _svg, is_alike),
        'loss': loss,
        'no_charts': no_charts,
        'rows': rows[:_MOST_ROWS],
        'left_out': left_out,
        'links': links,
        'number': last_steps.number,
        'when': record_file.when,
        'without_rows': without_rows,
        'unbroken': _unbroken,
    }


def _rows(incidents: List[IncidentView]) -> List[List[IncidentView]]:
    """The rows of the table: each for an incident, or for several in a row without bundles.

    The incidents of a row are of one kind and have the same action.
    """

    def alike(it: IncidentView) -> Any:
        return it.number if it.opened else (kind_of(it), it.done, it.notes, it.start)

    return [list(row) for _, row in itertools.groupby(incidents, alike)]


def _svg(chart: Any, name: str) -> Any:
    """The chart as SVG twice, for a desktop and for a phone; the page's CSS shows one of them."""
    widths = (charts.WIDE, charts.NARROW)
    return markupsafe.Markup(''.join(charts.svg(chart, name, width) for width in widths))


@functools.lru_cache(maxsize=None)
def environment() -> jinja2.Environment:
    """The template engine: it escapes every value, and fails for a name without a value.

    It writes invisible characters, and those that change the direction of text, as escapes, so that
    no name in a run looks like another. It cuts long texts, since a damaged record may hold texts
    of any length.
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
    # A macro's result is HTML; its text was cut and escaped already.
    return value if hasattr(value, '__html__') else visible(cut(value, _LONGEST))


def _unbroken(said: str) -> Any:
    """Text in which no line ends within a short option, such as --on_nan=skip."""
    safe = str(markupsafe.escape(_visible(said)))
    return markupsafe.Markup(
        re.sub(r'(?<!\S)--[\w=:.,]{1,30}(?![\w=])', r'<span class="option">\g<0></span>', safe)
    )


# The picture.


def picture(data: ReportData) -> bytes:
    """The picture, as a PNG file. Needs matplotlib."""
    from matplotlib import image

    links = dict.fromkeys((incident.number for incident in data.incidents), '')
    loss = charts.loss_chart(data.curve, data.incidents, links)
    parts = [_text([data.title], size=24), _text([report_data.told(data), data.reached])]
    if loss is not None:
        parts += [_text(['Loss'], size=18), charts.pixels(loss), _text([loss.said])]
    for kind in report_data.kinds_of(data)[:1]:
        it = kind.first
        facts = ['%s: %s %s %s' % fact for fact in it.facts]
        parts += [_text([kind.headline], size=18), _text([kind.said])]
        to_do = kind.to_do and 'What to do: ' + kind.to_do
        whole = [it.headline] * (it.headline != kind.headline)
        parts.append(_text([it.heading, *whole, to_do, it.more, *facts]))
        for drawing in _drawings(it, lambda chart, name: charts.pixels(chart)):
            heading = drawing.heading or 'The batch'
            parts += [_text([heading], size=14), drawing.drawn, _text([drawing.caption])]
    file = io.BytesIO()
    shown = np.concatenate(parts)
    framed = np.empty([len(shown) + 2 * _MARGIN, shown.shape[1] + 2 * _MARGIN, 4], np.uint8)
    framed[:] = shown[0, 0]  # paper
    framed[_MARGIN:-_MARGIN, _MARGIN:-_MARGIN] = shown
    image.imsave(file, framed, format='png')
    return file.getvalue()


def _text(lines: List[str], size: int = 12) -> np.ndarray:
    return charts.pixels(charts.text(lines, size))

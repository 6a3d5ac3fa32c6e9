"""The report as one HTML page. It asks for nothing: no script, no font, no image of others.

This puts the page's content together, as text and numbers; its looks are in ``templates/``.
All of it is escaped by the template engine, as nothing here is marked as HTML.
"""

import functools
import shlex
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Union

import jinja2

from slimguard.incidents import record_table
from slimguard.report import (
    loss_chart_layout,
    range_chart_layout,
    report_data,
    sample_pictures,
    words,
)
from slimguard.report.bundle_view import AnyBundle, BundleView, UnreadableBundle
from slimguard.report.incident_view import IncidentView
from slimguard.report.range_chart_layout import RangeChart
from slimguard.report.report_data import ReportData
from slimguard.report.sample_pictures import PictureSheet
from slimguard.system.texts import cut, visible

_MOST_ROWS = 200


def render(data: ReportData) -> str:
    """The page, as text."""
    return (
        environment()
        .get_template('page.html.j2')
        .render(
            data=data,
            summary=report_data.summary(data),
            no_curve=words.NO_CURVE,
            chart=loss_chart_layout.chart_of(data.curve, data.incidents),
            table=_table(data.incidents, _numbers_by_bundle(data)),
            sections=[_section_or_why_not(bundle, data.title) for bundle in data.bundles],
            begins=words.BEGINS,
        )
    )


@functools.lru_cache(maxsize=None)
def environment() -> jinja2.Environment:
    """The template engine: it escapes all that it is given, and fails for a name without a value.

    Characters that show nothing, or turn the text around them (the bidirectional ones), are
    written as escapes: what a run has named shall look like what it is.
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
    # What a macro returns is HTML already.
    return value if hasattr(value, '__html__') else visible(value)


# The incidents.


class _Row(NamedTuple):
    """A line of the table; `bundle` is the name of the incident's bundle on the page, or ''."""

    incident: IncidentView
    action: str
    loss: str
    why: str
    when: str
    bundle: str


class _Table(NamedTuple):
    """The first lines and the last, and how many there are between them."""

    first: List[_Row]
    left_out: int
    last: List[_Row]


def _table(incidents: Sequence[IncidentView], numbers: Dict[str, int]) -> _Table:
    half = _MOST_ROWS // 2
    is_long = len(incidents) > _MOST_ROWS
    return _Table(
        first=[_row(i, numbers) for i in (incidents[:half] if is_long else incidents)],
        left_out=len(incidents) - 2 * half if is_long else 0,
        last=[_row(i, numbers) for i in incidents[-half:]] if is_long else [],
    )


def _row(incident: IncidentView, numbers: Dict[str, int]) -> _Row:
    has_bundle = numbers.get(incident.bundle) == incident.number
    return _Row(
        incident=incident,
        action=words.action_of(incident),
        loss=words.number(incident.loss),
        why=cut(incident.reason, 400),
        when=record_table.when(incident.time),
        bundle=incident.bundle if has_bundle else '',
    )


def _numbers_by_bundle(data: ReportData) -> Dict[str, int]:
    """For each bundle on the page the number of its incident.

    A later bundle may get the name of one that was removed: the newest incident has it.
    """
    on_page = {bundle.name for bundle in data.bundles if isinstance(bundle, BundleView)}
    return {i.bundle: i.number for i in data.incidents if i.bundle in on_page}


# The bundles.


class _Section(NamedTuple):
    """What made a step bad, in words and pictures.

    Attributes:
      bundle: the bundle.
      heading, lead: above all else.
      sheets: the samples of the batch.
      ranges: along the step.
      command: to run it again.
    """

    bundle: BundleView
    heading: str
    lead: str
    sheets: List[PictureSheet]
    ranges: Optional[RangeChart]
    command: str


def _section_or_why_not(bundle: AnyBundle, title: str) -> Union[_Section, str]:
    """What stands where a bundle belongs: its section, or a sentence on why it has none."""
    if isinstance(bundle, UnreadableBundle):
        return '%s cannot be read: %s' % (bundle.name, bundle.why)
    try:
        return _section(bundle, title)
    except Exception as error:  # whatever it is, it must not cost the rest of the page
        return words.cannot_be_shown(bundle, error)


def _section(bundle: BundleView, title: str) -> _Section:
    step = bundle.incident.step
    path = shlex.quote('%s/slimguard/%s' % (title, bundle.name))
    return _Section(
        bundle=bundle,
        heading=bundle.name if step is None else 'Step %d' % step,
        lead=words.sentence(bundle),
        sheets=[sample_pictures.sheet_of(sheet) for sheet in bundle.sheets],
        ranges=range_chart_layout.chart_of(bundle.layers),
        command='python -m slimguard replay ' + path,
    )

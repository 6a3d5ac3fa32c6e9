"""The report as one HTML page. It asks for nothing: no script, no font, no image of others.

This puts the page's content together, as text and numbers; its looks are in ``templates/``.
All of it is escaped by the template engine, as nothing here is marked as HTML.
"""

import functools
import shlex
from typing import Any, Dict, List, NamedTuple, Optional, Union

import jinja2

from slimguard.incidents import record_table
from slimguard.report import (
    heat_map,
    incident_tables,
    last_steps_layout,
    lead,
    loss_chart_layout,
    png_files,
    range_chart_layout,
    report_data,
    sample_pictures,
    words,
)
from slimguard.report.bundle_view import AnyBundle, BundleView, UnreadableBundle
from slimguard.report.incident_view import IncidentView
from slimguard.report.last_steps_layout import LastStepsChart
from slimguard.report.lead import Lead
from slimguard.report.png_files import PngEncoder
from slimguard.report.range_chart_layout import RangeChart
from slimguard.report.report_data import ReportData
from slimguard.report.sample_pictures import PictureSheet
from slimguard.system.texts import visible


def render(data: ReportData) -> str:
    """The page, as text."""
    with PngEncoder() as encoder:
        return environment().get_template('page.html.j2').render(_content(data, encoder))


def _content(data: ReportData, encoder: PngEncoder) -> Dict[str, Any]:
    """All that the page shows, by the names that its templates have for it."""
    first = lead.lead_of(data.incidents, data.bundles)
    lead_section = None if first is None else _lead_section(first, data.title, encoder)
    sections = _other_sections(first, data, encoder)
    has_gradients = any(isinstance(s, _Section) and s.gradients for s in [lead_section, *sections])
    return {
        'data': data,
        'summary': report_data.summary(data),
        'lead': first,
        'lead_section': lead_section,
        'no_curve': words.NO_CURVE,
        'no_summary': words.NO_SUMMARY,
        'chart': loss_chart_layout.chart_of(data.curve, data.incidents),
        'beside': words.BESIDE,
        'alone': words.ALONE,
        'kinds': incident_tables.kinds_of(data.curve, data.incidents),
        'sections': sections,
        'colors': _colors(encoder) if has_gradients else '',
        'table': incident_tables.table_of(data.incidents, data.bundles),
        'row_of': incident_tables.row_finder(len(data.incidents)),
    }


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


# The bundles.


class _Fact(NamedTuple):
    """What is known: its name; a part that is code, words, and a line of code, each '' for none."""

    name: str
    code: str = ''
    words: str = ''
    line: str = ''


class _Section(NamedTuple):
    """What made a step bad, in words and pictures.

    Attributes:
      name: of the bundle; '' without one.
      heading, lead: above all else.
      lines: a diagnosis in a few lines, if there is no more of it.
      facts: what is known.
      steps: the last ones before it.
      gradients: the address of their picture; '' without one.
      sheets: the samples of the batch.
      ranges: along the step.
      command: to run it again; '' if it cannot be.
      alike: the name of a bundle to look at instead, or ''.
    """

    name: str
    heading: str
    lead: str
    lines: str
    facts: List[_Fact]
    steps: Optional[LastStepsChart]
    gradients: str
    sheets: List[PictureSheet]
    ranges: Optional[RangeChart]
    command: str
    alike: str


def _other_sections(
    first: Optional[Lead], data: ReportData, encoder: PngEncoder
) -> List[Union[_Section, str]]:
    """Those of all bundles but that of the incident that the page opens with."""
    others = [bundle for bundle in data.bundles if first is None or bundle is not first.bundle]
    by_number = lead.bundles_by_number(data.incidents, data.bundles)
    recorded = {by_number[i.number].name: i for i in data.incidents if i.number in by_number}
    return [
        _section_or_why_not(bundle, data.title, recorded.get(bundle.name), encoder)
        for bundle in others
    ]


def _lead_section(first: Lead, title: str, encoder: PngEncoder) -> Union[_Section, str]:
    if first.bundle is None:
        return _section_of_the_record(first)
    return _section_or_why_not(first.bundle, title, first.incident, encoder)


def _section_or_why_not(
    bundle: AnyBundle, title: str, recorded: Optional[IncidentView], encoder: PngEncoder
) -> Union[_Section, str]:
    """What stands where a bundle belongs: its section, or a sentence on why it has none."""
    if isinstance(bundle, UnreadableBundle):
        return '%s cannot be read: %s' % (bundle.name, bundle.why)
    try:
        return _section(bundle, title, recorded, encoder)
    except Exception as error:  # whatever it is, it must not cost the rest of the page
        return words.cannot_be_shown(bundle, error)


def _section(
    bundle: BundleView, title: str, recorded: Optional[IncidentView], encoder: PngEncoder
) -> _Section:
    path = shlex.quote('%s/slimguard/%s' % (title, bundle.name))
    steps = last_steps_layout.chart_of(bundle.steps)
    return _Section(
        name=bundle.name,
        heading=_heading(bundle.incident, bundle.name),
        lead=words.sentence(bundle),
        lines='',
        facts=[
            *_facts_of_bundle(bundle),
            _Fact('Why', words=(recorded or bundle.incident).reason),
            *_facts_of_incident(recorded or bundle.incident),
            _Fact('Made with', words=bundle.versions),
        ],
        steps=steps,
        gradients=_gradients(steps, encoder),
        sheets=[sample_pictures.sheet_of(sheet, encoder) for sheet in bundle.sheets],
        ranges=range_chart_layout.chart_of(bundle.layers),
        command='python -m slimguard replay ' + path,
        alike='',
    )


def _gradients(steps: Optional[LastStepsChart], encoder: PngEncoder) -> str:
    if steps is None or steps.picture is None:
        return ''
    return png_files.address_of(encoder.encode(steps.picture.map.pixels))


def _colors(encoder: PngEncoder) -> str:
    """The address of the colours of a heat map."""
    return png_files.address_of(encoder.encode(heat_map.legend_pixels()))


def _section_of_the_record(first: Lead) -> _Section:
    """Of an incident that has no bundle."""
    said = first.incident
    return _Section(
        name='',
        heading=_heading(said, 'Incident %d' % said.number),
        lead=said.reason or 'The record gives no reason.',
        lines=said.diagnosis,
        facts=_facts_of_incident(said),
        steps=None,
        gradients='',
        sheets=[],
        ranges=None,
        command='',
        alike='' if first.alike is None else first.alike.name,
    )


def _heading(incident: IncidentView, otherwise: str) -> str:
    return otherwise if incident.step is None else 'Step %d' % incident.step


def _facts_of_bundle(bundle: BundleView) -> List[_Fact]:
    facts = [
        _Fact('Tensor', bundle.where),
        _Fact('Your line', bundle.line, line=bundle.code),
        *[_Fact('Input', name, values) for name, values in bundle.inputs],
        _Fact('Value', words=bundle.output),
        _Fact('Not finite', bundle.positions),
        *[_Fact('Note', words=why) for why in bundle.not_examined],
    ]
    return [fact for fact in facts if fact.code or fact.words]


def _facts_of_incident(incident: IncidentView) -> List[_Fact]:
    facts = [
        _Fact('Loss', words=words.number(incident.loss)),
        _Fact('Gradient norm', words=words.norm_of(incident)),
        _Fact('Done', words='; '.join(filter(None, [incident.action, *incident.notes]))),
        _Fact('Advice', words=incident.advice),
        _Fact('When', words=record_table.when(incident.time)),
    ]
    return [fact for fact in facts if fact.words]

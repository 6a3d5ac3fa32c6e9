"""The words of page and picture on incidents: a card for each kind, the most important first.

Incidents are of one kind if their causes differ in numbers only. A kind's card shows one incident
in full; cards of the others that have a bundle follow it.
"""

import shlex
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from slimguard.diagnosis.diagnosis import GIVEN
from slimguard.incidents import advice, record_table
from slimguard.incidents.incident_groups import by_kind, not_examined
from slimguard.report import last_steps, report_data, samples, words
from slimguard.report.layer_ranges import Layer
from slimguard.report.report_data import BundleView, IncidentView, ReportData, UnreadableBundle


def _imported() -> Tuple[Any, str]:
    try:
        from slimguard.report import charts
    except ImportError as error:
        return None, words.NO_CHARTS % error
    return charts, ''


# Without matplotlib there are no charts, but a sentence on why.
charts, no_charts = _imported()

_ENDED = ('raise', 'stop', 'error')
_MOST_KINDS = 20

Draw = Callable[[Any, str], Any]  # draws a chart under a name


class Fact(NamedTuple):
    """A fact: its name, then code, words, and a line of code, each '' if there is none."""

    name: str
    code: str = ''
    words: str = ''
    line: str = ''


class Drawing(NamedTuple):
    """A drawn chart, with the heading above it and the caption below."""

    heading: str
    code: str
    drawn: Any
    caption: str


class Card(NamedTuple):
    """What made a step bad, in words and charts.

    Attributes:
      name: the name of the bundle; '' without one.
      heading: which step it was.
      headline: the cause in a sentence.
      more: another sentence, or ''.
      lines: what else the diagnosis says, if there is no bundle; else ''.
      to_do: what to do; '' if another card of its kind says it.
      facts: what is known.
      batch: the arrays of the batch that are no images: a name, and lines of numbers.
      drawings: the charts.
      layers: the ranges along the step.
      commands: run the step again, and without its bad row; none without a bundle.
    """

    name: str
    heading: str
    headline: str
    more: str
    lines: str
    to_do: str
    facts: List[Fact]
    batch: Sequence[Tuple[str, str]]
    drawings: List[Drawing]
    layers: Sequence[Layer]
    commands: List[str]


class Kind(NamedTuple):
    """Incidents of one kind.

    Attributes:
      heading: the cause.
      count: how many there are, at which steps, the actions, and which one the card shows; '' for
        one examined incident that did not end the training.
      card: the card of the most important incident, or why it cannot be shown.
      alike: the same for the other incidents that have a bundle.
    """

    heading: str
    count: str
    card: Union[Card, str]
    alike: List[Union[Card, str]]


class _Told(NamedTuple):
    """An incident as the record has it, and its bundle."""

    incident: IncidentView
    bundle: Optional[BundleView]


def links_of(data: ReportData, row_of: Callable[[int], str]) -> Dict[int, str]:
    """The link to each incident, by number: to its card if it has a bundle, else to its row."""
    bundles = _bundles_by_number(data)
    names = {number: bundle.name for number, bundle in bundles.items()}
    return {i.number: '#' + names.get(i.number, row_of(i.number)) for i in data.incidents}


def kinds_of(data: ReportData, draw: Optional[Draw]) -> List[Kind]:
    """The kinds of incidents: the one that ended the training, then examined ones, then the others.

    In each of these parts the largest kind is the first.

    Args:
      data: the report.
      draw: draws a chart, given a name that no other chart has; None for no charts.
    """
    kinds = by_kind(_all_told(data), lambda told: told.incident)
    ended = [i for i in data.incidents if i.action in _ENDED][-1:]
    by_size = sorted(kinds, key=len, reverse=True)
    by_size.sort(key=lambda members: not any(told.incident.diagnosis for told in members))
    by_size.sort(key=lambda members: not any(told.incident in ended for told in members))
    return [_kind_of(members, ended, data, draw) for members in by_size[:_MOST_KINDS]]


def _all_told(data: ReportData) -> List[_Told]:
    """The incidents of the record, and those of bundles that the record does not name."""
    bundles = _bundles_by_number(data)
    known = {bundle.name for bundle in bundles.values()}
    readable = [bundle for bundle in data.bundles if isinstance(bundle, BundleView)]
    told = [_Told(incident, bundles.get(incident.number)) for incident in data.incidents]
    return told + [_Told(b.incident, b) for b in readable if b.name not in known]


def _bundles_by_number(data: ReportData) -> Dict[int, BundleView]:
    """The bundles by the number of their incident.

    A later bundle may have the name of a removed one: it belongs to the newest incident.
    """
    by_name = {bundle.name: bundle for bundle in data.bundles if isinstance(bundle, BundleView)}
    newest = {i.bundle_name: i.number for i in data.incidents if i.bundle_name in by_name}
    return {number: by_name[name] for name, number in newest.items()}


def _kind_of(
    members: List[_Told],
    ended: List[IncidentView],
    data: ReportData,
    draw: Optional[Draw],
) -> Kind:
    kept = [told for told in members if told.bundle is not None]
    lead = next((told for told in members if told.incident in ended), None)
    first = lead or (kept or members)[0]
    card = _card_or_why_not(first, data.title, draw)
    said = _count([told.incident for told in members])
    if not any(told.incident.diagnosis or told.bundle and told.bundle.trouble for told in members):
        said.append('not examined')
    if lead is not None:
        is_last = lead.incident.number == data.incidents[-1].number
        said.append('the one shown ended %s' % ('the training' if is_last else 'a run of it'))
    elif len(members) > 1:
        which = 'the first' if first is members[0] else 'the first that was kept'
        said.append(which + ' is shown')
    return Kind(
        heading=_begun(first.incident.cause) if isinstance(card, str) else card.headline,
        count=_begun('; '.join(said)),
        card=card,
        alike=[_card_or_why_not(it, data.title, draw, True) for it in kept if it is not first],
    )


def _begun(said: str) -> str:
    """Words as the beginning of a sentence."""
    return said[:1].upper() + said[1:]


def _count(incidents: Sequence[IncidentView]) -> List[str]:
    told = []
    if len(incidents) > 1:
        steps = sorted({i.step for i in incidents if i.step is not None})
        where = ', step %d' if len(steps) == 1 else ', steps %d to %d'
        where = where % tuple(steps[:1] + steps[1:][-1:]) if steps else ''
        done = report_data.done(list(incidents), {'other': words.name_of('other')})
        told.append('%d alike%s: %s' % (len(incidents), where, done))
    left_out = not_examined(incidents)
    if left_out:
        told.append('%d not examined, the symptom is the same' % left_out)
    return told


def broken(data: ReportData) -> List[str]:
    """A sentence for each bundle that cannot be read."""
    unreadable = [bundle for bundle in data.bundles if isinstance(bundle, UnreadableBundle)]
    return ['%s cannot be read: %s' % (it.name, it.why) for it in unreadable]


def _card_or_why_not(
    told: _Told, title: str, draw: Optional[Draw], is_alike: bool = False
) -> Union[Card, str]:
    """A card; or a sentence on why there is none."""
    try:
        return _card(told, title, draw, is_alike)
    except Exception as error:  # whatever it is, it must not cost the rest of the page
        name = told.bundle.name if told.bundle else 'Incident %d' % told.incident.number
        return '%s cannot be shown: %s: %s' % (name, type(error).__name__, error)


def _card(told: _Told, title: str, draw: Optional[Draw], is_alike: bool) -> Card:
    incident, bundle = told
    sentence = bundle.trouble if bundle is not None else ''
    why = _why_it_exploded(bundle)
    lines = '' if bundle is not None else (incident.diagnosis or '').partition('\n')[2]
    return Card(
        name='' if bundle is None else bundle.name,
        heading=heading(incident, bundle),
        headline=why or sentence or _begun(incident.cause) or 'There is no diagnosis.',
        more=sentence if why else '',
        lines=lines,
        to_do='' if is_alike else _to_do(incident, bundle, bool(why)),
        facts=_facts(incident, bundle),
        batch=() if bundle is None else bundle.batch,
        drawings=[] if draw is None or bundle is None else _drawings(bundle, draw, is_alike),
        layers=() if bundle is None or is_alike else bundle.layers,
        commands=[] if bundle is None else _commands(title, bundle),
    )


def heading(incident: IncidentView, bundle: Optional[BundleView] = None) -> str:
    """Which step it was."""
    if incident.step is not None:
        return 'Step %d' % incident.step
    return 'Incident %d' % incident.number if bundle is None else bundle.name


def _commands(title: str, bundle: BundleView) -> List[str]:
    replay = 'python -m slimguard replay ' + shlex.quote('%s/slimguard/%s' % (title, bundle.name))
    without = ['%s --without %d' % (replay, row) for row in bundle.bad_rows]
    return [replay, *(without if len(without) == 1 else [])]


def _why_it_exploded(bundle: Optional[BundleView]) -> str:
    """The cause in the history; '' if the step's data or variables were bad."""
    if bundle is None or bundle.steps is None or bundle.phase in GIVEN:
        return ''
    found = last_steps.cause(bundle.steps)
    return found and _begun(found) + '.'


def _to_do(incident: IncidentView, bundle: Optional[BundleView], exploded: bool) -> str:
    if exploded:
        return advice.FOR_A_JUMP
    cause, phase = ('', '') if bundle is None else (bundle.cause, bundle.phase)
    cause = cause or incident.cause
    if advice.LARGE_WEIGHTS in cause:
        cause, phase = '', 'update'
    # The commands of the card name the bundle where it is now.
    policy = _begun(advice.without_bundle(incident.advice or ''))
    told = [advice.for_cause(cause), policy and policy.rstrip('.') + '.']
    return ' '.join(filter(None, told)) or advice.BY_PHASE.get(phase, '')


def _facts(incident: IncidentView, bundle: Optional[BundleView]) -> List[Fact]:
    facts = [] if bundle is None else [Fact(*fact) for fact in bundle.facts]
    is_said = bundle is None or not bundle.trouble
    seen = '' if is_said and incident.reason == incident.cause else incident.reason
    facts += [
        Fact('Seen', words=seen),
        Fact('Loss', words=words.number(incident.loss)),
        Fact('Gradient norm', words=words.norm_of(incident)),
        Fact('Done', words='; '.join(filter(None, [incident.action, *incident.notes]))),
        Fact('When', words=record_table.when(incident.time)),
        Fact('Made with', words='' if bundle is None else bundle.versions),
    ]
    return [fact for fact in facts if fact.code or fact.words]


def _drawings(bundle: BundleView, draw: Draw, is_alike: bool) -> List[Drawing]:
    """The charts of a bundle; only the samples, if a card before it shows a bundle like it."""
    drawings = []
    if bundle.steps is not None and not is_alike:
        chart = charts.last_steps_chart(bundle.steps)
        heading = last_steps.heading(bundle.steps)
        drawings.append(Drawing(heading, '', draw(chart, bundle.name + '-steps'), chart.said))
    for number, sheet in enumerate(bundle.sheets):
        drawn = draw(charts.samples_chart(sheet), '%s-batch%d' % (bundle.name, number))
        shape = ' \N{MULTIPLICATION SIGN} '.join(map(str, sheet.shape))
        code = '%s, %s, %s' % (sheet.name, sheet.dtype, shape)
        drawings.append(Drawing('The batch', code, drawn, samples.caption(sheet)))
    return drawings

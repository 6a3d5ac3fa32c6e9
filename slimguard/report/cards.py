"""The words of page and picture on incidents: a card for each kind, the most important first.

Incidents are of one kind if their causes differ in numbers only. A kind's card shows one incident
in full; cards of the others that have a bundle follow it.
"""

import shlex
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from slimguard.incidents import advice, record_file
from slimguard.incidents.incident_groups import NOT_EXAMINED, by_kind, not_examined
from slimguard.report import last_steps, report_data, samples, words
from slimguard.report.report_data import BundleView, Fact, IncidentView, ReportData


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


class Drawing(NamedTuple):
    """A drawn chart, with the heading above it and the caption below."""

    heading: str
    code: str
    drawn: Any
    caption: str


class Card(NamedTuple):
    """What made a step bad, in words and charts.

    Attributes:
      opened: the bundle, or None.
      heading: which step it was.
      headline: the cause in a sentence.
      more: another sentence, or ''.
      lines: what else the diagnosis says, if there is no bundle; else ''.
      to_do: what to do; '' if another card of its kind says it.
      facts: what is known.
      drawings: the charts.
      commands: run the step again, and without its bad row; none without a bundle.
      is_alike: whether it follows a card of its kind, and says only what is its own.
    """

    opened: Optional[BundleView]
    heading: str
    headline: str
    more: str
    lines: str
    to_do: str
    facts: List[Fact]
    drawings: List[Drawing]
    commands: List[str]
    is_alike: bool


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


def links_of(data: ReportData, row_of: Callable[[int], str]) -> Dict[int, str]:
    """The link to each incident, by number: to its card if it has a bundle, else to its row."""
    return {
        i.number: '#' + (row_of(i.number) if i.opened is None else i.opened.name)
        for i in data.incidents
    }


def kinds_of(data: ReportData, draw: Optional[Draw]) -> List[Kind]:
    """The kinds of incidents: the one that ended the training, then examined ones, then the others.

    In each of these parts the largest kind is the first.

    Args:
      data: the report.
      draw: draws a chart, given a name that no other chart has; None for no charts.
    """
    kinds = by_kind(data.incidents + data.unrecorded, lambda it: it)
    ended = [i for i in data.incidents if i.action in _ENDED][-1:]
    by_size = sorted(kinds, key=len, reverse=True)
    by_size.sort(key=lambda members: not any(it.diagnosis for it in members))
    by_size.sort(key=lambda members: not any(it in ended for it in members))
    return [_kind_of(members, ended, data, draw) for members in by_size[:_MOST_KINDS]]


def _kind_of(
    members: List[IncidentView],
    ended: List[IncidentView],
    data: ReportData,
    draw: Optional[Draw],
) -> Kind:
    kept = [it for it in members if it.opened is not None]
    lead = next((it for it in members if it in ended), None)
    first = lead or (kept or members)[0]
    card = _card_or_why_not(first, draw)
    said = _count(members)
    if not any(it.diagnosis or it.opened and it.opened.trouble for it in members):
        said.append('not examined')
    if lead is not None:
        is_last = lead.number == data.incidents[-1].number
        what = 'the training' if is_last else 'a run, but not the training'
        said.append('the one shown ended ' + what)
    elif len(members) > 1:
        which = 'the first' if first is members[0] else 'the first that was kept'
        said.append(which + ' is shown')
    return Kind(
        heading=words.begun(first.cause) if isinstance(card, str) else card.headline,
        count=words.begun('; '.join(said)),
        card=card,
        alike=[_card_or_why_not(it, draw, True) for it in kept if it is not first],
    )


def _count(incidents: Sequence[IncidentView]) -> List[str]:
    told = []
    if len(incidents) > 1:
        steps = sorted({i.step for i in incidents if i.step is not None})
        where = ', step %d' if len(steps) == 1 else ', steps %d to %d'
        where = where % tuple(steps[:1] + steps[1:][-1:]) if steps else ''
        done = report_data.done(list(incidents), {'other': words.name_of('other')})
        told.append('%d alike%s: %s' % (len(incidents), where, done))
    left_out = not_examined(incidents)
    return told + ([NOT_EXAMINED % left_out] if left_out else [])


def _card_or_why_not(
    it: IncidentView, draw: Optional[Draw], is_alike: bool = False
) -> Union[Card, str]:
    """A card; or a sentence on why there is none."""
    try:
        return _card(it, draw, is_alike)
    except Exception as error:  # whatever it is, it must not cost the rest of the page
        name = it.opened.name if it.opened else 'Incident %d' % it.number
        return '%s cannot be shown: %s: %s' % (name, type(error).__name__, error)


def _card(it: IncidentView, draw: Optional[Draw], is_alike: bool) -> Card:
    opened = it.opened
    sentence = '' if opened is None else opened.trouble
    why = '' if opened is None or not opened.explosion else words.begun(opened.explosion) + '.'
    return Card(
        opened=opened,
        heading=heading(it),
        headline=why or sentence or words.begun(it.cause) or 'There is no diagnosis.',
        more=sentence if why else '',
        lines='' if opened is not None else (it.diagnosis or '').partition('\n')[2],
        to_do='' if is_alike else _to_do(it),
        facts=_facts(it),
        drawings=[] if draw is None or opened is None else _drawings(opened, draw, is_alike),
        commands=[] if opened is None else _commands(opened),
        is_alike=is_alike,
    )


def heading(it: IncidentView) -> str:
    """Which step it was."""
    if it.step is not None:
        return 'Step %d' % it.step
    return 'Incident %d' % it.number if it.opened is None else it.opened.name


def _commands(opened: BundleView) -> List[str]:
    replay = 'python -m slimguard replay ' + shlex.quote(opened.path)
    without = ['%s --without %d' % (replay, row) for row in opened.bad_rows]
    return [replay, *(without if len(without) == 1 else [])]


def _to_do(it: IncidentView) -> str:
    opened = it.opened
    cause = '' if opened is None else '. '.join(filter(None, [opened.explosion, opened.cause]))
    cure = advice.for_cause(cause or it.cause)
    if cure in advice.FOR_EXPLOSIONS:
        return cure
    # The commands of the card name the bundle where it is now.
    policy = words.begun(advice.without_bundle(it.advice or ''))
    told = ' '.join(filter(None, [cure, policy and policy.rstrip('.') + '.']))
    return told or ('' if opened is None else advice.BY_PHASE.get(opened.phase, ''))


def _facts(it: IncidentView) -> List[Fact]:
    opened = it.opened
    is_said = opened is None or not opened.trouble
    seen = '' if is_said and it.reason == it.cause else it.reason
    facts = [
        *([] if opened is None else opened.facts),
        Fact('Seen', words=seen),
        Fact('Loss', words=words.number(it.loss)),
        Fact('Gradient norm', words=words.norm_of(it)),
        Fact('Done', words='; '.join(filter(None, [it.action, *it.notes]))),
        Fact('When', words=record_file.when(it.time)),
        Fact('Made with', words='' if opened is None else opened.versions),
    ]
    return [fact for fact in facts if fact.code or fact.words]


def _drawings(opened: BundleView, draw: Draw, is_alike: bool) -> List[Drawing]:
    """The charts of a bundle; only the samples, if a card before it shows a bundle like it."""
    drawings = []
    if opened.steps is not None and not is_alike:
        chart = charts.last_steps_chart(opened.steps)
        heading = last_steps.heading(opened.steps)
        drawings.append(Drawing(heading, '', draw(chart, opened.name + '-steps'), chart.said))
    for number, sheet in enumerate(opened.sheets):
        drawn = draw(charts.samples_chart(sheet), '%s-batch%d' % (opened.name, number))
        shape = ' \N{MULTIPLICATION SIGN} '.join(map(str, sheet.shape))
        code = '%s, %s, %s' % (sheet.name, sheet.dtype, shape)
        drawings.append(Drawing('The batch', code, drawn, samples.caption(sheet)))
    return drawings

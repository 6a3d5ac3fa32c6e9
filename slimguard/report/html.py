"""The report as one HTML page. It asks for nothing: no script, no font, no image of others."""

import base64
import collections
import math
import shlex
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from slimguard.incidents import record_table
from slimguard.report import report_data, samples
from slimguard.report.layer_ranges import Layer
from slimguard.report.loss_history import Curve
from slimguard.report.markup import Markup, element
from slimguard.report.report_data import ACTIONS, Entry, Finding, Findings, Unreadable
from slimguard.report.samples import Sample, Sheet
from slimguard.report.scales import Scale, magnitudes, scale_of
from slimguard.system.texts import cut

_POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'"
)
_MOST_ROWS = 200
_PLOT, _LANE = 240, 20  # heights in pixels
# A shape for each action as well: a page is printed in grey, and colours are not for all eyes.
_SHAPES = {
    'raise': 'M-6-5H6L0 6Z',
    'stop': 'M-5-5H5V5H-5Z',
    'rollback': 'M0-6.5L6.5 0L0 6.5L-6.5 0Z',
    'skip': 'M0-5A5 5 0 0 1 0 5A5 5 0 0 1 0-5Z',
    'save refused': 'M-5-3L-3-5L0-2L3-5L5-3L2 0L5 3L3 5L0 2L-3 5L-5 3L-2 0Z',
    'other': 'M-1.5-6H1.5V-1.5H6V1.5H1.5V6H-1.5V1.5H-6V-1.5H-1.5Z',
    'not said': 'M-6-1.5H6V1.5H-6Z',
}
NAMES = {'other': 'on_nan_loss'}


def render(found: Findings) -> str:
    """The page, as text."""
    head = element(
        'head',
        element('meta', charset='utf-8'),
        element('meta', http_equiv='Content-Security-Policy', content=_POLICY),
        element('meta', name='viewport', content='width=device-width, initial-scale=1'),
        element('meta', name='color-scheme', content='light dark'),
        element('meta', name='referrer', content='no-referrer'),
        element('title', 'Training report: %s' % found.title),
        element('style', Markup(_STYLE)),
    )
    body = element(
        'body',
        element(
            'header',
            element('p', 'Training report', class_='over'),
            element('h1', found.title),
            element(
                'p', report_data.summary(found), class_='lead alarm' if found.broken else 'lead'
            ),
            element('p', found.made[:1].upper() + found.made[1:], class_='quiet'),
        ),
        element('main', _loss(found), _incidents(found), _causes(found)),
        element('footer', [element('p', note, class_='quiet') for note in found.notes])
        if found.notes
        else None,
    )
    return '<!doctype html>\n' + element('html', head, body, lang='en') + '\n'


# The loss.


def _loss(found: Findings) -> Markup:
    entries = [entry for entry in found.entries if entry.step is not None]
    parts = [element('h2', 'Loss', id='loss')]
    if found.curve is None:
        parts.append(element('p', NO_CURVE))
    elif found.curve.bad:
        said = '%d of the %d recorded values were not finite, and are not in the curve.'
        parts.append(element('p', said % (found.curve.bad, found.curve.points)))
    if found.curve is not None and found.curve.stretches or entries:
        parts.append(_chart(found.curve, entries))
    return element('section', parts, aria_labelledby='loss')


NO_CURVE = (
    'No loss curve: no scalar in the event files here looks like a loss. Add '
    "tf.compat.v1.summary.scalar('total_loss', total_loss) to the graph, and the next report "
    'has one.'
)


def _chart(curve: Optional[Curve], entries: Sequence[Entry]) -> Markup:
    stretches = [] if curve is None else curve.stretches
    steps = [s[:, 0] for s in stretches] + [[e.step for e in entries]]
    x = scale_of(np.concatenate(steps), 'linear', whole=True, padded=False)
    actions = [a for a in ACTIONS if any(e.kind == a for e in entries)]
    plot = _PLOT if stretches else 0
    height = plot + 8 + _LANE * len(actions)
    drawn: List[Any] = []
    if stretches:
        y = scale_of(np.concatenate([s[:, 1] for s in stretches]))
        for value, label in y.ticks:
            at = _px(plot * (1 - y(value)))
            drawn.append(element('line', x1=0, x2='100%', y1=at, y2=at, class_='grid'))
            drawn.append(element('text', label, x=-8, y=at, dy='.32em', class_='tick end'))
    # On a phone there is room for every other one.
    for place, (value, label) in enumerate(x.ticks):
        at, classes = _percent(x(value)), 'tick middle' + (' extra' if place % 2 else '')
        drawn.append(element('line', x1=at, x2=at, y1=height, y2=height + 4, class_='axis'))
        drawn.append(element('text', label, x=at, y=height + 18, class_=classes))
    marks = [_marks(x, [e for e in entries if e.kind == a], a) for a in actions]
    for lane, group in enumerate(marks):
        for mark in group:
            at, bottom = _percent(mark.x), plot + 8 + _LANE * (lane + 0.5)
            classes = 'hair ' + _class(mark.kind)
            drawn.append(element('line', x1=at, x2=at, y1=0, y2=_px(bottom), class_=classes))
    if stretches:
        paths = [element('path', d=_path(s, x, y), class_='curve') for s in stretches]
        tag = cut(curve.tag, 200) if curve else ''
        title = element('title', '%s over the global step' % tag)
        view = {'viewBox': '0 0 1000 1000', 'preserveAspectRatio': 'none'}
        drawn.append(element('svg', title, paths, x=0, y=0, width='100%', height=plot, **view))
    drawn.append(element('line', x1=0, x2='100%', y1=height, y2=height, class_='axis'))
    for lane, group in enumerate(marks):
        drawn.extend(_drawn(mark, plot + 8 + _LANE * (lane + 0.5)) for mark in group)
    how = '; the axis of the loss is logarithmic' if stretches and y.is_log else ''
    label = 'The loss over the global step, with %d incidents marked' % len(entries)
    svg = element('svg', drawn, class_='chart', height=height, role='img', aria_label=label)
    return element(
        'figure',
        _legend(curve, entries, actions),
        element('div', svg, class_='plot wide' if stretches and _is_wide(y) else 'plot'),
        element('figcaption', 'global step' + how, class_='quiet axisname'),
    )


def _is_wide(scale: Scale) -> bool:
    """Whether a label takes more than the usual margin."""
    return any(len(label) > 7 for _, label in scale.ticks)


def _legend(curve: Optional[Curve], entries: Sequence[Entry], actions: Sequence[str]) -> Markup:
    items = []
    if curve is not None and curve.stretches:
        line = element('svg', element('path', d='M0 6H18', class_='curve'), width=18, height=12)
        items.append(element('li', line, cut(curve.tag, 200)))
    for action in actions:
        count = sum(e.kind == action for e in entries)
        items.append(element('li', _symbol(action), '%s (%d)' % (NAMES.get(action, action), count)))
    return element('ul', items, class_='legend')


class _Mark(NamedTuple):
    x: float
    kind: str
    entries: List[Entry]


def _marks(x: Scale, entries: Sequence[Entry], kind: str) -> List[_Mark]:
    """Incidents that would lie on one another share a mark."""
    marks: List[_Mark] = []
    for entry in sorted(entries, key=lambda e: (e.step, e.number)):
        at = x(entry.step)
        if marks and at - marks[-1].x < 0.006:
            marks[-1].entries.append(entry)
        else:
            marks.append(_Mark(at, kind, [entry]))
    return marks


def _drawn(mark: _Mark, y: float) -> Markup:
    first, last = mark.entries[0], mark.entries[-1]
    if len(mark.entries) == 1:
        said = 'step %s, %s: %s' % (first.step, action_of(first), cut(first.reason, 200))
    else:
        steps = 'steps %s to %s' % (first.step, last.step)
        said = '%s: %d incidents, %s' % (steps, len(mark.entries), action_of(first))
    shape = element('path', element('title', said), d=_SHAPES[mark.kind], class_=_class(mark.kind))
    link = element('a', shape, href='#row-%d' % first.number, aria_label=said)
    return element('svg', link, x=_percent(mark.x), y=_px(y), width=1, height=1, class_='mark')


def _symbol(kind: str) -> Markup:
    path = element('path', d=_SHAPES[kind], class_=_class(kind))
    return element('svg', path, width=14, height=14, viewBox='-7 -7 14 14', class_='symbol')


def _path(points: np.ndarray, x: Scale, y: Scale) -> str:
    places = ['%.1f %.1f' % (1000 * x(step), 1000 * (1 - y(loss))) for step, loss in points]
    if len(places) == 1:
        places.append(places[0])
    return 'M' + 'L'.join(places)


# The incidents.


def _incidents(found: Findings) -> Markup:
    if not found.entries:
        return Markup('')
    entries, left_out = found.entries, 0
    if len(entries) > _MOST_ROWS:
        left_out = len(entries) - _MOST_ROWS
        entries = entries[: _MOST_ROWS // 2] + entries[-_MOST_ROWS // 2 :]
    readable = [b for b in found.bundles if isinstance(b, Finding)]
    bundles = {b.entry.time: b for b in readable if b.entry.time is not None}
    rows = []
    for place, entry in enumerate(entries):
        if left_out and place == _MOST_ROWS // 2:
            said = '%d more, in slimguard/incidents.jsonl' % left_out
            rows.append(element('tr', element('td', said, colspan=5, class_='quiet')))
        rows.append(_row(entry, bundles.get(entry.time)))
    head = [element('th', name, scope='col') for name in ('Step', 'Action', 'Loss', 'Why', 'When')]
    return element(
        'section',
        element('h2', 'Incidents', id='incidents'),
        element(
            'table',
            element('thead', element('tr', head)),
            element('tbody', rows),
            class_='incidents',
        ),
        aria_labelledby='incidents',
    )


def _row(entry: Entry, bundle: Optional[Finding]) -> Markup:
    why = [element('span', cut(entry.reason, 400))]
    for note in entry.notes:
        why.append(element('span', note, class_='note'))
    if bundle is not None:
        why.append(element('a', 'what made it bad', href='#' + bundle.name, class_='note'))
    cells = [
        element('th', '' if entry.step is None else str(entry.step), scope='row', class_='number'),
        element('td', _symbol(entry.kind), action_of(entry), class_='action'),
        element('td', number(entry.loss), class_='number', data_name='loss'),
        element('td', why, class_='why'),
        element('td', record_table.when(entry.time), class_='when'),
    ]
    return element('tr', cells, id='row-%d' % entry.number)


def action_of(entry: Entry) -> str:
    """What was done, as the record says it."""
    return entry.action or 'not said'


# The causes.


def _causes(found: Findings) -> Markup:
    if not found.bundles:
        return Markup('')
    parts = [_place_of(it, found.title) for it in found.bundles]
    heading = element('h2', 'What made them bad', id='causes')
    return element('section', heading, parts, aria_labelledby='causes')


def _place_of(it: Any, title: str) -> Markup:
    """What stands where a bundle belongs: its cause, or what is wrong with it."""
    if isinstance(it, Unreadable):
        return element('p', '%s cannot be read: %s' % (it.name, it.why), class_='broken')
    try:
        return _cause(it, title)
    except Exception as error:  # whatever it is, it must not cost the rest of the page
        return element('p', cannot_be_shown(it, error), class_='broken')


def cannot_be_shown(it: Finding, error: Exception) -> str:
    """What is said in place of a bundle that could be read, and not drawn."""
    return cut('%s cannot be shown: %s: %s' % (it.name, type(error).__name__, error), 1000)


def _cause(it: Finding, title: str) -> Markup:
    step = it.entry.step
    return element(
        'article',
        element('h3', 'Step %s' % step if step is not None else it.name),
        element('p', sentence(it), class_='lead'),
        _facts(it),
        [_sheet(sheet) for sheet in it.sheets],
        _ranges(it.layers) if it.layers else None,
        element(
            'p',
            'To run it again: ',
            element('code', 'python -m slimguard replay ' + _shell_path(title, it.name)),
            class_='quiet',
        ),
        id=it.name,
    )


def _shell_path(title: str, name: str) -> str:
    return shlex.quote('%s/slimguard/%s' % (title, name))


def sentence(it: Finding) -> str:
    """What made a step bad, as a sentence."""
    if not it.phase:
        return it.entry.reason or 'There is no diagnosis.'
    return '%s: %s.' % (it.phase, it.trouble)


def _facts(it: Finding) -> Optional[Markup]:
    facts: List[Tuple[str, Any]] = []
    if it.where:
        facts.append(('Tensor', element('code', it.where)))
    if it.place:
        code = element('pre', element('code', it.code)) if it.code else None
        facts.append(('Your line', [element('code', it.place), code]))
    for name, given in it.inputs:
        facts.append(('Input', [element('code', name), ' ', given]))
    if it.output:
        facts.append(('Value', it.output))
    if it.spots:
        facts.append(('Not finite', element('code', it.spots)))
    for sentence in it.not_seen:
        facts.append(('Not seen', sentence))
    facts.append(('Made with', it.versions))
    rows = [element('div', element('dt', name), element('dd', said)) for name, said in facts]
    return element('dl', rows)


# The ranges.


def _ranges(layers: Sequence[Layer]) -> Markup:
    scale = magnitudes([end for layer in layers for end in (layer.min, layer.max)])
    ticks = [_percent(scale(value)) for value, _ in scale.ticks]
    grid = [element('line', x1=at, x2=at, y1=0, y2='100%', class_='grid') for at in ticks]
    # On a phone there is room for the ends and the middle.
    extras = ['' if scale(value) in (0.0, 0.5, 1.0) else ' extra' for value, _ in scale.ticks]
    prefix = _common_scope(layers)
    labels = [
        element('text', label, x=at, y=14, class_='tick middle' + extra)
        for at, label, extra in zip(ticks, [label for _, label in scale.ticks], extras)
    ]
    rows: List[Markup] = []
    phase, begun = '', False
    last = begins_at(layers)
    for place, layer in enumerate(layers):
        if layer.phase != phase:
            phase = layer.phase
            axis = element('svg', labels, class_='bar', height=20) if place == 0 else None
            heading = element('th', _PASSES[phase], scope='rowgroup', class_='pass')
            rows.append(element('tr', heading, element('td', axis), element('td')))
        if place == last:
            begun = True
            said = element('td', element('span', 'here finite ends'), colspan=3)
            rows.append(element('tr', said, class_='ends'))
        rows.append(_layer_row(layer, scale, grid, prefix))
    said = (
        'From the least to the largest finite value of each layer, in the order in which they are '
        'computed; the axis is logarithmic on both sides of zero.'
    )
    if prefix:
        said += ' %s is left out of the names.' % cut(prefix, 200)
    if begun:
        said += ' Where values are not finite the row is marked.'
    table = element('table', element('tbody', rows), class_='ranges')
    heading = element('h4', 'Ranges along the step')
    return element('figure', heading, table, element('figcaption', said, class_='quiet'))


_PASSES = {
    'input': 'Input',
    'forward': 'Forward pass',
    'backward': 'Backward pass',
    'update': 'Update',
}


def begins_at(layers: Sequence[Layer]) -> Optional[int]:
    """Where finite ends: the layer at fault, or else the first that is not finite."""
    for place, layer in enumerate(layers):
        if layer.begins:
            return place
    return next((place for place, layer in enumerate(layers) if not layer.is_finite), None)


def _common_scope(layers: Sequence[Layer]) -> str:
    """The outermost scope that most layers are in, with its slash; '' if there is none."""
    scopes = collections.Counter(x.name.partition('/')[0] for x in layers if '/' in x.name)
    for scope, count in scopes.most_common(1):
        if count > max(3, len(layers) / 2):
            return scope + '/'
    return ''


def _layer_row(layer: Layer, scale: Scale, grid: Sequence[Markup], prefix: str) -> Markup:
    drawn = list(grid)
    if layer.min is not None and layer.max is not None:
        start, end = scale(layer.min), scale(layer.max)
        width = max(end - start, 0.004)
        classes = 'range' if layer.is_finite else 'range bad'
        drawn.append(
            element('rect', x=_percent(start), y=5, width=_percent(width), height=8, class_=classes)
        )
    elif not layer.is_finite:
        drawn.append(element('rect', x=0, y=5, width='100%', height=8, class_='range none'))
    said = said_of(layer)
    name = layer.name[len(prefix) :] if layer.name.startswith(prefix) else layer.name
    svg = element('svg', drawn, class_='bar', height=18, role='img', aria_label=said)
    return element(
        'tr',
        element('th', element('span', cut(name, 200), title=cut(layer.name, 400)), scope='row'),
        element('td', svg),
        element('td', said),
        class_=None if layer.is_finite else 'bad',
    )


def said_of(layer: Layer) -> str:
    """The range of a layer in words."""
    parts = []
    if not layer.is_finite:
        for count, word in ((layer.nan, 'NaN'), (layer.inf, 'Inf')):
            if count:
                parts.append('%s %s' % (_count(count), word))
    elif layer.min is not None and layer.max is not None:
        parts.append('%.3g to %.3g' % (layer.min, layer.max))
    else:
        parts.append('empty')
    return ', '.join(parts)


# The samples.


def _sheet(sheet: Sheet) -> Markup:
    shape = ' \N{MULTIPLICATION SIGN} '.join(map(str, sheet.shape))
    batch = len(sheet.samples)
    said = '%s, %s, %s' % (cut(sheet.name, 400), sheet.dtype, shape)
    scale = 'Black is %.4g and white %.4g' % (sheet.black, sheet.white)
    if batch < sheet.rows:
        scale += '; %d of the %d samples are shown, bad ones before others' % (batch, sheet.rows)
    return element(
        'figure',
        element('h4', 'The batch ', element('code', said)),
        element('ul', [_sample(sample) for sample in sheet.samples], class_='samples'),
        element('figcaption', scale + '.', class_='quiet'),
    )


def _sample(sample: Sample) -> Markup:
    height, width = sample.pixels.shape[:2]
    data = base64.b64encode(samples.png(sample.pixels)).decode('ascii')
    said = 'row %d' % sample.row
    if sample.bad:
        said += ', %d not finite' % sample.bad
    elif sample.suspect:
        said += ', not finite later on'
    if sample.wild is not None:
        said += ', as far as %.3g' % sample.wild
    image = element(
        'image', href='data:image/png;base64,' + data, width=width, height=height, class_='pixels'
    )
    rings = [_ring(x, y, max(height, width)) for y, x in sample.spots]
    box = '0 0 %d %d' % (width, height)
    title = element('title', said)
    svg = element('svg', title, image, rings, viewBox=box, role='img', aria_label=said)
    classes = 'bad' if sample.bad else ('suspect' if sample.suspect else None)
    return element('li', svg, element('span', said), class_=classes)


def _ring(x: int, y: int, side: int) -> List[Markup]:
    """A pixel's own outline, or a ring around one that is too small to be seen."""
    if side < 24:
        return [element('rect', x=x, y=y, width=1, height=1, class_='ring')]
    at = {'cx': x + 0.5, 'cy': y + 0.5, 'r': round(side * 0.06, 1)}
    return [element('circle', class_='halo', **at), element('circle', class_='ring', **at)]


# Numbers.


def number(value: Optional[float]) -> str:
    """A loss in words; '' if nobody knows it."""
    if value is None:
        return ''
    if math.isfinite(value):
        return '%.6g' % value
    if math.isnan(value):
        return 'NaN'
    return 'Inf' if value > 0 else '\N{MINUS SIGN}Inf'


def _count(count: int) -> str:
    for size, letter in ((10**9, 'G'), (10**6, 'M')):
        if count >= size:
            return '%.3g%s' % (count / size, letter)
    return '{:,}'.format(count).replace(',', '\N{NARROW NO-BREAK SPACE}')


def _percent(fraction: float) -> str:
    return '%.2f%%' % (100 * fraction)


def _px(value: float) -> str:
    return '%.1f' % value


def _class(kind: str) -> str:
    return 'is-' + kind.replace(' ', '-')


_STYLE = """
:root {
  color-scheme: light dark;
  --paper: #fbfaf7; --card: #ffffff; --ink: #1d1d1b; --soft: #5f5e5a; --line: #e3e1da;
  --curve: #33414e; --grid: #e9e7e1; --range: #8fa5b8; --bad: #c8102e; --wash: #fbe9ea;
  --raise: #c8102e; --stop: #b86e00; --rollback: #6d4bc4; --skip: #1f6fc4; --refused: #0b7d6e;
  --other: #77756f; --link: #1a5fa8; --ring: #ff0090;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --paper: #161719; --card: #1d1f22; --ink: #e9e7e2; --soft: #a3a19a; --line: #33363a;
    --curve: #c9d3dc; --grid: #2a2d31; --range: #5d7790; --bad: #ff6b78; --wash: #3a1d22;
    --raise: #ff6b78; --stop: #f0a63c; --rollback: #a78bfa; --skip: #63a8f2; --refused: #3fc3ae;
    --other: #9b9993; --link: #84b8f0;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0 auto; padding: 3rem 1.5rem 4rem; max-width: 62rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans",
  "Helvetica Neue", Arial, sans-serif; overflow-wrap: anywhere;
}
h1, h2, h3, .lead { text-wrap: balance; }
h1, h2 {
  font-family: "Iowan Old Style", "Palatino Linotype", Palatino, "Source Serif 4", "Noto Serif",
  Georgia, serif; font-weight: 600; letter-spacing: -.01em;
}
h1 { font-size: 2.4rem; line-height: 1.15; margin: .1rem 0 .6rem; }
h2 { font-size: 1.55rem; line-height: 1.25; margin: 3.2rem 0 1rem; }
h3 { font-size: 1.15rem; margin: 0 0 .3rem; }
h4 { font-size: .95rem; margin: 2rem 0 .6rem; font-weight: 600; }
h4 code { font-weight: 400; color: var(--soft); }
p { margin: .4rem 0; }
a { color: var(--link); text-decoration-thickness: 1px; text-underline-offset: .15em; }
code, pre {
  font-family: ui-monospace, "SF Mono", SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono",
  monospace; font-size: .87em;
}
pre { margin: .3rem 0 0; padding: .5rem .75rem; background: var(--paper); border-radius: 4px;
  border-left: 3px solid var(--bad); white-space: pre-wrap; }
.over { font-size: .78rem; letter-spacing: .09em; text-transform: uppercase; color: var(--soft); }
.lead { font-size: 1.15rem; line-height: 1.45; max-width: 46rem; }
.alarm, .broken { border-left: 3px solid var(--bad); padding: .3rem 0 .3rem .9rem; }
.quiet { color: var(--soft); font-size: .87rem; }
figure { margin: 1rem 0 0; }
figcaption { margin-top: .5rem; max-width: 46rem; }
.axisname { text-align: right; margin-top: 1.4rem; max-width: none; }
.plot { padding: .6rem 1rem 0 3.4rem; }
.plot.wide { padding-left: 6rem; }
svg { overflow: visible; }
.chart { display: block; width: 100%; }
.tick { font-size: 12px; fill: var(--soft); font-variant-numeric: tabular-nums; }
.end { text-anchor: end; }
.middle { text-anchor: middle; }
.grid { stroke: var(--grid); }
.axis { stroke: var(--soft); stroke-width: 1; }
.curve { fill: none; stroke: var(--curve); stroke-width: 1.6; vector-effect: non-scaling-stroke;
  stroke-linejoin: round; stroke-linecap: round; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .3rem 1.4rem; margin: 0;
  padding: 0; font-size: .9rem; }
.legend li { display: flex; align-items: center; gap: .45rem; }
.symbol { flex: none; vertical-align: -1px; margin-right: .35rem; }
.legend .symbol { margin: 0; }
.hair { stroke-width: 1; opacity: .45; fill: none; }
.is-raise { fill: var(--raise); stroke: var(--raise); }
.is-stop { fill: var(--stop); stroke: var(--stop); }
.is-rollback { fill: var(--rollback); stroke: var(--rollback); }
.is-skip { fill: var(--skip); stroke: var(--skip); }
.is-save-refused { fill: var(--refused); stroke: var(--refused); }
.is-other, .is-not-said { fill: var(--other); stroke: var(--other); }
path.is-raise, path.is-stop, path.is-rollback, path.is-skip, path.is-save-refused, path.is-other,
path.is-not-said { stroke: var(--paper); stroke-width: 1; }
table { border-collapse: collapse; width: 100%; }
.incidents { font-size: .93rem; }
.incidents th, .incidents td { text-align: left; vertical-align: baseline; font-weight: 400;
  padding: .55rem 1.1rem .55rem 0; border-bottom: 1px solid var(--line); }
thead th { white-space: nowrap; }
.incidents thead th { color: var(--soft); font-size: .82rem; padding-top: 0; }
.incidents tbody th { font-weight: 600; }
.incidents tr:target { background: var(--wash); }
.number { font-variant-numeric: tabular-nums; white-space: nowrap; }
.action, .when { white-space: nowrap; }
.when { color: var(--soft); font-variant-numeric: tabular-nums; padding-right: 0 !important; }
.why { min-width: 14rem; }
.note { display: block; font-size: .87rem; color: var(--soft); }
a.note { color: var(--link); }
article { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 1.5rem 1.6rem 1.3rem; margin: 0 0 1.5rem; scroll-margin-top: 1rem; }
.broken { margin: 0 0 1.5rem; }
dl { margin: 1.1rem 0 0; font-size: .93rem; }
dl div { display: grid; grid-template-columns: 6.5rem 1fr; gap: .2rem 1rem; padding: .22rem 0; }
dt { color: var(--soft); }
dd { margin: 0; min-width: 0; }
.ranges { font-size: .8rem; table-layout: fixed; }
.ranges th { width: 34%; text-align: left; font-weight: 400; padding: 0 .8rem 0 0;
  line-height: 18px; }
.ranges th span { display: block; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.ranges td { padding: 0; line-height: 18px; height: 18px; }
.ranges td:last-child { width: 11.6rem; padding-left: 1.2rem; color: var(--soft);
  font-variant-numeric: tabular-nums; white-space: nowrap; }
.ranges .bad td:last-child { color: var(--bad); font-weight: 600; }
.ranges th.pass { font-weight: 600; padding-top: .7rem; line-height: 1.6; }
.bar { display: block; width: 100%; }
.range { fill: var(--range); }
.range.bad { fill: var(--bad); }
.range.none { fill: var(--bad); opacity: .16; }
.ranges tr.ends td { width: auto; padding: .35rem 0 .15rem; height: auto; }
.ends span { display: flex; align-items: center; gap: .7rem; color: var(--bad); font-weight: 600; }
.ends span::before, .ends span::after { content: ""; height: 2px; background: var(--bad); flex: 1; }
.ends span::before { flex: 0 0 1.4rem; }
.samples { list-style: none; margin: 0; padding: 0; display: grid; gap: .9rem .8rem;
  grid-template-columns: repeat(auto-fill, minmax(5.6rem, 1fr)); font-size: .8rem;
  color: var(--soft); line-height: 1.35; }
.samples svg { display: block; width: 100%; margin-bottom: .35rem; outline: 1px solid var(--line); }
.samples .bad svg, .samples .suspect svg { outline: 3px solid var(--bad); outline-offset: 1px; }
.samples .bad span, .samples .suspect span { color: var(--bad); font-weight: 600; }
.pixels { image-rendering: pixelated; }
.halo { fill: none; stroke: #fff; stroke-width: 5; vector-effect: non-scaling-stroke; }
.ring { fill: none; stroke: var(--ring); stroke-width: 2.5; vector-effect: non-scaling-stroke; }
footer { margin-top: 3rem; }
@media (max-width: 40rem) {
  body { padding: 1.6rem 1rem 3rem; }
  h1 { font-size: 1.9rem; }
  h2 { margin-top: 2.4rem; }
  .plot { padding-left: 2.9rem; padding-right: .6rem; }
  article { padding: 1.1rem 1rem 1rem; border-radius: 8px; }
  .incidents thead { position: absolute; clip-path: inset(50%); }
  .incidents tr { display: grid; grid-template-columns: auto 1fr auto; gap: 0 .9rem;
    padding: .7rem 0; border-bottom: 1px solid var(--line); }
  .incidents th, .incidents td { border: 0; padding: 0; }
  .incidents tbody th::before { content: "step "; font-weight: 400; color: var(--soft); }
  .incidents td[data-name]:not(:empty)::before { content: "loss "; color: var(--soft); }
  .why, .when { grid-column: 1 / -1; }
  .when { font-size: .87rem; }
  dl div { grid-template-columns: 1fr; padding: .35rem 0; gap: 0; }
  .ranges th { width: 38%; }
  .ranges td:last-child { width: 6.2rem; padding-left: .6rem; overflow: hidden;
    text-overflow: ellipsis; font-size: .72rem; }
  .ranges tr:not(.bad):not(.ends) td:last-child { color: transparent; }
  .extra { display: none; }
  .samples { grid-template-columns: repeat(auto-fill, minmax(5rem, 1fr)); }
}
@media print {
  :root { --paper: #fff; --card: #fff; }
  .samples { display: block; }
  .samples li { display: inline-block; width: 5.4rem; margin: 0 .7rem .7rem 0;
    vertical-align: top; }
  body { padding: 0; max-width: none; font-size: 10.5pt; }
  article { border: 0; padding: 0; }
  h2, h3, h4 { break-after: avoid; }
  tr, .samples li, .plot { break-inside: avoid; }
  svg, pre { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""

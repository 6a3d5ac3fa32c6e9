"""The report as one picture, drawn by matplotlib: what the page shows, less its links."""

import io
import textwrap
from typing import Any, Dict, List, Optional, Sequence, Tuple

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Patch, Rectangle

from slimguard.report import (
    incident_marks,
    lead,
    loss_chart_layout,
    png_last_steps,
    report_data,
    words,
)
from slimguard.report.bundle_view import AnyBundle, BundleView, UnreadableBundle
from slimguard.report.incident_view import ACTIONS, IncidentView
from slimguard.report.layer_ranges import Layer
from slimguard.report.lead import Lead
from slimguard.report.loss_history import Curve
from slimguard.report.png_parts import (
    BAD,
    CURVE,
    GRID,
    INK,
    LINE,
    RANGE,
    SOFT,
    Part,
    axes_at,
    plain,
    stacked,
    text,
    write,
)
from slimguard.report.report_data import ReportData
from slimguard.report.samples import Sample, Sheet
from slimguard.report.scales import Scale, magnitudes
from slimguard.system.texts import cut, visible

_WIDTH, _DPI = 10.0, 120  # inches, dots in an inch
_MOST_ROWS, _MOST_BUNDLES = 30, 5
_COLORS = {
    'raise': '#c8102e',
    'stop': '#b86e00',
    'rollback': '#6d4bc4',
    'skip': '#1f6fc4',
    'save refused': '#0b7d6e',
    'other': '#77756f',
    'not said': '#77756f',
}
_MARKERS = {
    'raise': 'v',
    'stop': 's',
    'rollback': 'D',
    'skip': 'o',
    'save refused': 'X',
    'not said': '_',
}


def draw(data: ReportData) -> bytes:
    """The picture, as a PNG file."""
    # Of our own, so that nobody's matplotlibrc, LaTeX for one, has a say.
    with matplotlib.rc_context(matplotlib.rcParamsDefault):
        return _drawn(_parts(data))


def _parts(data: ReportData) -> List[Part]:
    first = lead.lead_of(data.incidents, data.bundles)
    others = [bundle for bundle in data.bundles if first is None or bundle is not first.bundle]
    parts = [_header(data)]
    if first is not None:
        parts.append(text([first.heading], size=15, fontweight='bold'))
        parts.extend(_first(first))
    parts.extend(_loss(data.curve, data.incidents))
    for bundle in others[-_MOST_BUNDLES:]:
        parts.extend(_bundle_or_why_not(bundle))
    left_out = len(others) - _MOST_BUNDLES
    if left_out > 0:
        parts.append(text(['%d earlier bundles are on the page only.' % left_out], SOFT))
    if data.incidents:
        parts.append(_table(data.incidents))
    return parts


def _first(first: Lead) -> List[Part]:
    """What the picture opens with."""
    if first.bundle is not None:
        return _bundle_or_why_not(first.bundle)
    said = first.incident
    lines = [said.reason, *said.diagnosis.split('\n'), words.action_of(said), said.advice]
    return [text([line for line in lines if line]), text([''])]


def _drawn(parts: List[Part]) -> bytes:
    height = sum(part.size for part in parts) + 0.6
    figure = Figure(figsize=(_WIDTH, height), dpi=_DPI, facecolor='#fbfaf7')
    FigureCanvasAgg(figure)
    top = height - 0.3
    for part in parts:
        part.fill(figure, top / height, height)
        top -= part.size
    file = io.BytesIO()
    figure.savefig(file, format='png', facecolor=figure.get_facecolor())
    return file.getvalue()


def _header(data: ReportData) -> Part:
    lines = [data.made] + data.notes
    if data.curve is None:
        lines.append(words.NO_CURVE)
    return stacked(
        text([data.title], size=20, fontweight='bold'),
        text([report_data.summary(data)], BAD if data.broken else SOFT),
        text(lines, SOFT),
    )


# The loss.


def _loss(curve: Optional[Curve], incidents: Sequence[IncidentView]) -> List[Part]:
    lines = loss_chart_layout.lines_of(curve)
    stepped = loss_chart_layout.with_steps(incidents)
    if not lines and not stepped:
        return []

    def fill(figure, top: float, height: float) -> None:
        axes = axes_at(figure, top - 0.3 / height, height, 2.9)
        # Not matplotlib's own ticks, which fail at the ends of floats.
        x = loss_chart_layout.step_scale(lines, stepped)
        _draw_curve(axes, curve, x)
        for lane, kind in enumerate(a for a in ACTIONS if any(i.kind == a for _, i in stepped)):
            _draw_lane(axes, lane, kind, x, [(s, i) for s, i in stepped if i.kind == kind])
        axes.set_xticks([x(value) for value, _ in x.ticks])
        axes.set_xticklabels([label for _, label in x.ticks])
        _finish_loss(axes)

    return [Part(3.9, fill)]


def _draw_curve(axes, curve: Optional[Curve], x: Scale) -> None:
    y = loss_chart_layout.loss_scale(loss_chart_layout.lines_of(curve))
    if curve is None or y is None:
        axes.set_yticks([])
        return
    _draw_segments(axes, curve.tails, x, y, words.BESIDE if curve.segments else words.ALONE, 0.7)
    _draw_segments(axes, curve.segments, x, y, plain(cut(curve.tag, 100)), 1.2)
    for step, loss in loss_chart_layout.points_to_mark(curve.segments, curve.tails):
        axes.plot([x(step)], [y(loss)], '.', color=CURVE, ms=5, label='_')
    axes.set_yticks([y(value) for value, _ in y.ticks])
    axes.set_yticklabels([label for _, label in y.ticks])


def _draw_segments(axes, segments, x: Scale, y: Scale, name: str, width: float) -> None:
    for number, segment in enumerate(segments):
        # matplotlib leaves a name with a leading underscore out of the legend.
        label = '_' if number else '\N{ZERO WIDTH SPACE}' + name
        steps = [x(step) for step in segment[:, 0]]
        places = [y(loss) for loss in segment[:, 1]]
        axes.plot(steps, places, color=CURVE, lw=width, label=label)


def _draw_lane(
    axes, lane: int, kind: str, x: Scale, stepped: List[Tuple[int, IncidentView]]
) -> None:
    below, color = -0.1 - 0.07 * lane, _COLORS[kind]
    marker, label = _MARKERS.get(kind, 'P'), words.name_of(kind)
    places = sorted({x(step) for step, _ in stepped})
    if incident_marks.are_few(stepped):
        axes.vlines(places, below, 1, color=color, lw=0.7, alpha=0.4)
        axes.plot(places, [below] * len(places), marker, color=color, ms=6, label=label)
        return
    bins = incident_marks.bins_of(x, stepped)
    most = max(len(members) for _, members in bins)
    for start, members in bins:
        left, right = incident_marks.bin_ends(start)
        size = 0.01 + 0.05 * len(members) / most
        axes.bar(left, size, right - left, below - 0.03, align='edge', color=color)
    axes.plot([], [], marker, color=color, ms=6, label=label)


def _finish_loss(axes) -> None:
    axes.grid(axis='y', color=GRID, lw=0.8)
    axes.set_axisbelow(True)
    axes.spines['bottom'].set_visible(True)
    axes.spines['bottom'].set_color(SOFT)
    axes.set_xlabel('global step', fontsize=8, color=SOFT, loc='right')
    place = {'loc': 'lower left', 'bbox_to_anchor': (0, 1.0)}
    axes.legend(ncol=8, frameon=False, fontsize=8, borderpad=0, **place)


# The incidents.


def _table(incidents: Sequence[IncidentView]) -> Part:
    rows = [('step', 'action', 'loss', 'why')] + [_row(i) for i in incidents[-_MOST_ROWS:]]

    def fill(figure, top: float, height: float) -> None:
        for number, row in enumerate(rows):
            y = top - (0.1 + number * LINE) / height
            color = INK if number else SOFT
            for x, said, most in zip((0.05, 0.12, 0.22, 0.31), row, (12, 14, 12, 200)):
                write(figure, x, y, said[:most], fontsize=8, color=color)

    return Part(LINE * len(rows) + 0.4, fill)


def _row(incident: IncidentView) -> Tuple[str, str, str, str]:
    why = textwrap.shorten(visible(incident.reason), 110, placeholder=' \N{HORIZONTAL ELLIPSIS}')
    step = '' if incident.step is None else str(incident.step)
    return step, words.action_of(incident), words.number(incident.loss), why


# The bundles.


def _bundle_or_why_not(bundle: AnyBundle) -> List[Part]:
    if isinstance(bundle, UnreadableBundle):
        return [text(['%s cannot be read: %s' % (bundle.name, bundle.why)], BAD)]
    try:
        parts = _bundle(bundle)
        _draw_apart(parts)
        return parts
    except Exception as error:  # whatever it is, it must not cost the rest of the picture
        return [text([words.cannot_be_shown(bundle, error)], BAD)]


def _draw_apart(parts: List[Part]) -> None:
    """Draws parts where nobody sees it, so that they fail there."""
    figure = Figure(figsize=(_WIDTH, 1.0), dpi=_DPI)
    for part in parts:
        part.fill(figure, 1.0, 1.0)


def _bundle(bundle: BundleView) -> List[Part]:
    step = bundle.incident.step
    facts = [bundle.where, bundle.line, bundle.code, bundle.output, bundle.positions]
    facts += bundle.not_examined
    norm = words.norm_of(bundle.incident)
    facts.append('gradient norm ' + norm if norm else '')
    parts = [
        text([bundle.name if step is None else 'Step %d' % step], size=13, fontweight='bold'),
        text([words.sentence(bundle)]),
        text([fact for fact in facts if fact], SOFT, 8.0),
    ]
    if bundle.steps is not None:
        parts.extend(png_last_steps.parts_of(bundle.steps))
    parts.extend(_sheet(sheet) for sheet in bundle.sheets)
    if bundle.layers:
        parts.append(_ranges(bundle.layers))
    return parts


# The samples.


def _sheet(sheet: Sheet) -> Part:
    columns = 8
    lines = -(-len(sheet.samples) // columns)
    cell = 0.9 * _WIDTH / columns

    def fill(figure, top: float, height: float) -> None:
        said = '%s, %s %s' % (cut(sheet.name, 100), sheet.dtype, list(sheet.shape))
        write(figure, 0.05, top - 0.1 / height, said, fontsize=8, color=INK)
        for number, sample in enumerate(sheet.samples):
            left = 0.05 + 0.9 * (number % columns) / columns
            above = top - (0.35 + (number // columns) * (cell + 0.1)) / height
            tall = (cell - 0.25) / height
            _draw_sample(figure.add_axes([left, above - tall, 0.9 * 0.92 / columns, tall]), sample)

    return Part(0.45 + lines * (cell + 0.1), fill)


def _draw_sample(axes, sample: Sample) -> None:
    axes.imshow(sample.pixels, interpolation='nearest', aspect='equal')
    for y, x in sample.bad_pixels:
        axes.add_patch(_ring(x, y, max(sample.pixels.shape[:2])))
    axes.set_xticks([])
    axes.set_yticks([])
    is_bad = bool(sample.bad or sample.suspect)
    for side in axes.spines.values():
        side.set_color(BAD if is_bad else GRID)
        side.set_linewidth(3 if is_bad else 0.8)
    color = BAD if is_bad else SOFT
    axes.set_xlabel('row %d' % sample.row, fontsize=7, color=color, labelpad=3)


def _ring(x: int, y: int, side: int) -> Patch:
    style: Dict[str, Any] = {'fill': False, 'ec': '#ff0090', 'lw': 1.5}
    if side < 24:
        return Rectangle((x - 0.5, y - 0.5), 1, 1, **style)
    return Circle((x, y), side * 0.06, **style)


# The ranges.


def _ranges(layers: Sequence[Layer]) -> Part:
    size = 0.17 * (len(layers) + 1)
    begins = words.begins_at(layers)

    def fill(figure, top: float, height: float) -> None:
        axes = axes_at(figure, top - 0.3 / height, height, size, left=0.36, right=0.78)
        _draw_bars(axes, layers)
        for place, layer in enumerate(layers):
            y = top - (0.3 + size * (place + 0.15) / len(layers)) / height
            name = cut('%s  %s' % (layer.phase, layer.name), 60)
            color = INK if layer.is_finite else BAD
            write(figure, 0.05, y, name, fontsize=7, color=INK)
            write(figure, 0.80, y, words.range_of(layer), fontsize=7, color=color)
        if begins is not None:
            axes.axhline(begins - 0.5, color=BAD, lw=1.5)
            y = top - (0.3 + size * begins / len(layers)) / height
            write(figure, 0.2, y + 0.06 / height, words.begins(layers), fontsize=7, color=BAD)

    return Part(size + 0.7, fill)


def _draw_bars(axes, layers: Sequence[Layer]) -> None:
    scale = magnitudes([end for layer in layers for end in (layer.min, layer.max)])
    axes.set_xlim(0, 1)
    axes.set_ylim(len(layers) - 0.5, -0.5)
    axes.xaxis.tick_top()
    axes.set_xticks([scale(value) for value, _ in scale.ticks])
    axes.set_xticklabels([label for _, label in scale.ticks])
    axes.set_yticks([])
    axes.grid(axis='x', color=GRID, lw=0.8)
    axes.set_axisbelow(True)
    for place, layer in enumerate(layers):
        color = RANGE if layer.is_finite else BAD
        if layer.min is not None and layer.max is not None:
            start, end = scale(layer.min), scale(layer.max)
            axes.barh(place, max(end - start, 0.004), left=start, height=0.5, color=color)
        elif not layer.is_finite:
            axes.barh(place, 1, height=0.5, color=color, alpha=0.16)

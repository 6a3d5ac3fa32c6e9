"""The report as one picture, drawn by matplotlib: what the page shows, less its links."""

import io
import textwrap
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Patch, Rectangle

from slimguard.report import loss_chart_layout, report_data, words
from slimguard.report.bundle_view import AnyBundle, BundleView, UnreadableBundle
from slimguard.report.incident_view import ACTIONS, IncidentView
from slimguard.report.layer_ranges import Layer
from slimguard.report.loss_history import Curve
from slimguard.report.report_data import ReportData
from slimguard.report.samples import Sample, Sheet
from slimguard.report.scales import Scale, magnitudes
from slimguard.system.texts import cut, visible

_WIDTH, _DPI = 10.0, 120  # inches, dots in an inch
_LINE = 0.21  # the height of a line of text in inches
_MOST_ROWS, _MOST_BUNDLES = 30, 5
_INK, _SOFT, _GRID, _RANGE, _BAD = '#1d1d1b', '#5f5e5a', '#e3e1da', '#8fa5b8', '#c8102e'
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


class Part(NamedTuple):
    """A part of the picture.

    Attributes:
      size: its height in inches.
      fill: draws it into a figure: gets the place of its upper end, as a fraction of the figure's
        height, and that height in inches.
    """

    size: float
    fill: Callable[[Any, float, float], None]


def draw(data: ReportData) -> bytes:
    """The picture, as a PNG file."""
    # Of our own, so that nobody's matplotlibrc, LaTeX for one, has a say.
    with matplotlib.rc_context(matplotlib.rcParamsDefault):
        return _drawn(_parts(data))


def _parts(data: ReportData) -> List[Part]:
    parts = [_header(data), *_loss(data.curve, data.incidents)]
    if data.incidents:
        parts.append(_table(data.incidents))
    for bundle in data.bundles[-_MOST_BUNDLES:]:
        parts.extend(_bundle_or_why_not(bundle))
    left_out = len(data.bundles) - _MOST_BUNDLES
    if left_out > 0:
        parts.append(_text(['%d earlier bundles are on the page only.' % left_out], _SOFT))
    return parts


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


def _axes(figure, top: float, height: float, size: float, left: float = 0.09, right: float = 0.95):
    axes = figure.add_axes([left, top - size / height, right - left, size / height])
    axes.set_facecolor('none')
    for side in ('top', 'right', 'left', 'bottom'):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0, labelsize=8, labelcolor=_SOFT)
    return axes


def _write(figure, x: float, y: float, said: str, **kwargs) -> None:
    figure.text(x, y, _plain(said), va='top', **kwargs)


def _plain(said: str) -> str:
    # Between two dollars matplotlib would read TeX, and fail over what is none.
    return visible(said).replace('$', r'\$')


def _text(lines: List[str], color: str = _INK, size: float = 9.0, **kwargs) -> Part:
    wrapped = [part for line in lines for part in textwrap.wrap(visible(line), 118) or ['']]
    space = _LINE * size / 9.0

    def fill(figure, top: float, height: float) -> None:
        for number, line in enumerate(wrapped):
            y = top - number * space / height
            _write(figure, 0.05, y, line, fontsize=size, color=color, **kwargs)

    return Part(space * len(wrapped) + 0.06, fill)


def _header(data: ReportData) -> Part:
    lines = [data.made] + data.notes
    if data.curve is None:
        lines.append(words.NO_CURVE)
    return _below_each_other(
        _text([data.title], size=20, fontweight='bold'),
        _text([report_data.summary(data)], _BAD if data.broken else _SOFT),
        _text(lines, _SOFT),
    )


def _below_each_other(*parts: Part) -> Part:
    """Several parts as one."""

    def fill(figure, top: float, height: float) -> None:
        for part in parts:
            part.fill(figure, top, height)
            top -= part.size / height

    return Part(sum(part.size for part in parts) + 0.3, fill)


# The loss.


def _loss(curve: Optional[Curve], incidents: Sequence[IncidentView]) -> List[Part]:
    segments = loss_chart_layout.segments_of(curve)
    stepped = loss_chart_layout.with_steps(incidents)
    if not segments and not stepped:
        return []

    def fill(figure, top: float, height: float) -> None:
        axes = _axes(figure, top - 0.3 / height, height, 2.9)
        # Not matplotlib's own ticks, which fail at the ends of floats.
        x = loss_chart_layout.step_scale(segments, stepped)
        _draw_curve(axes, curve, x)
        for lane, kind in enumerate(a for a in ACTIONS if any(i.kind == a for _, i in stepped)):
            _draw_lane(axes, lane, kind, [x(step) for step in _steps_of(kind, stepped)])
        axes.set_xticks([x(value) for value, _ in x.ticks])
        axes.set_xticklabels([label for _, label in x.ticks])
        _finish_loss(axes)

    return [Part(3.9, fill)]


def _draw_curve(axes, curve: Optional[Curve], x: Scale) -> None:
    y = loss_chart_layout.loss_scale(loss_chart_layout.segments_of(curve))
    if curve is None or y is None:
        axes.set_yticks([])
        return
    tag = _plain(cut(curve.tag, 100))
    for number, segment in enumerate(curve.segments):
        # matplotlib leaves a name with a leading underscore out of the legend.
        label = '_' if number else '\N{ZERO WIDTH SPACE}' + tag
        steps = [x(step) for step in segment[:, 0]]
        places = [y(loss) for loss in segment[:, 1]]
        axes.plot(steps, places, color='#33414e', lw=1.2, label=label)
    axes.set_yticks([y(value) for value, _ in y.ticks])
    axes.set_yticklabels([label for _, label in y.ticks])


def _steps_of(kind: str, stepped: loss_chart_layout.Stepped) -> List[int]:
    return sorted({step for step, incident in stepped if incident.kind == kind})


def _draw_lane(axes, lane: int, kind: str, places: List[float]) -> None:
    below, color = -0.1 - 0.07 * lane, _COLORS[kind]
    axes.vlines(places, below, 1, color=color, lw=0.7, alpha=0.4)
    marker, label = _MARKERS.get(kind, 'P'), words.name_of(kind)
    axes.plot(places, [below] * len(places), marker, color=color, ms=6, label=label)


def _finish_loss(axes) -> None:
    axes.grid(axis='y', color=_GRID, lw=0.8)
    axes.set_axisbelow(True)
    axes.spines['bottom'].set_visible(True)
    axes.spines['bottom'].set_color(_SOFT)
    axes.set_xlabel('global step', fontsize=8, color=_SOFT, loc='right')
    place = {'loc': 'lower left', 'bbox_to_anchor': (0, 1.0)}
    axes.legend(ncol=8, frameon=False, fontsize=8, borderpad=0, **place)


# The incidents.


def _table(incidents: Sequence[IncidentView]) -> Part:
    rows = [('step', 'action', 'loss', 'why')] + [_row(i) for i in incidents[-_MOST_ROWS:]]

    def fill(figure, top: float, height: float) -> None:
        for number, row in enumerate(rows):
            y = top - (0.1 + number * _LINE) / height
            color = _INK if number else _SOFT
            for x, said, most in zip((0.05, 0.12, 0.22, 0.31), row, (12, 14, 12, 200)):
                _write(figure, x, y, said[:most], fontsize=8, color=color)

    return Part(_LINE * len(rows) + 0.4, fill)


def _row(incident: IncidentView) -> Tuple[str, str, str, str]:
    why = textwrap.shorten(visible(incident.reason), 110, placeholder=' \N{HORIZONTAL ELLIPSIS}')
    step = '' if incident.step is None else str(incident.step)
    return step, words.action_of(incident), words.number(incident.loss), why


# The bundles.


def _bundle_or_why_not(bundle: AnyBundle) -> List[Part]:
    if isinstance(bundle, UnreadableBundle):
        return [_text(['%s cannot be read: %s' % (bundle.name, bundle.why)], _BAD)]
    try:
        parts = _bundle(bundle)
        _draw_apart(parts)
        return parts
    except Exception as error:  # whatever it is, it must not cost the rest of the picture
        return [_text([words.cannot_be_shown(bundle, error)], _BAD)]


def _draw_apart(parts: List[Part]) -> None:
    """Draws parts where nobody sees it, so that they fail there."""
    figure = Figure(figsize=(_WIDTH, 1.0), dpi=_DPI)
    for part in parts:
        part.fill(figure, 1.0, 1.0)


def _bundle(bundle: BundleView) -> List[Part]:
    step = bundle.incident.step
    facts = [bundle.where, bundle.line, bundle.code, bundle.output, bundle.positions]
    facts += bundle.not_examined
    parts = [
        _text([bundle.name if step is None else 'Step %d' % step], size=13, fontweight='bold'),
        _text([words.sentence(bundle)]),
        _text([fact for fact in facts if fact], _SOFT, 8.0),
    ]
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
        _write(figure, 0.05, top - 0.1 / height, said, fontsize=8, color=_INK)
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
        side.set_color(_BAD if is_bad else _GRID)
        side.set_linewidth(3 if is_bad else 0.8)
    color = _BAD if is_bad else _SOFT
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
        axes = _axes(figure, top - 0.3 / height, height, size, left=0.36, right=0.78)
        _draw_bars(axes, layers)
        for place, layer in enumerate(layers):
            y = top - (0.3 + size * (place + 0.15) / len(layers)) / height
            name = cut('%s  %s' % (layer.phase, layer.name), 60)
            color = _INK if layer.is_finite else _BAD
            _write(figure, 0.05, y, name, fontsize=7, color=_INK)
            _write(figure, 0.80, y, words.range_of(layer), fontsize=7, color=color)
        if begins is not None:
            axes.axhline(begins - 0.5, color=_BAD, lw=1.5)
            y = top - (0.3 + size * begins / len(layers)) / height
            _write(figure, 0.2, y + 0.06 / height, words.BEGINS, fontsize=7, color=_BAD)

    return Part(size + 0.7, fill)


def _draw_bars(axes, layers: Sequence[Layer]) -> None:
    scale = magnitudes([end for layer in layers for end in (layer.min, layer.max)])
    axes.set_xlim(0, 1)
    axes.set_ylim(len(layers) - 0.5, -0.5)
    axes.xaxis.tick_top()
    axes.set_xticks([scale(value) for value, _ in scale.ticks])
    axes.set_xticklabels([label for _, label in scale.ticks])
    axes.set_yticks([])
    axes.grid(axis='x', color=_GRID, lw=0.8)
    axes.set_axisbelow(True)
    for place, layer in enumerate(layers):
        color = _RANGE if layer.is_finite else _BAD
        if layer.min is not None and layer.max is not None:
            start, end = scale(layer.min), scale(layer.max)
            axes.barh(place, max(end - start, 0.004), left=start, height=0.5, color=color)
        elif not layer.is_finite:
            axes.barh(place, 1, height=0.5, color=color, alpha=0.16)

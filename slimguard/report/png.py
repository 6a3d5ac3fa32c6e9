"""The report as one picture, drawn by matplotlib: what the page shows, less its links."""

import io
import textwrap
from typing import Any, List, Tuple

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Patch, Rectangle

from slimguard.report import html, report_data
from slimguard.report.report_data import ACTIONS, Entry, Finding, Findings, Unreadable
from slimguard.report.scales import magnitudes, scale_of
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


def draw(found: Findings) -> bytes:
    """The picture, as a PNG file."""
    # Of our own, so that nobody's matplotlibrc, LaTeX for one, has a say.
    with matplotlib.rc_context(matplotlib.rcParamsDefault):
        return _drawn(found)


def _drawn(found: Findings) -> bytes:
    parts = [_header(found), _loss(found)]
    if found.entries:
        parts.append(_table(found.entries))
    for it in found.bundles[-_MOST_BUNDLES:]:
        parts.extend(_place_of(it))
    left_out = len(found.bundles) - _MOST_BUNDLES
    if left_out > 0:
        parts.append(_text(['%d earlier bundles are on the page only.' % left_out], _SOFT))
    height = sum(part[0] for part in parts) + 0.6
    figure = Figure(figsize=(_WIDTH, height), dpi=_DPI, facecolor='#fbfaf7')
    FigureCanvasAgg(figure)
    top = height - 0.3
    for size, fill in parts:
        fill(figure, top / height, height)
        top -= size
    file = io.BytesIO()
    figure.savefig(file, format='png', facecolor=figure.get_facecolor())
    return file.getvalue()


# A part is its height in inches, and what draws it below the place it is given.


def _axes(figure, top: float, height: float, size: float, left: float = 0.09, right: float = 0.95):
    axes = figure.add_axes([left, top - size / height, right - left, size / height])
    axes.set_facecolor('none')
    for side in ('top', 'right', 'left', 'bottom'):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0, labelsize=8, labelcolor=_SOFT)
    return axes


def _write(figure, x: float, y: float, said: str, **kwargs) -> None:
    # Between two dollars matplotlib would read TeX, and fail over what is none.
    figure.text(x, y, visible(said).replace('$', r'\$'), va='top', **kwargs)


def _text(lines: List[str], color: str = _INK, size: float = 9.0, **kwargs) -> Tuple[float, Any]:
    wrapped = [part for line in lines for part in textwrap.wrap(visible(line), 118) or ['']]
    space = _LINE * size / 9.0

    def fill(figure, top: float, height: float) -> None:
        for number, line in enumerate(wrapped):
            y = top - number * space / height
            _write(figure, 0.05, y, line, fontsize=size, color=color, **kwargs)

    return space * len(wrapped) + 0.06, fill


def _header(found: Findings) -> Tuple[float, Any]:
    lines = [found.made[:1].upper() + found.made[1:]] + found.notes
    if found.curve is None:
        lines.append(html.NO_CURVE)
    return _below_each_other(
        _text([found.title], size=20, fontweight='bold'),
        _text([report_data.summary(found)], _BAD if found.broken else _SOFT),
        _text(lines, _SOFT),
    )


def _below_each_other(*parts: Tuple[float, Any]) -> Tuple[float, Any]:
    """Several parts as one."""

    def fill(figure, top: float, height: float) -> None:
        for size, fill_part in parts:
            fill_part(figure, top, height)
            top -= size / height

    return sum(size for size, _ in parts) + 0.3, fill


def _loss(found: Findings) -> Tuple[float, Any]:
    entries = [entry for entry in found.entries if entry.step is not None]
    stretches = [] if found.curve is None else found.curve.stretches
    if not stretches and not entries:
        return 0.0, lambda *_: None

    def fill(figure, top: float, height: float) -> None:
        axes = _axes(figure, top - 0.3 / height, height, 2.9)
        # Not matplotlib's own ticks, which fail at the ends of floats.
        x = scale_of(
            np.concatenate([s[:, 0] for s in stretches] + [[e.step for e in entries]]),
            'linear',
            whole=True,
            padded=False,
        )
        if stretches:
            y = scale_of(np.concatenate([s[:, 1] for s in stretches]))
            for number, stretch in enumerate(stretches):
                tag = visible(cut(found.curve.tag, 100)) if found.curve else ''
                tag = tag.replace('$', r'\$')
                # matplotlib leaves a name with a leading underscore out of the legend.
                label = '_' if number else '\N{ZERO WIDTH SPACE}' + tag
                steps = [x(step) for step in stretch[:, 0]]
                places = [y(loss) for loss in stretch[:, 1]]
                axes.plot(steps, places, color='#33414e', lw=1.2, label=label)
            axes.set_yticks([y(value) for value, _ in y.ticks])
            axes.set_yticklabels([label for _, label in y.ticks])
        else:
            axes.set_yticks([])
        for lane, action in enumerate(a for a in ACTIONS if any(e.kind == a for e in entries)):
            steps = [x(step) for step in sorted({e.step for e in entries if e.kind == action})]
            axes.vlines(steps, -0.1 - 0.07 * lane, 1, color=_COLORS[action], lw=0.7, alpha=0.4)
            places = [-0.1 - 0.07 * lane] * len(steps)
            marker = _MARKERS.get(action, 'P')
            label = html.NAMES.get(action, action)
            axes.plot(steps, places, marker, color=_COLORS[action], ms=6, label=label)
        axes.set_xticks([x(value) for value, _ in x.ticks])
        axes.set_xticklabels([label for _, label in x.ticks])
        axes.grid(axis='y', color=_GRID, lw=0.8)
        axes.set_axisbelow(True)
        axes.spines['bottom'].set_visible(True)
        axes.spines['bottom'].set_color(_SOFT)
        axes.set_xlabel('global step', fontsize=8, color=_SOFT, loc='right')
        axes.legend(
            loc='lower left',
            bbox_to_anchor=(0, 1.0),
            ncol=8,
            frameon=False,
            fontsize=8,
            borderpad=0,
        )

    return 3.9, fill


def _table(entries: List[Entry]) -> Tuple[float, Any]:
    shown = entries if len(entries) <= _MOST_ROWS else entries[-_MOST_ROWS:]
    rows = [('step', 'action', 'loss', 'why')]
    for entry in shown:
        loss = html.number(entry.loss)
        why = textwrap.shorten(visible(entry.reason), 110, placeholder=' \N{HORIZONTAL ELLIPSIS}')
        rows.append(
            ('' if entry.step is None else str(entry.step), html.action_of(entry), loss, why)
        )

    def fill(figure, top: float, height: float) -> None:
        for number, row in enumerate(rows):
            y = top - (0.1 + number * _LINE) / height
            color = _INK if number else _SOFT
            for x, said, most in zip((0.05, 0.12, 0.22, 0.31), row, (12, 14, 12, 200)):
                _write(figure, x, y, said[:most], fontsize=8, color=color)

    return _LINE * len(rows) + 0.4, fill


def _place_of(it: Any) -> List[Tuple[float, Any]]:
    if isinstance(it, Unreadable):
        return [_text(['%s cannot be read: %s' % (it.name, it.why)], _BAD)]
    try:
        parts = _cause(it)
        _draw_apart(parts)
        return parts
    except Exception as error:  # whatever it is, it must not cost the rest of the picture
        return [_text([html.cannot_be_shown(it, error)], _BAD)]


def _draw_apart(parts: List[Tuple[float, Any]]) -> None:
    """Draws parts where nobody sees it, so that they fail there."""
    figure = Figure(figsize=(_WIDTH, 1.0), dpi=_DPI)
    for _, fill in parts:
        fill(figure, 1.0, 1.0)


def _cause(it: Finding) -> List[Tuple[float, Any]]:
    title = it.name if it.entry.step is None else 'Step %d' % it.entry.step
    facts = [it.where, it.place, it.code, it.output, it.spots] + it.not_seen
    parts = [
        _text([title], size=13, fontweight='bold'),
        _text([html.sentence(it)]),
        _text([fact for fact in facts if fact], _SOFT, 8.0),
    ]
    parts.extend(_sheet(sheet) for sheet in it.sheets)
    if it.layers:
        parts.append(_ranges(it))
    return parts


def _sheet(sheet) -> Tuple[float, Any]:
    columns = 8
    lines = -(-len(sheet.samples) // columns)
    cell = 0.9 * _WIDTH / columns

    def fill(figure, top: float, height: float) -> None:
        said = '%s, %s %s' % (cut(sheet.name, 100), sheet.dtype, list(sheet.shape))
        _write(figure, 0.05, top - 0.1 / height, said, fontsize=8, color=_INK)
        for number, sample in enumerate(sheet.samples):
            left = 0.05 + 0.9 * (number % columns) / columns
            above = top - (0.35 + (number // columns) * (cell + 0.1)) / height
            box = [
                left,
                above - (cell - 0.25) / height,
                0.9 * 0.92 / columns,
                (cell - 0.25) / height,
            ]
            axes = figure.add_axes(box)
            axes.imshow(sample.pixels, interpolation='nearest', aspect='equal')
            is_bad = bool(sample.bad or sample.suspect)
            for y, x in sample.spots:
                ring = _ring(x, y, max(sample.pixels.shape[:2]))
                axes.add_patch(ring)
            axes.set_xticks([])
            axes.set_yticks([])
            for side in axes.spines.values():
                side.set_color(_BAD if is_bad else _GRID)
                side.set_linewidth(3 if is_bad else 0.8)
            color = _BAD if is_bad else _SOFT
            axes.set_xlabel('row %d' % sample.row, fontsize=7, color=color, labelpad=3)

    return 0.45 + lines * (cell + 0.1), fill


def _ring(x: int, y: int, side: int) -> Patch:
    style = {'fill': False, 'ec': '#ff0090', 'lw': 1.5}
    if side < 24:
        return Rectangle((x - 0.5, y - 0.5), 1, 1, **style)
    return Circle((x, y), side * 0.06, **style)


def _ranges(it: Finding) -> Tuple[float, Any]:
    layers = it.layers
    size = 0.17 * (len(layers) + 1)

    def fill(figure, top: float, height: float) -> None:
        scale = magnitudes([end for layer in layers for end in (layer.min, layer.max)])
        axes = _axes(figure, top - 0.3 / height, height, size, left=0.36, right=0.78)
        axes.set_xlim(0, 1)
        axes.set_ylim(len(layers) - 0.5, -0.5)
        axes.xaxis.tick_top()
        axes.set_xticks([scale(value) for value, _ in scale.ticks])
        axes.set_xticklabels([label for _, label in scale.ticks])
        axes.grid(axis='x', color=_GRID, lw=0.8)
        axes.set_axisbelow(True)
        axes.set_yticks([])
        for place, layer in enumerate(layers):
            color = _RANGE if layer.is_finite else _BAD
            if layer.min is not None and layer.max is not None:
                start, end = scale(layer.min), scale(layer.max)
                axes.barh(place, max(end - start, 0.004), left=start, height=0.5, color=color)
            elif not layer.is_finite:
                axes.barh(place, 1, height=0.5, color=color, alpha=0.16)
            y = top - (0.3 + size * (place + 0.15) / len(layers)) / height
            name = cut('%s  %s' % (layer.phase, layer.name), 60)
            words = _INK if layer.is_finite else _BAD
            _write(figure, 0.05, y, name, fontsize=7, color=_INK)
            _write(figure, 0.80, y, html.said_of(layer), fontsize=7, color=words)
        begins = html.begins_at(layers)
        if begins is not None:
            axes.axhline(begins - 0.5, color=_BAD, lw=1.5)
            y = top - (0.3 + size * begins / len(layers)) / height
            _write(figure, 0.2, y + 0.06 / height, 'here finite ends', fontsize=7, color=_BAD)

    return size + 0.7, fill

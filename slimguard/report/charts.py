"""The charts, each drawn once, by matplotlib: as SVG for the page, and as pixels for the picture.

A chart is drawn at the width at which it is seen, so that its letters have one size on a phone and
on a desk. The code uses matplotlib's objects, never pyplot. It ignores the user's matplotlibrc, and
changes no settings.
"""

import contextlib
import io
import math
import textwrap
import warnings
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple
from xml.etree import ElementTree

import matplotlib
import numpy as np
from matplotlib import ticker
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from slimguard.report import last_steps, samples
from slimguard.report.cards import ACTIONS, IncidentView
from slimguard.report.last_steps import LastSteps
from slimguard.report.loss_history import Curve
from slimguard.report.samples import BAD, Sheet
from slimguard.system.texts import cut, in_one_line, visible

WIDE, NARROW = 900, 340  # pixels: on a desk, on a phone

# The page has these colours as CSS variables of the same names, with others in the dark.
COLORS = {
    'paper': '#fbfaf7',
    'ink': '#1d1d1b',
    'soft': '#5f5e5a',
    'grid': '#e9e7e1',
    'curve': '#33414e',
    'bad': '#c8102e',
    'ring': '#ff0090',
    'stop': '#b86e00',
    'rollback': '#6d4bc4',
    'skip': '#1f6fc4',
    'refused': '#0b7d6e',
    'other': '#77756f',
}
_INK, _SOFT, _GRID, _CURVE, _BAD, _RING, _UNWRITTEN = (
    COLORS[name] for name in 'ink soft grid curve bad ring skip'.split()
)
# Each action has a shape as well as a colour: pages are printed in grey, and not all eyes tell
# colours apart.
_MARKERS: Dict[str, Tuple[str, str]] = dict(
    zip(ACTIONS, zip('vsDoXPp', 'bad stop rollback skip refused other other'.split()))
)
_STYLE = {
    'svg.fonttype': 'none',
    'font.sans-serif': ['DejaVu Sans'],
    'font.size': 12,
    'text.color': _INK,
    'figure.facecolor': 'none',
    'axes.facecolor': 'none',
    'axes.edgecolor': _SOFT,
    'axes.axisbelow': True,
    'axes.formatter.limits': (-4, 7),
    'axes.xmargin': 0,
    'axes.ymargin': 0.04,
    'grid.color': _GRID,
    'image.composite_image': False,
    'legend.frameon': False,
    'legend.borderpad': 0,
    'legend.handlelength': 1.3,
    'lines.linewidth': 1.6,
    'xtick.labelcolor': _SOFT,
    'ytick.labelcolor': _SOFT,
    'xtick.color': _SOFT,
    'xtick.major.size': 4,
    'ytick.major.size': 0,
    **{'axes.spines.%s' % side: False for side in ('top', 'left', 'right')},
}


class Chart(NamedTuple):
    """A chart.

    Attributes:
      said: what it shows, in a sentence.
      draw: draws a figure of the given width in pixels.
      links: the links of marks, each with its label.
    """

    said: str
    draw: Callable[[int], Figure]
    links: Dict[str, str] = {}


def svg(chart: Chart, name: str, width: int) -> str:
    """The chart as an element of a page; no other chart there has the same `name`."""
    with _style(name + str(width)):
        file = io.BytesIO()
        FigureCanvasSVG(chart.draw(width)).print_svg(file)
    root = ElementTree.fromstring(file.getvalue())
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (_SVG + 'metadata', _SVG + 'style'):
                parent.remove(child)
        _adapt(parent, chart.links)
    root.attrib = {
        'viewBox': root.attrib['viewBox'],
        'role': 'group' if chart.links else 'img',
        'aria-label': in_one_line(chart.said),
        'class': 'wide' if width == WIDE else 'narrow',
    }
    return ElementTree.tostring(root, 'unicode')


_SVG, _HREF = '{http://www.w3.org/2000/svg}', '{http://www.w3.org/1999/xlink}href'


def _adapt(element: ElementTree.Element, links: Dict[str, str]) -> None:
    """Adapts an element to a page that has other figures, its own font, and a dark theme."""
    given = element.attrib
    element.tag = element.tag.replace(_SVG, '')
    element.tail = None
    if element.tag not in ('text', 'tspan'):
        element.text = None
    if element.tag == 'g':
        given.pop('id', None)
    if _HREF in given:
        given['href'] = given.pop(_HREF).replace('\n', '')
    if element.tag == 'a':
        said = given['aria-label'] = in_one_line(links[given['href']])
        ElementTree.SubElement(element, 'title').text = said
    if 'style' in given:
        for name, color in COLORS.items():
            given['style'] = given['style'].replace(color, 'var(--%s)' % name)
        given['style'] = given['style'].replace("'DejaVu Sans'", 'x').replace('; ', ';')


def pixels(chart: Chart, width: int = WIDE) -> np.ndarray:
    """The chart as uint8 [height, width, 4], on the page's paper."""
    with _style():
        figure = chart.draw(width)
        figure.set_dpi(96)
        figure.set_facecolor(COLORS['paper'])
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        return np.array(canvas.buffer_rgba())


@contextlib.contextmanager
def _style(salt: str = ''):
    with warnings.catch_warnings(), matplotlib.rc_context(matplotlib.rcParamsDefault):
        warnings.simplefilter('ignore')  # such as a warning of letters that the font lacks
        matplotlib.rcParams.update({'svg.hashsalt': salt, **_STYLE})
        yield


def text(lines: Sequence[str], size: int) -> Chart:
    """Words for a picture, wrapped to its width."""

    def draw(width: int) -> Figure:
        letters = int(width / size * 1.6)
        lines_of = (textwrap.wrap(cut(visible(line), 400), letters) or [''] for line in lines)
        wrapped = [part for parts in lines_of for part in parts]
        figure = _figure(width, 1.5 * size * len(wrapped) + 12)
        for number, line in enumerate(wrapped):
            _write(figure, 0, 6 + 1.5 * size * number, line, size=size)
        return figure

    return Chart('', draw)


# What the charts share.


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width / 72, height / 72), dpi=72)


def _axes(figure: Figure, left: float, top: float, width: float, height: float) -> Any:
    """Axes at a place in pixels from the upper left corner."""
    across, down = figure.get_size_inches() * 72
    place = [left / across, 1 - (top + height) / down, width / across, height / down]
    return figure.add_axes(place)


def _write(figure: Figure, x: float, y: float, said: str, **kwargs) -> None:
    """Writes text; its first line begins at a point given in pixels from the upper left corner."""
    across, down = figure.get_size_inches() * 72
    figure.text(x / across, 1 - y / down, _plain(said), **{'va': 'top', **kwargs})


def _plain(said: str) -> str:
    # Between two dollars matplotlib would read TeX, and fail if it is none.
    return in_one_line(said).replace('$', r'\$')


def _legend(figure: Figure, handles: List[Any], labels: List[str], columns: int) -> None:
    # matplotlib leaves out a label with a leading underscore.
    labels = ['\N{ZERO WIDTH SPACE}' + _plain(cut(label, 80)) for label in labels]
    place = {'loc': 'upper left', 'bbox_to_anchor': (0, 1), 'borderaxespad': 0}
    figure.legend(handles, labels, ncol=columns, columnspacing=1.2, **place)


def _rows(labels: List[str], width: float) -> int:
    """How many rows a legend takes: one, or one for each label."""
    return 1 if sum(7 * len(label) + 45 for label in labels) < width else len(labels)


def _tame(values: Any) -> np.ndarray:
    """Floats that matplotlib can place: the ticks around them are finite as well."""
    values = np.asarray(values, float)
    values = np.where(np.isfinite(values), np.clip(values, -1e150, 1e150), np.nan)
    return np.where(np.abs(values) < 1e-150, 0.0, values)


def _scale(axes: Any, values: np.ndarray, most: int) -> bool:
    """Makes the axis of `values` logarithmic if they go over two orders of magnitude."""
    found = values[np.isfinite(values)]
    positive = found[found > 0]
    axes.grid(axis='y')
    is_log = positive.size > 0 and found.min() >= 0 and positive.max() > 100 * positive.min()
    if is_log:
        axes.set_yscale('log')
        decades = math.log10(positive.max()) - math.log10(positive.min())
        subs = (1, 2, 5) if 3 * decades <= most else (1,)
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=subs, numticks=most))
        axes.yaxis.set_major_formatter(lambda value, _: '%g' % value)
        axes.minorticks_off()
    else:
        axes.yaxis.set_major_locator(ticker.MaxNLocator(most))
    return is_log


def _draw_line(axes: Any, x: np.ndarray, y: np.ndarray, is_log: bool, marks: bool) -> None:
    """A line with gaps at non-finite values; `marks` marks all points, and not only lone ones."""
    if is_log:  # a zero is drawn at the lower end
        y = np.where(y <= 0, np.min(y[y > 0], initial=np.inf), y)
    known = np.isfinite(y)
    alone = known & ~np.append(known[1:], False) & ~np.append(False, known[:-1])
    axes.plot(x, y, color=_CURVE)
    marked = known if marks else alone
    axes.plot(x[marked], y[marked], '.', color=_CURVE, ms=6, clip_on=False)


# The loss.

_PLOT, _LANE, _ROW = 240, 20, 18  # pixels: a curve, the marks of an action, a row of text
_NEAREST = 0.045  # of the width: closer marks would overlap on a phone


def loss_chart(
    curve: Optional[Curve], incidents: Sequence[IncidentView], links: Dict[int, str]
) -> Optional[Chart]:
    """The loss over the global step with the incidents marked; None if there is nothing to draw.

    Args:
      curve: the loss, or None.
      incidents: those without a step are left out.
      links: where on the page each incident is, by its number.
    """
    lines = [] if curve is None else curve.segments
    stepped = sorted((i for i in incidents if i.step is not None), key=lambda i: (i.step, i.number))
    if not lines and not stepped:
        return None
    steps = _tame([step for line in lines for step in line[:, 0]] + [i.step for i in stepped])
    low, high = float(steps.min()), float(steps.max())
    low, high = (low, high) if low < high else (low - 1, high + 1)
    lanes = [
        (kind, _marks([i for i in stepped if i.kind == kind], _NEAREST * (high - low)))
        for kind in ACTIONS
        if any(i.kind == kind for i in stepped)
    ]
    handles, labels = _loss_legend(curve, lanes)

    def draw(width: int) -> Figure:
        top = _rows(labels, width) * _ROW + 14
        plot, note = _PLOT if lines else 0, ''
        down = plot + 8 + _LANE * len(lanes)
        figure = _figure(width, top + down + 42)
        _legend(figure, handles, labels, 1 if _rows(labels, width) > 1 else len(labels))
        if lines:
            axes = _axes(figure, 60, top, width - 84, plot)
            axes.set(xlim=(low, high), xticks=[])
            is_log = _scale(axes, _tame(np.concatenate(lines)[:, 1]), 7)
            axes.spines['bottom'].set_visible(False)
            few = sum(map(len, lines)) <= 60
            for part in lines:
                _draw_line(axes, _tame(part[:, 0]), _tame(part[:, 1]), is_log, few)
            note = 'the axis of the loss is logarithmic; ' if is_log else ''
        axes = _axes(figure, 60, top, width - 84, down)
        axes.set(xlim=(low, high), ylim=(down, 0), yticks=[])
        axes.xaxis.set_major_locator(ticker.MaxNLocator(7 if width == WIDE else 3, integer=True))
        axes.xaxis.set_major_formatter(lambda value, _: '%.12g' % value)
        for number, (kind, groups) in enumerate(lanes):
            _draw_marks(axes, kind, groups, plot + 8 + _LANE * (number + 0.5), links)
        _write(figure, width - 24, top + down + 24, note + 'global step', ha='right', color=_SOFT)
        return figure

    said = {links[group[0].number]: _said(group) for _, groups in lanes for group in groups}
    return Chart(
        'The loss over the global step, with %d incidents marked' % len(stepped), draw, said
    )


def _loss_legend(curve: Optional[Curve], lanes: Any) -> Tuple[List[Any], List[str]]:
    handles: List[Any] = []
    labels: List[str] = []
    if curve is not None and curve.segments:
        is_line = any(len(segment) > 1 for segment in curve.segments)
        look = {} if is_line else {'ls': '', 'marker': '.'}
        handles, labels = [Line2D([], [], color=_CURVE, **look)], [curve.tag]
    for kind, groups in lanes:
        marker, color = _MARKERS[kind]
        handles.append(Line2D([], [], ls='', marker=marker, color=COLORS[color], ms=8))
        labels.append('%s (%d)' % (kind, sum(map(len, groups))))
    return handles, labels


Group = List[IncidentView]


def _marks(incidents: Group, nearest: float) -> List[Group]:
    """Groups incidents whose marks would overlap: they share a mark."""
    groups: List[Group] = []
    for incident in incidents:
        step = incident.step or 0
        if not groups or step - (groups[-1][0].step or 0) >= nearest:
            groups.append([])
        groups[-1].append(incident)
    return groups


def _said(group: Group) -> str:
    first, last = group[0], group[-1]
    action = first.action or 'not said'
    if len(group) == 1:
        return 'step %d, %s: %s' % (first.step, action, cut(first.cause, 200))
    return 'steps %d to %d: %d incidents, %s' % (first.step, last.step, len(group), action)


def _draw_marks(axes: Any, kind: str, groups: List[Group], y: float, links: Dict[int, str]) -> None:
    """Draws the marks of an action, each a link, and larger for more incidents."""
    marker, name = _MARKERS[kind]
    x = _tame([group[0].step for group in groups])
    axes.vlines(x, 0, y, color=COLORS[name], lw=1, alpha=0.45)
    sizes = [80 * (1 + math.log10(len(group))) for group in groups]
    look = {'color': COLORS[name], 'edgecolor': COLORS['paper'], 'zorder': 3, 'clip_on': False}
    marks = axes.scatter(x, [y] * len(x), sizes, marker=marker, **look)
    marks.set_linewidths([1, 1])  # else an older matplotlib draws a single mark without its link
    marks.set_urls([links[group[0].number] for group in groups])


# The last steps.

_SERIES, _LINE, _MOST_LINES = 88, 16, 40  # pixels: a plot, a row of the heat map; such rows
_MOST_DECADES = 6
_PALETTE = LinearSegmentedColormap.from_list(
    'ratios',
    list(
        zip(
            (0, 0.25, 0.5, 0.67, 0.83, 1),
            ('#1c4a8a', '#96b6d4', '#eeece6', '#fcba58', '#d65c08', '#601806'),
        )
    ),
    33,
)


def last_steps_chart(steps: LastSteps) -> Chart:
    """Loss and gradient norm of the last steps, and the norm of each gradient by its colour."""
    ratios = last_steps.ratios_of(steps.norms)
    begin = last_steps.beginning_of(steps, ratios)
    lines, count = last_steps.lines(steps), len(steps.step)
    names, rows, begins_at = _heat_rows(steps, ratios, begin)
    is_bad = np.isnan(rows).any() or any(not np.isfinite(values).all() for _, values in lines)
    marks = [(_RING, 'not finite (above)')] if is_bad else []
    marks += [] if steps.written.all() else [(_UNWRITTEN, 'not written (below)')]

    def draw(width: int) -> Figure:
        left = int((0.34 if width == WIDE else 0.44) * width)
        across, top = width - left - 16, 24 if marks else 0
        down = len(lines) * (_SERIES + 30) + (30 + len(rows) * _LINE if names else 0)
        figure = _figure(width, top + down + 44 + (30 if names else 0))
        if marks:
            _legend(figure, [Patch(color=c) for c, _ in marks], [said for _, said in marks], 2)
        for name, values in lines:
            axes = _axes(figure, left, top + 24, across, _SERIES)
            axes.set(xlim=(0, count), xticks=[])
            is_log = _scale(axes, _tame(values), 4)
            _draw_line(axes, np.arange(count) + 0.5, _tame(values), is_log, count <= 60)
            _strip(axes, ~np.isfinite(values), 1 - 5 / _SERIES, _RING)
            _strip(axes, ~steps.written, 0, _UNWRITTEN)
            _write(figure, left, top + 4, name + (', logarithmic' if is_log else ''), weight='bold')
            top += _SERIES + 30
        if names:
            _write(figure, left, top + 6, 'norm of each gradient', weight='bold')
            colors, ends = _heat_colors(rows)
            axes = _axes(figure, left, top + 26, across, len(rows) * _LINE)
            place = {'extent': (0, count, len(rows), 0), 'aspect': 'auto'}
            axes.imshow(colors, interpolation='none', **place)
            said = [_plain(last_steps.variables(*name, (left - 12) // 7)) for name in names]
            axes.set(xticks=[], yticks=np.arange(len(rows)) + 0.5, yticklabels=said)
            axes.tick_params(labelsize=11, labelcolor=_INK)
            if begins_at is not None:
                axes.get_yticklabels()[begins_at].set(color=_BAD, weight='bold')
            top += 26 + len(rows) * _LINE
            _draw_colors(figure, left, top + 46, ends)
        axes = _axes(figure, left, top, across, 1)
        ticks = np.unique(np.linspace(0, count - 1, 7 if width == WIDE else 3).astype(int))
        axes.set(xlim=(0, count), yticks=[], xticks=ticks + 0.5)
        axes.set_xticklabels([str(steps.step[tick]) for tick in ticks])
        axes.get_xticklabels()[-1].set_ha('right' if count > 20 else 'center')  # else cut off
        axes.spines['bottom'].set_visible(False)
        _write(figure, width - 16, top + 25, steps.axis, ha='right', color=_SOFT)
        return figure

    return Chart(last_steps.caption(steps, begin) or last_steps.heading(steps), draw)


def _strip(axes: Any, where: np.ndarray, bottom: float, color: str) -> None:
    """Marks the columns where something holds, at the upper or lower end of a plot."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], where.astype(int), [0]])))
    spans = [(start, end - start) for start, end in edges.reshape(-1, 2)]
    place = {'transform': axes.get_xaxis_transform(), 'clip_on': False}
    axes.broken_barh(spans, (bottom, 5 / _SERIES), color=color, lw=0.5, **place)
    axes.set_xlim(0, len(where))


def _heat_rows(
    steps: LastSteps, ratios: np.ndarray, begin: Optional[last_steps.Beginning]
) -> Tuple[List[Tuple[str, int]], np.ndarray, Optional[int]]:
    """The name of each row of the heat map, its ratios, and the row where it began.

    If there are many gradients, several share a row, which shows the largest or a non-finite one.
    """
    gradients = steps.gradients
    size = max(1, -(-len(gradients) // _MOST_LINES))
    starts = list(range(0, len(gradients), size))
    if not starts:
        return [], np.empty([0, len(steps.step)]), None
    rows = np.maximum.reduceat(ratios, starts, axis=1).T
    first = None if begin is None else begin.gradient
    at = None if first is None else first // size
    names = []
    for number, start in enumerate(starts):
        members = gradients[start : start + size]
        name, _ = members[0] if first is None or number != at else gradients[first]
        names.append((name, sum(1 + others for _, others in members) - 1))
    return names, rows, at


def _heat_colors(rows: np.ndarray) -> Tuple[np.ndarray, Tuple[int, int]]:
    """The colours of ratios, and how many decades they go below the median, and above."""
    found = rows[np.isfinite(rows)]
    ends = (-found.min(), found.max()) if found.size else (0.0, 0.0)
    below, above = (min(max(math.ceil(end - 1e-9), 1), _MOST_DECADES) for end in ends)
    with np.errstate(invalid='ignore'):  # older versions of NumPy warn of a NaN
        places = np.clip(np.where(rows < 0, rows / below, rows / above), -1, 1)
    colors = _PALETTE((places + 1) / 2, bytes=True)
    colors[np.isnan(rows)] = (*BAD, 255)
    return colors, (below, above)


def _draw_colors(figure: Figure, left: float, top: float, ends: Tuple[int, int]) -> None:
    """Draws the legend of a heat map's colours."""
    axes = _axes(figure, left, top, 150, 10)
    place = {'extent': (0, 2, 0, 1), 'aspect': 'auto'}
    axes.imshow(_PALETTE(np.linspace(0, 1, 33), bytes=True)[np.newaxis], **place)
    axes.set(xticks=(0, 1, 2), yticks=[])
    axes.set_xticklabels(['%g' % 10.0 ** -ends[0], '1', '%g' % 10.0 ** ends[1]])
    for line, said in enumerate(('norm by the', 'median of its row')):
        _write(figure, left - 24, top - 3 + 15 * line, said, ha='right', color=_SOFT)


# The samples.


def samples_chart(sheet: Sheet) -> Chart:
    """The samples of a batch, with the bad ones framed and their bad pixels marked."""

    def draw(width: int) -> Figure:
        columns = 8 if width == WIDE else 4
        cell = width / columns
        height, across = sheet.samples[0].pixels.shape[:2]
        size = cell - 12, (cell - 12) * min(2.0, height / across)
        lines = max(len(samples.said(sample)) for sample in sheet.samples)
        down = size[1] + 18 + 14 * lines
        figure = _figure(width, -(-len(sheet.samples) // columns) * down)
        for number, sample in enumerate(sheet.samples):
            left, top = number % columns * cell + 3, number // columns * down + 3
            axes = _axes(figure, left, top, *size)
            axes.imshow(sample.pixels, interpolation='none', aspect='auto')
            axes.set(xticks=[], yticks=[], autoscale_on=False)
            is_bad = bool(sample.bad or sample.suspect)
            look = {'color': _BAD, 'lw': 3} if is_bad else {'color': _GRID, 'lw': 1}
            for spine in axes.spines.values():
                spine.set(visible=True, **look)
            if max(height, across) >= 24 and sample.bad_pixels:  # a smaller image shows each pixel
                y, x = np.transpose(sample.bad_pixels)
                for color, lw in (('#ffffff', 4), (_RING, 2)):
                    look = {'facecolor': 'none', 'edgecolor': color, 'lw': lw, 'zorder': 3}
                    axes.scatter(x, y, 100, clip_on=False, **look)
            look = {'color': _BAD, 'weight': 'bold'} if is_bad else {'color': _SOFT}
            for line, said in enumerate(samples.said(sample)):
                _write(figure, left, top + size[1] + 5 + 14 * line, said, size=11, **look)
        return figure

    bad = sum(bool(sample.bad) for sample in sheet.samples)
    said = 'Samples of %s, %d of which are not finite' % (cut(sheet.name, 100), bad)
    return Chart(said, draw)

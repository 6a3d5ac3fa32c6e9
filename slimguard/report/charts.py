"""Draws the charts with matplotlib: as SVG for the page, as pixels for the picture.

A chart is drawn for the width of a phone or of a desktop, so that its letters have the same size on
both. The code uses matplotlib's objects, never pyplot. It ignores the user's matplotlibrc, and
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
from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm
from matplotlib.figure import Figure

from slimguard.report import last_steps, samples
from slimguard.report.cards import ACTIONS, IncidentView
from slimguard.report.last_steps import LastSteps
from slimguard.report.loss_history import Curve
from slimguard.report.samples import BAD, Sheet
from slimguard.system.texts import cut, in_one_line, visible

WIDE, NARROW = 900, 340  # pixels: on a desktop, on a phone

# The page has these colours as CSS variables of the same names; its dark theme has others.
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
# Each action has a shape as well as a colour, for pages printed in grey and for colour-blind
# readers.
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
    'axes.titlesize': 12,
    'axes.titleweight': 'bold',
    'axes.labelcolor': _SOFT,
    'axes.labelsize': 12,
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
    'ytick.major.pad': 9,  # keeps a mark at the first step off the label
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
    """The chart as an SVG element of a page; `name` must be unique on the page."""
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
    """Adapts an SVG element to a page with other figures, its own font, and a dark theme."""
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
        warnings.simplefilter('ignore')  # such as of letters missing in the font
        matplotlib.rcParams.update({'svg.hashsalt': salt, **_STYLE})
        yield


def text(lines: Sequence[str], size: int) -> Chart:
    """Words for a picture, wrapped to its width."""

    def draw(width: int) -> Figure:
        letters = int(width / size * 1.6)
        lines_of = (textwrap.wrap(cut(visible(line), 400), letters) or [''] for line in lines)
        wrapped = [_plain(part) for parts in lines_of for part in parts]
        height = 1.5 * size * len(wrapped) + 12
        figure = _figure(width, height)
        look = {'va': 'top', 'size': size, 'linespacing': 1.28}
        figure.text(0, 1 - 6 / height, '\n'.join(wrapped), **look)
        return figure

    return Chart('', draw)


# What the charts share.


def _figure(width: float, height: float, **kwargs) -> Figure:
    return Figure(figsize=(width / 72, height / 72), dpi=72, **kwargs)


def _plots(width: int, heights: Sequence[float], words: float) -> Tuple[Figure, List[Any]]:
    """Plots one above the other, over the same steps.

    Args:
      width: of the figure, in pixels.
      heights: of the plots, in pixels; the layout may change them a little, to fit the words.
      words: the height of all titles and labels.
    """
    figure = _figure(width, sum(heights) + words, layout='constrained')
    look = {'sharex': True, 'squeeze': False, 'gridspec_kw': {'height_ratios': list(heights)}}
    return figure, list(figure.subplots(len(heights), 1, **look)[:, 0])


def _most_ticks(width: int) -> int:
    return 7 if width == WIDE else 3


def _round_ticks(most: int) -> ticker.MaxNLocator:
    return ticker.MaxNLocator(most, integer=True, steps=[1, 2, 5, 10])


def _plain(said: str) -> str:
    # matplotlib would read the text between two dollars as TeX, and perhaps fail.
    return in_one_line(said).replace('$', r'\$')


def _tame(values: Any) -> np.ndarray:
    """Clips floats, so that matplotlib's ticks are finite; non-finite numbers become NaN."""
    values = np.asarray(values, float)
    values = np.where(np.isfinite(values), np.clip(values, -1e150, 1e150), np.nan)
    return np.where(np.abs(values) < 1e-150, 0.0, values)


def _draw_lines(axes: Any, name: str, lines: Sequence[np.ndarray], most: int) -> None:
    """Draws lines [points, 2], with gaps at non-finite values, and names their axis.

    The axis is logarithmic if the values span more than two orders of magnitude.

    Args:
      axes: where to draw.
      name: of the values.
      lines: the lines; all but the last are pale.
      most: the most ticks.
    """
    values = np.concatenate(lines)[:, 1]
    found = values[np.isfinite(values)]
    positive = found[found > 0]
    is_log = positive.size > 0 and found.min() >= 0 and positive.max() > 100 * positive.min()
    if is_log:
        axes.set_yscale('log')
        axes.yaxis.set_major_locator(ticker.LogLocator(numticks=most))
        axes.yaxis.set_major_formatter('{x:g}')
        axes.minorticks_off()
    else:
        axes.yaxis.set_major_locator(ticker.MaxNLocator(most))
    axes.grid(axis='y')
    axes.set_title(_plain(name) + (', logarithmic' if is_log else ''), loc='left')
    for number, (x, y) in enumerate((line.T for line in lines), 1):
        look = {'color': _CURVE, 'alpha': 1 if number == len(lines) else 0.4}
        if is_log:  # a zero is drawn at the lower end
            y = np.where(y <= 0, positive.min(), y)
        known = np.isfinite(y)
        alone = known & ~np.append(known[1:], False) & ~np.append(False, known[:-1])
        marked = known if len(values) <= _FEW_POINTS else alone
        axes.plot(x, y, **look)
        if marked.any():  # even without marks the layout would reserve space
            axes.plot(x[marked], y[marked], '.', ms=6, clip_on=False, **look)


def _mark_returns(plots: Sequence[Any], x: Any) -> None:
    """Marks the places where the training went on after a rollback or a restart."""
    look = {'color': _SOFT, 'lw': 1.3, 'linestyles': ':', 'label': 'the step went back'}
    for axes in plots if len(x) else ():
        axes.vlines(x, 0, 1, transform=axes.get_xaxis_transform(), **look)


# The loss.

# The heights in pixels of the curve and of an action's row of marks. A line of up to 60 points
# shows a dot for each.
_PLOT, _LANE, _FEW_POINTS = 240, 20, 60
_NEAREST = 0.045  # of the width: closer marks would overlap on a phone


def loss_chart(
    curve: Optional[Curve], incidents: Sequence[IncidentView], links: Dict[int, str]
) -> Optional[Chart]:
    """The loss over the global step with the incidents marked; None without a curve.

    Args:
      curve: the loss, or None.
      incidents: incidents without a step are left out.
      links: the link to each incident on the page, by its number.
    """
    stepped = sorted((i for i in incidents if i.step is not None), key=lambda i: (i.step, i.number))
    if curve is None or not curve.segments:
        return None
    lines = [_tame(line) for line in curve.segments]
    steps = _tame([step for line in lines for step in line[:, 0]] + [i.step for i in stepped])
    low, high = float(steps.min()), float(steps.max())
    low, high = (low, high) if low < high else (low - 1, high + 1)
    lanes = [
        (kind, _marks([i for i in stepped if i.kind == kind], _NEAREST * (high - low)))
        for kind in ACTIONS
        if any(i.kind == kind for i in stepped)
    ]

    def draw(width: int) -> Figure:
        heights = [_PLOT] + [_LANE * len(lanes)] * bool(lanes)
        figure, plots = _plots(width, heights, 66)
        _draw_lines(plots[0], cut(curve.tag, width // 8), lines, 7)
        for axes in plots[:-1]:
            axes.tick_params(bottom=False)
            axes.spines['bottom'].set_visible(False)
        if lanes:
            axes = plots[-1]
            said = ['%s (%d)' % (ACTIONS[kind], sum(map(len, groups))) for kind, groups in lanes]
            axes.set(ylim=(len(lanes) - 0.5, -0.5), yticks=range(len(lanes)))
            axes.set_yticklabels(said)
        _mark_returns(plots, _tame(curve.begins))
        for number, (kind, groups) in enumerate(lanes):
            _draw_marks(plots, kind, groups, number, links)
        plots[-1].set_xlim(low, high)
        plots[-1].xaxis.set_major_locator(_round_ticks(_most_ticks(width)))
        plots[-1].xaxis.set_major_formatter('{x:.12g}')
        plots[-1].set_xlabel('global step', loc='right')
        return figure

    groups = [group for _, groups in lanes for group in groups]
    told = []
    if curve.begins:
        told.append(
            'A dotted line: the step went back, or a new event file begins, as after a '
            'rollback or a restart.'
        )
    if len(lines) > 1:
        told.append('Where the step went back, a new curve begins. The last one is dark.')
    if len(groups) < len(stepped):
        told.append('Incidents that are close together share a mark.')
    said = ' '.join(told) or 'The loss over the global step.'
    return Chart(said, draw, {links[group[0].number]: _said(group) for group in groups})


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
    if len(group) == 1:
        return 'step %d, %s: %s' % (first.step, first.done, cut(first.cause, 200))
    return 'steps %d to %d: %d incidents, %s' % (first.step, last.step, len(group), first.done)


def _draw_marks(
    plots: List[Any], kind: str, groups: List[Group], lane: int, links: Dict[int, str]
) -> None:
    """Draws the marks of an action. Each is a link; marks of more incidents are larger."""
    marker, name = _MARKERS[kind]
    x = _tame([group[0].step for group in groups])
    for axes in plots:
        place = {'transform': axes.get_xaxis_transform()}
        axes.vlines(x, 0, 1, color=COLORS[name], lw=1, alpha=0.45, **place)
    sizes = [80 * (1 + math.log10(len(group))) for group in groups]
    look = {'color': COLORS[name], 'edgecolor': COLORS['paper'], 'zorder': 3, 'clip_on': False}
    marks = plots[-1].scatter(x, [lane] * len(x), sizes, marker=marker, **look)
    marks.set_linewidths([1, 1])  # else an older matplotlib draws a single mark without its link
    marks.set_urls([links[group[0].number] for group in groups])


# The last steps.

# The heights in pixels of a plot of lines and of a row of the heat map; the most such rows.
_SERIES, _LINE, _MOST_LINES = 88, 16, 40
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
).with_extremes(bad=np.array(BAD) / 255)


def last_steps_chart(steps: LastSteps, is_explosion: bool = False) -> Chart:
    """The last steps: loss and gradient norm as lines, the norm of each gradient as a colour.

    Args:
      steps: the last steps.
      is_explosion: whether the diagnosis says at which step the training began to explode, so that
        the chart names no other step.
    """
    ratios = last_steps.ratios_of(steps)
    begin = None if is_explosion else last_steps.beginning_of(steps, ratios)
    names, rows, begins_at = _heat_rows(steps, ratios, begin)
    lines, count = last_steps.lines(steps), len(steps.step)

    def draw(width: int) -> Figure:
        heights = [_SERIES] * len(lines) + [_LINE * len(names)] * bool(names)
        figure, plots = _plots(width, heights, 28 * len(heights) + (120 if names else 50))
        for axes, (name, values) in zip(plots, lines):
            points = np.stack([np.arange(count) + 0.5, _tame(values)], axis=1)
            _draw_lines(axes, name, [points], 4)
            _strip(axes, ~np.isfinite(values), 1, _RING, 'not finite')
            _strip(axes, ~steps.written, 0, _UNWRITTEN, 'update not applied')
        _mark_returns(plots, np.flatnonzero(np.diff(steps.step) < 0) + 1)
        known = [axes.get_legend_handles_labels() for axes in plots]
        handles = {label: it for each in known for it, label in zip(*each)}
        if handles:
            place = {'loc': 'lower left', 'bbox_to_anchor': (0, 1.3), 'borderaxespad': 0}
            columns = len(handles) if width == WIDE else 1
            plots[0].legend(handles.values(), handles.keys(), ncol=columns, **place)
        if names:
            said = [_plain(last_steps.variables(*name, width // 16)) for name in names]
            _draw_heat(plots, rows, said, width)
            if begins_at is not None:
                plots[-1].get_yticklabels()[begins_at].set(color=_BAD, weight='bold')
        ticks = _step_ticks(steps.step, _most_ticks(width))
        plots[-1].set(xlim=(0, count), xticks=[tick + 0.5 for tick in ticks])
        plots[-1].set_xticklabels([str(steps.step[tick]) for tick in ticks])
        plots[-1].set_xlabel(steps.axis, loc='right')
        return figure

    said = last_steps.caption(steps, ratios, begin, is_explosion)
    return Chart(said or 'Each column is a step, the oldest first.', draw)


def _step_ticks(steps: List[int], most: int) -> List[int]:
    """The columns of round step numbers; if there are none, of the first and last step."""
    round_steps = set(_round_ticks(most).tick_values(min(steps), max(steps)).tolist())
    ticks: List[int] = []
    for column, step in enumerate(steps):
        # A held step is repeated at once: only its first column may get a tick.
        is_new = step in round_steps and steps[column - 1 : column] != [step]
        if is_new and (not ticks or (column - ticks[-1]) * (most + 1) >= len(steps)):
            ticks.append(column)
    return ticks or sorted({0, len(steps) - 1})


def _strip(axes: Any, where: np.ndarray, height: float, color: str, label: str) -> None:
    """Marks the columns where `where` is true, at the upper (1) or lower (0) end of a plot."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], where.astype(int), [0]])))
    if edges.size:
        place = {'transform': axes.get_xaxis_transform(), 'clip_on': False}
        ends = edges[::2], edges[1::2]
        axes.hlines(np.full(len(ends[0]), height), *ends, color=color, lw=5, label=label, **place)


def _heat_rows(
    steps: LastSteps, ratios: np.ndarray, begin: Optional[last_steps.Beginning]
) -> Tuple[List[Tuple[str, int]], np.ndarray, Optional[int]]:
    """The name of each row of the heat map, its ratios, and the row where it began.

    If there are many gradients, several share a row; it shows a non-finite or the largest ratio.
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


def _heat_norm(rows: np.ndarray) -> TwoSlopeNorm:
    """Maps ratios to the palette: a gradient's median to its middle, whole decades to its ends."""
    found = rows[np.isfinite(rows)]
    ends = -found.min(initial=0.0), found.max(initial=0.0)
    below, above = (min(max(math.ceil(end - 1e-9), 1), _MOST_DECADES) for end in ends)
    return TwoSlopeNorm(0, -below, above)


def _draw_heat(plots: List[Any], rows: np.ndarray, names: List[str], width: int) -> None:
    """Draws a heat map of ratios into the last plot, and the scale of its colours below it."""
    axes, norm = plots[-1], _heat_norm(rows)
    shown = np.ma.masked_where(np.isnan(rows), np.clip(rows, norm.vmin, norm.vmax))
    place = {'extent': (0, rows.shape[1], len(rows), 0), 'aspect': 'auto'}
    image = axes.imshow(shown, cmap=_PALETTE, norm=norm, interpolation='none', **place)
    axes.set_title('norm of each gradient', loc='left')
    axes.set(yticks=np.arange(len(rows)) + 0.5, yticklabels=names)
    axes.tick_params(axis='y', labelsize=11, labelcolor=_INK)
    axes.spines['bottom'].set_visible(False)
    place = {'location': 'bottom', 'shrink': 0.25 if width == WIDE else 0.8, 'anchor': (0, 1)}
    bar = axes.figure.colorbar(
        image, ax=plots, aspect=16, pad=0.02, ticks=(norm.vmin, 0, norm.vmax), **place
    )
    bar.ax.set_xticklabels(['%g' % 10.0**tick for tick in (norm.vmin, 0, norm.vmax)])
    bar.ax.set_xlabel('norm / median of its row', loc='left')
    bar.outline.set_visible(False)


# The samples.


def samples_chart(sheet: Sheet) -> Chart:
    """The samples of a batch, with the bad ones framed and their bad pixels marked."""

    def draw(width: int) -> Figure:
        columns = 8 if width == WIDE else 4
        count = -(-len(sheet.samples) // columns)
        height, across = sheet.samples[0].pixels.shape[:2]
        lines = max(len(samples.said(sample)) for sample in sheet.samples)
        side, words = width / columns - 12, 14 * lines + 18
        down = side * min(2.0, height / across)
        whole = count * (down + words)
        place = {'left': 3 / width, 'right': 1 - 9 / width, 'wspace': 12 / side}
        place.update(top=1 - 3 / whole, bottom=(words - 3) / whole, hspace=words / down)
        figure = _figure(width, whole)
        grid = figure.subplots(count, columns, squeeze=False, gridspec_kw=place).ravel()
        for axes in grid[len(sheet.samples) :]:
            axes.remove()
        for axes, sample in zip(grid, sheet.samples):
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
            axes.set_xlabel('\n'.join(samples.said(sample)), loc='left', size=11, **look)
        return figure

    bad = sum(bool(sample.bad) for sample in sheet.samples)
    said = 'Samples of %s, %d of which are not finite' % (cut(sheet.name, 100), bad)
    return Chart(said, draw)

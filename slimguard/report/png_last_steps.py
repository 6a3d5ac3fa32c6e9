"""The last steps before an incident in the picture of a report: lines, and the gradients."""

from typing import List

from slimguard.report import heat_map, last_steps_layout, last_steps_series, step_ticks, words
from slimguard.report.heat_map import HeatMap
from slimguard.report.last_steps import LastSteps
from slimguard.report.last_steps_series import Series
from slimguard.report.png_parts import BAD, CURVE, GRID, INK, SOFT, Part, axes_at, text, write

_LEFT, _RIGHT = 0.36, 0.95
_LINE = 0.14  # the height of a line of names in inches
_MOST_LETTERS = 52
_NOT_FINITE, _NOT_WRITTEN = '#ff0090', '#1f6fc4'


def parts_of(steps: LastSteps) -> List[Part]:
    """All there is to see of the last steps."""
    drawn = heat_map.heat_map_of(steps)
    parts = [text([last_steps_layout.heading_of(steps)], size=10, fontweight='bold')]
    parts += [_line(series, steps) for series in last_steps_series.series_of(steps)]
    said = [_marks(steps)]
    if drawn is not None:
        parts.append(_picture(drawn))
        said += [_colors(drawn), last_steps_layout.caption_of(steps, drawn)]
    return [*parts, _axis(steps), text([line for line in said if line] or [''], SOFT, 8.0)]


def _marks(steps: LastSteps) -> str:
    said = []
    if any(series.bad for series in last_steps_series.series_of(steps)):
        said.append('Magenta above a line: not finite.')
    if not steps.written.all():
        said.append('Blue below it: not written.')
    return ' '.join(said)


def _colors(drawn: HeatMap) -> str:
    below, above = (words.multiple(10.0**end) for end in (-drawn.below, drawn.above))
    more = ' and more' if drawn.is_beyond else ''
    bad = '; magenta: not finite' if drawn.has_bad else ''
    return 'Blue: down to %s times the median of the row; brown: %s times%s%s.' % (
        below,
        above,
        more,
        bad,
    )


def _line(series: Series, steps: LastSteps) -> Part:
    def fill(figure, top: float, height: float) -> None:
        axes = axes_at(figure, top - 0.08 / height, height, 0.75, left=_LEFT, right=_RIGHT)
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1.02)
        for segment in series.segments:
            mark = {'marker': '.', 'ms': 3} if len(segment) == 1 else {}
            axes.plot([x for x, _ in segment], [y for _, y in segment], color=CURVE, lw=1, **mark)
        _draw_spans(axes, series.bad, 0.95, _NOT_FINITE)
        _draw_spans(axes, last_steps_series.spans_of(~steps.written), 0.0, _NOT_WRITTEN)
        axes.set_xticks([])
        axes.set_yticks([place for place, _ in series.ticks])
        axes.set_yticklabels([label for _, label in series.ticks])
        axes.grid(axis='y', color=GRID, lw=0.8)
        axes.set_axisbelow(True)
        note = ', logarithmic' if series.is_log else ''
        write(figure, 0.05, top - 0.1 / height, series.name + note, fontsize=8, color=INK)

    return Part(0.95, fill)


def _draw_spans(axes, spans: last_steps_series.Spans, below: float, color: str) -> None:
    for start, end in spans:
        axes.bar(start, 0.07, end - start, below, align='edge', color=color, lw=0.4, ec=color)


def _picture(drawn: HeatMap) -> Part:
    line = _LINE
    size = line * drawn.pixels.shape[0] / drawn.rows_in_a_line

    def fill(figure, top: float, height: float) -> None:
        axes = axes_at(figure, top - 0.08 / height, height, size, left=_LEFT, right=_RIGHT)
        axes.imshow(drawn.pixels, interpolation='nearest', aspect='auto')
        axes.set_xticks([])
        axes.set_yticks([])
        for number, name in enumerate(drawn.names):
            y = top - (0.09 + line * number) / height
            color = BAD if name.is_begin else INK
            write(figure, _LEFT - 0.01, y, _brief(name), fontsize=6.5, color=color, ha='right')

    return Part(size + 0.12, fill)


def _brief(name: heat_map.Name) -> str:
    more = ' and %d more' % name.others if name.others else ''
    room = _MOST_LETTERS - len(more)
    whole = name.name
    return (whole if len(whole) <= room else '\N{HORIZONTAL ELLIPSIS}' + whole[1 - room :]) + more


def _axis(steps: LastSteps) -> Part:
    def fill(figure, top: float, height: float) -> None:
        for at, label in step_ticks.ticks_of(steps.step):
            side = last_steps_layout.side_of(at)
            where = {'start': 'left', 'middle': 'center', 'end': 'right'}[side]
            x = _LEFT + (_RIGHT - _LEFT) * at
            write(figure, x, top - 0.03 / height, label, fontsize=7, color=SOFT, ha=where)
        name = last_steps_layout.axis_of(steps)
        write(figure, _RIGHT, top - 0.17 / height, name, fontsize=7, color=SOFT, ha='right')

    return Part(0.36, fill)

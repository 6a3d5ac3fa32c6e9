"""The parts of the picture of a report: pieces of text and axes, one below the other."""

import textwrap
from typing import Any, Callable, List, NamedTuple

from slimguard.system.texts import visible

INK, SOFT, GRID, RANGE, BAD, CURVE = (
    '#1d1d1b',
    '#5f5e5a',
    '#e3e1da',
    '#8fa5b8',
    '#c8102e',
    '#33414e',
)
LINE = 0.21  # the height of a line of text in inches


class Part(NamedTuple):
    """A part of the picture.

    Attributes:
      size: its height in inches.
      fill: draws it into a figure: gets the place of its upper end, as a fraction of the figure's
        height, and that height in inches.
    """

    size: float
    fill: Callable[[Any, float, float], None]


def axes_at(
    figure, top: float, height: float, size: float, left: float = 0.09, right: float = 0.95
):
    axes = figure.add_axes([left, top - size / height, right - left, size / height])
    axes.set_facecolor('none')
    for side in ('top', 'right', 'left', 'bottom'):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0, labelsize=8, labelcolor=SOFT)
    return axes


def write(figure, x: float, y: float, said: str, **kwargs) -> None:
    figure.text(x, y, plain(said), va='top', **kwargs)


def plain(said: str) -> str:
    # Between two dollars matplotlib would read TeX, and fail over what is none.
    return visible(said).replace('$', r'\$')


def text(lines: List[str], color: str = INK, size: float = 9.0, **kwargs) -> Part:
    wrapped = [part for line in lines for part in textwrap.wrap(visible(line), 118) or ['']]
    space = LINE * size / 9.0

    def fill(figure, top: float, height: float) -> None:
        for number, line in enumerate(wrapped):
            y = top - number * space / height
            write(figure, 0.05, y, line, fontsize=size, color=color, **kwargs)

    return Part(space * len(wrapped) + 0.06, fill)


def stacked(*parts: Part) -> Part:
    """Several parts as one."""

    def fill(figure, top: float, height: float) -> None:
        for part in parts:
            part.fill(figure, top, height)
            top -= part.size / height

    return Part(sum(part.size for part in parts) + 0.3, fill)

"""The ranges along a step in numbers: a row for each layer, and where its bar goes on the page."""

import collections
from typing import List, NamedTuple, Optional, Sequence

from slimguard.report import words
from slimguard.report.layer_ranges import Layer
from slimguard.report.scales import Scale, magnitudes
from slimguard.report.words import percent
from slimguard.system.texts import cut

_THINNEST = 0.004  # of the width
_PASSES = {
    'input': 'Input',
    'forward': 'Forward pass',
    'backward': 'Backward pass',
    'update': 'Update',
}


class RangeTick(NamedTuple):
    """A tick of the axis; an extra one is left out where there is little room."""

    at: str
    label: str
    is_extra: bool


class Bar(NamedTuple):
    """A range; without a finite value in it, it is empty and goes all the way."""

    x: str
    width: str
    is_empty: bool


class RangeRow(NamedTuple):
    """A layer.

    Attributes:
      heading: the pass that begins with it, or ''.
      is_begin: whether values are not finite from here on.
      name, full_name: short, and not quite as short.
      said: the range in words.
      is_finite: whether all of it is.
      bar: None for a layer without elements.
    """

    heading: str
    is_begin: bool
    name: str
    full_name: str
    said: str
    is_finite: bool
    bar: Optional[Bar]


class RangeChart(NamedTuple):
    """The chart.

    Attributes:
      ticks: of its axis.
      rows: the layers, pass by pass.
      caption: what it shows.
      begins: what is said above the row where values are not finite, or out of bounds, from.
    """

    ticks: List[RangeTick]
    rows: List[RangeRow]
    caption: str
    begins: str


def chart_of(layers: Sequence[Layer]) -> Optional[RangeChart]:
    """The chart of the ranges along a step; None without a layer."""
    if not layers:
        return None
    scale = magnitudes([end for layer in layers for end in (layer.min, layer.max)])
    scope = _common_scope(layers)
    begin = words.begins_at(layers)
    before = [None, *layers[:-1]]
    rows = [
        _row(layer, _heading(layer, last), place == begin, scope, scale)
        for place, (last, layer) in enumerate(zip(before, layers))
    ]
    is_finite = all(layer.is_finite for layer in layers)
    caption = _caption(scope, begin is not None and not is_finite)
    return RangeChart(_ticks(scale), rows, caption, words.begins(layers))


def _ticks(scale: Scale) -> List[RangeTick]:
    # On a phone there is room for the ends and the middle.
    return [
        RangeTick(percent(scale(value)), label, scale(value) not in (0.0, 0.5, 1.0))
        for value, label in scale.ticks
    ]


def _caption(scope: str, has_begin: bool) -> str:
    said = (
        'From the least to the largest finite value of each layer, in the order in which they are '
        'computed; the axis is logarithmic on both sides of zero.'
    )
    if scope:
        said += ' %s is left out of the names.' % cut(scope, 200)
    if has_begin:
        said += ' Where values are not finite the row is marked.'
    return said


def _heading(layer: Layer, last: Optional[Layer]) -> str:
    return '' if last is not None and last.phase == layer.phase else _PASSES[layer.phase]


def _row(layer: Layer, heading: str, is_begin: bool, scope: str, scale: Scale) -> RangeRow:
    name = layer.name[len(scope) :] if layer.name.startswith(scope) else layer.name
    return RangeRow(
        heading=heading,
        is_begin=is_begin,
        name=cut(name, 200),
        full_name=cut(layer.name, 400),
        said=words.range_of(layer),
        is_finite=layer.is_finite,
        bar=_bar(layer, scale),
    )


def _bar(layer: Layer, scale: Scale) -> Optional[Bar]:
    if layer.min is not None and layer.max is not None:
        start, end = scale(layer.min), scale(layer.max)
        return Bar(percent(start), percent(max(end - start, _THINNEST)), False)
    return None if layer.is_finite else Bar('0', '100%', True)


def _common_scope(layers: Sequence[Layer]) -> str:
    """The outermost scope that most layers are in, with its slash; '' if there is none."""
    scopes = collections.Counter(x.name.partition('/')[0] for x in layers if '/' in x.name)
    for scope, count in scopes.most_common(1):
        if count > max(3, len(layers) / 2):
            return scope + '/'
    return ''

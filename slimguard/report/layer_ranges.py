"""The ranges along a bad step, combined by layers, so that their table fits on a page."""

import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from slimguard.diagnosis.ranges import Range

PHASES = ('input', 'forward', 'backward', 'update')

_MOST = 40  # the most layers of a pass that are shown, around the one at fault
_DEEPEST = 20  # the most scopes of a name: nobody nests so many, but a damaged bundle may


class Layer(NamedTuple):
    """The tensors of one scope in one pass.

    Attributes:
      phase: one of `PHASES`.
      name: the scope, or the op if it has none.
      range: of their finite elements, with the non-finite ones of the worst of its tensors.
      begins: whether the tensor that made the step bad is among them.
    """

    phase: str
    name: str
    range: Range
    begins: bool

    def __str__(self) -> str:
        ends = self.range.min, self.range.max
        parts = self.range.bad + ([] if None in ends else ['%.3g to %.3g' % ends])
        return ', '.join(parts) or 'empty'


def layers_of(rows: List[Dict[str, Any]], culprit: Optional[str]) -> List[Layer]:
    """The layers of a step, pass by pass, in the order in which they are computed.

    Args:
      rows: the 'ranges' of a diagnosis in incident.json.
      culprit: the name of the tensor at fault, or None.

    Raises:
      KeyError, TypeError, ValueError, OverflowError, AttributeError: if the rows are not as a
        diagnosis writes them.
    """
    passes: Dict[str, List[Tuple[Tuple[str, ...], Layer]]] = {phase: [] for phase in PHASES}
    for row in rows:
        op, phase, found = row['op'], row['phase'], row['range']
        if not op.startswith('slimguard/'):
            phase = phase if phase in PHASES else 'update'
            begins = culprit is not None and row['tensor'] == culprit
            low, high = (
                None if found[end] is None else float(found[end]) for end in ('min', 'max')
            )
            layer = Range('', (), low, high, int(found['nan']), int(found['inf']))
            passes[phase].append((scope_of(op, phase), Layer(phase, '', layer, begins)))
    return [layer for phase in PHASES for layer in _fit(passes[phase])]


def scope_of(op: str, phase: str) -> Tuple[str, ...]:
    """The scopes around an op; for a gradient's op, those around the forward op."""
    parts = op.split('/')
    if phase in ('backward', 'update'):
        for place, part in enumerate(parts[:-1]):
            if re.match(r'gradients(_\d+)?$', part):
                parts = parts[place + 1 :]
                break
        for place, part in enumerate(parts):
            if re.search(r'_grad(_\d+)?$', part):
                parts = parts[: place + 1]
                break
    return tuple((parts[:-1] or parts)[:_DEEPEST])


def _fit(found: List[Tuple[Tuple[str, ...], Layer]]) -> List[Layer]:
    """Combines the layers of a pass by scopes as deep as leave no more than `_MOST`."""
    depth = max([len(scope) for scope, _ in found], default=1)
    layers = _merged(found, depth)
    while len(layers) > _MOST and depth > 1:
        depth -= 1
        layers = _merged(found, depth)
    at = next((n for n, layer in enumerate(layers) if layer.begins), 0)
    start = min(max(0, at - _MOST // 2), max(0, len(layers) - _MOST))
    return layers[start : start + _MOST]


def _merged(found: List[Tuple[Tuple[str, ...], Layer]], depth: int) -> List[Layer]:
    layers: Dict[Tuple[str, ...], Layer] = {}
    for scope, layer in found:
        known = layers.get(scope[:depth])
        layer = layer._replace(name='/'.join(scope[:depth]))
        layers[scope[:depth]] = layer if known is None else _both(known, layer)
    return list(layers.values())


def _both(one: Layer, other: Layer) -> Layer:
    ranges = one.range, other.range
    worst = max(ranges, key=lambda each: each.nan + each.inf)
    low = min([each.min for each in ranges if each.min is not None], default=None)
    high = max([each.max for each in ranges if each.max is not None], default=None)
    both = worst._replace(min=low, max=high)
    return one._replace(range=both, begins=one.begins or other.begins)

"""The ranges along a step, combined by layers, so that their picture fits on a page."""

import collections
import math
import re
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from slimguard.diagnosis.bundle import number
from slimguard.report import words
from slimguard.system.texts import cut

PHASES = ('input', 'forward', 'backward', 'update')


class Layer(NamedTuple):
    """The tensors of one scope in one pass.

    Attributes:
      phase: one of `PHASES`.
      name: the scope, or the op if it has none.
      tensors: how many tensors there are.
      min, max: of their finite elements; None if there are none.
      nan, inf: how many elements are NaN, and how many are infinite, in the worst of its tensors.
      begins: whether the tensor that made the step bad is among them.
    """

    phase: str
    name: str
    tensors: int
    min: Optional[float]
    max: Optional[float]
    nan: int
    inf: int
    begins: bool

    @property
    def is_finite(self) -> bool:
        return not (self.nan or self.inf)


Scoped = Tuple[Tuple[str, ...], Layer]


def layers_of(
    rows: List[Dict[str, Any]], culprit: Optional[str], most: Optional[Dict[str, int]] = None
) -> List[Layer]:
    """The layers of a step, pass by pass, in the order in which they are computed.

    Args:
      rows: the 'ranges' of a diagnosis in incident.json.
      culprit: the name of the tensor at fault, or None.
      most: the most layers in each pass. If there are more, they are combined by outer scopes.

    Raises:
      KeyError, TypeError, ValueError, OverflowError, AttributeError: if the rows are not as a
        diagnosis writes them.
    """
    passes: Dict[str, List[Scoped]] = {phase: [] for phase in PHASES}
    apart: Dict[str, List[Scoped]] = {phase: [] for phase in PHASES}
    ops = {row['op'] for row in rows}
    for row in rows:
        op, phase = row['op'], row['phase'] if row['phase'] in PHASES else 'update'
        if op.startswith('slimguard/'):
            continue
        if phase == 'update' and op.rpartition('/')[0] in ops:
            op = op.rpartition('/')[0]  # a slot, which is named after its variable
        scope = scope_of(op, phase)
        if _is_sum_of_gradients(op) and passes[phase]:
            scope = passes[phase][-1][0]
        layer = _layer(row, phase, culprit)
        if layer.begins:
            culprit = None  # a damaged bundle may name it often, and its layer is kept apart
        (apart if _is_any_time(row) else passes)[phase].append((scope, layer))
    layers: List[Layer] = []
    for phase in PHASES:
        layers.extend(_fit(passes[phase] + apart[phase], (most or _MOST)[phase]))
    return layers


_DEEPEST = 20  # scopes of a name; nobody nests so many, but a damaged bundle may
_MOST = {'input': 8, 'forward': 36, 'backward': 28, 'update': 10}


def _is_any_time(row: Dict[str, Any]) -> bool:
    """Whether an op tells nothing about when its layer is computed: it needs only a variable."""
    return row['type'] in _READS or '/Regularizer/' in row['op']


_READS = frozenset('ReadVariableOp VariableV2 Variable VarHandleOp'.split())


def _is_sum_of_gradients(op: str) -> bool:
    """Whether an op, which is then in no layer's scope, adds up the gradients of one tensor."""
    return bool(re.search(r'(^|/)gradients(_\d+)?/[^/]*$', op))


def _fit(found: List[Scoped], most: int) -> List[Layer]:
    depth = max([len(scope) for scope, _ in found], default=0)
    found = _merge(found, depth)
    while len(found) > most and depth > 1:
        depth -= 1
        found = _merge(found, depth)
    return _squeeze([layer._replace(name='/'.join(scope)) for scope, layer in found], most)


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
        if len(parts) > 2 and re.match(r'AssignMovingAvg', parts[-2]):
            parts = parts[:-1]
    return tuple((parts[:-1] or parts)[:_DEEPEST])


def _layer(row: Dict[str, Any], phase: str, culprit: Optional[str]) -> Layer:
    found = row['range']
    least, largest = ends_of(found)
    for end in (least, largest):
        if end is not None and not math.isfinite(end):
            raise ValueError('the range of %r ends at %s' % (row['op'], end))
    begins = culprit is not None and row['tensor'] == culprit
    return Layer(phase, '', 1, least, largest, int(found['nan']), int(found['inf']), begins)


def ends_of(found: Dict[str, Any]) -> Tuple[Optional[float], Optional[float]]:
    """The least and the largest finite value of a range in incident.json; None if there is none."""
    least, largest = (None if found[key] is None else float_of(found[key]) for key in _ENDS)
    return least, largest


_ENDS = ('min', 'max')


def float_of(value: Any) -> float:
    """A number of incident.json as a float.

    Raises:
      TypeError, ValueError, OverflowError: if it is none.
    """
    found = number(value)
    if found is None:
        raise TypeError('expected a number, not null')
    return float(found)


def _merge(found: List[Scoped], depth: int) -> List[Scoped]:
    layers: Dict[Tuple[str, ...], Layer] = {}
    for scope, layer in found:
        known = layers.get(scope[:depth])
        layers[scope[:depth]] = layer if known is None else _both(known, layer)
    return list(layers.items())


def _both(one: Layer, other: Layer) -> Layer:
    mins = [x.min for x in (one, other) if x.min is not None]
    maxes = [x.max for x in (one, other) if x.max is not None]
    worst = max(one, other, key=lambda layer: layer.nan + layer.inf)
    return one._replace(
        tensors=one.tensors + other.tensors,
        min=min(mins, default=None),
        max=max(maxes, default=None),
        nan=worst.nan,
        inf=worst.inf,
        begins=one.begins or other.begins,
    )


def _squeeze(layers: List[Layer], most: int) -> List[Layer]:
    """Combines neighbours if a graph has no scopes. The layer at fault stays alone."""
    size = -(-len(layers) // most)
    if size <= 1:
        return layers
    squeezed: List[Layer] = []
    first, count = '', 0
    for layer in layers:
        last = squeezed[-1] if squeezed else None
        apart = last is None or last.begins or layer.begins
        if apart or count == size:
            squeezed.append(layer)
            first, count = layer.name, 1
        else:
            name = '%s \N{HORIZONTAL ELLIPSIS} %s' % (first, layer.name)
            squeezed[-1] = _both(squeezed[-1], layer)._replace(name=name)
            count += 1
    return squeezed


# In words.


def begins_at(layers: Sequence[Layer]) -> Optional[int]:
    """The index of the layer where values stop being finite: the one at fault, else the first."""
    for test in (lambda layer: layer.begins, lambda layer: not layer.is_finite):
        for place, layer in enumerate(layers):
            if test(layer):
                return place
    return None


def begins(layers: Sequence[Layer]) -> str:
    """The words above the layer that `begins_at` finds."""
    at = begins_at(layers) or 0
    is_first = not layers[at].is_finite and all(layer.is_finite for layer in layers[:at])
    return 'non-finite from here on' if is_first else _BEGAN


_BEGAN = 'it began here'


def said(layer: Layer) -> str:
    """The range of a layer."""
    if not layer.is_finite:
        counts = ((layer.nan, 'NaN'), (layer.inf, 'Inf'))
        return ', '.join('%s %s' % (words.count(count), word) for count, word in counts if count)
    if layer.min is None or layer.max is None:
        return 'empty'
    return '%.3g to %.3g' % (layer.min, layer.max)


def common_scope(layers: Sequence[Layer]) -> str:
    """The outermost scope that most layers are in, with its slash; '' if there is none."""
    scopes = collections.Counter(x.name.partition('/')[0] for x in layers if '/' in x.name)
    for scope, count in scopes.most_common(1):
        if count > max(3, len(layers) / 2):
            return scope + '/'
    return ''


def caption(layers: Sequence[Layer]) -> str:
    """The caption of a chart of the ranges."""
    scope = common_scope(layers)
    told = (
        'From the least to the largest finite value of each layer, in the order in which they are '
        'computed; the axis is logarithmic on both sides of zero.'
    )
    told += ' %s is left out of the names.' % cut(scope, 200) if scope else ''
    if any(not layer.is_finite for layer in layers):
        told += ' A count of NaN or Inf is that of the worst tensor of a layer.'
        if begins(layers) == _BEGAN:
            told += ' A layer has one place for all its tensors: one above the line where it began '
            told += 'may have turned non-finite after it.'
        if any(layer.phase == 'update' and layer.is_finite for layer in layers):
            told += ' Under Update is what it reads, as it was before the step, and often finite.'
    return told

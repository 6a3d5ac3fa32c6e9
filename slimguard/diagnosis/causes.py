"""A table: what each type of op requires of its inputs, and what it returns for other inputs.

Each `Rule` has types of op, a precondition and a sentence. A rule explains an op only if the
measured inputs break its precondition. If no rule explains an op, the diagnosis says only that it
made NaN or Inf from its inputs.
"""

from typing import Any, Callable, Dict, FrozenSet, List, NamedTuple, Optional, Tuple

import numpy as np

from slimguard.diagnosis import preconditions as p
from slimguard.diagnosis.ranges import numbers


class Cause(NamedTuple):
    """Why an op returned something non-finite.

    Attributes:
      sentence: without a full stop.
      is_overflow: whether a result was too large for its dtype, as happens when weights grow.
      is_known: whether a rule explains it.
      broken: a mask of the values that break the precondition; None if there is none.
      at: which input breaks it, if it is only one.
    """

    sentence: str
    is_overflow: bool = False
    is_known: bool = True
    broken: Optional[np.ndarray] = None
    at: Optional[int] = None


UNKNOWN = Cause('', is_known=False)


class Rule(NamedTuple):
    """A precondition on the inputs of ops of some types.

    Attributes:
      types: the types of op.
      breaks: called with the culprit and its inputs; returns which values break the precondition.
      says: what happened; the number of values that broke the precondition is added.
      gradient_of: the type of op whose gradient the culprit must compute; '' for any op.
      is_overflow, at: as in `Cause`.
    """

    types: FrozenSet[str]
    breaks: Callable[..., p.Broken]
    says: str = ''
    gradient_of: str = ''
    is_overflow: bool = False
    at: Optional[int] = None


def explain(culprit: p.Culprit) -> Cause:
    """Why an op returned something non-finite, by the first rules whose precondition is broken."""
    found: List[str] = []
    first: p.Broken = None
    is_overflow, at = False, None
    for rule in _RULES:
        if culprit.op_type not in rule.types:
            continue
        if rule.gradient_of and culprit.forward_type != rule.gradient_of:
            continue
        broken = _broken(rule, culprit)
        sentence, ends = _sentence(rule, broken), rule.is_overflow or bool(rule.gradient_of)
        if sentence and not found:
            first, is_overflow, at = broken, rule.is_overflow, rule.at
        if sentence and not (found and ends):
            found.append(sentence)
        if sentence and ends:
            break
    if found:
        mask = first if isinstance(first, np.ndarray) else None
        return Cause(' and '.join(found), is_overflow, broken=mask, at=at)
    output = numbers(culprit.output)
    what = 'NaN' if np.isnan(output).any() else 'Inf'
    given = 'an Inf' if any(map(_holds_inf, culprit.inputs)) else 'finite inputs'
    return Cause('%s made %s from %s' % (culprit.op_type, what, given), is_known=False)


def where(broken: Optional[np.ndarray], value: Optional[np.ndarray]) -> str:
    """The first numbers of an input that break a precondition, with their places; '' if unknown.

    Args:
      broken: a mask of such numbers, or None.
      value: the input, or None; it has the shape of the mask, or is broadcast to it.
    """
    if broken is None or value is None or not np.ndim(value) or np.ndim(value) > broken.ndim:
        return ''
    sizes = broken.shape[broken.ndim - value.ndim :]
    if any(size not in (1, other) for size, other in zip(value.shape, sizes)):
        return ''
    places: Dict[Tuple[int, ...], None] = {}  # in order
    for place in np.argwhere(broken)[:_MOST_LOOKED_AT]:
        place = place[broken.ndim - value.ndim :]
        places[tuple(0 if n == 1 else int(i) for i, n in zip(place, value.shape))] = None
    shown = ['%g at %s' % (_comparable(value)[place], list(place)) for place in places]
    more = ', \N{HORIZONTAL ELLIPSIS}' if len(shown) > 3 else ''
    return ', '.join(shown[:3]) + more


_MOST_LOOKED_AT = 1000


def _broken(rule: Rule, culprit: p.Culprit) -> p.Broken:
    inputs = [_comparable(x) for x in culprit.inputs if x is not None]
    if len(inputs) < len(culprit.inputs):
        return None  # one was not measured
    try:
        with np.errstate(all='ignore'):
            return rule.breaks(culprit, *inputs)
    except (TypeError, ValueError, IndexError):  # another number of inputs, or other shapes
        return None


def _sentence(rule: Rule, broken: p.Broken) -> str:
    if broken is None or isinstance(broken, str):
        return broken or ''
    count = int(np.sum(broken))
    return '%s (%d of %d values)' % (rule.says, count, np.size(broken)) if count else ''


def _comparable(value: np.ndarray) -> np.ndarray:
    value = np.asarray(value)
    return value if value.dtype.kind in 'biu' else numbers(value)


def _holds_inf(value: Optional[np.ndarray]) -> bool:
    return (
        value is not None
        and value.dtype.kind not in 'biuOSU'
        and bool(np.isinf(numbers(value)).any())
    )


def _types(text: str) -> FrozenSet[str]:
    return frozenset(text.split())


def _rule(types: str, says: str, breaks: Callable[..., Any], **more) -> Rule:
    """A rule that checks each element."""
    return Rule(_types(types), lambda culprit, *inputs: breaks(*inputs), says, **more)


_PLAIN_DIVISIONS = 'RealDiv Div TruncateDiv FloorDiv FloorMod Mod'
_SOFTMAX = 'Softmax LogSoftmax'
_CROSS_ENTROPY = 'SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits'

_SUMS = (
    'Sum Mean Cumsum BiasAddGrad AvgPool AvgPool3D SegmentSum SegmentMean UnsortedSegmentSum '
    'SparseSegmentSum SparseSegmentMean'
)
_PRODUCTS = (
    'MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum SparseMatMul SparseTensorDenseMatMul '
    'Conv2D Conv2DBackpropInput Conv2DBackpropFilter Conv3D Conv3DBackpropInputV2 '
    'Conv3DBackpropFilterV2 DepthwiseConv2dNative DepthwiseConv2dNativeBackpropInput '
    'DepthwiseConv2dNativeBackpropFilter FusedMatMul'
)

_RULES = [
    Rule(_types('CTCLoss CTCLossV2'), p.does_not_fit),
    Rule(_types('%s %s' % (_SOFTMAX, _CROSS_ENTROPY)), p.rows_of_minus_inf, is_overflow=False),
    Rule(_types('SparseSoftmaxCrossEntropyWithLogits'), p.labels_outside),
    Rule(_types(_CROSS_ENTROPY), p.labels_hidden),
    Rule(_types('Mean'), p.is_empty('mean')),
    Rule(_types('Max Min'), p.is_empty('largest or smallest')),
    # Gradients at a point where the slope is infinite.
    Rule(_types('SqrtGrad'), p.zeros(False), 'gradient of sqrt at 0'),
    Rule(_types('SqrtGrad'), p.zeros(True), 'gradient of sqrt at 0, of a norm of zeros'),
    _rule(
        'Reciprocal Inv', 'gradient of log at 0: division by 0', lambda x: x == 0, gradient_of='Log'
    ),
    _rule(
        'Reciprocal Inv RealDiv Div',
        'gradient of log1p at -1: division by 0',
        lambda *x: x[-1] == 0,
        gradient_of='Log1p',
    ),
    _rule('Pow', 'gradient of pow at 0', lambda x, y: (x == 0) & (y < 0), gradient_of='Pow'),
    # Elements outside the domain of the op.
    _rule('Log', 'log of 0', lambda x: x == 0),
    _rule('Log', 'log of a negative number', lambda x: x < 0),
    _rule('Log1p', 'log1p of -1', lambda x: x == -1),
    _rule('Log1p', 'log1p of a number below -1', lambda x: x < -1),
    _rule(_PLAIN_DIVISIONS, 'division by 0', lambda x, y: y == 0, at=1),
    _rule('Reciprocal Inv', 'division by 0', lambda x: x == 0),
    _rule('Rsqrt', 'rsqrt of 0, a division by 0', lambda x: x == 0),
    _rule('Rsqrt', 'rsqrt of a negative number', lambda x: x < 0),
    _rule('Sqrt', 'sqrt of a negative number', lambda x: x < 0),
    _rule('Pow', 'division by 0, as 0 to a negative power', lambda x, y: (x == 0) & (y < 0)),
    _rule(
        'Pow',
        'pow of a negative number with a broken exponent',
        lambda x, y: (x < 0) & (y != np.floor(y)),
    ),
    # Pairs of inputs with an Inf, such as a mask's, that give NaN.
    _rule('Mul', '0 times Inf', p.times_inf),
    _rule('Add AddV2', 'Inf less Inf', lambda x, y: np.isinf(x) & (x == -y)),
    _rule('Sub', 'Inf less Inf', lambda x, y: np.isinf(x) & (x == y)),
    _rule('RealDiv Div', 'Inf divided by Inf', lambda x, y: np.isinf(x) & np.isinf(y)),
    # Results too large for the dtype.
    Rule(_types('Exp'), p.function_overflows(np.exp), is_overflow=True),
    Rule(_types('Pow'), p.function_overflows(np.power), is_overflow=True),
    Rule(_types('RealDiv Div'), p.quotient_overflows, is_overflow=True),
    Rule(
        _types('Reciprocal Inv'),
        lambda culprit, x: p.quotient_overflows(culprit, np.ones_like(x), x),
        is_overflow=True,
    ),
    Rule(
        _types('L2Loss'),
        p.overflow(lambda n, x: n * x * x / 2, 'the sum of squares (L2Loss)'),
        is_overflow=True,
    ),
    Rule(_types('Square'), p.overflow(lambda n, x: x * x), is_overflow=True),
    Rule(_types('SquaredDifference'), p.overflow(lambda n, x, y: (x + y) ** 2), is_overflow=True),
    Rule(_types('Mul'), p.overflow(lambda n, x, y: x * y), is_overflow=True),
    Rule(_types(_PRODUCTS), p.overflow(lambda n, x, y: n * x * y), is_overflow=True),
    Rule(_types(_SUMS), p.overflow(lambda n, *x: n * max(x)), is_overflow=True),
    Rule(
        _types('Add AddV2 AddN Sub BiasAdd AccumulateNV2'),
        p.overflow(lambda n, *x: sum(x)),
        is_overflow=True,
    ),
    Rule(
        _types('FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3'),
        p.overflow(lambda n, *x: n * x[0] * x[0]),
        is_overflow=True,
    ),
    Rule(_types('Cast'), p.overflow(lambda n, x: x), is_overflow=True),
]

# Ops that make finite numbers of rows with -Inf, unless all of a row is -Inf.
COPE_WITH_MINUS_INF = _types('%s %s' % (_SOFTMAX, _CROSS_ENTROPY))

"""Rules that explain why an op made NaN or Inf from its inputs: 'log of 0', 'division by 0'.

Each `Rule` has types of op, a precondition and a sentence. A rule explains an op only if the
measured inputs break its precondition. If no rule explains an op, the diagnosis says only that it
made NaN or Inf from its inputs.
"""

from typing import (
    Callable,
    Dict,
    FrozenSet,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import numpy as np

from slimguard.diagnosis.ranges import numbers


class Culprit(NamedTuple):
    """The properties, for rules, of an op that returned something non-finite.

    Attributes:
      op_type: the op's type, such as 'Log'.
      forward_type: the type of the op whose gradient it computes, or `NORM` for the root of a sum;
        empty if it computes no gradient.
      inputs: the values of its inputs, in order; None for one that could not be measured.
      output: the value that it returned.
      dtype: the name of the output's dtype.
    """

    op_type: str
    forward_type: str
    inputs: Sequence[Optional[np.ndarray]]
    output: np.ndarray
    dtype: str


NORM = 'Norm'


# A mask of the values that break a precondition; a sentence if they cannot be counted; None if no
# value breaks it.
Broken = Union[np.ndarray, str, None]


class Cause(NamedTuple):
    """Why an op returned something non-finite.

    Attributes:
      sentence: without a full stop.
      is_overflow: whether a result was too large for its dtype, as happens when weights grow.
      is_known: whether a rule explains it.
      broken: a mask of the values that break the precondition; None if unknown.
      at: the index of the input that breaks it; None if any input may.
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
      breaks: called with the inputs (without `says`, the culprit comes first); returns which values
        break the precondition.
      says: what happened; a message adds how many values broke the precondition.
      gradient_of: the type of op whose gradient the culprit must compute; '' for any op.
      is_overflow, at: as in `Cause`.
    """

    types: FrozenSet[str]
    breaks: Callable[..., Broken]
    says: str = ''
    gradient_of: str = ''
    is_overflow: bool = False
    at: Optional[int] = None


def cause_of(culprit: Culprit) -> Cause:
    """Why an op returned something non-finite, by the first rules whose precondition is broken."""
    sentences: List[str] = []
    first: Broken = None
    is_overflow, at = False, None
    for rule in _RULES:
        if culprit.op_type not in rule.types:
            continue
        if rule.gradient_of and culprit.forward_type != rule.gradient_of:
            continue
        broken = _broken(rule, culprit)
        sentence, ends = _sentence(rule, broken), rule.is_overflow or bool(rule.gradient_of)
        if sentence and not sentences:
            first, is_overflow, at = broken, rule.is_overflow, rule.at
        if sentence and not (sentences and ends):
            sentences.append(sentence)
        if sentence and ends:
            break
    if sentences:
        mask = first if isinstance(first, np.ndarray) else None
        return Cause(' and '.join(sentences), is_overflow, broken=mask, at=at)
    output = numbers(culprit.output)
    what = 'NaN' if np.isnan(output).any() else 'Inf'
    given = 'an Inf' if any(map(_holds_inf, culprit.inputs)) else 'finite inputs'
    given = 'what is no number' if all(x is None for x in culprit.inputs) else given
    return Cause('%s made %s from %s' % (culprit.op_type, what, given), is_known=False)


def where(broken: Optional[np.ndarray], value: Optional[np.ndarray]) -> str:
    """The first numbers of an input that break a precondition, with their indices; '' if unknown.

    Args:
      broken: a mask of such numbers, or None.
      value: the input, or None; it has the shape of the mask, or is broadcast to it.
    """
    if broken is None or value is None or not np.ndim(value) or np.ndim(value) > broken.ndim:
        return ''
    sizes = broken.shape[broken.ndim - value.ndim :]
    if any(size not in (1, other) for size, other in zip(value.shape, sizes)):
        return ''
    places: Dict[Tuple[int, ...], None] = {}  # an ordered set
    for place in np.argwhere(broken)[:_MOST_LOOKED_AT]:
        place = place[broken.ndim - value.ndim :]
        places[tuple(0 if n == 1 else int(i) for i, n in zip(place, value.shape))] = None
    shown = ['%g at %s' % (_comparable(value)[place], list(place)) for place in places]
    more = ', \N{HORIZONTAL ELLIPSIS}' if len(shown) > 3 else ''
    return ', '.join(shown[:3]) + more


_MOST_LOOKED_AT = 1000


def _broken(rule: Rule, culprit: Culprit) -> Broken:
    inputs = [_comparable(x) for x in culprit.inputs if x is not None]
    if len(inputs) < len(culprit.inputs):
        return None  # an input was not measured
    try:
        with np.errstate(all='ignore'):
            return rule.breaks(*inputs) if rule.says else rule.breaks(culprit, *inputs)
    except (TypeError, ValueError, IndexError):  # another number of inputs, or other shapes
        return None


def _sentence(rule: Rule, broken: Broken) -> str:
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


# The preconditions.

_LARGEST = {
    'float16': 65504.0,
    'bfloat16': 3.3895314e38,
    'float64': float(np.finfo(np.float64).max),
    'complex128': float(np.finfo(np.float64).max),
}


def largest_of(dtype: str) -> float:
    """The largest finite number of a dtype."""
    return _LARGEST.get(dtype, float(np.finfo(np.float32).max))


# Rows that are all -Inf, made by a mask that hides a whole row.


def _rows_of_minus_inf(culprit: Culprit, logits: np.ndarray, *_) -> Broken:
    rows = np.isneginf(logits).all(axis=-1)
    if not rows.any():
        return None
    what = 'cross entropy' if 'CrossEntropy' in culprit.op_type else 'softmax'
    return '%s of nothing but -Inf (%d of %d rows)' % (what, rows.sum(), rows.size)


def _labels_outside(culprit: Culprit, logits: np.ndarray, labels: np.ndarray) -> Broken:
    outside = (labels < 0) | (labels >= logits.shape[-1])
    if not outside.any():
        return None
    told = labels[outside].ravel()[0], logits.shape[-1] - 1, outside.sum(), outside.size
    said = 'cross entropy of a label that is no class: %s, and there are classes 0 to %d '
    return (said + '(%d of %d labels)') % told


def _labels_hidden(culprit: Culprit, logits: np.ndarray, labels: np.ndarray) -> Broken:
    if labels.ndim < logits.ndim:
        of_label = np.take_along_axis(logits, labels[..., None].astype(np.int64), -1)[..., 0]
        hidden = np.isneginf(of_label)
    else:
        hidden = np.isneginf(logits).any(axis=-1)
    if not hidden.any():
        return None
    said = 'cross entropy with a class whose logit is -Inf (%d of %d rows)'
    return said % (hidden.sum(), hidden.size)


def _does_not_fit(culprit: Culprit, _, indices, labels, lengths) -> Broken:
    """Finds a label with too few frames: it needs one for each symbol, one between equal ones."""
    lengths = np.ravel(lengths)
    for row, frames in enumerate(lengths):
        symbols = np.ravel(labels)[np.asarray(indices)[:, 0] == row]
        repeated = int((symbols[1:] == symbols[:-1]).sum())
        if len(symbols) + repeated > frames:
            between = ' and %d between equal ones' % repeated if repeated else ''
            told = len(symbols), between, frames, row
            said = 'CTC label that does not fit its frames: %d symbols%s, %d frames, in row %d'
            return said % told
    return None


def _is_empty(what: str) -> Callable[..., Broken]:
    return lambda culprit, x, *_: '%s of an empty tensor' % what if x.size == 0 else None


# Overflows. If the largest possible result is beyond the dtype's range, a non-finite result is an
# overflow: sums and products of finite numbers fail in no other way.


def _overflow(size: Callable[..., float], what: str = '') -> Callable[..., Broken]:
    def breaks(culprit: Culprit, *inputs) -> Broken:
        kinds = 'fciu' if culprit.op_type == 'Cast' else 'fc'
        floats = [x for x in inputs if x.dtype.kind in kinds and x.size]
        if any(np.isnan(x).any() or np.isinf(x).any() for x in floats) or not floats:
            return None
        sizes = [float(np.abs(x).max()) for x in floats]
        terms = float(max(x.size for x in floats))
        if not size(terms, *sizes) > largest_of(culprit.dtype) * 0.999:
            return None
        told = what or culprit.op_type, max(sizes)
        return _overflowed(culprit, culprit.dtype, '%s of numbers as large as %.6g' % told)

    return breaks


def _overflowed(culprit: Culprit, what: str, told: str) -> str:
    ends = culprit.dtype, largest_of(culprit.dtype)
    return 'overflow of %s: %s, and %s ends at %.4g' % (what, told, *ends)


def _function_overflows(function: Callable[..., np.ndarray]) -> Callable[..., Broken]:
    def breaks(culprit: Culprit, *inputs) -> Broken:
        values = [np.asarray(x, np.float64) for x in inputs]
        results = np.where(sum(map(np.isfinite, values)) == len(values), function(*values), 0.0)
        if not (np.abs(results) > largest_of(culprit.dtype) * 0.999).any():
            return None
        told = 'its input is as large as %.6g' % max(float(np.abs(x).max()) for x in values)
        return _overflowed(culprit, culprit.op_type.lower(), told)

    return breaks


def _quotient_overflows(culprit: Culprit, x, y) -> Broken:
    with np.errstate(all='ignore'):
        large = np.abs(np.asarray(x, np.float64) / np.asarray(y, np.float64))
    broken = (large > largest_of(culprit.dtype) * 0.999) & np.isfinite(x) & (np.asarray(y) != 0)
    if not broken.any():
        return None
    least = np.abs(np.broadcast_to(y, broken.shape)[broken]).min()
    told = culprit.dtype, least, broken.sum(), broken.size
    return 'overflow of %s: division by as little as %.3g (%d of %d values)' % told


def _times_inf(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return ((x == 0) & np.isinf(y)) | (np.isinf(x) & (y == 0))


# The table.


def _types(text: str) -> FrozenSet[str]:
    return frozenset(text.split())


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


def _rule(types: str, breaks: Callable[..., Broken], says: str = '', **more) -> Rule:
    return Rule(_types(types), breaks, says, **more)


_RULES = [
    _rule('CTCLoss CTCLossV2', _does_not_fit),
    _rule('%s %s' % (_SOFTMAX, _CROSS_ENTROPY), _rows_of_minus_inf),
    _rule('SparseSoftmaxCrossEntropyWithLogits', _labels_outside),
    _rule(_CROSS_ENTROPY, _labels_hidden),
    _rule('Mean', _is_empty('mean')),
    _rule('Max Min', _is_empty('largest or smallest')),
    # Gradients at a point where the slope is infinite.
    _rule(
        'SqrtGrad',
        lambda y, *_: y == 0,
        'gradient of sqrt at 0, of a norm of zeros',
        gradient_of=NORM,
        at=0,
    ),
    _rule('SqrtGrad', lambda y, *_: y == 0, 'gradient of sqrt at 0', at=0),
    _rule(
        'Reciprocal Inv', lambda x: x == 0, 'gradient of log at 0: division by 0', gradient_of='Log'
    ),
    _rule(
        'Reciprocal Inv RealDiv Div',
        lambda *x: x[-1] == 0,
        'gradient of log1p at -1: division by 0',
        gradient_of='Log1p',
    ),
    _rule('Pow', lambda x, y: (x == 0) & (y < 0), 'gradient of pow at 0', gradient_of='Pow'),
    # Elements outside the domain of the op.
    _rule('Log', lambda x: x == 0, 'log of 0'),
    _rule('Log', lambda x: x < 0, 'log of a negative number'),
    _rule('Log1p', lambda x: x == -1, 'log1p of -1'),
    _rule('Log1p', lambda x: x < -1, 'log1p of a number below -1'),
    _rule(_PLAIN_DIVISIONS, lambda x, y: y == 0, 'division by 0', at=1),
    _rule('Reciprocal Inv', lambda x: x == 0, 'division by 0'),
    _rule('Rsqrt', lambda x: x == 0, 'rsqrt of 0, a division by 0'),
    _rule('Rsqrt', lambda x: x < 0, 'rsqrt of a negative number'),
    _rule('Sqrt', lambda x: x < 0, 'sqrt of a negative number'),
    _rule('Pow', lambda x, y: (x == 0) & (y < 0), 'division by 0, as 0 to a negative power'),
    _rule(
        'Pow',
        lambda x, y: (x < 0) & (y != np.floor(y)),
        'pow of a negative number with a fractional exponent',
    ),
    # Pairs of inputs that give NaN because of an Inf, such as a mask's.
    _rule('Mul', _times_inf, '0 times Inf'),
    _rule('Add AddV2', lambda x, y: np.isinf(x) & (x == -y), 'Inf less Inf'),
    _rule('Sub', lambda x, y: np.isinf(x) & (x == y), 'Inf less Inf'),
    _rule('RealDiv Div', lambda x, y: np.isinf(x) & np.isinf(y), 'Inf divided by Inf'),
]

# Results too large for the dtype.
_RULES += [
    _rule(types, breaks, is_overflow=True)
    for types, breaks in (
        ('Exp', _function_overflows(np.exp)),
        ('Pow', _function_overflows(np.power)),
        ('RealDiv Div', _quotient_overflows),
        ('Reciprocal Inv', lambda culprit, x: _quotient_overflows(culprit, np.ones_like(x), x)),
        ('L2Loss', _overflow(lambda n, x: n * x * x / 2, 'the sum of squares (L2Loss)')),
        ('Square', _overflow(lambda n, x: x * x)),
        ('SquaredDifference', _overflow(lambda n, x, y: (x + y) ** 2)),
        ('Mul', _overflow(lambda n, x, y: x * y)),
        (_PRODUCTS, _overflow(lambda n, x, y: n * x * y)),
        (_SUMS, _overflow(lambda n, *x: n * max(x))),
        ('Add AddV2 AddN Sub BiasAdd AccumulateNV2', _overflow(lambda n, *x: sum(x))),
        (
            'FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3',
            _overflow(lambda n, *x: n * x[0] * x[0]),
        ),
        ('Cast', _overflow(lambda n, x: x)),
    )
]

# Ops whose output is finite for a row with some -Inf, but NaN for a row that is all -Inf.
COPE_WITH_MINUS_INF = _types('%s %s' % (_SOFTMAX, _CROSS_ENTROPY))

"""What an op asks of its inputs, and what it makes of inputs that break that: one table.

Each `Rule` has the types of op that it is about, a precondition and a sentence. A rule explains an
op only if the inputs that were measured break its precondition. An op that no rule explains made
NaN or Inf of finite inputs, and nothing more is said of it.
"""

import math
from typing import Any, Callable, FrozenSet, List, NamedTuple, Optional, Sequence, Union

import numpy as np

from slimguard.diagnosis.ranges import numbers


class Culprit(NamedTuple):
    """An op that returned something non-finite, as far as the rules ask.

    Attributes:
      op_type: the op's type, such as 'Log'.
      forward_type: the type of the op whose gradient it computes; empty if it computes none.
      inputs: what it was given, in order; None for what could not be measured.
      output: what it returned.
      dtype: the name of the output's dtype.
      is_norm: whether it computes the gradient of the root of a sum.
    """

    op_type: str
    forward_type: str
    inputs: Sequence[Optional[np.ndarray]]
    output: np.ndarray
    dtype: str
    is_norm: bool = False


class Cause(NamedTuple):
    """Why an op returned something non-finite.

    Attributes:
      sentence: without a full stop.
      is_overflow: whether a result was too large for its dtype, as it comes when weights grow.
      is_known: whether a rule explains it.
    """

    sentence: str
    is_overflow: bool = False
    is_known: bool = True


UNKNOWN = Cause('', is_known=False)

# What a rule gives: which values break the precondition; or a whole sentence, where it counts none.
_Broken = Union[np.ndarray, str, None]


class Rule(NamedTuple):
    """What ops of some types ask of their inputs.

    Attributes:
      types: the types of op.
      breaks: called with the culprit and its inputs; which values break the precondition.
      says: what happened, before how many values broke it.
      gradient_of: the type of op whose gradient it has to compute; '' for any op, 'any' for any
        gradient.
      is_overflow: as in `Cause`.
      is_risky: whether an op of the type is worth naming where nobody can look at its inputs.
    """

    types: FrozenSet[str]
    breaks: Callable[..., _Broken]
    says: str = ''
    gradient_of: str = ''
    is_overflow: bool = False
    is_risky: bool = True


def explain(culprit: Culprit) -> Cause:
    """Why an op returned something non-finite, by the first rules whose precondition is broken."""
    found: List[str] = []
    for rule in _RULES:
        if culprit.op_type not in rule.types:
            continue
        if rule.gradient_of and culprit.forward_type != rule.gradient_of:
            continue
        sentence = _sentence(rule, culprit)
        if sentence and (rule.is_overflow or rule.gradient_of):
            return Cause(' and '.join(found) or sentence, rule.is_overflow and not found)
        if sentence:
            found.append(sentence)
    if found:
        return Cause(' and '.join(found))
    output = numbers(culprit.output)
    what = 'NaN' if np.isnan(output).any() else 'Inf'
    given = 'an Inf' if any(map(_holds_inf, culprit.inputs)) else 'finite inputs'
    return Cause('%s made %s of %s' % (culprit.op_type, what, given), is_known=False)


def largest_of(dtype: str) -> float:
    """The largest finite number of a dtype."""
    return _LARGEST.get(dtype, float(np.finfo(np.float32).max))


def _sentence(rule: Rule, culprit: Culprit) -> str:
    inputs = [_comparable(x) for x in culprit.inputs if x is not None]
    if len(inputs) < len(culprit.inputs):
        return ''  # one was not measured
    try:
        with np.errstate(all='ignore'):
            broken = rule.breaks(culprit, *inputs)
    except (TypeError, ValueError, IndexError):  # of another number of inputs, or of other shapes
        return ''
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


_LARGEST = {
    'float16': 65504.0,
    'bfloat16': 3.3895314e38,
    'float64': float(np.finfo(np.float64).max),
    'complex128': float(np.finfo(np.float64).max),
}


def _types(text: str) -> FrozenSet[str]:
    return frozenset(text.split())


def _rule(types: str, says: str, breaks: Callable[..., Any], **more) -> Rule:
    """A rule of what each element has to be."""
    return Rule(_types(types), lambda culprit, *inputs: breaks(*inputs), says, **more)


# Rows of nothing but -Inf, as a mask makes them that hides all of a row.


def _rows_of_minus_inf(culprit: Culprit, logits: np.ndarray, *_) -> _Broken:
    rows = np.isneginf(logits).all(axis=-1)
    if not rows.any():
        return None
    what = 'cross entropy' if 'CrossEntropy' in culprit.op_type else 'softmax'
    return '%s of nothing but -Inf (%d of %d rows)' % (what, rows.sum(), rows.size)


def _labels_outside(culprit: Culprit, logits: np.ndarray, labels: np.ndarray) -> _Broken:
    outside = (labels < 0) | (labels >= logits.shape[-1])
    return (
        None
        if not outside.any()
        else (
            'cross entropy of a label that is no class: %s, and there are classes 0 to %d '
            '(%d of %d labels)'
            % (labels[outside].ravel()[0], logits.shape[-1] - 1, outside.sum(), outside.size)
        )
    )


def _labels_hidden(culprit: Culprit, logits: np.ndarray, labels: np.ndarray) -> _Broken:
    if labels.ndim < logits.ndim:
        of_label = np.take_along_axis(logits, labels[..., None].astype(np.int64), -1)[..., 0]
        hidden = np.isneginf(of_label)
    else:
        hidden = np.isneginf(logits).any(axis=-1)
    return (
        None
        if not hidden.any()
        else (
            'cross entropy with a class whose logit is -Inf (%d of %d rows)'
            % (hidden.sum(), hidden.size)
        )
    )


def _does_not_fit(culprit: Culprit, _, indices, labels, lengths) -> _Broken:
    """A label needs a frame for each of its symbols, and one between two that are the same."""
    lengths = np.ravel(lengths)
    for row, frames in enumerate(lengths):
        symbols = np.ravel(labels)[np.asarray(indices)[:, 0] == row]
        repeated = int((symbols[1:] == symbols[:-1]).sum())
        if len(symbols) + repeated > frames:
            between = ' and %d between equal ones' % repeated if repeated else ''
            return 'CTC label that does not fit its frames: %d symbols%s, %d frames, in row %d' % (
                len(symbols),
                between,
                frames,
                row,
            )
    return None


def _is_empty(what: str) -> Callable[..., _Broken]:
    return lambda culprit, x, *_: '%s of an empty tensor' % what if x.size == 0 else None


# Overflows. What is compared with the end of the dtype is as large as the result can be; a result
# that is not finite then was too large, as sums and products are made in no other way.


def _overflow(size: Callable[..., float], what: str = '') -> Callable[..., _Broken]:
    def breaks(culprit: Culprit, *inputs) -> _Broken:
        kinds = 'fciu' if culprit.op_type == 'Cast' else 'fc'
        floats = [x for x in inputs if x.dtype.kind in kinds and x.size]
        if any(np.isnan(x).any() or np.isinf(x).any() for x in floats) or not floats:
            return None
        sizes = [float(np.abs(x).max()) for x in floats]
        terms = float(max(x.size for x in floats))
        ends = largest_of(culprit.dtype)
        if not size(terms, *sizes) > ends * 0.999:
            return None
        return 'overflow of %s: %s of numbers as large as %.6g, and %s ends at %.6g' % (
            culprit.dtype,
            what or culprit.op_type,
            max(sizes),
            culprit.dtype,
            ends,
        )

    return breaks


def _function_overflows(function: Callable[..., np.ndarray]) -> Callable[..., _Broken]:
    def breaks(culprit: Culprit, *inputs) -> _Broken:
        values = [np.asarray(x, np.float64) for x in inputs]
        results = np.abs(function(*values))
        if not ((results > largest_of(culprit.dtype) * 0.999) & ~np.isnan(results)).any():
            return None
        return 'overflow of %s: its input is as large as %.6g, and %s ends at %.3g' % (
            culprit.op_type.lower(),
            max(float(np.abs(x).max()) for x in values),
            culprit.dtype,
            largest_of(culprit.dtype),
        )

    return breaks


def _quotient_overflows(culprit: Culprit, x, y) -> _Broken:
    with np.errstate(all='ignore'):
        large = np.abs(np.asarray(x, np.float64) / np.asarray(y, np.float64))
    broken = (large > largest_of(culprit.dtype) * 0.999) & np.isfinite(x) & (np.asarray(y) != 0)
    if not broken.any():
        return None
    return 'overflow of %s: division by as little as %.3g (%d of %d values)' % (
        culprit.dtype,
        np.abs(np.broadcast_to(y, broken.shape)[broken]).min(),
        broken.sum(),
        broken.size,
    )


def _gradient_of_root(culprit: Culprit, y: np.ndarray, *_) -> _Broken:
    zeros = int((y == 0).sum())
    if not zeros:
        return None
    what = 'gradient of sqrt at 0%s' % (', of a norm of zeros' if culprit.is_norm else '')
    return '%s (%d of %d values)' % (what, zeros, y.size)


def _of_reciprocal(power: int) -> Callable[..., _Broken]:
    def breaks(culprit: Culprit, y, dy) -> _Broken:
        y, dy = np.asarray(y, np.float64), np.asarray(dy, np.float64)
        large = np.abs(dy) * np.abs(y) ** power > largest_of(culprit.dtype) * 0.499
        name = culprit.op_type[: -len('Grad')].lower()
        return 'gradient of %s at 0, or close to it' % name if large.any() else None

    return breaks


def _times_inf(culprit: Culprit, x, y) -> _Broken:
    broken = ((x == 0) & np.isinf(y)) | (np.isinf(x) & (y == 0))
    return '0 times Inf (%d of %d values)' % (broken.sum(), broken.size) if broken.any() else None


def _less_inf(sign: int) -> Callable[..., _Broken]:
    def breaks(culprit: Culprit, x, y) -> _Broken:
        broken = np.isinf(x) & (x == -sign * y)
        return (
            'Inf less Inf (%d of %d values)' % (broken.sum(), broken.size) if broken.any() else None
        )

    return breaks


def _inf_by_inf(culprit: Culprit, x, y) -> _Broken:
    broken = np.isinf(x) & np.isinf(y)
    return (
        'Inf divided by Inf (%d of %d values)' % (broken.sum(), broken.size)
        if broken.any()
        else None
    )


def _outside(low: float, high: float) -> Callable[..., np.ndarray]:
    return lambda x: (x < low) | (x > high)


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
    Rule(_types('CTCLoss CTCLossV2'), _does_not_fit),
    Rule(_types('%s %s' % (_SOFTMAX, _CROSS_ENTROPY)), _rows_of_minus_inf, is_overflow=False),
    Rule(_types('SparseSoftmaxCrossEntropyWithLogits'), _labels_outside),
    Rule(_types(_CROSS_ENTROPY), _labels_hidden),
    Rule(_types('Mean'), _is_empty('mean')),
    Rule(_types('Max Min Prod'), _is_empty('largest or smallest'), is_risky=False),
    # Gradients: the slopes of these are infinite there.
    Rule(_types('SqrtGrad'), _gradient_of_root),
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
    Rule(_types('RsqrtGrad'), _of_reciprocal(3)),
    Rule(_types('ReciprocalGrad InvGrad'), _of_reciprocal(2)),
    # What an element has to be.
    _rule('Log', 'log of 0', lambda x: x == 0),
    _rule('Log', 'log of a negative number', lambda x: x < 0),
    _rule('Log1p', 'log1p of -1', lambda x: x == -1),
    _rule('Log1p', 'log1p of a number below -1', lambda x: x < -1),
    _rule('Xlogy', 'log of 0', lambda x, y: (x != 0) & (y == 0)),
    _rule('Xlogy', 'log of a negative number', lambda x, y: (x != 0) & (y < 0)),
    _rule(_PLAIN_DIVISIONS, 'division by 0', lambda x, y: y == 0),
    _rule('Xdivy', 'division by 0', lambda x, y: (x != 0) & (y == 0)),
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
    _rule('Asin', 'asin of a number outside its range', _outside(-1, 1)),
    _rule('Acos', 'acos of a number outside its range', _outside(-1, 1)),
    _rule('Atanh', 'atanh of a number outside its range', lambda x: np.abs(x) >= 1),
    _rule('Acosh', 'acosh of a number outside its range', _outside(1, math.inf)),
    # What an Inf, as of a mask, becomes a NaN with.
    Rule(_types('Mul'), _times_inf, is_risky=False),
    Rule(_types('Add AddV2'), _less_inf(1), is_risky=False),
    Rule(_types('Sub'), _less_inf(-1), is_risky=False),
    Rule(_types('RealDiv Div'), _inf_by_inf),
    # What ends at the end of the dtype.
    Rule(_types('Exp'), _function_overflows(np.exp), is_overflow=True),
    Rule(_types('Expm1'), _function_overflows(np.expm1), is_overflow=True),
    Rule(_types('Sinh'), _function_overflows(np.sinh), is_overflow=True),
    Rule(_types('Cosh'), _function_overflows(np.cosh), is_overflow=True),
    Rule(_types('Pow'), _function_overflows(np.power), is_overflow=True),
    Rule(_types('RealDiv Div Xdivy'), _quotient_overflows, is_overflow=True),
    Rule(
        _types('Reciprocal Inv'),
        lambda culprit, x: _quotient_overflows(culprit, np.ones_like(x), x),
        is_overflow=True,
    ),
    Rule(
        _types('L2Loss'),
        _overflow(lambda n, x: n * x * x / 2, 'the sum of squares (L2Loss)'),
        is_overflow=True,
        is_risky=False,
    ),
    Rule(_types('Square'), _overflow(lambda n, x: x * x), is_overflow=True, is_risky=False),
    Rule(
        _types('SquaredDifference'),
        _overflow(lambda n, x, y: (x + y) ** 2),
        is_overflow=True,
        is_risky=False,
    ),
    Rule(_types('Mul'), _overflow(lambda n, x, y: x * y), is_overflow=True, is_risky=False),
    Rule(_types(_PRODUCTS), _overflow(lambda n, x, y: n * x * y), is_overflow=True, is_risky=False),
    Rule(_types(_SUMS), _overflow(lambda n, *x: n * max(x)), is_overflow=True, is_risky=False),
    Rule(
        _types('Add AddV2 AddN Sub BiasAdd AccumulateNV2'),
        _overflow(lambda n, *x: sum(x)),
        is_overflow=True,
        is_risky=False,
    ),
    Rule(
        _types('FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3'),
        _overflow(lambda n, *x: n * x[0] * x[0]),
        is_overflow=True,
        is_risky=False,
    ),
    Rule(_types('Cast'), _overflow(lambda n, x: x), is_overflow=True, is_risky=False),
]

# Ops that can do it, to be named where nobody can look inside: in loops and functions.
RISKY = frozenset().union(*(rule.types for rule in _RULES if rule.is_risky))

# Ops that make finite numbers of -Inf, unless there is nothing else.
COPE_WITH_MINUS_INF = _types('%s %s' % (_SOFTMAX, _CROSS_ENTROPY))

"""The known ways to get a NaN or an Inf out of finite numbers, each in a plain sentence."""

from typing import NamedTuple, Optional, Sequence

import numpy as np

from slimguard.diagnosis.ranges import numbers


class Culprit(NamedTuple):
    """An op that made something non-finite of finite inputs, as far as the sentences ask.

    Attributes:
      op_type: the op's type, such as 'Log'.
      forward_type: the type of the op whose gradient it computes; empty if it computes none.
      inputs: its float inputs, in order.
      output: what it returned.
      dtype: the name of the output's dtype.
    """

    op_type: str
    forward_type: str
    inputs: Sequence[np.ndarray]
    output: np.ndarray
    dtype: str


def explain(culprit: Culprit) -> str:
    """What went wrong, in a sentence without a full stop."""
    for rule in _RULES:
        sentence = rule(culprit)
        if sentence:
            return sentence
    what = 'a NaN' if np.isnan(numbers(culprit.output)).any() else 'an infinite number'
    return '%s made %s of finite inputs' % (culprit.op_type, what)


_DIVISIONS = {'RealDiv': 1, 'Div': 1, 'Xdivy': 1, 'TruncateDiv': 1, 'FloorDiv': 1, 'FloorMod': 1}
_RECIPROCALS = frozenset(['Reciprocal', 'Inv', 'Rsqrt', 'ReciprocalGrad', 'InvGrad', 'RsqrtGrad'])
_ROOTS = ('Sqrt', 'Rsqrt')
_MEANS = ('Mean', 'SegmentMean', 'UnsortedSegmentMean', 'SparseSegmentMean')
_LOGS = {'Log': 0.0, 'Log1p': -1.0, 'Xlogy': 0.0}
_LIMITS = {
    'Asin': (-1, 1),
    'Acos': (-1, 1),
    'Atanh': (-1, 1),
    'Acosh': (1, np.inf),
    'Sqrt': (0, np.inf),
    'Rsqrt': (0, np.inf),
}
_LARGEST = {'float16': 65504.0, 'bfloat16': 3.3895314e38}


def _empty(culprit: Culprit) -> Optional[str]:
    if culprit.op_type in _MEANS and any(x.size == 0 for x in culprit.inputs[:1]):
        return 'mean of an empty tensor'
    return None


def _log(culprit: Culprit) -> Optional[str]:
    if culprit.op_type not in _LOGS:
        return None
    pole = _LOGS[culprit.op_type]
    x = numbers(culprit.inputs[1 if culprit.op_type == 'Xlogy' else 0])
    return _at_and_below(culprit.op_type, x, pole)


def _at_and_below(op_type: str, x: np.ndarray, pole: float) -> Optional[str]:
    name = 'log1p' if op_type == 'Log1p' else 'log'
    at, below = int((x == pole).sum()), int((x < pole).sum())
    parts = []
    if at:
        parts.append('%s of %g (%s)' % (name, pole, _of(at, x)))
    if below:
        under = 'a negative number' if pole == 0 else 'a number below %g' % pole
        parts.append('%s of %s (%s)' % (name, under, _of(below, x)))
    return ' and '.join(parts) or None


def _root_gradient(culprit: Culprit) -> Optional[str]:
    """The slope of a root is infinite at zero."""
    if culprit.op_type == 'SqrtGrad' or culprit.forward_type == 'Sqrt':
        zeros = _zeros(culprit.inputs)
        if zeros:
            return 'gradient of sqrt at 0 (%s)' % zeros
    if culprit.op_type == 'RsqrtGrad' or culprit.forward_type == 'Rsqrt':
        return 'gradient of rsqrt at 0, or close to it'
    if culprit.forward_type == 'Pow':
        zeros = _zeros(culprit.inputs)
        if zeros:
            return 'gradient of pow at 0 (%s)' % zeros
    return None


def _log_gradient(culprit: Culprit) -> Optional[str]:
    if culprit.forward_type in _LOGS and culprit.op_type in _RECIPROCALS | set(_DIVISIONS):
        return 'gradient of log at 0: division by 0'
    return None


def _division(culprit: Culprit) -> Optional[str]:
    if culprit.op_type in _DIVISIONS and len(culprit.inputs) > 1:
        divisor = numbers(culprit.inputs[1])
    elif culprit.op_type in _RECIPROCALS and culprit.inputs:
        divisor = numbers(culprit.inputs[0])
    elif culprit.op_type == 'Pow' and len(culprit.inputs) > 1:
        base, exponent = [numbers(x) for x in culprit.inputs]
        divisor = np.where(exponent < 0, base, np.ones_like(base))
    else:
        return None
    zeros = int((divisor == 0).sum())
    return 'division by 0 (%s)' % _of(zeros, divisor) if zeros else None


def _domain(culprit: Culprit) -> Optional[str]:
    if culprit.op_type in _LIMITS and culprit.inputs:
        x = numbers(culprit.inputs[0])
        low, high = _LIMITS[culprit.op_type]
        outside = int(((x < low) | (x > high)).sum())
        if outside:
            kind = (
                'a negative number' if culprit.op_type in _ROOTS else 'a number outside its range'
            )
            return '%s of %s (%s)' % (culprit.op_type.lower(), kind, _of(outside, x))
    if culprit.op_type == 'Pow' and len(culprit.inputs) > 1:
        if (numbers(culprit.inputs[0]) < 0).any() and np.isnan(numbers(culprit.output)).any():
            return 'pow of a negative number with a broken exponent'
    return None


def _exp(culprit: Culprit) -> Optional[str]:
    if culprit.op_type not in ('Exp', 'Expm1', 'Sinh', 'Cosh', 'Pow'):
        return None
    if not np.isinf(numbers(culprit.output)).any():
        return None
    largest = max(float(np.abs(numbers(x)).max()) for x in culprit.inputs if x.size)
    return 'overflow of %s: its input is as large as %.6g, and %s ends at %.3g' % (
        culprit.op_type.lower(),
        largest,
        culprit.dtype,
        _largest(culprit.dtype),
    )


def _overflow(culprit: Culprit) -> Optional[str]:
    """Any other op whose result is too large for its dtype."""
    output = numbers(culprit.output)
    sixteen_bits = culprit.dtype in _LARGEST
    if not (np.isinf(output).any() or sixteen_bits):
        return None
    inputs = [numbers(x) for x in culprit.inputs if x.size]
    largest = max([float(np.abs(x).max()) for x in inputs], default=0.0)
    # Products and sums of small numbers do not overflow: then it is something else.
    if largest < np.sqrt(_largest(culprit.dtype)) / 1e3:
        return None
    return 'overflow of %s: %s of numbers as large as %.6g, and %s ends at %.6g' % (
        culprit.dtype,
        culprit.op_type,
        largest,
        culprit.dtype,
        _largest(culprit.dtype),
    )


_RULES = [_empty, _log, _root_gradient, _log_gradient, _division, _domain, _exp, _overflow]

# Ops that can do it, to be named where nobody can look inside: in loops and functions.
RISKY = frozenset(
    list(_DIVISIONS)
    + list(_RECIPROCALS)
    + list(_LOGS)
    + list(_LIMITS)
    + 'Exp Expm1 Pow Sinh Cosh SqrtGrad Mean'.split()
)


def _zeros(inputs: Sequence[np.ndarray]) -> str:
    for value in inputs:
        zeros = int((numbers(value) == 0).sum())
        if zeros:
            return _of(zeros, value)
    return ''


def _of(count: int, value: np.ndarray) -> str:
    return '%d of %d values' % (count, np.size(value))


def _largest(dtype: str) -> float:
    if dtype in _LARGEST:
        return _LARGEST[dtype]
    return float(np.finfo('float64' if dtype in ('float64', 'complex128') else 'float32').max)

"""The last steps before an incident, from the history in its bundle, and where trouble began."""

import math
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from slimguard.report.loss_history import LEAST_POINTS
from slimguard.system import texts

MOST_STEPS = 1000  # only the newest steps of a longer history are shown
_FAR = 2.0  # a step is unusual this many orders of magnitude above the median
_UNNUMBERED = 'steps before the last one'
_MOST_CALM = 4  # the largest number of usual steps between two steps of one explosion


class LastSteps(NamedTuple):
    """The last steps, the oldest first.

    Attributes:
      step: the global step at which each step began; without one, minus the number of later steps.
      axis: what `step` counts, as the label of an axis.
      written: whether each step was written.
      loss, learning_rate, gradient_norm: a number for each step; None if none is known.
      gradients: for each gradient, the name of one of its variables, and how many others it has.
      norms: the norms of the gradients, [steps, gradients].
      without_row: the variables whose gradients were not measured.
    """

    step: List[int]
    axis: str
    written: np.ndarray
    loss: Optional[np.ndarray]
    learning_rate: Optional[np.ndarray]
    gradient_norm: Optional[np.ndarray]
    gradients: List[Tuple[str, int]]
    norms: np.ndarray
    without_row: Sequence[str] = ()


def last_steps_of(
    history: Optional[Dict[str, Any]], checks: Sequence[str] = ()
) -> Optional[LastSteps]:
    """The last steps in the `history` of a bundle; None if there are none.

    `checks` are the names of the values that the step checked.

    Raises:
      TypeError, ValueError, OverflowError: if `history` is not as `History.to_dict` makes it.
    """
    if history is None or not history['step']:
        return None
    last = {key: values[-MOST_STEPS:] for key, values in history.items() if key != 'gradients'}
    gradients = [(str(names[0]), len(names) - 1) for names in history['gradients']]
    step, count = last['step'], len(last['step'])
    has_numbers = None not in step
    return LastSteps(
        step=list(map(int, step)) if has_numbers else list(range(1 - count, 1)),
        axis='global step' if has_numbers else _UNNUMBERED,
        written=np.array([bool(good) for good in last['good']]),
        loss=_column(last['loss']),
        learning_rate=_column(last['learning_rate']),
        # Without gradients the norm is zero in each step, and is not worth a line.
        gradient_norm=_column(last['gradient_norm']) if gradients else None,
        gradients=gradients,
        norms=np.array(last['gradient_norms'], float).reshape(count, len(gradients)),
        without_row=_without_row(checks),
    )


def _without_row(checks: Sequence[str]) -> List[str]:
    """The variables that a step updates together with a slot, and not by one optimizer op.

    Of a sparse gradient, many optimizers write the slot and the variable in ops of their own.
    """
    of = 'update of '
    updated = dict.fromkeys(each[len(of) :] for each in checks if each.startswith(of))
    slots = [name for name in updated if not name.endswith('ExponentialMovingAverage')]
    owners = {name.rpartition('/')[0] for name in slots}
    measured = {each.partition(' of ')[2] for each in checks if each.startswith('gradient of ')}
    return [name for name in updated if name in owners and name not in measured]


def _column(values: Sequence[Any]) -> Optional[np.ndarray]:
    # numpy reads the words that stand for NaN and Inf.
    return None if set(values) == {None} else np.array(values, float)


def lines(steps: LastSteps) -> List[Tuple[str, np.ndarray]]:
    """By name, numbers to draw as lines: those with three finite values; a rate if it changes."""
    rate = steps.learning_rate
    rate = None if rate is None or (rate == rate[0]).all() else rate
    known = (('loss', steps.loss), ('gradient norm', steps.gradient_norm), ('learning rate', rate))
    return [
        (name, values)
        for name, values in known
        if values is not None and np.isfinite(values).sum() >= LEAST_POINTS
    ]


# The gradients.


class Beginning(NamedTuple):
    """The step at which gradients leave their usual range.

    Attributes:
      column: the column of the step.
      gradient: the number of the gradient that is farthest above its median; None if all of several
        gradients leave their range.
      said: a sentence on the step and the gradients.
    """

    column: int
    gradient: Optional[int]
    said: str


def ratios_of(steps: LastSteps) -> np.ndarray:
    """Decimal logarithms of the norms [steps, gradients], relative to each gradient's median.

    The median is that of the written steps; if no step was written, that of all steps. A norm that
    is not finite becomes NaN. A norm of zero becomes -Inf, unless the median is zero.
    """
    with np.errstate(all='ignore'):
        logs = np.where(np.isfinite(steps.norms), np.log10(np.abs(steps.norms)), np.nan)
        ordered = np.sort(logs[steps.written] if steps.written.any() else logs, axis=0)
        counts = np.count_nonzero(~np.isnan(ordered), axis=0)  # NaN comes last
        medians = np.take_along_axis(ordered, counts[np.newaxis] // 2 * (counts > 0), axis=0)
        is_usual = (logs == medians) | np.isnan(medians) & ~np.isnan(logs)
        return np.where(is_usual, 0.0, logs - medians)


def _has_usual(steps: LastSteps) -> bool:
    """Whether enough steps were written for their median to say what is usual."""
    return int(steps.written.sum()) >= LEAST_POINTS


def beginning_of(steps: LastSteps, ratios: np.ndarray) -> Optional[Beginning]:
    """Where gradients leave their usual range for the last time; None if they do not leave it.

    Of a gradient whose median is zero, and after too few written steps, only NaN and Inf count.
    """
    is_compared = np.isfinite(ratios) & _has_usual(steps)
    out = np.where(np.isnan(ratios), np.inf, np.where(is_compared, ratios, 0))
    # Steps before the last rollback do not count, since it undid them.
    out[: _last_return(steps)] = 0
    columns = np.flatnonzero((out > _FAR).any(axis=1))
    if not columns.size:
        return None
    gaps = np.flatnonzero(np.diff(columns) > 1 + _MOST_CALM)
    column = int(columns[gaps[-1] + 1 if gaps.size else 0])
    row, here = int(np.argmax(out[column])), ratios[column]
    far = int((out[column] > _FAR).sum())
    is_all = far == len(here) > 1
    told = 'each gradient is NaN or Inf, or over 100 times its median'
    told = 'no gradient is finite' if np.isnan(here).all() else told
    if not is_all:
        told = 'the gradient of %s %s' % (variables(*steps.gradients[row]), _far(here[row]))
        told += '; %d of %d gradients left their usual range' % (far, len(here)) if far > 1 else ''
    later = len(steps.step) - 1 - column
    before = '%d step%s before the last' % (later, 's' * (later > 1)) if later else 'the last'
    where = 'At step %d' % steps.step[column]
    if steps.axis == _UNNUMBERED:
        where = before[:1].upper() + before[1:] if later else 'At the last step'
    elif _last_return(steps) and steps.step.count(steps.step[column]) > 1:
        where += ', after the last rollback'
    return Beginning(column, None if is_all else row, '%s: %s.' % (where, told))


def _far(ratio: float) -> str:
    if math.isnan(ratio):
        return 'is not finite'
    return 'goes above 100 times its median (%s times)' % multiple(10**ratio)


def _last_return(steps: LastSteps) -> int:
    """The column of the first step after the last rollback; 0 if there was none."""
    step = np.array(steps.step, float)
    back = np.flatnonzero(step[1:] < step[:-1])
    return int(back[-1]) + 1 if back.size else 0


def caption(
    steps: LastSteps, ratios: np.ndarray, begin: Optional[Beginning], is_explosion: bool = False
) -> str:
    """The sentences below the charts of the last steps: the beginning, and the learning rate."""
    said = '' if begin is None else begin.said
    # Any number is above 100 times a median of zero.
    is_known = _has_usual(steps) and not np.isposinf(ratios).any()
    if steps.gradients and begin is None and is_known and not is_explosion:
        since = 'Since the last rollback no' if _last_return(steps) else 'No'
        said = since + ' gradient is above 100 times its median, and all are finite.'
    if steps.gradients and steps.without_row:
        has = 'has' if len(steps.without_row) == 1 else 'have'
        said += ' %s %s no row: ' % (texts.listed(steps.without_row, 5), has)
        said += 'the optimizer applies the gradient in several ops, as it does a sparse one.'
    if steps.learning_rate is not None:
        said += ' The learning rate is %s at the last step.' % number(steps.learning_rate[-1])
    return said.strip()


# Numbers and names in words.


def number(value: Optional[float]) -> str:
    """A loss in words; '' if it is unknown."""
    if value is None:
        return ''
    if math.isfinite(value):
        return '%.6g' % value
    return 'NaN' if math.isnan(value) else 'Inf' if value > 0 else '\N{MINUS SIGN}Inf'


def multiple(ratio: float) -> str:
    """A multiple in the digits of the messages: 0.5, 12, 342.1, 2.4e+06."""
    return '%.4g' % ratio


def variables(name: str, others: int, most: int = 120) -> str:
    """The name of a variable, and how many more there are; a long name keeps its end."""
    more = ' and %d more' % others if others else ''
    room = most - len(more)
    return ('\N{HORIZONTAL ELLIPSIS}' + name[1 - room :] if len(name) > room else name) + more

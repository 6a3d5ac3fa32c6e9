"""The last steps before an incident: :class:`History`, and the layout of a step's row.

Imports no TensorFlow.
"""

import math
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

# The columns of a step's row, a float64 vector; an unknown number is NaN. From GRADIENTS on there
# is a column for each gradient: half the sum of its squares as the optimizer takes it.
STEP, IS_GOOD, LOSS, LEARNING_RATE, GRADIENTS = range(5)


# A row, or the parts of one, since most rows are never read: the global step after the step (None
# if the graph has none), whether the step was written, and the rest of the row.
Entry = Union[np.ndarray, Tuple[Any, bool, np.ndarray]]


def row_of(entry: Entry) -> np.ndarray:
    """The row of a step."""
    if isinstance(entry, np.ndarray):
        return entry
    step, is_good, measures = entry
    row = np.empty(len(measures) + LOSS)
    row[STEP] = math.nan if step is None else step
    row[IS_GOOD] = is_good
    row[LOSS:] = measures
    return row


def norm_of(row: np.ndarray) -> float:
    """The norm of all gradients of a step together, from its row."""
    return math.sqrt(2 * np.add.reduce(row[GRADIENTS:]))


# A learning rate jumps this many times; a number surges this many times over its median.
_JUMP, _SURGE = 3.0, 10.0
_LEAST_BEFORE, _MOST_AFTER = 10, 50  # steps: at least before a jump, at most until a surge
# The losses of this many last steps do not count as usual: they may be part of the explosion.
_LAST = 10
# The weights are ruined if the last loss is _RUINED times all usual ones. While there are none, it
# has to be _EXPLODED times the first loss, or 1 if that is larger: a training may explode at once.
_RUINED, _EXPLODED = 100.0, 1000.0

IS_RUINED = 'the weights were ruined before, though they are finite'


class History(NamedTuple):
    """The last steps, as they go into a bundle.

    Attributes:
      gradients: for each gradient the name of its variable; several names if the squares of short
        gradients are summed together.
      rows: the rows of the steps, the oldest first.
    """

    gradients: Tuple[Tuple[str, ...], ...]
    rows: Sequence[np.ndarray]

    def to_dict(self) -> Dict[str, Any]:
        """Lists of the same length, with an entry for each step, and the names of the gradients.

        * `gradients`: as above.
        * `step`: the global step after the step; None if the graph has none.
        * `good`: whether the step was written.
        * `loss`, `learning_rate`: None if there is none, or if the rate is no tensor. A NaN loss
          stays NaN.
        * `gradient_norm`: the norm of all gradients together.
        * `gradient_norms`: a list with the norm of each of `gradients`.
        """
        return {
            'gradients': [list(names) for names in self.gradients],
            'step': [None if math.isnan(row[STEP]) else int(row[STEP]) for row in self.rows],
            'good': [bool(row[IS_GOOD]) for row in self.rows],
            'loss': self._column(LOSS),
            'learning_rate': self._column(LEARNING_RATE),
            'gradient_norm': [norm_of(row) for row in self.rows],
            'gradient_norms': [np.sqrt(2 * row[GRADIENTS:]).tolist() for row in self.rows],
        }

    def ruin(self) -> str:
        """Why the weights were ruined before the last step; '' if they were not, or if unknown.

        An explosion writes some finite updates before its first Inf.
        """
        losses = [abs(float(row[LOSS])) for row in self.rows if row[IS_GOOD]]
        losses = [loss for loss in losses if not math.isnan(loss)]
        if len(losses) < 2:
            return ''
        before = losses[:-_LAST]
        usual = max(before or losses[:1])
        if losses[-1] > (_RUINED * usual if before else _EXPLODED * max(usual, 1.0)):
            return '; %s: the loss of the last good step is %g, and was %g at most' % (
                IS_RUINED,
                losses[-1],
                usual,
            )
        return ''

    def jump(self) -> str:
        """How an explosion began, as `jump_in` says it."""
        table = np.array([row[:GRADIENTS] for row in self.rows]).reshape(-1, GRADIENTS)
        lines = [('loss', table[:, LOSS])]
        if self.gradients:
            lines.append(('gradient norm', np.array([norm_of(row) for row in self.rows])))
        return jump_in(table[:, STEP], table[:, LEARNING_RATE], lines)

    def _column(self, number: int) -> List[Optional[float]]:
        values = [float(row[number]) for row in self.rows]
        is_known = not all(map(math.isnan, values))
        return list(values) if is_known else [None] * len(values)


def jump_in(steps: np.ndarray, rates: np.ndarray, lines: Sequence[Tuple[str, np.ndarray]]) -> str:
    """How an explosion began, if a jump of the learning rate came shortly before it; else ''.

    Args:
      steps: the global steps; NaN where the graph has none.
      rates: the learning rate of each; NaN where it is not known.
      lines: the numbers that may have followed, by name: one for each step.
    """
    with np.errstate(all='ignore'):
        jumps = np.flatnonzero(rates[1:] > _JUMP * rates[:-1]) + 1
    for at in reversed(jumps[jumps >= _LEAST_BEFORE].tolist()):
        found = [(_surge(values, at), name) for name, values in lines]
        after, name = min(found, key=lambda it: it[0], default=(math.inf, ''))
        if after <= _MOST_AFTER:
            where = '%d steps before the last' % (len(rates) - 1 - at)
            if not math.isnan(steps[at]):
                where = 'at step %d' % steps[at]
            later = '%d step%s later' % (after, 's' if after > 1 else '')
            return 'the learning rate went from %.6g to %.6g %s; the %s followed %s' % (
                rates[at - 1],
                rates[at],
                where,
                name,
                later if after else 'in the same step',
            )
    return ''


def _surge(values: np.ndarray, at: int) -> float:
    """How many steps after `at` finite values are far above the values before it."""
    before = values[:at][np.isfinite(values[:at])]
    if not before.size:
        return math.inf
    with np.errstate(all='ignore'):
        later = np.isfinite(values[at:]) & (values[at:] > _SURGE * np.median(np.abs(before)))
    return int(np.argmax(later)) if later.any() else math.inf

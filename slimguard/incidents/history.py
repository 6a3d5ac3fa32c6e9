"""The last steps before an incident: :class:`History`, and the layout of a step's row.

Imports no TensorFlow.
"""

import math
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

# The columns of a step's row, a float64 vector, which gate/building/outcome.py makes in the graph;
# an unknown number is NaN. UNTOLD is the number of bad steps that no watcher has read yet. STEP is
# the global step after the step. From GRADIENTS on there is a column for each gradient: half the
# sum of its squares as the optimizer takes it.
UNTOLD, STEP, IS_GOOD, LOSS, LEARNING_RATE, GRADIENTS = range(6)


def norm_of(row: np.ndarray) -> float:
    """The norm of all gradients of a step together, computed from its row."""
    return math.sqrt(2 * np.add.reduce(row[GRADIENTS:]))


def steps_before(rows: Sequence[np.ndarray]) -> List[float]:
    """The global step at which each step began, computed from the global step after it.

    A written step has increased it by one, unless the step only added up gradients.
    """
    steps, last, was_good = [], math.nan, False
    for row in rows:
        after, is_good = float(row[STEP]), bool(row[IS_GOOD])
        only_added = is_good and was_good and after == last
        steps.append(after - (is_good and not only_added))
        last, was_good = after, is_good
    return steps


# A learning rate jumps by this factor in one step; a number surges to this multiple of its median.
_JUMP, _SURGE = 3.0, 10.0
_LEAST_BEFORE, _MOST_AFTER = 10, 50  # fewest steps before a jump, most until a surge
# A number grew far if it is FAR times the largest usual number. With fewer than _FEW usual numbers
# it has to be EXPLODED times the largest (or 1, if that is larger): a training may explode at once.
_FEW, FAR, EXPLODED = 10, 100.0, 1000.0


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
        * `step`: the global step at which the step began, as in an `Incident`; None if the graph
          has none.
        * `good`: whether the step was written.
        * `loss`: None if the step has none. A NaN loss stays NaN.
        * `learning_rate`: the rate in use, with the factor of the rollbacks before the step; None
          if the step has none.
        * `gradient_norm`: the norm of all gradients together.
        * `gradient_norms`: a list with the norm of each of `gradients`.
        """
        return {
            'gradients': [list(names) for names in self.gradients],
            'step': [None if math.isnan(at) else int(at) for at in steps_before(self.rows)],
            'good': [bool(row[IS_GOOD]) for row in self.rows],
            'loss': self._column(LOSS),
            'learning_rate': self._column(LEARNING_RATE),
            'gradient_norm': [norm_of(row) for row in self.rows],
            'gradient_norms': [np.sqrt(2 * row[GRADIENTS:]).tolist() for row in self.rows],
        }

    def _column(self, number: int) -> List[Optional[float]]:
        values = [float(row[number]) for row in self.rows]
        is_known = not all(map(math.isnan, values))
        return list(values) if is_known else [None] * len(values)


def explosion_in(history: Optional[Dict[str, Any]]) -> str:
    """In words, the signs of an explosion in the steps before the last one; '' if there are none.

    A sign is a jump of the learning rate after which the loss or the gradient norm surged; or else
    that one of the two grew far.

    Args:
      history: as `History.to_dict` returns it; None if it is not known.
    """
    if history is None or not history['step']:
        return ''
    known = {key: np.array(history[key], np.float64) for key in _EXPLODE}
    # The steps before a rollback say nothing about the last step.
    with np.errstate(all='ignore'):
        begin = int(np.append(0, np.flatnonzero(np.diff(known['step']) < 0) + 1)[-1])
        steps, losses, rates, norms = (known[key][begin:] for key in _EXPLODE)
        lines = [('loss', losses)] + ([('gradient norm', norms)] if history['gradients'] else [])
        good = np.array(history['good'][begin:])
        return _jump(steps, good, rates, lines) or _growth(steps, good, lines)


_EXPLODE = ('step', 'loss', 'learning_rate', 'gradient_norm')


def _growth(steps: np.ndarray, good: np.ndarray, lines: Sequence[Tuple[str, np.ndarray]]) -> str:
    """How far a number grew beyond its usual values in the last written steps; or ''."""
    for name, values in lines:
        places = np.flatnonzero(good & np.isfinite(values))
        sizes = np.abs(values[places])
        if not sizes.size:
            continue
        # Half of the steps may be part of the explosion, so take the median of the lower half.
        usual = _SURGE * float(np.sort(sizes)[(sizes.size - 1) // 4])
        before = sizes[: np.flatnonzero(sizes <= usual)[-1] + 1]
        is_short = len(before) < _FEW
        largest = float(before.max())
        most = EXPLODED * max(largest, 1.0) if is_short else FAR * largest
        if sizes[-1] > most:
            low = len(before) - 1  # it was low until the step in which it grew
            if is_short or sizes[len(before)] <= most:
                low = np.flatnonzero(before <= 2 * before.min())[-1]
            first = int(places[low])
            last = int(places[-1])
            ends = name, values[first], _when(steps, first), values[last], _when(steps, last)
            return 'the %s went from %.4g%s to %.4g%s' % ends
    return ''


def _when(steps: np.ndarray, at: int) -> str:
    if math.isnan(steps[at]):
        before = len(steps) - 1 - at
        return ' (%d step%s before the last)' % (before, 's' if before > 1 else '')
    return ' at step %d' % steps[at]


def _jump(
    steps: np.ndarray,
    good: np.ndarray,
    rates: np.ndarray,
    lines: Sequence[Tuple[str, np.ndarray]],
) -> str:
    """How a jump of the learning rate began an explosion; '' if there was no such jump.

    Args:
      steps: the global steps; NaN where the graph has none.
      good: whether each step was written.
      rates: the learning rate of each; NaN where it is not known.
      lines: pairs of a name and numbers, one for each step, which may have surged after the jump.
    """
    jumps = np.flatnonzero(rates[1:] > _JUMP * rates[:-1]) + 1
    for at in reversed(jumps[jumps >= _LEAST_BEFORE].tolist()):
        went = 'the learning rate went from %.6g to %.6g%s; the ' % (
            rates[at - 1],
            rates[at],
            _when(steps, at),
        )
        found = [(_surge(values, at), name) for name, values in lines]
        after, name = min(found, key=lambda it: it[0], default=(math.inf, ''))
        if after <= _MOST_AFTER:
            when = '%d step%s later' % (after, 's' if after > 1 else '')
            return went + '%s followed %s' % (name, when if after else 'in the same step')
        # This step was written, and no later loss was finite.
        losses_after = lines[0][1][at + 1 :]
        is_ruined = good[at] and losses_after.size and not np.isfinite(losses_after).any()
        if is_ruined and not good[at + 1 :].any():
            return went + 'loss of the next step was not finite'
    return ''


def _surge(values: np.ndarray, at: int) -> float:
    """How many steps after `at` finite values began to be far above the earlier values.

    Inf if they never did, or if most later values are low again.
    """
    before = values[:at][np.isfinite(values[:at])]
    if not before.size:
        return math.inf
    known = np.flatnonzero(np.isfinite(values[at:]))
    is_far = values[at:][known] > _SURGE * np.median(np.abs(before))
    if not is_far.any():
        return math.inf
    first = int(np.argmax(is_far))
    return int(known[first]) if np.mean(is_far[first:]) > 0.5 else math.inf

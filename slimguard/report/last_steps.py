"""The last steps before an incident, as arrays, out of the history in its bundle."""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import numpy as np

MOST_STEPS = 1000  # of a longer history the newest are shown


class Gradient(NamedTuple):
    """A gradient of which there is a norm for each step.

    Attributes:
      name: of its variable; of the first one, where short gradients are summed together.
      others: how many more variables there are.
    """

    name: str
    others: int


class LastSteps(NamedTuple):
    """The last steps, the oldest first. What nobody knows is masked.

    Attributes:
      step: the global step after each; None where the graph has none.
      written: whether the step was written.
      loss, learning_rate, gradient_norm: a number for each step; None if there is none at all.
      gradients: in the order of the bundle.
      norms: [steps, gradients].
    """

    step: List[Optional[int]]
    written: np.ndarray
    loss: Optional[np.ma.MaskedArray]
    learning_rate: Optional[np.ma.MaskedArray]
    gradient_norm: Optional[np.ma.MaskedArray]
    gradients: List[Gradient]
    norms: np.ma.MaskedArray


def last_steps_of(history: Optional[Dict[str, Any]]) -> Optional[LastSteps]:
    """The last steps of a bundle's `history`, which was checked; None if it has none.

    Raises:
      TypeError, ValueError, OverflowError: if it is not as `History.to_dict` makes it.
    """
    if history is None or not history['step']:
        return None
    last = {key: history[key][-MOST_STEPS:] for key in _COLUMNS}
    gradients = [Gradient(names[0], len(names) - 1) for names in history['gradients']]
    shape = (len(last['step']), len(gradients))
    return LastSteps(
        step=last['step'],
        written=np.array([bool(good) for good in last['good']]),
        loss=_column(last['loss']),
        learning_rate=_column(last['learning_rate']),
        # Without gradients their norm is zero, which tells nothing.
        gradient_norm=_column(last['gradient_norm']) if gradients else None,
        gradients=gradients,
        norms=_numbers(last['gradient_norms']).reshape(shape),
    )


_COLUMNS = 'step good loss learning_rate gradient_norm gradient_norms'.split()


def _column(values: Sequence[Any]) -> Optional[np.ma.MaskedArray]:
    numbers = _numbers(values)
    return None if np.ma.getmaskarray(numbers).all() else numbers


def _numbers(values: Sequence[Any]) -> np.ma.MaskedArray:
    """As floats; numpy reads the strings that stand for NaN and Inf, and makes NaN of None."""
    unknown = np.equal(np.array(values, object), np.array(None))
    return np.ma.MaskedArray(np.array(values, np.float64), mask=unknown)


def is_bad(values: np.ma.MaskedArray) -> np.ndarray:
    """Where values are known, and not finite."""
    return ~np.isfinite(values.data) & ~np.ma.getmaskarray(values)


def finite(values: np.ma.MaskedArray) -> np.ndarray:
    """The finite ones among values."""
    return values.data[np.isfinite(values.data) & ~np.ma.getmaskarray(values)]

"""The last steps before an incident: :class:`History`, and how the row of a step is laid out.

Imports no TensorFlow.
"""

import math
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

# Where the numbers of a step are in its row, a float64 vector; NaN is what is not known. After them
# comes, for each gradient, half the sum of its squares as the optimizer takes it.
STEP, IS_GOOD, LOSS, LEARNING_RATE, GRADIENTS = range(5)


# A row that is made when somebody reads it, which for most steps nobody does: the global step after
# the step, None if the graph has none; whether it was written; and the rest of the row.
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
    """The norm of all gradients of a step together, by its row."""
    return math.sqrt(2 * np.add.reduce(row[GRADIENTS:]))


class History(NamedTuple):
    """The last steps, as they go into a bundle.

    Attributes:
      gradients: the names of the variables that each gradient is of; several names where the
        squares of short gradients are summed together.
      rows: the rows of the steps, the oldest first.
    """

    gradients: Tuple[Tuple[str, ...], ...]
    rows: Sequence[np.ndarray]

    def to_dict(self) -> Dict[str, Any]:
        """Lists of the same length, with an entry for each step, and the names of the gradients.

        * `gradients`: as above.
        * `step`: the global step after the step; None if the graph has none.
        * `good`: whether the step was written.
        * `loss`, `learning_rate`: None where there is none, or the rate is no tensor. A loss that
          is NaN is a NaN.
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

    def _column(self, number: int) -> List[Optional[float]]:
        values = [float(row[number]) for row in self.rows]
        is_known = not all(map(math.isnan, values))
        return list(values) if is_known else [None] * len(values)

"""Signals that ranks send each other, so that all end after the same step."""

import signal
import weakref
from typing import Any, Set

import numpy as np

# The signals that end a training, in the order in which ranks send them.
NUMBERS = (signal.SIGINT, signal.SIGTERM)


class SharedSignals:
    """The signals that this process has received and not yet sent to the other ranks.

    Attributes:
      trainings: their `on_shared_signal` is called with the number of a signal once all ranks know
        of it: in the middle of a step, in any thread.
    """

    def __init__(self) -> None:
        self._heard: Set[int] = set()
        self.trainings: Any = weakref.WeakSet()

    def hear(self, number: int) -> None:
        """Sends a signal to all ranks in their next step."""
        self._heard.add(number)

    def forget(self) -> None:
        """Sends none: the training that had to end has ended."""
        self._heard.clear()

    def heard(self) -> np.ndarray:
        """float32: for each signal that ends a training, 1 if it was received."""
        return np.array([number in self._heard for number in NUMBERS], np.float32)

    def tell(self, counts: np.ndarray) -> None:
        """Tells the trainings of this process which signals some rank has received."""
        for number, count in zip(NUMBERS, counts):
            if count:
                self._heard.discard(number)
                for training in list(self.trainings):
                    training.on_shared_signal(number)


# The signals of this process.
SIGNALS = SharedSignals()

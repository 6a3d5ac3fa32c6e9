"""Saves a script's state once more, as the script itself saves it: :class:`LastSave`."""

import numbers
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

import tensorflow.compat.v1 as tf1


class _Call(NamedTuple):
    """A call of `Saver.save`."""

    saver: tf1.train.Saver
    save_path: str
    global_step: Any
    args: Tuple[Any, ...]  # those after global_step
    kwargs: Dict[str, Any]
    steps: Dict[str, int]  # by train op, how many there had been


class LastSave:
    """The last time that a script saved the state of a graph, and how to do so again.

    Args:
      steps: gives, by train op, how many guarded steps there have been.
    """

    def __init__(self, steps: Callable[[], Dict[str, int]]):
        self._steps = steps
        self._call: Optional[_Call] = None
        self._is_repeated = False  # to the same path, without a number

    def note(self, saver: tf1.train.Saver, save_path, global_step=None, *args, **kwargs) -> None:
        """Notes a call of `Saver.save` that published a checkpoint; the arguments are its own."""
        before = self._call
        self._is_repeated = before is not None and before.save_path == save_path
        self._call = _Call(saver, save_path, global_step, args, kwargs, dict(self._steps()))

    def again(self, session) -> Optional[str]:
        """Saves the state as it is now. Returns the checkpoint; None if the script saved none yet.

        A number that the script counts itself goes on by the steps since then. A path without a
        number is used again if the script does so; else the checkpoint is called ``PATH-last``.
        """
        if self._call is None:
            return None
        saver, path, step, args, kwargs, _ = self._call
        if step is None and not self._is_repeated:
            path = '%s-last' % path
        elif isinstance(step, numbers.Integral):
            step = int(step) + self._steps_since(self._call)
        return saver.save(session, path, step, *args, **kwargs)

    def _steps_since(self, call: _Call) -> int:
        """The steps of the train op that ran most often: a GAN has two, and one number."""
        return max([n - call.steps.get(name, 0) for name, n in self._steps().items()], default=0)

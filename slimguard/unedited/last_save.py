"""Saves a script's state once more, as the script itself saves it: :class:`LastSave`."""

import numbers
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import tensorflow.compat.v1 as tf1

from slimguard.checkpoints.finite_saver import absolute_prefix

# Beside the state files of the script, which go on naming what the script means by its newest.
_STATE_FILE = 'checkpoint.slimguard-last'


class _Call(NamedTuple):
    """A call of `Saver.save`."""

    saver: tf1.train.Saver
    save_path: str  # absolute: the script may go to another directory
    global_step: Any
    args: Tuple[Any, ...]  # those after global_step
    kwargs: Dict[str, Any]
    size: int  # how many variables were saved
    steps: Dict[str, int]  # by train op, how many there had been


def _steps_between(before: Dict[str, int], after: Dict[str, int]) -> int:
    """The steps from one count to another, of the train op that ran most often: a GAN has two."""
    return max([n - before.get(name, 0) for name, n in after.items()], default=0)


class LastSave:
    """The last time that a script saved the whole state of a graph, and how to do so again.

    Args:
      steps: gives, by train op, how many guarded steps there have been.
    """

    def __init__(self, steps: Callable[[], Dict[str, int]]):
        self._steps = steps
        self._calls: List[_Call] = []  # the last two of those that saved most variables
        # The number in the name of what was restored, and the steps until then.
        self._restored: Optional[Tuple[int, Dict[str, int]]] = None

    def note(
        self, size: int, saver: tf1.train.Saver, save_path, global_step=None, *args, **kwargs
    ) -> None:
        """Notes a call of `Saver.save` that published a checkpoint of `size` variables.

        The other arguments are those of the call. A script may save a part of its state as well,
        which is nothing to resume from.
        """
        most = max([call.size for call in self._calls], default=0)
        if size >= most:
            path = absolute_prefix(save_path)
            call = _Call(saver, path, global_step, args, kwargs, size, dict(self._steps()))
            self._calls = [each for each in self._calls if each.size == size][-1:] + [call]

    @property
    def is_known(self) -> bool:
        """Whether there was one."""
        return bool(self._calls)

    def note_restored(self, prefix: str) -> None:
        """Notes the checkpoint that the script goes on from, whose name may count steps."""
        number = prefix.rpartition('-')[2]
        if number.isdigit():
            self._restored = int(number), dict(self._steps())

    def again(self, session, is_to_be_found: bool = False) -> Optional[str]:
        """Saves the state as it is now. Returns the checkpoint; None if the script saved none yet.

        Nothing that is there is overwritten, or deleted but for what the script's own next save
        would delete. A number that counts steps goes on by the steps since then. Where the number
        counts something else, or there is none, the checkpoint is called ``...-last``, and the
        script's state file does not name it.

        Args:
          session: the session.
          is_to_be_found: whether to save nothing, and return None, where that would be so.
        """
        if not self._calls:
            return None
        call = self._calls[-1]
        steps = _steps_between(call.steps, self._steps())
        if call.global_step is not None and not isinstance(call.global_step, numbers.Integral):
            return call.saver.save(
                session, call.save_path, call.global_step, *call.args, **call.kwargs
            )
        if call.global_step is not None and self._counts_steps():
            number = int(call.global_step) + steps
            return call.saver.save(session, call.save_path, number, *call.args, **call.kwargs)
        if is_to_be_found:
            return None
        number = '' if call.global_step is None else '-%d' % call.global_step
        # The same ops, and a list of its own: the script's saver would delete its oldest.
        saver = tf1.train.Saver(saver_def=call.saver.saver_def)
        return saver.save(
            session, '%s%s-last' % (call.save_path, number), latest_filename=_STATE_FILE
        )

    def _counts_steps(self) -> bool:
        """Whether the script's number grows as its steps do.

        From one save to the next, or since what it restored, or from none.
        """
        *before, last = self._calls
        if before and before[0].global_step is not None:
            between = _steps_between(before[0].steps, last.steps)
            return last.global_step - before[0].global_step == between
        if self._restored is not None:
            number, steps = self._restored
            if last.global_step - number == _steps_between(steps, last.steps):
                return True
        total = max(last.steps.values(), default=0)
        return last.global_step in (total, total - 1)

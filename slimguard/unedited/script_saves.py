"""The checkpoints of one graph of a script.

ScriptSaves     the checkpoints of the whole state; saves another one, as the script does
ScriptRestorer  restores the newest good checkpoint, or the state before the first step
"""

import numbers
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard import graph as graphs
from slimguard.checkpoints import checkpoint_reader
from slimguard.checkpoints.checkpoint_reader import global_step_in
from slimguard.checkpoints.finite_saver import absolute_prefix
from slimguard.checkpoints.restorers import (
    FIRST,
    FirstStateRestorer,
    Restorer,
    those_in_line,
)
from slimguard.graph.single_runs import run_once

# The state file of `...-last` checkpoints. The script's own state file names only the script's.
_STATE_FILE = 'checkpoint.slimguard-last'

# The most saved checkpoints to examine.
_MOST = 20


class _Call(NamedTuple):
    """The arguments of a call of `Saver.save`."""

    save_path: str  # absolute: the script may go to another directory
    global_step: Any
    args: Tuple[Any, ...]  # those after global_step
    kwargs: Dict[str, Any]


class _Saved(NamedTuple):
    """A checkpoint of the script.

    Attributes:
      saver: the saver that saved or restored it.
      prefix: its path.
      size: how many variables are in it.
      number: the number in its name, if the script gave one.
      steps: by train op, the number of steps so far.
      call: the call that saved it; None if an earlier run of the script saved it.
    """

    saver: tf1.train.Saver
    prefix: str
    size: int
    number: Optional[int]
    steps: Dict[str, int]
    call: Optional[_Call]


class ScriptSaves:
    """The checkpoints that hold the whole state of a graph; a script may also save parts.

    Args:
      steps: returns, by train op, the number of guarded steps so far.

    Attributes:
      why_not: why the last `again` returned None.
    """

    def __init__(self, steps: Callable[[], Dict[str, int]]):
        self._steps = steps
        self._known: List[_Saved] = []  # the newest last
        self.why_not = ''

    @property
    def newest(self) -> Optional[str]:
        """The newest checkpoint, or None."""
        return self._known[-1].prefix if self._known else None

    @property
    def savers(self) -> Dict[str, tf1.train.Saver]:
        """By prefix, the saver that restores a checkpoint; the oldest checkpoint first."""
        return {each.prefix: each.saver for each in self._known}

    def note_saved(
        self, size: int, saved: str, saver: tf1.train.Saver, path, global_step=None, *args, **kwargs
    ) -> None:
        """Notes a call of `Saver.save` that published a checkpoint `saved` of `size` variables.

        The other arguments are the arguments of the call.
        """
        number = int(global_step) if isinstance(global_step, numbers.Integral) else None
        call = _Call(absolute_prefix(path), global_step, args, kwargs)
        self._note(_Saved(saver, saved, size, number, dict(self._steps()), call))

    def note_restored(self, saver: tf1.train.Saver, prefixes: List[str], size: int) -> None:
        """Notes the checkpoints of earlier runs; the script resumes from the last, the newest."""
        for prefix in prefixes:
            number = prefix.rpartition('-')[2]  # perhaps a number of steps
            known = int(number) if number.isdigit() else None
            self._note(_Saved(saver, prefix, size, known, dict(self._steps()), None))

    def _note(self, saved: _Saved) -> None:
        most = max([each.size for each in self._known], default=0)
        if saved.size >= most:
            known = [e for e in self._known if e.prefix != saved.prefix and e.size == saved.size]
            self._known = [*known[1 - _MOST :], saved]

    def again(self, session, is_to_be_found: bool = False) -> Optional[str]:
        """Repeats the script's last save with the present state. Returns the checkpoint, or None.

        It overwrites nothing, and deletes only what the script's own next save would delete. If the
        number in the name is the global step, or counts steps, so does the new one. If it counts
        something else, or there is no number, the checkpoint is called ``...-last``, and the
        script's state file does not name it.

        Args:
          session: the session.
          is_to_be_found: whether a restart has to find the checkpoint; if so, saves no ``...-last``
            but returns None.
        """
        last = self._known[-1] if self._known else None
        if last is None or last.call is None:
            self.why_not = _NO_PLACE
            return None
        path, number, args, kwargs = last.call
        self.why_not = Restorer.why_not_saved
        is_known = last.number is None and number is not None  # a variable: it counts by itself
        if last.number is not None and self._counts_steps():
            number, is_known = self._number_now(session, last), True
        if is_known:
            return last.saver.save(session, path, number, *args, **kwargs)
        if is_to_be_found:
            self.why_not = _NOT_A_STEP if len(self._known) > 1 else _ONE_SAVE
            return None
        end = '-last' if last.number is None else '-%d-last' % last.number
        # The same ops, but a new list of checkpoints: the script's own would delete one.
        saver = tf1.train.Saver(saver_def=last.saver.saver_def)
        return saver.save(session, path + end, latest_filename=_STATE_FILE)

    def _counts_steps(self) -> bool:
        """Whether the number in the names of the script's checkpoints grows with its steps.

        Compares the last save with the global step in it, with the save or restored checkpoint
        before, or with zero steps. The number 0 or 1 after one step may as well count epochs.
        """
        *before, last = self._known
        if last.number is None:
            return False
        if before and before[-1].number is not None:
            between = _steps_between(before[-1].steps, last.steps)
            if last.number - before[-1].number == between:
                return True
        total = max(last.steps.values(), default=0)
        return total != 1 and last.number in (total, total - 1, global_step_in(last.prefix))

    def _number_now(self, session, last: _Saved) -> int:
        """The number for the present state, if the number of the last save counts steps."""
        step = graphs.global_step(session.graph)
        if step is not None and last.number == global_step_in(last.prefix):
            now = int(run_once(session, step))
            if now != last.number:  # else nothing may count this global step
                return now
        assert last.number is not None
        return last.number + _steps_between(last.steps, self._steps())


def _steps_between(before: Dict[str, int], after: Dict[str, int]) -> int:
    """The steps between two counts, for the train op that ran most often: a GAN has several."""
    return max([n - before.get(name, 0) for name, n in after.items()], default=0)


class ScriptRestorer(FirstStateRestorer):
    """Restores the newest good checkpoint of a script, or the state before its first step.

    Args:
      saves: the checkpoints.
      graph: their graph.
    """

    def __init__(self, saves: ScriptSaves, graph: tf.Graph):
        FirstStateRestorer.__init__(self)
        self.logdir = 'the script'
        self._saves = saves
        self._graph = graph

    @property
    def why_not_saved(self) -> str:
        return self._saves.why_not

    def save(self, session) -> Optional[str]:
        return self._saves.again(session, is_to_be_found=True)

    def save_last(self, session) -> Optional[str]:
        return self._saves.again(session)

    def published(self) -> Optional[str]:
        return self._saves.newest

    def good(self) -> Iterator[str]:
        if not gates.ranks_in(self._graph).are_several:  # only one of several ranks has checkpoints
            paths = reversed([*self._saves.savers])
            yield from those_in_line(p for p in paths if checkpoint_reader.read(p).is_good)
        yield from FirstStateRestorer.good(self)

    def restore(self, session, checkpoint: str) -> None:
        if checkpoint == FIRST:
            FirstStateRestorer.restore(self, session, checkpoint)
        else:
            self._saver_of(checkpoint).restore(session, checkpoint)

    def _saver_of(self, checkpoint: str) -> tf1.train.Saver:
        return self._saves.savers[checkpoint]


_NOT_A_STEP = (
    "the names of the script's checkpoints do not count steps, so no name would lead a restart to "
    'it'
)
_ONE_SAVE = (
    'the script has saved only one checkpoint so far, and its name does not tell whether it counts '
    'steps, so no name is sure to lead a restart to it'
)
_NO_PLACE = 'the script has saved nothing since its start, so there is no place to save it in'

"""The last steps of a guarded train op, and what they say of the next: :class:`StepHistory`."""

import collections
import math
import statistics
import threading
from typing import Any, Callable, Deque, Dict, Optional, Sequence, Tuple

import numpy as np

from slimguard import gate as gates
from slimguard.incidents.history import IS_GOOD, LOSS, History, norm_of, steps_before
from slimguard.incidents.spike import Largest, Level, Spike
from slimguard.system.log import log
from slimguard.system.numbers import is_whole

# The default number of steps to keep.
STEPS = 200
# So many steps define the usual norm if no `Spike` does.
_WINDOW = 100


class StepHistory:
    """Keeps the last steps of one gate, and knows when the next is out of bounds.

    Args:
      gate: the gate.
      spike: when a step is out of bounds; None if none is.
      length: how many steps are kept.
      summarize: called with the row of each step that was written; or None.
      tell: called once, if there is no `Spike`, after a written step with a number far beyond all
        before it: with a text about it, and whether the default `Spike` would have held the step.
    """

    def __init__(
        self,
        gate: gates.Gate,
        spike: Optional[Spike],
        length: int,
        summarize: Optional[Callable[[np.ndarray], None]],
        tell: Callable[[str, bool], None],
    ):
        self.gate = gate
        self._summarize = summarize
        self.spike = spike
        window = spike or Spike()
        self._loss = Level(window.window, window.warmup)
        self._norm = Level(window.window, window.warmup)
        self._levels = threading.Lock()  # several threads may train in one session
        self._rows: Deque[np.ndarray] = collections.deque(maxlen=length)
        self._tell = tell
        self._largest = None if self.spike else (Largest(), Largest())

    def limits(self, max_loss: Optional[float]) -> Dict[Any, Any]:
        """The feeds with which the gate holds a step that is out of bounds.

        Args:
          max_loss: a larger loss is an incident in any case; None for what the gate was given.
        """
        feeds: Dict[Any, Any] = {}
        if self.spike is None:
            return feeds
        max_loss = self.gate.max_loss if max_loss is None else max_loss
        if self.spike.loss is not None and self.gate.limit is not None:
            with self._levels:
                limit = self._loss.limit(self.spike.loss)
            limit = limit if max_loss is None else min(limit, max_loss)
            feeds[self.gate.limit] = np.array(limit)
        if self.spike.gradient_norm is not None and self.gate.measures.gradients:
            with self._levels:
                limit = self._norm.limit(self.spike.gradient_norm)
            feeds[self.gate.norm_limit] = np.array(0.5 * limit * limit)
        return feeds

    def note_good(self, row: np.ndarray) -> None:
        """Notes a step that was written."""
        # As Python's numbers: the same with numpy's numbers takes several times as long.
        loss, _, *half_squares = row[LOSS:].tolist()
        norm = math.sqrt(2 * sum(half_squares))
        if self.spike is not None:
            with self._levels:
                self._loss.note(loss)
                self._norm.note(norm)
        elif self._largest is not None:
            self._look_for_jump(row, loss, norm)
        self._rows.append(row)
        if self._summarize is not None:
            self._summarize(row)

    def _look_for_jump(self, row: np.ndarray, loss: float, norm: float) -> None:
        of_loss, of_norm = self._largest or (Largest(), Largest())
        times = of_loss.note(abs(loss)), of_norm.note(norm)
        if not any(times):
            return
        self._largest = None  # the warning comes once
        is_loss = bool(times[0])
        step, before = steps_before([*self._rows, row])[-1], of_loss.count - 1
        losses, norms = Level(Spike.window, Spike.warmup), Level(Spike.window, Spike.warmup)
        for each in list(self._rows):
            if each[IS_GOOD]:
                losses.note(each[LOSS])
                norms.note(norm_of(each))
        said = '%s %.6g%s is%s %.4g times %s before it, and was written' % (
            'loss' if is_loss else gates.GRADIENT_NORM,
            loss if is_loss else norm,
            '' if math.isnan(step) else ' at global step %d' % step,
            ', by absolute value,' if is_loss and loss < 0 else '',
            times[0] or times[1],
            'the largest of all %d good steps' % before if before > 1 else 'that of the only step',
        )
        is_held = loss > losses.limit(Spike.loss) or norm > norms.limit(Spike.gradient_norm)
        self._tell(said, is_held)

    def begin_anew(self) -> None:
        """Forgets the numbers that the limits are computed from."""
        with self._levels:
            self._loss.clear()
            self._norm.clear()

    def note_bad(
        self, row: np.ndarray, labels: Sequence[gates.Label], max_loss: Optional[float]
    ) -> Tuple[Optional[float], Optional[float], Dict[str, str]]:
        """Notes a held step.

        Args:
          row: the row of the step.
          labels: the labels of what the gate found to be bad.
          max_loss: as for `limits`.

        Returns:
          The norm of its gradients, None if the gate knows none; the norm as a multiple of the
          usual one, None if that is not known; and by kind the text about a number above its limit.
        """
        self._rows.append(row)
        norm = norm_of(row) if self.gate.measures.gradients else None
        usual = self._usual_norm()
        ratio = norm / usual if norm is not None and usual else None
        return norm, ratio, self._limits_in_words(labels, row[LOSS], norm, max_loss)

    def _usual_norm(self) -> Optional[float]:
        if self.spike is not None:
            return self._norm.median
        good = [norm_of(row) for row in list(self._rows)[-_WINDOW:] if row[IS_GOOD]]
        return statistics.median(good) if good else None

    def last(self) -> Optional[History]:
        """The last steps, as they go into a bundle; None if none is kept."""
        # A copy: other threads may train in the session, and note their steps meanwhile.
        rows = list(self._rows)
        return History(self.gate.measures.gradients, rows) if rows else None

    def _limits_in_words(
        self,
        labels: Sequence[gates.Label],
        loss: float,
        norm: Optional[float],
        max_loss: Optional[float],
    ) -> Dict[str, str]:
        """By kind, the text about a number that is above the limit of a `Spike`.

        The gate does not know what its limits are made of.
        """
        kinds = {label.kind for label in labels}
        said: Dict[str, str] = {}
        ranks = [label.name for label in labels if label.kind == gates.Label.RANK]
        is_elsewhere = bool(ranks) and gates.name_of(self.gate.ranks.rank) not in ranks
        for kind, name, value, usual in (
            (gates.Label.LIMIT, 'loss', loss, self._loss),
            (gates.Label.NORM, gates.GRADIENT_NORM, norm, self._norm),
        ):
            if kind not in kinds or self.spike is None or value is None:
                continue
            if is_elsewhere:
                said[kind] = 'above its limit: ' + name
                continue
            if kind == gates.Label.LIMIT and self._is_above(max_loss, value):
                continue
            # If a value is not finite, the incident says that instead.
            is_said = gates.Label.VALUE in kinds and not math.isfinite(value)
            said[kind] = '' if is_said else _times(name, value, usual)
        return said

    def _is_above(self, max_loss: Optional[float], loss: float) -> bool:
        max_loss = self.gate.max_loss if max_loss is None else max_loss
        return max_loss is not None and loss > max_loss


class Histories:
    """The histories of all gates of a training, each made when it is first asked for.

    Args:
      spike, length: as for `StepHistory`. Without either no history is kept.

    Attributes:
      summaries: makes the summaries of a gate's steps, given the prefix of their tags; None for no
        summaries.
      spike_in_words: how the user asks for a `Spike`.
      note_jump: called with the text about a written step that was far beyond all before it.
    """

    def __init__(self, spike: Optional[Spike], length: int):
        self._spike, self._length = spike, length
        self._of: Dict[gates.Gate, StepHistory] = {}
        self.summaries: Optional[Callable[[str], Any]] = None
        self.spike_in_words = 'spike=True'
        self.note_jump: Callable[[str], None] = lambda said: None
        self._has_jumped = False
        self._last_words = ''

    def of(self, gate: gates.Gate) -> Optional[StepHistory]:
        """The `StepHistory` of a gate; None if the user wants none."""
        if gate not in self._of and (self._length or self._spike):
            summarize = None
            if self.summaries is not None:
                first = 'slimguard/' if not self._of else 'slimguard/%s/' % gate.original.name
                summarize = self.summaries(first)
            asked = self._spike, self._length, summarize, self._tell_jump
            self._of[gate] = StepHistory(gate, *asked)
            _tell_of_what_is_not_watched(gate, self._spike)
        return self._of.get(gate)

    def _tell_jump(self, said: str, would_be_held: bool) -> None:
        if self._has_jumped:  # of another gate
            return
        self._has_jumped = True
        self._last_words = said + (_WOULD_HOLD % self.spike_in_words if would_be_held else '')
        log().warning('%s.', self._last_words)
        self.note_jump(self._last_words)

    def take_last_words(self) -> str:
        """The warning to repeat at the end; '' at later calls."""
        said, self._last_words = self._last_words, ''
        return said

    def begin_anew(self) -> None:
        """Forgets the numbers that the limits of all gates are computed from."""
        for each in self._of.values():
            each.begin_anew()


def require_history(history: Any) -> int:
    """Returns `history`, or raises ValueError unless it is an int, at least 0."""
    if not is_whole(history) or history < 0:
        raise ValueError(
            'history must be an int, the number of steps to keep, or 0 to keep none; not %r'
            % (history,)
        )
    return history


def _tell_of_what_is_not_watched(gate: gates.Gate, spike: Optional[Spike]) -> None:
    """Logs which limit of a `Spike` a gate cannot check."""
    if spike is None:
        return
    missing = []
    if spike.loss is not None and gate.limit is None:
        missing.append('loss (pass it as slimguard.guard(train_op, loss=total_loss))')
    if spike.gradient_norm is not None and not gate.measures.gradients:
        missing.append('gradient that an optimizer takes')
    if missing:
        log().warning(
            'spike looks at less than was asked for: train op %r has no %s.',
            gate.original.name,
            ', and no '.join(missing),
        )


_WOULD_HOLD = '; %s would have held it'


def _times(name: str, value: float, usual: Level) -> str:
    median = usual.median or math.nan
    steps = 'the only good step' if len(usual) == 1 else 'the last %d good steps' % len(usual)
    return '%s %.6g is %.4g times the median %.4g of %s' % (
        name,
        value,
        abs(value) / median,
        median,
        steps,
    )

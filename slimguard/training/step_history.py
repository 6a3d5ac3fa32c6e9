"""The last steps of a guarded train op, and what they say of the next: :class:`StepHistory`."""

import collections
import dataclasses
import math
import statistics
import threading
from typing import Any, Callable, Deque, Dict, NamedTuple, Optional, Sequence

import numpy as np

from slimguard import gate as gates
from slimguard.incidents.history import IS_GOOD, LOSS, STEP, Entry, History, norm_of, row_of
from slimguard.incidents.spike import Largest, Level, Spike
from slimguard.system.log import log
from slimguard.system.numbers import is_whole
from slimguard.training import incident_reading
from slimguard.training.incident_reading import Reading

# The default number of steps to keep.
STEPS = 200
# So many steps define the usual norm if no `Spike` does.
_WINDOW = 100


class HistorySettings(NamedTuple):
    """What the user asks for.

    Attributes:
      spike: when a step is out of bounds; None if none is.
      length: how many steps are kept.
    """

    spike: Optional[Spike] = None
    length: int = STEPS

    @property
    def is_wanted(self) -> bool:
        return bool(self.length or self.spike)


class StepHistory:
    """Keeps the last steps of one gate, and knows when the next is out of bounds.

    Args:
      gate: the gate.
      settings: what the user asks for.
      note_entry: called with the entry of each step that was written; or None.
      tell: called once, if there is no `Spike`, after a written step with a number far beyond all
        before it: with a text about it, and whether the default `Spike` would have held the step.
    """

    def __init__(
        self,
        gate: gates.Gate,
        settings: HistorySettings,
        note_entry: Optional[Callable[[Entry], None]],
        tell: Callable[[str, bool], None],
    ):
        self.gate = gate
        self._note_entry = note_entry
        self.spike = settings.spike
        window = settings.spike or Spike()
        self._loss = Level(window.window, window.warmup)
        self._norm = Level(window.window, window.warmup)
        self._levels = threading.Lock()  # several threads may train in one session
        self._entries: Deque[Entry] = collections.deque(maxlen=settings.length)
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

    def note_good(self, entry: Entry) -> None:
        """Notes a step that was written."""
        # As Python's numbers: the same with numpy's numbers takes several times as long.
        measures = entry[2] if isinstance(entry, tuple) else entry[LOSS:]
        loss, _, *half_squares = measures.tolist()
        norm = math.sqrt(2 * sum(half_squares))
        if self.spike is not None:
            with self._levels:
                self._loss.note(loss)
                self._norm.note(norm)
        elif self._largest is not None:
            self._look_for_jump(entry, loss, norm)
        self._entries.append(entry)
        if self._note_entry is not None:
            self._note_entry(entry)

    def _look_for_jump(self, entry: Entry, loss: float, norm: float) -> None:
        of_loss, of_norm = self._largest or (Largest(), Largest())
        times = of_loss.note(abs(loss)), of_norm.note(norm)
        if not any(times):
            return
        self._largest = None  # the warning comes once
        is_loss = bool(times[0])
        step, before = row_of(entry)[STEP], of_loss.count - 1
        losses, norms = Level(Spike.window, Spike.warmup), Level(Spike.window, Spike.warmup)
        for row in [row_of(each) for each in self._entries]:
            if row[IS_GOOD]:
                losses.note(row[LOSS])
                norms.note(norm_of(row))
        said = '%s %.4g%s is%s %.3g times %s before it, and was written' % (
            'loss' if is_loss else gates.GRADIENT_NORM,
            loss if is_loss else norm,
            '' if math.isnan(step) else ' of global step %d' % step,
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

    def note_bad(self, entry: Entry, reading: Reading, max_loss: Optional[float]) -> Reading:
        """Notes a held step. Returns its reading, completed from the history.

        Args:
          entry: the row of the step.
          reading: the reading of the gate's values.
          max_loss: as for `limits`.
        """
        row = row_of(entry)
        self._entries.append(row)
        norm = norm_of(row) if self.gate.measures.gradients else None
        usual = self._usual_norm()
        ratio = norm / usual if norm is not None and usual else None
        labels = self.gate.labels_of(reading.bad)
        said = self._limits_in_words(labels, row[LOSS], norm, max_loss)
        is_finite = all(label.kind in ('limit', 'norm', 'rank') for label in labels)
        incident = dataclasses.replace(
            reading.incident,
            gradient_norm=norm,
            gradient_norm_ratio=ratio,
            reason=gates.explain(labels, said).reason,
        )
        is_spike = is_finite and bool(said)
        return reading._replace(incident=incident, history=self._last(), is_spike=is_spike)

    def _usual_norm(self) -> Optional[float]:
        if self.spike is not None:
            return self._norm.median
        rows = map(row_of, list(self._entries)[-_WINDOW:])
        good = [norm_of(row) for row in rows if row[IS_GOOD]]
        return statistics.median(good) if good else None

    def _last(self) -> Optional[History]:
        # A copy: other threads may train in the session, and note their steps meanwhile.
        rows = [row_of(entry) for entry in list(self._entries)]
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
        ranks = [label.name for label in labels if label.kind == 'rank']
        is_elsewhere = bool(ranks) and gates.name_of(self.gate.ranks.rank) not in ranks
        for kind, name, value, usual in (
            ('limit', 'loss', loss, self._loss),
            ('norm', gates.GRADIENT_NORM, norm, self._norm),
        ):
            if kind not in kinds or self.spike is None or value is None:
                continue
            if is_elsewhere:
                said[kind] = 'above its limit: ' + name
                continue
            if kind == 'limit' and self._is_above(max_loss, value):
                continue
            # If a value is not finite, the incident says that instead.
            is_said = 'value' in kinds and not math.isfinite(value)
            said[kind] = '' if is_said else _times(name, value, usual)
        return said

    def _is_above(self, max_loss: Optional[float], loss: float) -> bool:
        max_loss = self.gate.max_loss if max_loss is None else max_loss
        return max_loss is not None and loss > max_loss


class Histories:
    """The histories of all gates of a training, each made when it is first asked for.

    Attributes:
      summaries: makes the summaries of a gate's steps, given the prefix of their tags; None for no
        summaries.
      spike_in_words: how the user asks for a `Spike`.
      note_jump: called with the text about a written step that was far beyond all before it.
    """

    def __init__(self, settings: HistorySettings):
        self._settings = settings
        self._of: Dict[gates.Gate, StepHistory] = {}
        self.summaries: Optional[Callable[[str], Any]] = None
        self.spike_in_words = 'spike=True'
        self.note_jump: Callable[[str], None] = lambda said: None
        self._has_jumped = False
        self._last_words = ''

    def of(self, gate: gates.Gate) -> Optional[StepHistory]:
        """The `StepHistory` of a gate; None if the user wants none."""
        if gate not in self._of and self._settings.is_wanted:
            note_entry = None
            if self.summaries is not None:
                first = 'slimguard/' if not self._of else 'slimguard/%s/' % gate.original.name
                note_entry = self.summaries(first)
            self._of[gate] = StepHistory(gate, self._settings, note_entry, self._tell_jump)
            _tell_of_what_is_not_watched(gate, self._settings.spike)
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


def reading_of(
    gate: gates.Gate,
    told: gates.Told,
    history: Optional[StepHistory],
    entry: Optional[Entry],
    max_loss: Optional[float] = None,
) -> Reading:
    """Reads a bad step from the values of a gate and the history of earlier steps.

    Args:
      gate: the gate.
      told: its fetched values.
      history: the `StepHistory` of the gate, or None.
      entry: the row of the step; None without a history.
      max_loss: as for `StepHistory.limits`.
    """
    reading = incident_reading.of_gate(gate, told)
    if history is None or entry is None:
        return reading
    return history.note_bad(entry, reading, max_loss)


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
    return '%s %.4g is %.3g times the median %.4g of %s' % (
        name,
        value,
        abs(value) / median,
        median,
        steps,
    )

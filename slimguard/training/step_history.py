""":class:`StepHistory`: the numbers of good steps, to judge the next step; summaries of them."""

import collections
import functools
import math
import statistics
import threading
import time
from typing import Any, Callable, Deque, Dict, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard.compat import tf_callers, tf_private
from slimguard.incidents.history import (
    GRADIENTS,
    IS_GOOD,
    LEARNING_RATE,
    LOSS,
    STEP,
    History,
    norm_of,
    steps_before,
)
from slimguard.incidents.spike import Largest, Level, Spike
from slimguard.system.log import log
from slimguard.system.numbers import is_whole
from slimguard.training.open_incident import OpenIncident, of_gate

# The default number of steps to keep.
STEPS = 200
# Without a `Spike`, the usual norm is the median of this many steps.
_WINDOW = 100


class StepHistory:
    """Keeps the last steps of one gate, and sets the bounds for the next step.

    Args:
      gate: the gate.
      spike: when a step is out of bounds; None for no bounds.
      length: how many steps are kept.
      summarize: called with the row of each step that was written; or None.
      tell: without a `Spike`, called once after a written step with a number far beyond all earlier
        ones; takes a text about it, and whether the default `Spike` would have held the step.
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
          max_loss: a larger loss is an incident in any case; None for the gate's own limit.
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
        # Python's numbers: computing with numpy's scalars takes several times as long.
        loss, _, *half_squares = row[LOSS:].tolist()
        norm = math.sqrt(2 * sum(half_squares))
        if self.spike is not None:
            with self._levels:
                self._loss.add(loss)
                self._norm.add(norm)
        elif self._largest is not None:
            self._look_for_jump(row, loss, norm)
        self._rows.append(row)
        if self._summarize is not None:
            self._summarize(row)

    def _look_for_jump(self, row: np.ndarray, loss: float, norm: float) -> None:
        of_loss, of_norm = self._largest or (Largest(), Largest())
        times = of_loss.add(abs(loss)), of_norm.add(norm)
        if not any(times):
            return
        self._largest = None  # the warning comes once
        is_loss = bool(times[0])
        step, before = steps_before([*self._rows, row])[-1], of_loss.count - 1
        losses, norms = Level(Spike.window, Spike.warmup), Level(Spike.window, Spike.warmup)
        for each in list(self._rows):
            if each[IS_GOOD]:
                losses.add(each[LOSS])
                norms.add(norm_of(each))
        sentence = '%s %.6g%s is%s %.4g times %s before it, and its update was written' % (
            'loss' if is_loss else gates.GRADIENT_NORM,
            loss if is_loss else norm,
            '' if math.isnan(step) else ' at global step %d' % step,
            ', by absolute value,' if is_loss and loss < 0 else '',
            times[0] or times[1],
            'the largest of all %d good steps' % before if before > 1 else 'that of the only step',
        )
        is_held = loss > losses.limit(Spike.loss) or norm > norms.limit(Spike.gradient_norm)
        self._tell(sentence, is_held)

    def begin_anew(self) -> None:
        """Forgets the numbers that the limits are computed from."""
        with self._levels:
            self._loss.clear()
            self._norm.clear()

    def note_bad(
        self, report: gates.Told, row: np.ndarray, max_loss: Optional[float]
    ) -> OpenIncident:
        """Notes a held step, and opens its incident; adds what the last steps show.

        Args:
          report: what the gate reports of the step.
          row: the row of the step.
          max_loss: as for `limits`.
        """
        self._rows.append(row)
        norm = norm_of(row) if self.gate.measures.gradients else None
        usual = self._usual_norm()
        labels = self.gate.labels_of(report.bad)
        above = self._limits_in_words(labels, row[LOSS], norm, max_loss)
        opened = of_gate(self.gate, report, above, max_loss)
        ratio = norm / usual if norm is not None and usual else None
        opened.note(gradient_norm=norm, gradient_norm_ratio=ratio)
        opened.is_spike = opened.is_finite and bool(above)
        # A copy: other threads may train in the session, and note their steps at the same time.
        rows = list(self._rows)
        opened.history = History(self.gate.measures.gradients, rows) if rows else None
        return opened

    def _usual_norm(self) -> Optional[float]:
        if self.spike is not None:
            return self._norm.median
        good = [norm_of(row) for row in list(self._rows)[-_WINDOW:] if row[IS_GOOD]]
        return statistics.median(good) if good else None

    def _limits_in_words(
        self,
        labels: Sequence[gates.Label],
        loss: float,
        norm: Optional[float],
        max_loss: Optional[float],
    ) -> Dict[str, str]:
        """By kind, the text about a number above the limit of a `Spike`.

        The gate knows only the limits, not the medians that they come from.
        """
        kinds = {label.kind for label in labels}
        words: Dict[str, str] = {}
        ranks = [label.name for label in labels if label.kind == gates.Label.RANK]
        is_elsewhere = bool(ranks) and gates.name_of(self.gate.ranks.rank) not in ranks
        for kind, name, value, usual in (
            (gates.Label.LIMIT, 'loss', loss, self._loss),
            (gates.Label.NORM, gates.GRADIENT_NORM, norm, self._norm),
        ):
            if kind not in kinds or self.spike is None or value is None:
                continue
            if is_elsewhere:
                words[kind] = 'above its limit: ' + name
                continue
            if kind == gates.Label.LIMIT and self._is_above(max_loss, value):
                continue
            # If a value is not finite, the incident names that value instead.
            is_named = gates.Label.VALUE in kinds and not math.isfinite(value)
            words[kind] = '' if is_named else _times(name, value, usual)
        return words

    def _is_above(self, max_loss: Optional[float], loss: float) -> bool:
        max_loss = self.gate.max_loss if max_loss is None else max_loss
        return max_loss is not None and loss > max_loss


class Histories:
    """The histories of all gates of a training; the first `of` makes one.

    Args:
      spike, length: as for `StepHistory`. If neither is given, no history is kept.

    Attributes:
      summaries: makes the summaries of a gate's steps, given the prefix of their tags; None for no
        summaries.
      spike_in_words: how the user asks for a `Spike`.
      note_jump: called with the text about a step with a number far beyond all earlier ones.
    """

    def __init__(self, spike: Optional[Spike], length: int):
        self._spike, self._length = spike, length
        self._of: Dict[gates.Gate, StepHistory] = {}
        self.summaries: Optional[Callable[[str], Any]] = None
        self.spike_in_words = 'spike=True'
        self.note_jump: Callable[[str], None] = lambda sentence: None
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

    def _tell_jump(self, sentence: str, would_be_held: bool) -> None:
        if self._has_jumped:  # a step of another gate has
            return
        self._has_jumped = True
        self._last_words = sentence + (_WOULD_HOLD % self.spike_in_words if would_be_held else '')
        log().warning('%s.', self._last_words)
        self.note_jump(self._last_words)

    def take_last_words(self) -> str:
        """The warning to repeat at the end; '' at later calls."""
        sentence, self._last_words = self._last_words, ''
        return sentence

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


# Scalars in TensorBoard, as often as the summaries of the training.

# Whether summaries are due: True once, then False until they are due again.
IsDue = Callable[[], bool]


def step_of(row: np.ndarray) -> Optional[int]:
    """The global step of a row; None if the graph has none."""
    return None if math.isnan(row[STEP]) else int(row[STEP])


def scalars_of(row: np.ndarray, prefix: str) -> tf1.Summary:
    """The loss, gradient norm and learning rate of a step, as scalar summaries.

    Args:
      row: the row of the step.
      prefix: the beginning of the tags.
    """
    values = {'loss': row[LOSS], 'learning_rate': row[LEARNING_RATE]}
    if len(row) > GRADIENTS:
        values['gradient_norm'] = norm_of(row)
    summary = tf1.Summary()
    for name, value in values.items():
        if not math.isnan(value):
            summary.value.add(tag=prefix + name, simple_value=value)
    return summary


# Makes, for the prefix of a gate's tags, the function that takes the row of each good step.
Summaries = Callable[[str], Callable[[np.ndarray], None]]


def summaries_in(writer: Any, seconds: float) -> Optional[Summaries]:
    """Writes summaries to a `FileWriter` every `seconds`; None without a writer, or for 0."""
    if writer is None or not seconds:
        return None
    return lambda prefix: functools.partial(_write, lambda: writer, _every(seconds), prefix)


def summaries_beside(hook: tf1.train.SessionRunHook) -> Optional[Summaries]:
    """Writes summaries when a `SummarySaverHook` beside `hook` does; None if there is none."""
    beside = tf_callers.hooks_beside(hook, tf1.train.SummarySaverHook)
    if not beside:
        return None
    writer = functools.partial(tf_private.summary_writer_of, beside[0])
    return lambda prefix: functools.partial(_write, writer, _with(beside[0]), prefix)


def _write(writer: Callable[[], Any], is_due: IsDue, prefix: str, row: np.ndarray) -> None:
    """Writes the known numbers of a step: loss, gradient norm and learning rate."""
    if not is_due():
        return
    step, to = step_of(row), writer()
    if step is not None and to is not None:
        to.add_summary(scalars_of(row, prefix), step)


def _every(seconds: float) -> IsDue:
    due = time.monotonic()  # due at once, as in the Supervisor

    def is_due() -> bool:
        nonlocal due
        now = time.monotonic()
        if now < due:
            return False
        due = now + seconds
        return True

    return is_due


def _with(saving: tf1.train.SummarySaverHook) -> IsDue:
    """Due when a hook has written a summary, or is about to."""
    last: Optional[int] = None

    def is_due() -> bool:
        nonlocal last
        written_at = tf_private.last_summary_step_of(saving)
        is_new = written_at != last
        last = written_at
        return is_new

    return is_due

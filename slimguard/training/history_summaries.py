"""The numbers of good steps as scalars in TensorBoard, at the pace of the training's summaries."""

import functools
import math
import time
from typing import Any, Callable, Optional

import numpy as np
import tensorflow.compat.v1 as tf1

from slimguard.compat import tf_callers, tf_private
from slimguard.incidents.history import GRADIENTS, LEARNING_RATE, LOSS, STEP, Entry, norm_of, row_of
from slimguard.training.context import TrainingContext

# Says whether summaries are due now; once for each time that they are.
IsDue = Callable[[], bool]


class HistorySummaries:
    """Writes the scalars of one gate: loss, gradient norm and learning rate, as far as known.

    Args:
      writer: gives the `FileWriter`.
      is_due: says whether it is time.
      prefix: what the tags begin with.
    """

    def __init__(self, writer: Callable[[], Any], is_due: IsDue, prefix: str):
        self._writer = writer
        self._is_due = is_due
        self._prefix = prefix

    def note(self, entry: Entry) -> None:
        """Takes the row of a step that was written."""
        if not self._is_due():
            return
        row = row_of(entry)
        step = step_of(row)
        writer = None if step is None else self._writer()
        if writer is not None:
            writer.add_summary(scalars_of(row, self._prefix), step)


def step_of(row: np.ndarray) -> Optional[int]:
    """The global step of a row; None if the graph has none."""
    return None if math.isnan(row[STEP]) else int(row[STEP])


def scalars_of(row: np.ndarray, prefix: str) -> tf1.Summary:
    """What is known of a step as scalars.

    Args:
      row: the row of the step.
      prefix: what the tags begin with.
    """
    values = {'loss': row[LOSS], 'learning_rate': row[LEARNING_RATE]}
    if len(row) > GRADIENTS:
        values['gradient_norm'] = norm_of(row)
    summary = tf1.Summary()
    for name, value in values.items():
        if not math.isnan(value):
            summary.value.add(tag=prefix + name, simple_value=value)
    return summary


# Makes the summaries of a gate, by what its tags begin with.
Summaries = Callable[[str], HistorySummaries]


def summaries_for(hook: tf1.train.SessionRunHook, context: TrainingContext) -> Optional[Summaries]:
    """What summarizes the steps of a training, if it writes summaries.

    Args:
      hook: the watcher, whose `begin` is running.
      context: what the training has.
    """
    writer = context.summary_writer
    if writer is not None:
        seconds = context.summary_secs
        if not seconds:
            return None
        return lambda prefix: HistorySummaries(lambda: writer, _every(seconds), prefix)
    if context.training is not None:
        return None
    beside = tf_callers.hooks_beside(hook, tf1.train.SummarySaverHook)
    if beside:
        saving = beside[0]
        return lambda prefix: HistorySummaries(
            functools.partial(tf_private.summary_writer_of, saving), _with(saving), prefix
        )
    return None


def _every(seconds: float) -> IsDue:
    due = time.monotonic()  # as the Supervisor, which begins with one

    def is_due() -> bool:
        nonlocal due
        now = time.monotonic()
        if now < due:
            return False
        due = now + seconds
        return True

    return is_due


def _with(saving: tf1.train.SummarySaverHook) -> IsDue:
    """When a hook has written, or is about to."""
    last: Optional[int] = None

    def is_due() -> bool:
        nonlocal last
        written_at = tf_private.last_summary_step_of(saving)
        is_new = written_at != last
        last = written_at
        return is_new

    return is_due

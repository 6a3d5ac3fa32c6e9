"""The numbers of good steps as scalars in TensorBoard, as often as the training's summaries."""

import functools
import math
import time
from typing import Any, Callable, Optional

import numpy as np
import tensorflow.compat.v1 as tf1

from slimguard.compat import tf_callers, tf_private
from slimguard.incidents.history import GRADIENTS, LEARNING_RATE, LOSS, STEP, norm_of

# Whether summaries are due now; true once for each time that they are.
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


# Gives what takes the row of each good step of a gate, by what its tags begin with.
Summaries = Callable[[str], Callable[[np.ndarray], None]]


def summaries_in(writer: Any, seconds: float) -> Optional[Summaries]:
    """Writes summaries to a `FileWriter`, every so many seconds; None without one, or for 0."""
    if writer is None or not seconds:
        return None
    return lambda prefix: functools.partial(_write, lambda: writer, _every(seconds), prefix)


def summaries_beside(hook: tf1.train.SessionRunHook) -> Optional[Summaries]:
    """Writes summaries when a hook beside the one that begins does; None without such a hook."""
    beside = tf_callers.hooks_beside(hook, tf1.train.SummarySaverHook)
    if not beside:
        return None
    writer = functools.partial(tf_private.summary_writer_of, beside[0])
    return lambda prefix: functools.partial(_write, writer, _with(beside[0]), prefix)


def _write(writer: Callable[[], Any], is_due: IsDue, prefix: str, row: np.ndarray) -> None:
    """Writes what is known of a step: loss, gradient norm and learning rate."""
    if not is_due():
        return
    step, to = step_of(row), writer()
    if step is not None and to is not None:
        to.add_summary(scalars_of(row, prefix), step)


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

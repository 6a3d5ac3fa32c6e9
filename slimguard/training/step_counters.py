"""TensorFlow's `StepCounterHook`, and steps that a gate held back.

The hook warns of a global step that does not grow, and advises to pass it to the optimizer. A step
that was held back leaves the global step as it was: there the advice is wrong, and is not given.
"""

import functools
from typing import Any, Callable, NamedTuple, Sequence

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.compat import tf_callers, tf_private

_INCIDENTS = '_slimguard_incidents'
_SEEN = '_slimguard_seen'
_DONE = '_slimguard_counted'


def note_incident(graph: tf.Graph) -> None:
    """Notes that a step of a graph was an incident."""
    setattr(graph, _INCIDENTS, _incidents_of(graph) + 1)


def teach_those_beside(hook: tf1.train.SessionRunHook) -> None:
    """Teaches the step counters of the training whose session calls `hook.begin`."""
    for counter in tf_callers.hooks_beside(hook, tf1.train.StepCounterHook):
        if 'after_run' not in vars(counter):
            counter.after_run = functools.partial(after_run, type(counter).after_run, counter)


def after_run(original: Callable, counter, run_context, run_values) -> None:
    """The `after_run` of a step counter, which compares the global step of two runs.

    Here it compares only if none of the last few runs held a step back, and the global step stood
    still in the two runs before this one. The watcher may not know yet whether this run's step is
    held back. And as the step is read beside the update, two runs that both wrote may see the same.
    """
    done = run_context.__dict__.setdefault(_DONE, set())
    if counter not in done:  # else a method that was taught calls another one
        done.add(counter)
        seen = getattr(counter, _SEEN, ())
        now = _Seen(run_values.results, _incidents_of(run_context.session.graph))
        if not _stands_still(seen, now):
            tf_private.forget_last_step(counter)
        setattr(counter, _SEEN, (*seen[-2:], now))
    original(counter, run_context, run_values)


class _Seen(NamedTuple):
    """What a step counter saw in a run: the global step, and how many incidents there were."""

    step: int
    incidents: int


def _stands_still(seen: Sequence[_Seen], now: _Seen) -> bool:
    if len(seen) < 3:
        return False
    # In the first of the runs the incident may have come before the counter's turn, or after it.
    return seen[0].incidents == now.incidents and seen[1].step == seen[2].step


def _incidents_of(graph: Any) -> int:
    return getattr(graph, _INCIDENTS, 0)

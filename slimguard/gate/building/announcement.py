"""Announces a bad step: a watched session keeps a report; in others the graph prints or raises.

The session itself stores whether it is watched: feeding a flag with each step would take a third of
the time of a small step. With each step a watcher fetches one number, the count of kept reports,
and takes the reports if there are any. So it also learns of bad steps in runs that it did not make,
as when a script runs the session without the hooks.
"""

import functools
import sys
import threading
import weakref
from typing import Any, List, NamedTuple, Optional, Sequence, Set

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.gate.building.flags import ERROR, Flags
from slimguard.gate.building.outcome import global_step_after
from slimguard.gate.reading.plan import Plan
from slimguard.graph import ops, single_runs
from slimguard.graph.devices import processor_of
from slimguard.graph.ops import StagingArea


class Told(NamedTuple):
    """The report of a bad step: dtypes or tensors when the graph is built, values once taken.

    Attributes:
      bad: bool vector, a flag for each label of the gate.
      step: the global step after the step; None if the graph has none.
      loss: the step's loss; None if the gate knows none.
    """

    bad: Any = None
    step: Any = None
    loss: Any = None


class Untold:
    """The bad steps of one gate that no watcher has read yet.

    Args:
      graph: the graph; ops are added to it.
      device: the device of the gate.
      loss: the loss of the gate, or None.

    Attributes:
      is_watched: bool scalar, whether the session that evaluates it is watched.
      clear: an op that drops all reports. Every watched session runs it once, and no step does.
      counts: the names of the tensors that watchers fetch to learn of bad steps.
    """

    def __init__(self, graph: tf.Graph, device: str, loss: Optional[tf.Tensor]):
        self.counts: Set[str] = set()
        self._lock = threading.Lock()
        self._watched_in: Any = weakref.WeakSet()
        self._device = processor_of(device)
        single_runs.prepare(graph)
        step = graphs.global_step(graph)
        kept = Told(
            bad=tf.bool,
            step=None if step is None else step.dtype.base_dtype,
            loss=None if loss is None else loss.dtype.base_dtype,
        )
        self._fields = [name for name, dtype in kept._asdict().items() if dtype is not None]
        dtypes = [dtype for dtype in kept if dtype is not None]
        self._area = StagingArea(graph, dtypes, 'untold_area')
        with tf.device(self._device):
            # A session is watched if this area has an entry. No area needs an initializer.
            mark = StagingArea(graph, [tf.bool], 'watched_here')
            self.is_watched = tf.greater(mark.size(), 0)
            self._mark = mark.put([tf.constant(True, tf.bool)])
            with tf.control_dependencies([mark.clear()]):
                self._left = self._area.size()
            self.clear = self._area.clear()
            self._size = self._area.size()
            self._take = self._area.take()

    def keep(self, told: Told) -> tf.Operation:
        """An Operation that keeps the report of a bad step, given as tensors."""
        values = [tensor for tensor in told if tensor is not None]
        with tf.device(self._device):
            return self._area.put(values)

    def count_after(self, token: tf.Tensor) -> tf.Tensor:
        """An int32 scalar to fetch: the number of kept reports when `token` arrives."""
        with tf.device(self._device), tf.control_dependencies([token]):
            count = self._area.size('untold')
        self.counts.add(count.name)
        return count

    def watch(self, session) -> None:
        """Keeps reports of bad steps in a session from now on, for `take_reports`."""
        if session not in self._watched_in:
            single_runs.run_once(session, [self._mark, self.clear])
            self._watched_in.add(session)

    def unwatch(self, session) -> List[Told]:
        """Makes bad steps in a session print or raise again; returns the reports still kept."""
        if session not in self._watched_in:
            return []
        self._watched_in.discard(session)
        return self._take_all(session, self._left)

    def take_reports(self, session) -> List[Told]:
        """Takes out the kept reports, the oldest first; no other watcher gets them."""
        return self._take_all(session, self._size)

    def _take_all(self, session, size: tf.Tensor) -> List[Told]:
        run = functools.partial(single_runs.run_once, session)
        with self._lock:  # taking from an empty area would block
            taken = [run(self._take) for _ in range(run(size))]
        return [Told(**dict(zip(self._fields, values))) for values in taken]


# How many names are printed: one NaN reaches all gradients of a network, which may be hundreds.
_MOST_NAMES = 3

NOT_WATCHED = (
    'nothing of slimguard watches this session, so no policy acts and no cause is looked for: call '
    'slimguard.train in place of slim.learning.train, or use slimguard.watch() or a NanLossHook'
)


def announce(
    plan: Plan,
    flags: Flags,
    watched: tf.Tensor,
    untold: Untold,
    undone: tf.Tensor,
) -> tf.Tensor:
    """After a bad step keeps a report for a watcher of the session; without one prints or raises.

    Args:
      watched: bool scalar; if it is True, a bad step neither prints nor raises.
      untold: keeps the report, in a session that is watched.
      undone: a token that arrives after a bad step, when all variables are as before the step.

    Returns:
      A token that arrives once the report is kept, printed or raised.
    """
    quiet, loud = ops.branch(undone, watched, 'watched')
    kept, fed = ops.branch(quiet, untold.is_watched, 'kept')
    with tf.control_dependencies([kept]):
        loss = plan.losses[0] if plan.losses else None
        putting_aside = untold.keep(Told(flags.vector, global_step_after(kept), loss))
    with tf.control_dependencies([loud]):
        told = _print(plan, flags, loud)
        if plan.step.raises:
            # Print our line first: TensorFlow's error has a page of text before the labels.
            with tf.control_dependencies([told]):
                told = _raise(plan, flags)
    ends = [ops.after([putting_aside], kept, 'put_aside'), fed, ops.after([told], loud, 'told')]
    return ops.merge(ends, 'announced')


def _raise(plan: Plan, flags: Flags) -> tf.Operation:
    bad = _those([str(label) for label in flags.labels], flags.vector)
    # For a bad loss, begin with the message of its CheckNumerics, which users know.
    words = tf.constant(['', plan.step.raises[0]], tf.string)
    is_loss = tf.gather(flags.vector, tf.constant(0, tf.int32))
    first = tf.gather(words, tf.cast(is_loss, tf.int32))
    data = [tf.constant(said, tf.string) for said in (NOT_WATCHED, ERROR)]
    data = [first, *data, tf.strings.reduce_join(bad, axis=0, separator='|')]
    data += plan.losses[:1]
    return tf.raw_ops.Assert(condition=tf.constant(False), data=data, summarize=1)


def _print(plan: Plan, flags: Flags, loud: tf.Tensor) -> tf.Operation:
    bad = _first_of([label.name for label in flags.labels], flags.vector)
    step_now = global_step_after(loud)
    what = "the chief's update" if plan.is_chiefs else 'this step'
    text = ['slimguard: %s wrote nothing' % what]
    if step_now is None:
        text += ['; bad: ', bad]
    else:
        text[0] += ' (global step '
        text += [tf.strings.as_string(step_now), '); bad: ', bad]
    if plan.losses:
        # TensorFlow 1.15 cannot turn 16-bit floats into strings.
        loss = tf.cast(plan.losses[0], tf.float64)
        text += ['; loss ', tf.strings.as_string(loss, shortest=True)]
    if not plan.is_chiefs:
        text.append('; ' + NOT_WATCHED)
    return tf.print(tf.strings.join(text), output_stream=sys.stderr)


def _first_of(names: Sequence[str], flags: tf.Tensor) -> tf.Tensor:
    """A string: the first names whose flag is true, and how many more there are."""
    bad = _those(names, flags)
    more = [' and %d more' % (number + 1) for number in range(len(names) - _MOST_NAMES)]
    rest = tf.constant([''] * (_MOST_NAMES + 1) + more, tf.string)
    told = tf.strings.reduce_join(bad[:_MOST_NAMES], axis=0, separator=', ')
    return tf.strings.join([told, tf.gather(rest, tf.size(bad))])


def _those(words: Sequence[str], flags: tf.Tensor) -> tf.Tensor:
    """The words whose flag is true."""
    words_of_all = tf.constant(list(words), tf.string)
    return tf.gather(words_of_all, tf.squeeze(tf.raw_ops.Where(condition=flags), [1]))

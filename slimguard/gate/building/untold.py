"""Bad steps that no watcher has read yet: a watched session keeps them.

A bad step prints a line or raises; in a watched session it must not. Feeding a flag for this would
take a third of the time of a small step. So the flag is a state of the session, and only a bad step
acts on it: it stores its report. With each step a watcher fetches one number, how many bad steps
are kept, and takes them if there are any. It also gets the bad steps of runs that it did not see,
as when a script runs the session past its hooks.
"""

import functools
import threading
import weakref
from typing import Any, List, NamedTuple, Optional, Set

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.graph import single_runs
from slimguard.graph.devices import processor_of
from slimguard.graph.staging_area import StagingArea


class Told(NamedTuple):
    """The report of a bad step: dtypes or tensors in the graph, values once they are taken.

    Attributes:
      bad: bool vector, a flag for each label of the gate.
      step: the global step after the step; None if the graph has none.
      loss: the step's loss; None if the gate knows none.
    """

    bad: Any = None
    step: Any = None
    loss: Any = None

    @property
    def is_bad(self) -> bool:
        """Whether the values tell of a bad step."""
        # Each step calls this; a numpy function would take longer than the comparison.
        return 1 in self.bad.tobytes()


class Untold:
    """The bad steps of one gate that no watcher has read yet.

    Args:
      graph: the graph; ops are added to it.
      device: the device of the gate.
      loss: the loss of the gate, or None.

    Attributes:
      is_watched: bool scalar, whether the session that runs it is watched.
      clear: drops all of them. Every session that is watched runs it once, and no step does.
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
            # A session is watched if this area holds something. It needs no initializer.
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
        """The number of reports kept once `token` is there: an int32 scalar to fetch."""
        with tf.device(self._device), tf.control_dependencies([token]):
            count = self._area.size('untold')
        self.counts.add(count.name)
        return count

    def watch(self, session) -> None:
        """Keeps reports of bad steps in a session from now on, for `take`."""
        if session not in self._watched_in:
            single_runs.run_once(session, [self._mark, self.clear])
            self._watched_in.add(session)

    def watches(self, session) -> bool:
        """Whether bad steps in a session are kept."""
        return session in self._watched_in

    def unwatch(self, session) -> List[Told]:
        """Makes bad steps in a session print or raise again; returns the reports still kept."""
        if session not in self._watched_in:
            return []
        self._watched_in.discard(session)
        return self._take_all(session, self._left)

    def take(self, session) -> List[Told]:
        """Takes out the kept bad steps, the oldest first; no other watcher gets them."""
        return self._take_all(session, self._size)

    def _take_all(self, session, size: tf.Tensor) -> List[Told]:
        run = functools.partial(single_runs.run_once, session)
        with self._lock:  # taking from an empty area would block
            taken = [run(self._take) for _ in range(run(size))]
        return [Told(**dict(zip(self._fields, values))) for values in taken]

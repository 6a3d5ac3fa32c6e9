"""Steps and saves take turns: a thread that saves does so while no step is under way.

A Supervisor saves from a thread of its own while the loop trains in another. A checkpoint that this
thread writes between two steps is the state of one moment. The next step waits until it is written,
as for a hook that saves.

If several threads train one graph, there is no such moment, and no thread takes turns.
"""

import contextlib
import functools
import threading
import time
from typing import Any, Callable, Iterator, List, Optional

import tensorflow as tf

from slimguard.compat import tf_callers

# How many seconds a save waits for a hook in a step: the hook may itself be waiting for the thread
# that saves.
_LONGEST_HOOK = 10.0

# How many seconds in all a save waits for a step of an unknown loop: the step may be waiting for
# that thread.
_LONGEST_STEP = 60.0

_KEPT_AS = '_slimguard_step_turn'
_SEVERAL = '_slimguard_several_threads_train'
_making = threading.Lock()


class StepTurn:
    """Whether the loop or the threads that save have the turn.

    A thread that saves has priority: the next step waits for it. Then the step has its turn, so
    that a thread that saves all the time does not stop the training. The loop's own thread never
    waits to save, since nothing else trains meanwhile.

    Args:
      patience: how long a save waits for the end of a step, in seconds; then it saves all the
        same. None for as long as it takes.
      is_taken: whether the thread that makes this object is the loop's.
    """

    def __init__(self, patience: Optional[float] = None, is_taken: bool = True) -> None:
        self._patience = patience
        self._trainer = threading.get_ident() if is_taken else None
        # Re-entrant, as a signal handler of the loop's thread may run anywhere.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._depth = 0  # of steps within each other
        self._savers: List[int] = []  # the threads that save, or wait for the end of a step
        self._waits = False  # whether a step waits for them

    @property
    def is_mine(self) -> bool:
        """Whether the current thread is the loop's."""
        return threading.get_ident() == self._trainer

    def is_taken_by_me(self) -> bool:
        """Makes the current thread the loop's, unless another is; returns whether it is now."""
        if self._trainer is None:
            self._trainer = threading.get_ident()
        return self.is_mine

    def stepping(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """A function that runs `step` in its turn."""
        return functools.partial(self._step, step)

    def end_steps(self) -> None:
        """Notes that no step is under way any more, however the loop was left."""
        with self._lock:
            self._depth = 0
            self._changed.notify_all()

    def wait_for_savers(self) -> None:
        """Ends the steps, and waits until no other thread saves."""
        self.end_steps()
        me = threading.get_ident()
        with self._lock:
            while any(saver != me for saver in self._savers):
                self._changed.wait()

    def _step(self, step: Callable[..., Any], *args, **kwargs) -> Any:
        with self._lock:
            if self._savers and not self._depth:
                self._await_savers()
            self._depth += 1
        try:
            return step(*args, **kwargs)
        finally:
            with self._lock:
                self._depth = max(0, self._depth - 1)
                if self._savers:  # most steps end with no thread waiting
                    self._changed.notify_all()

    def _await_savers(self) -> None:
        me = threading.get_ident()
        try:
            while not self._depth and any(saver != me for saver in self._savers):
                self._waits = True
                self._changed.wait()
        finally:
            self._waits = False
            self._changed.notify_all()

    @contextlib.contextmanager
    def no_step(self) -> Iterator[None]:
        """In its `with` block no other thread's step is under way, unless that takes too long."""
        self._begin_save()
        try:
            yield
        finally:
            self._end_save()

    def _begin_save(self) -> None:
        me = threading.get_ident()
        with self._lock:
            since = time.monotonic()
            waits = not self.is_mine and not _impatient.is_set
            # A waiting step goes first, unless it waits for this very thread. The thread that saves
            # may wait for this one, too; the time limit ends such a deadlock.
            while self._waits and waits and me not in self._savers:
                if not self._changed.wait(_LONGEST_HOOK):
                    break
            self._savers.append(me)
            try:
                while self._depth and waits:
                    is_told = self._changed.wait(_LONGEST_HOOK)
                    if self._patience is not None and time.monotonic() - since > self._patience:
                        return
                    trainer = self._trainer
                    if not (is_told or trainer is None or tf_callers.runs_a_session(trainer)):
                        return
            except BaseException:
                self._end_save()
                raise

    def _end_save(self) -> None:
        with self._lock:
            self._savers.remove(threading.get_ident())
            self._changed.notify_all()


class _Impatient(threading.local):
    is_set = False


_impatient = _Impatient()


@contextlib.contextmanager
def in_midst_of_a_step() -> Iterator[None]:
    """In its `with` block this thread saves without waiting for a step, which may never end."""
    before, _impatient.is_set = _impatient.is_set, True
    try:
        yield
    finally:
        _impatient.is_set = before


def turn_of(graph: tf.Graph) -> Optional[StepTurn]:
    """The `StepTurn` of the loop that trains a graph; None if it takes no turns."""
    return getattr(graph, _KEPT_AS, None)


def in_turn(run: Callable[..., Any], graph: tf.Graph, trains: bool) -> Callable[..., Any]:
    """A function that calls `run`, a run of a script, when it has the turn.

    Args:
      run: makes the run.
      graph: the graph.
      trains: whether it trains. A run that only writes counts as a step in the loop's own thread
        only. In another thread neither it nor its saves wait for a step: the step under way may be
        waiting for that very thread, for the next element of a queue, or may call it.
    """
    turn = turn_of_this_loop(graph) if trains else turn_of(graph)
    if turn is None:
        return run
    if trains or turn.is_mine:
        return turn.stepping(run)

    def run_beside(*args, **kwargs):
        with in_midst_of_a_step():
            return run(*args, **kwargs)

    return run_beside


def turn_of_this_loop(graph: tf.Graph) -> Optional[StepTurn]:
    """The `StepTurn` of a script's loop, whose thread calls this before each of its steps.

    None if another thread trains the graph as well.
    """
    turn = turn_of(graph)
    if turn is not None and turn.is_mine:
        return turn
    with _making:
        turn = _turn_of_a_script(graph)
        if turn is None or turn.is_taken_by_me():
            return turn
        setattr(graph, _SEVERAL, True)
        setattr(graph, _KEPT_AS, None)
        return None


def prepare_turn(graph: tf.Graph) -> None:
    """Makes a script's loop take turns from its first step on; a thread beside it calls this."""
    with _making:
        _turn_of_a_script(graph)


def _turn_of_a_script(graph: tf.Graph) -> Optional[StepTurn]:
    turn = turn_of(graph)
    if turn is None and not getattr(graph, _SEVERAL, False):
        turn = StepTurn(_LONGEST_STEP, is_taken=False)
        setattr(graph, _KEPT_AS, turn)
    return turn


@contextlib.contextmanager
def taking_turns(graph: tf.Graph) -> Iterator[StepTurn]:
    """In its `with` block the loop of this thread trains a graph, and takes turns."""
    before = turn_of(graph)
    turn = StepTurn()
    setattr(graph, _KEPT_AS, turn)
    try:
        yield turn
    finally:
        turn.end_steps()
        setattr(graph, _KEPT_AS, before)

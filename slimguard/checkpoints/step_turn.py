"""Steps and saves take turns: a thread that saves does so while no step is under way.

A Supervisor saves from a thread of its own while the loop trains in another. If this thread writes
a checkpoint between two steps, all its variables are from the same step. The next step waits until
the checkpoint is written, as it does for a hook that saves.

If several threads train one graph, a step is nearly always under way, so no thread takes turns.
"""

import contextlib
import functools
import threading
import time
from typing import Any, Callable, Iterator, Optional

import tensorflow as tf

from slimguard.compat import tf_callers

# How many seconds a save waits for a hook in a step: the hook may itself be waiting for the thread
# that saves.
_LONGEST_HOOK = 10.0

# How many seconds in all a save waits for a step of a script's own loop: the step may be waiting
# for the thread that saves.
_LONGEST_STEP = 60.0

_KEPT_AS = '_slimguard_step_turn'
_SEVERAL = '_slimguard_several_threads_train'
_making = threading.Lock()


class StepTurn:
    """The turn, which either the loop or a thread that saves has.

    A thread that wants the turn first takes a second lock, the place next in line, and keeps it
    until the turn is free. So neither a loop nor a thread that saves all the time keeps the other
    waiting. The loop's own thread never waits to save, since no other thread trains.

    Args:
      patience: how long a save waits for the end of a step, in seconds, before it saves anyway;
        None for no limit.
      is_taken: whether the thread that makes this object is the loop's.
    """

    def __init__(self, patience: Optional[float] = None, is_taken: bool = True) -> None:
        self._patience = patience
        self._trainer = threading.get_ident() if is_taken else None
        # Re-entrant, as a signal handler of the loop's thread may run anywhere.
        self._turn, self._next = threading.RLock(), threading.RLock()
        self._owner: Optional[int] = None  # the thread that has the turn
        self._saver: Optional[int] = None  # the thread that is next in line, to save

    @property
    def is_mine(self) -> bool:
        """Whether the current thread is the loop's."""
        return threading.get_ident() == self._trainer

    def is_taken_by_me(self) -> bool:
        """Makes the current thread the loop's if no thread is; returns whether it is the loop's."""
        if self._trainer is None:
            self._trainer = threading.get_ident()
        return self.is_mine

    def stepping(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """A function that runs `step` once it has the turn."""
        return functools.partial(self._step, step)

    def end_steps(self) -> None:
        """Ends this thread's turn, if it has one; the loop may have ended with an error."""
        if self._owner == threading.get_ident():
            self._owner = None
        with contextlib.suppress(RuntimeError):  # this thread does not have the lock
            while True:
                self._turn.release()

    def wait_for_savers(self) -> None:
        """Ends this thread's turn, and waits until no other thread saves."""
        self.end_steps()
        with self._next, self._turn:
            pass

    def _step(self, step: Callable[..., Any], *args, **kwargs) -> Any:
        me = threading.get_ident()
        if self._owner == me:  # a step within another, or within a save
            return step(*args, **kwargs)
        with self._next:
            self._turn.acquire()
        self._owner = me
        try:
            return step(*args, **kwargs)
        finally:
            self.end_steps()

    @contextlib.contextmanager
    def no_step(self) -> Iterator[None]:
        """Inside, no other thread is in a step, unless the wait for its end took too long."""
        me = threading.get_ident()
        if self.is_mine or me in (self._owner, self._saver):
            yield
            return
        has_turn, is_next = False, self._next.acquire(blocking=not _impatient.is_set)
        try:
            if is_next:
                self._saver = me
            has_turn = not _impatient.is_set and self._wait_for_turn()
            if has_turn:
                self._owner, self._saver, is_next = me, None, False
                self._next.release()
            yield  # a save that did not get the turn stays next in line, so that no new step begins
        finally:
            if has_turn:
                self.end_steps()
            if is_next:
                self._saver = None
                self._next.release()

    def _wait_for_turn(self) -> bool:
        since = time.monotonic()
        # The thread that saves may wait for the step, and the step for it: hence the time limits.
        while not self._turn.acquire(timeout=_LONGEST_HOOK):
            is_late = self._patience is not None and time.monotonic() - since > self._patience
            if is_late or not (self._trainer is None or tf_callers.runs_a_session(self._trainer)):
                return False
        return True


class _Impatient(threading.local):
    is_set = False


_impatient = _Impatient()


@contextlib.contextmanager
def in_midst_of_a_step() -> Iterator[None]:
    """Inside, this thread saves without waiting for the end of a step, which may never come."""
    before, _impatient.is_set = _impatient.is_set, True
    try:
        yield
    finally:
        _impatient.is_set = before


def turn_of(graph: tf.Graph) -> Optional[StepTurn]:
    """The `StepTurn` of the loop that trains a graph; None if it takes no turns."""
    return getattr(graph, _KEPT_AS, None)


def in_turn(run: Callable[..., Any], graph: tf.Graph, trains: bool) -> Callable[..., Any]:
    """A function that calls `run`, a script's `session.run`, once it has the turn.

    Args:
      trains: whether the run trains. A run that only writes counts as a step only in the loop's own
        thread. In another thread, the run and its saves do not wait for a step: the step may be
        waiting for this thread, as for the next element of a queue, or may have called it.
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
    """The `StepTurn` of a script's loop; the loop's thread calls this before each step.

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
    """Makes a script's loop take turns from its first step on; called by another thread."""
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
    """Inside, this thread's loop trains a graph, and takes turns with savers."""
    before = turn_of(graph)
    turn = StepTurn()
    setattr(graph, _KEPT_AS, turn)
    try:
        yield turn
    finally:
        turn.end_steps()
        setattr(graph, _KEPT_AS, before)

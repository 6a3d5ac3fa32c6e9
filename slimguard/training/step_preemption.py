"""SIGTERM and Ctrl-C in a loop that is not ours: :class:`StepPreemption`."""

import signal
import weakref
from typing import Any, Callable, Optional

from slimguard.compat import tf_private
from slimguard.training.preemption import SECONDS, Preemption
from slimguard.training.signal_watch import is_main_thread


class StepPreemption(Preemption):
    """Signals wait for the end of a step, and those that nothing would wait for act at once.

    Between two steps such a loop may be at anything, and its session may be dropped without being
    closed. What acts at once saves, puts back what was there before, and then does what the signal
    asks for: the process ends by SIGTERM, or KeyboardInterrupt is raised where the program is.

    While it acts it hears of further signals, which change at most what is done in the end: a save
    is not begun anew. A third Ctrl-C ends the process.

    It keeps no session alive, and saves nothing of one that is closed.

    Args:
      request_stop: ends the loop after the step under way; None if nobody asks whether to stop.
      save: saves the state of a session that is given.
      seconds: how long a step may take to end.
    """

    def __init__(
        self,
        request_stop: Optional[Callable[[], None]],
        save: Callable[[Any], Any],
        seconds: float = SECONDS,
    ):
        Preemption.__init__(self, request_stop or _ask_nobody, save, seconds)
        self._can_stop = request_stop is not None
        self._current: Callable[[], Any] = _no_session
        self._has_served = False
        self._is_acting = False
        self._is_in_step = False
        self._is_elsewhere = False  # the steps are run in another thread than the main one

    @property
    def is_entered(self) -> bool:
        """Whether it hears of signals; it does not once it has served, or with others' handlers."""
        return self._signals.is_entered

    @property
    def has_served(self) -> bool:
        """Whether it has acted at once. What goes on after that needs another."""
        return self._has_served

    def watch(self, session) -> None:
        """Saves the state of this session from now on."""
        self._current = weakref.ref(session)

    def begin_step(self) -> None:
        """A step begins, in the thread that calls."""
        self._is_elsewhere = not is_main_thread()
        self._is_in_step = not self._is_elsewhere

    def end_step(self) -> None:
        """The step has ended, as it should or not."""
        self._is_in_step = False

    def leave(self) -> None:
        """Puts back what was there before; does what a signal asked for, if one came."""
        self.__exit__(None, None, None)

    def on_signal(self, number: int) -> None:
        """Acts, at once or at the end of the step."""
        if self._is_acting:
            self._note(number)
        elif self._waits_for_a_step(number):
            Preemption.on_signal(self, number)
        else:
            self._has_waited = False
            self._note(number)
            self.act()

    def act(self) -> None:
        """Saves, and does what the signal asked for."""
        if not self._signals.is_entered or self._is_acting:
            return
        self._has_served = self._is_acting = True
        self._interrupted = True  # what ends the process waits for the save
        try:
            self._signals.hear_out()
            session = self._open_session()
            if session is not None:
                self.end(session)
            self.save()
            self.leave()
        finally:
            self._is_acting = False

    def save(self) -> None:
        session = self._open_session()
        if session is not None:
            self._save(session)

    def _open_session(self) -> Any:
        session = self._current()
        return None if session is None or tf_private.is_closed(session) else session

    def _waits_for_a_step(self, number: int) -> bool:
        if self._is_in_step:
            return True
        if not self._can_stop or self._open_session() is None:
            return False
        # The loop may end as it should, with all that its hooks do at the end. If no step comes,
        # `Preemption` sees to SIGTERM. Who has pressed Ctrl-C does not wait for that.
        return number == signal.SIGTERM or self._is_elsewhere

    def _look_at_ctrl_c(self) -> None:
        if self._ctrl_cs > 1 or self._waits_for_a_step(signal.SIGINT):
            Preemption._look_at_ctrl_c(self)


def _ask_nobody() -> None:
    """The loop never asks whether to stop."""


def _no_session() -> None:
    """There is none yet."""

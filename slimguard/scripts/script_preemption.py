"""SIGTERM and Ctrl-C in a script whose loop asks nobody whether to stop: `ScriptPreemption`."""

import threading
import weakref
from typing import Any, Callable, Optional

import tensorflow.compat.v1 as tf1

from slimguard.compat import tf_private
from slimguard.training.preemption import Preemption


class ScriptPreemption(Preemption):
    """From its first step on, SIGTERM and Ctrl-C save the state before they do what they do.

    In a step they wait for its end. Between two steps they act at once: the script may be at
    anything, and know nothing of a training. Then the process ends by SIGTERM, or KeyboardInterrupt
    is raised where the script is. It serves once: what the script trains after a Ctrl-C that it
    caught has another.

    Args:
      save: saves the state of a session, and returns the checkpoint; None if it could not.
    """

    def __init__(self, save: Callable[[Any], Any]):
        Preemption.__init__(self, lambda: None, self._save_last)
        self._save_state = save
        self._is_in_step = False

    @property
    def is_entered(self) -> bool:
        """Whether it hears of signals; it does not once it has served, or with others' handlers."""
        return self._signals.is_entered

    def run_step(self, session, run: Callable[[], Any]) -> Any:
        """Runs a step, and returns what `run` does.

        A signal waits for its end, unless it runs in another thread than the main one.
        """
        self._session = weakref.ref(session)
        if not is_main_thread():
            return run()
        self._is_in_step = True
        try:
            return run()
        finally:
            self._is_in_step = False
            if self._asked is not None or self._interrupted:
                self._act()

    def on_signal(self, number: int) -> None:
        """Acts, at once or at the end of the step."""
        Preemption.on_signal(self, number)
        if not self._is_in_step:
            self._act()

    def leave(self) -> None:
        """Puts back what was there before; does what a signal asked for, if one came."""
        self.__exit__(None, None, None)

    def _look_at_ctrl_c(self) -> None:
        if self._ctrl_cs > 1 or self._is_in_step:  # else no step is waited for
            Preemption._look_at_ctrl_c(self)

    def _act(self) -> None:
        if self._signals.is_entered:
            self._save_last(self._session)
            self.leave()

    def _save_last(self, last: Optional[Callable[[], Any]]) -> None:
        """Saves, unless the training is over. Whatever goes wrong must not hide the signal."""
        session = None if last is None else last()
        if session is None or tf_private.is_closed(session):
            return
        self.end(session)
        save_quietly(self._save_state, session)


def is_main_thread() -> bool:
    """Whether signals come to the thread that asks."""
    return threading.current_thread() is threading.main_thread()


def save_quietly(save: Callable[[Any], Any], session) -> None:
    """Saves the state of a session, and says so where it was not saved; raises nothing.

    Args:
      save: called with the session; returns the checkpoint, or None.
      session: the session.
    """
    try:
        saved = save(session)
    except Exception as error:
        tf1.logging.error('slimguard: the last good state could not be saved: %s', error)
        return
    if saved is None:
        tf1.logging.warning(
            'slimguard: the last good state is not saved: nothing that the script has saved so far '
            'tells where and how.'
        )
    else:
        tf1.logging.warning('slimguard: the last good state is saved: %s', saved)

"""SIGTERM and Ctrl-C in a script whose loop asks nobody whether to stop: `ScriptPreemption`."""

from typing import Any, Callable

import tensorflow.compat.v1 as tf1

from slimguard.training.preemption import SECONDS
from slimguard.training.signal_watch import is_main_thread
from slimguard.training.step_preemption import StepPreemption


class ScriptPreemption(StepPreemption):
    """From its first step on, SIGTERM and Ctrl-C save the state before they do what they do.

    It serves once: what the script trains after a Ctrl-C that it caught has another.

    Args:
      save: saves the state of a session, and returns the checkpoint; None if it could not.
      seconds: how long a step may take to end.
    """

    def __init__(self, save: Callable[[Any], Any], seconds: float = SECONDS):
        # Whatever goes wrong must not hide the signal.
        StepPreemption.__init__(self, None, lambda session: save_quietly(save, session), seconds)

    def run_step(self, session, run: Callable[[], Any]) -> Any:
        """Runs a step, and returns what `run` does.

        A signal waits for its end, unless it runs in another thread than the main one.
        """
        self.watch(session)
        if not is_main_thread():
            return run()
        self.begin_step()
        try:
            return run()
        finally:
            self.end_step()
            if self._asked is not None or self._interrupted:
                self.act()


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

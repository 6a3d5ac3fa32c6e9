"""SIGTERM and Ctrl-C in a script whose loop asks nobody whether to stop: `ScriptPreemption`."""

import functools
from typing import Any, Callable

from slimguard.scripts.script_files import ScriptFiles
from slimguard.system.log import log
from slimguard.training.preemption import SECONDS
from slimguard.training.signal_watch import is_main_thread
from slimguard.training.step_preemption import StepPreemption


class ScriptPreemption(StepPreemption):
    """From its first step on, SIGTERM and Ctrl-C save the state before they do what they do.

    It serves once: what the script trains after a Ctrl-C that it caught has another.

    Args:
      script_files: save the state as the script does.
      seconds: how long a step may take to end.
    """

    def __init__(self, script_files: ScriptFiles, seconds: float = SECONDS):
        # Whatever goes wrong must not hide the signal.
        save = functools.partial(save_quietly, script_files)
        StepPreemption.__init__(self, None, save, seconds)

    def run_step(self, session, run: Callable[..., Any], *args: Any) -> Any:
        """Runs a step, and returns what `run` does of the session and `args`.

        A signal waits for its end, unless it runs in another thread than the main one.
        """
        self.watch(session)
        if not is_main_thread():
            return run(session, *args)
        self.begin_step()
        try:
            return run(session, *args)
        finally:
            self.end_step()
            if self._asked is not None or self._interrupted:
                self.act()


def save_quietly(script_files: ScriptFiles, session) -> None:
    """Saves the state of a session as the script does, and says what came of it; raises nothing."""
    try:
        saved = script_files.save_again(session)
    except Exception as error:
        log().error('slimguard: the last good state could not be saved: %s', error)
        return
    if saved is None:
        why = 'the save was refused, as said above'
        if not script_files.has_saved(session.graph):
            why = 'it would go where the script saves, which has saved nothing yet'
        log().warning('slimguard: the last good state is not saved: %s.', why)
    else:
        log().warning('slimguard: the last good state is saved: %s', saved)

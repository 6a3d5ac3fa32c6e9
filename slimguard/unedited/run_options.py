"""The options of `run`, and what they do to a process. Imports TensorFlow only for that."""

import contextlib
import functools
import logging
from multiprocessing.process import BaseProcess
from typing import Any, Dict, NamedTuple

from slimguard.system.log import log


class RunOptions(NamedTuple):
    """The options for guarding a script, as plain values that another process can be given.

    Attributes:
      tf1: whether scripts get the names of TensorFlow 1.
      quiet: whether only errors are logged.
      arguments: those of `slimguard.instrument`, by name.
    """

    tf1: bool
    quiet: bool
    arguments: Dict[str, Any]

    def guard(self, lent: contextlib.ExitStack, is_spawned: bool = False) -> Any:
        """Guards trainings in this process from here on; at its end the process prints a last line.

        Call it before TensorFlow is imported.

        Args:
          lent: undoes, when it is closed, the changes to the process.
          is_spawned: whether a guarded process has spawned this one.

        Returns:
          The `Instrumentation`.
        """
        from slimguard.unedited import children, tf1_names

        if self.tf1:
            lent.callback(tf1_names.uninstall)
            tf1_names.install()
        # These import TensorFlow, and the names of version 1 must be there before.
        from slimguard.unedited import ending, script_watcher
        from slimguard.unedited import instrumentation as instrumentations
        from slimguard.unedited.patches import Patches

        if self.quiet:
            quieted(lent)
        is_the_callers = instrumentations.is_active()
        instrumentation = instrumentations.instrument(**self.arguments)
        if not is_the_callers:
            lent.callback(instrumentation.uninstrument)
        seen = instrumentation.sessions.seen
        # Printed after everything else, even a traceback.
        ending.Ending(seen).register(is_spawned)
        patches = Patches()
        lent.callback(patches.undo)
        children.hand_on(patches, functools.partial(_guard_child, self), seen.note_child)
        at_stop = functools.partial(script_watcher.end_at_stop, instrumentation.sessions.files)
        patches.wrap_in_all(BaseProcess, 'run', at_stop)
        seen.has_names_of_1 = self.tf1 or tf1_names.is_native()
        if seen.has_names_of_1:
            tf1_names.let_flags_be_redefined()
        return instrumentation


def quieted(lent: contextlib.ExitStack) -> None:
    """Until `lent` is closed, logs only errors, and where the last good state is saved."""
    from slimguard.training.stop_signals import SAVED_BY_SIGNAL
    from slimguard.training.training import SAVED

    def is_told(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR or record.msg in (SAVED, SAVED_BY_SIGNAL)

    logger = log()
    logger.addFilter(is_told)
    lent.callback(logger.removeFilter, is_told)


def _guard_child(options: RunOptions) -> None:
    options.guard(contextlib.ExitStack(), is_spawned=True)

"""The options of `run`, and what they do to a process and to the children that it spawns.

A fork has all that its parent has. A child that `multiprocessing` spawns, or that a fork server
makes, begins with nothing: it is sent how to begin, and what to run. With the first it gets what
guards it. Whatever such a child does, it is guarded only if it imports TensorFlow, and just before.

Imports TensorFlow only to guard.
"""

import builtins
import contextlib
import functools
import logging
from multiprocessing import spawn
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, Callable, Dict, NamedTuple, Tuple

from slimguard.system.log import log

if TYPE_CHECKING:  # it imports TensorFlow, which a child does by itself
    from slimguard.unedited.patches import Patches


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
        from slimguard.unedited import tf1_names

        if self.tf1:
            lent.callback(tf1_names.uninstall)
            tf1_names.install()
        # These import TensorFlow, and the names of version 1 must be there before.
        from slimguard.unedited import ending, script_session
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
        hand_on(patches, functools.partial(_guard_child, self), seen.note_child)
        at_stop = functools.partial(script_session.end_at_stop, instrumentation.sessions.files)
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


# Children.

# `multiprocessing` sends a child a dictionary; the child reads the keys that it knows.
_KEY = 'slimguard'
_TRIGGERS = frozenset(['tensorflow', 'tf_keras', 'tf_slim'])
# The name under which `multiprocessing` begins a fork server, which runs no code of the script.
_OF_A_FORK_SERVER = 'ignore'


def hand_on(patches: 'Patches', guard: Callable[[], object], note: Callable[[], object]) -> None:
    """Guards the children that `multiprocessing` spawns, too, until the patches are undone.

    Args:
      patches: notes the replacements.
      guard: guards the process in which it is called; it is pickled for each child.
      note: called for each child.
    """
    original = spawn.get_preparation_data

    def with_guard(name: str) -> Dict[str, Any]:
        data = original(name)
        if name != _OF_A_FORK_SERVER:
            note()
            data[_KEY] = _Guard(guard)
        return data

    patches.replace(spawn, 'get_preparation_data', with_guard)


class _Guard:
    """When a child unpickles it, the child will be guarded once it imports TensorFlow."""

    def __init__(self, guard: Callable[[], object]):
        self._guard = guard

    def __reduce__(self) -> Tuple[Any, ...]:
        return before_tensorflow, (self._guard,)


def before_tensorflow(guard: Callable[[], object]) -> None:
    """Calls `guard` just before an import statement first imports TensorFlow."""
    original, is_done = builtins.__import__, False

    def import_after_guard(name: str, *args: Any, **kwargs: Any) -> Any:
        nonlocal is_done
        if is_done or name.partition('.')[0] not in _TRIGGERS:
            return original(name, *args, **kwargs)
        is_done = True
        if builtins.__import__ is import_after_guard:
            builtins.__import__ = original
        guard()
        return builtins.__import__(name, *args, **kwargs)  # may be the TensorFlow 1 names

    builtins.__import__ = import_after_guard

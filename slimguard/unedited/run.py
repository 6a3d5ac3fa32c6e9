"""Runs a script, or a module, as ``python`` itself would, and guards it and its children.

A fork inherits the guard. A child that `multiprocessing` spawns, or that a fork server makes, does
not inherit it: it gets the `RunOptions` with the data by which `multiprocessing` prepares it. If
such a child imports TensorFlow, it is guarded just before.

Imports TensorFlow only to guard.
"""

import builtins
import contextlib
import functools
import itertools
import logging
import os
import pkgutil
import runpy
import signal
import sys
from multiprocessing import spawn
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from slimguard.system.log import log
from slimguard.system.user_code import (
    SLIMGUARD,
    ends_in_slimguard,
    file_of,
    frames_of,
    traceback_of,
    until_users,
)
from slimguard.unedited import tf1_names

if TYPE_CHECKING:  # it imports TensorFlow; a child decides itself
    from slimguard.unedited.patches import Patches

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_RUNPY = runpy.run_path.__code__.co_filename
# Files that the script's traceback leaves out, since plain Python would not have their frames.
_ALWAYS_HIDDEN = (
    *(os.path.join(_FOLDER, name) for name in ('tf1_names.py', 'tf1_table.py', 'run.py')),
    _RUNPY,
)
# The traceback also leaves out all of slimguard, unless slimguard itself failed.
_OF_AN_INCIDENT = 'NanLossError'

# The script's globals, which live as long as the process, as under plain Python.
_left: List[Dict[str, Any]] = []


def run_script(path: str, arguments: Sequence[str]) -> None:
    """Does what ``python path arguments`` does. Raises the script's exceptions."""
    sys.argv[:] = [path] + list(arguments)
    if sys.version_info >= (3, 9):
        path = os.path.abspath(path)
    if pkgutil.get_importer(path) is None:
        _set_first_path(os.path.dirname(os.path.realpath(path)))
    elif not getattr(sys.flags, 'safe_path', False):
        del sys.path[0]  # the entry that runpy adds for a folder or a zip file
    _execute(lambda: runpy.run_path(path, run_name='__main__'))


def run_module(name: str, arguments: Sequence[str]) -> None:
    """Does what ``python -m name arguments`` does."""
    sys.argv[:] = ['-m'] + list(arguments)
    _set_first_path(os.getcwd())
    tf1_names.note_module(name)
    _execute(lambda: runpy.run_module(name, run_name='__main__', alter_sys=True))


def _set_first_path(folder: str) -> None:
    if not getattr(sys.flags, 'safe_path', False):  # python -P adds no folder
        sys.path[0] = folder


def _execute(run: Callable[[], Dict[str, Any]]) -> None:
    try:
        _left.append(run())
    except (Exception, KeyboardInterrupt) as error:
        frames = frames_of(error.__traceback__)
        if isinstance(error, ImportError) and file_of(frames[-1]) == _RUNPY:  # nothing to run
            sys.exit('%s: %s' % (sys.executable, error))
        _hide_our_frames()
        raise


def note_interrupt(error: KeyboardInterrupt) -> None:
    """While the process ends by `error`, makes another Ctrl-C end it with one line.

    If no script has begun, ends the process at once.
    """
    if _RUNPY not in map(file_of, frames_of(error.__traceback__)):
        _end_by_ctrl_c('Ctrl-C')
    elif signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: _end_by_ctrl_c('Ctrl-C again; ending at once'))


def _end_by_ctrl_c(line: str) -> None:
    """Ends the process as an unhandled Ctrl-C does, so that the exit status shows it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with contextlib.suppress(OSError):  # not print: the signal may have interrupted a print
        os.write(2, ('slimguard: %s\n' % line).encode())
    os.kill(os.getpid(), signal.SIGINT)


def _hide_our_frames() -> None:
    """Makes the traceback that Python is about to print begin in the script.

    The exception stays the same, so the interpreter ends as after any exception.
    """
    show = sys.excepthook

    def show_the_scripts(kind, error, traceback):
        frames = itertools.dropwhile(lambda each: file_of(each) != _RUNPY, frames_of(traceback))
        error = error.with_traceback(traceback_of(list(frames)))
        _drop_hidden_frames(error)
        show(kind, error, error.__traceback__)

    sys.excepthook = show_the_scripts


def _drop_hidden_frames(error: BaseException) -> None:
    """Removes our frames from the tracebacks of an exception and of the exceptions behind it."""
    seen = set()  # ids: a chain may be a circle
    shown: Optional[BaseException] = error
    while shown is not None and id(shown) not in seen:
        seen.add(id(shown))
        hidden = (*_ALWAYS_HIDDEN, SLIMGUARD)
        if ends_in_slimguard(shown.__traceback__):
            if isinstance(shown, KeyboardInterrupt):  # raised after the save
                shown.__traceback__ = until_users(shown.__traceback__)
            elif type(shown).__name__ != _OF_AN_INCIDENT:
                hidden = _ALWAYS_HIDDEN
        frames = frames_of(shown.__traceback__)
        shown.__traceback__ = traceback_of([f for f in frames if not file_of(f).startswith(hidden)])
        shown = shown.__cause__ or shown.__context__


# The guard.


class RunOptions(NamedTuple):
    """The options for guarding a script, as plain values that can be sent to another process.

    Attributes:
      tf1: whether scripts get the names of TensorFlow 1.
      quiet: whether only errors are logged.
      arguments: the arguments of `slimguard.instrument`, by name.
    """

    tf1: bool
    quiet: bool
    arguments: Dict[str, Any]

    def guard(self, lent: contextlib.ExitStack, is_spawned: bool = False) -> Any:
        """Guards trainings in this process from here on; at its end the process prints the result.

        Call it before TensorFlow is imported.

        Args:
          lent: undoes the changes to the process when it is closed.
          is_spawned: whether a guarded process has spawned this one.

        Returns:
          The `Instrumentation`.
        """
        if self.tf1:
            lent.callback(tf1_names.uninstall)
            tf1_names.install()
        # These import TensorFlow, and the names of version 1 must be there first.
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
        # It prints after everything else, even a traceback.
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
    """Until `lent` is closed, only errors are logged, and where the last good state is saved."""
    from slimguard.training.stop_signals import SAVED_BY_SIGNAL
    from slimguard.training.training import SAVED, SAVED_OLDER

    where_saved = SAVED, SAVED_OLDER, SAVED_BY_SIGNAL

    def is_told(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR or record.msg in where_saved

    logger = log()
    logger.addFilter(is_told)
    lent.callback(logger.removeFilter, is_told)


def _guard_child(options: RunOptions) -> None:
    options.guard(contextlib.ExitStack(), is_spawned=True)


# Children.

# `multiprocessing` sends a child a dictionary; the child reads the keys that it knows.
_KEY = 'slimguard'
_TRIGGERS = frozenset(['tensorflow', 'tf_keras', 'tf_slim'])
# How `multiprocessing` names a fork server when it begins; it runs no code of the script.
_OF_A_FORK_SERVER = 'ignore'


def hand_on(
    patches: 'Patches', guard: Callable[[], object], note: Callable[[], object] = lambda: None
) -> None:
    """Also guards the children that `multiprocessing` spawns, until the patches are undone.

    Args:
      patches: notes the replacements.
      guard: guards the process that calls it; pickled for each child.
      note: called in this process for each child.
    """
    original = spawn.get_preparation_data

    def with_guard(name: str) -> Dict[str, Any]:
        data = original(name)
        if name != _OF_A_FORK_SERVER:
            data[_KEY] = _Guard(guard)
            note()
        return data

    patches.replace(spawn, 'get_preparation_data', with_guard)


class _Guard:
    """A child that unpickles this is guarded once it imports TensorFlow."""

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
        return builtins.__import__(name, *args, **kwargs)  # perhaps with TensorFlow 1's names

    builtins.__import__ = import_after_guard

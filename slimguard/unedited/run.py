"""Runs a script, or a module, as ``python`` itself would."""

import contextlib
import os
import pkgutil
import runpy
import signal
import sys
import types
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from slimguard.system.user_code import until_users
from slimguard.unedited import tf1_names

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_RUNPY = runpy.run_path.__code__.co_filename
# Files that the script's traceback leaves out: they would not be there under plain Python.
_ALWAYS_HIDDEN = (
    *(os.path.join(_FOLDER, name) for name in ('tf1_names.py', 'tf1_table.py', 'run.py')),
    _RUNPY,
)
# The traceback also leaves out all of slimguard, unless slimguard itself failed.
_OURS = os.path.join(os.path.dirname(_FOLDER), '')
_OF_AN_INCIDENT = 'NanLossError'

# The script's globals, which live as long as the process, as under plain Python.
_left: List[Dict[str, Any]] = []


def run_script(path: str, arguments: Sequence[str]) -> None:
    """Does what ``python path arguments`` does. Exceptions of the script are raised."""
    sys.argv[:] = [path] + list(arguments)
    if sys.version_info >= (3, 9):
        path = os.path.abspath(path)
    if pkgutil.get_importer(path) is None:
        _set_first_path(os.path.dirname(os.path.realpath(path)))
    elif not getattr(sys.flags, 'safe_path', False):
        del sys.path[0]  # a folder, or a zip file: runpy puts it there
    _execute(lambda: runpy.run_path(path, run_name='__main__'))


def run_module(name: str, arguments: Sequence[str]) -> None:
    """Does what ``python -m name arguments`` does."""
    sys.argv[:] = ['-m'] + list(arguments)
    _set_first_path(os.getcwd())
    tf1_names.note_module(name)
    _execute(lambda: runpy.run_module(name, run_name='__main__', alter_sys=True))


def _set_first_path(folder: str) -> None:
    if not getattr(sys.flags, 'safe_path', False):  # python -P puts no folder there
        sys.path[0] = folder


def _execute(run: Callable[[], Dict[str, Any]]) -> None:
    try:
        _left.append(run())
    except (Exception, KeyboardInterrupt) as error:
        files = _files_of(error.__traceback__)
        if isinstance(error, ImportError) and files[-1] == _RUNPY:  # there is nothing to run
            sys.exit('%s: %s' % (sys.executable, error))
        _hide_our_frames()
        raise


def note_interrupt(error: KeyboardInterrupt) -> None:
    """Has another Ctrl-C end the process with one line while it ends by `error`.

    If `error` comes from no script, as none has begun, it does so at once.
    """
    if _RUNPY not in _files_of(error.__traceback__):
        _end_by_ctrl_c('Ctrl-C')
    elif signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: _end_by_ctrl_c('Ctrl-C again; ending at once'))


def _end_by_ctrl_c(said: str) -> None:
    """Ends the process as a Ctrl-C does that nobody handles, so that its exit status tells."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with contextlib.suppress(OSError):  # not print, in the midst of which the signal may come
        os.write(2, ('slimguard: %s\n' % said).encode())
    os.kill(os.getpid(), signal.SIGINT)


def _hide_our_frames() -> None:
    """Makes the traceback that Python is about to print begin in the script.

    The exception itself stays the same, so the interpreter ends as after any other.
    """
    show = sys.excepthook

    def show_the_scripts(kind, error, traceback):
        while traceback is not None and traceback.tb_frame.f_code.co_filename != _RUNPY:
            traceback = traceback.tb_next
        error = error.with_traceback(traceback)
        _drop_hidden_frames(error)
        show(kind, error, error.__traceback__)

    sys.excepthook = show_the_scripts


def _drop_hidden_frames(error: BaseException) -> None:
    """Removes our frames from an exception's traceback, and from those that led to it."""
    seen = set()  # of ids: a chain may lead back to where it began
    shown: Optional[BaseException] = error
    while shown is not None and id(shown) not in seen:
        seen.add(id(shown))
        files = _files_of(shown.__traceback__)
        is_ours_to_show = (
            type(shown).__name__ != _OF_AN_INCIDENT and files[-1:] and (files[-1].startswith(_OURS))
        )
        if is_ours_to_show and isinstance(shown, KeyboardInterrupt):  # raised after the save
            shown.__traceback__ = until_users(shown.__traceback__)
            is_ours_to_show = False
        hidden = _ALWAYS_HIDDEN if is_ours_to_show else (*_ALWAYS_HIDDEN, _OURS)
        shown.__traceback__ = _without(hidden, shown.__traceback__)
        shown = shown.__cause__ or shown.__context__


def _files_of(traceback: Optional[types.TracebackType]) -> List[str]:
    found = []
    while traceback is not None:
        found.append(traceback.tb_frame.f_code.co_filename)
        traceback = traceback.tb_next
    return found


def _without(
    hidden: Tuple[str, ...], traceback: Optional[types.TracebackType]
) -> Optional[types.TracebackType]:
    """A traceback without the frames of files whose paths begin so."""
    frames = []
    while traceback is not None:
        if not traceback.tb_frame.f_code.co_filename.startswith(hidden):
            frames.append(traceback)
        traceback = traceback.tb_next
    following = None
    for frame in reversed(frames):
        frame.tb_next = following
        following = frame
    return following

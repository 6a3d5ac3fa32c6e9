"""Runs a script, or a module, as ``python`` itself would."""

import builtins
import importlib.machinery
import importlib.util
import os
import sys
import types
import zipfile
from typing import Any, Callable, List, Optional, Sequence, Tuple

from slimguard.system.user_code import until_users
from slimguard.unedited import tf1_names

_FOLDER = os.path.dirname(os.path.abspath(__file__))
# The script's traceback does not show these: plain Python would not be there.
_ALWAYS_HIDDEN = tuple(
    os.path.join(_FOLDER, name)
    for name in ('numpy1_names.py', 'tf1_names.py', 'tf1_gone.py', 'run.py')
)
# Nor all of slimguard, where it is not slimguard that failed.
_OURS = os.path.join(os.path.dirname(_FOLDER), '')
_OF_AN_INCIDENT = 'NanLossError'


def run_script(path: str, arguments: Sequence[str]) -> None:
    """Does what ``python path arguments`` does. Exceptions of the script pass."""
    sys.argv[:] = [path] + list(arguments)
    if os.path.isdir(path) or zipfile.is_zipfile(path):
        _run_folder(path)
        return
    _set_first_path(os.path.dirname(os.path.realpath(path)))
    if sys.version_info >= (3, 9):
        path = os.path.abspath(path)
    loader = importlib.machinery.SourceFileLoader('__main__', path)
    main = _new_main(path, loader)
    # Not loader.get_code(), which would leave a __pycache__ beside the script.
    _execute(lambda: loader.source_to_code(loader.get_data(path), path), main)


def run_module(name: str, arguments: Sequence[str]) -> None:
    """Does what ``python -m name arguments`` does."""
    sys.argv[:] = ['-m'] + list(arguments)
    _set_first_path(os.getcwd())
    spec = _find_module(name)
    loader: Any = spec.loader  # which has a get_code
    path: Any = spec.origin  # None where an importer does not say it
    sys.argv[0] = path
    main = _new_main(path, loader, spec)
    _execute(lambda: loader.get_code(spec.name), main)


def _run_folder(path: str) -> None:
    """Runs the program in a folder, or a zip file: there ``python -P`` finds modules too."""
    if sys.version_info >= (3, 9):
        path = os.path.abspath(path)
    if getattr(sys.flags, 'safe_path', False):
        sys.path.insert(0, path)
    else:
        sys.path[0] = path
    spec = importlib.machinery.PathFinder.find_spec('__main__', [path])
    if spec is None or not hasattr(spec.loader, 'get_code'):
        sys.exit("%s: can't find '__main__' module in %r" % (sys.executable, path))
    loader: Any = spec.loader
    # As an importer of zip files for Python 3.7 says it only here.
    main = _new_main(spec.origin or loader.get_filename('__main__'), loader, spec)
    _execute(lambda: loader.get_code('__main__'), main)


def _set_first_path(folder: str) -> None:
    if not getattr(sys.flags, 'safe_path', False):  # python -P puts no folder there
        sys.path[0] = folder


def _find_module(name: str) -> importlib.machinery.ModuleSpec:
    """The spec of a module, or of a package's ``__main__``."""
    tf1_names.note_module(name)
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(name + '.__main__')
    except ModuleNotFoundError as error:
        if not name.startswith(str(error.name)):  # it is no parent, but one of its imports
            raise
        spec = None
    if spec is None or not hasattr(spec.loader, 'get_code'):
        sys.exit('%s: No module named %s that can be run' % (sys.executable, name))
    return spec


def _new_main(
    path: str, loader: Any, spec: Optional[importlib.machinery.ModuleSpec] = None
) -> types.ModuleType:
    """A new ``__main__``, where pickle, multiprocessing and absl find what the script defines."""
    main = types.ModuleType('__main__')
    main.__file__ = path
    main.__loader__ = loader
    main.__spec__ = spec
    main.__package__ = spec.parent if spec else None
    vars(main).update(__cached__=spec.cached if spec else None, __builtins__=builtins)
    main.__annotations__ = {}
    sys.modules['__main__'] = main
    return main


def _execute(compile_it: Callable[[], types.CodeType], main: types.ModuleType) -> None:
    code = None
    try:
        code = compile_it()
        exec(code, vars(main))
    except Exception:
        _hide_our_frames(code)
        raise
    except KeyboardInterrupt:
        _hide_our_frames(code)
        raise


def _hide_our_frames(code: Optional[types.CodeType]) -> None:
    """Sees to it that the traceback which Python is about to print begins in the script.

    The exception itself goes its way, so that the interpreter ends as it does after any other.
    """
    show = sys.excepthook

    def show_the_scripts(kind, error, traceback):
        while traceback is not None and traceback.tb_frame.f_code is not code:
            traceback = traceback.tb_next
        error = error.with_traceback(traceback)
        _drop_hidden_frames(error)
        show(kind, error, error.__traceback__)

    sys.excepthook = show_the_scripts


def _drop_hidden_frames(error: BaseException) -> None:
    """Takes our frames out of an exception's traceback, and out of those that led to it."""
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

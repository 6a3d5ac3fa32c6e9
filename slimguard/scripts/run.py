"""Runs a script, or a module, as ``python`` itself would."""

import builtins
import importlib.machinery
import importlib.util
import os
import sys
import types
from typing import Any, Callable, Optional, Sequence

_FOLDER = os.path.dirname(os.path.abspath(__file__))
# The script's traceback does not show these: plain Python would not be there.
_HIDDEN_FILES = tuple(
    os.path.join(_FOLDER, name)
    for name in ('numpy1_names.py', 'tf1_names.py', 'tf1_gone.py', 'run.py')
)


def run_script(path: str, arguments: Sequence[str]) -> None:
    """Does what ``python path arguments`` does. Exceptions of the script pass."""
    sys.argv[:] = [path] + list(arguments)
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


def _set_first_path(folder: str) -> None:
    if not getattr(sys.flags, 'safe_path', False):  # python -P puts no folder there
        sys.path[0] = folder


def _find_module(name: str) -> importlib.machinery.ModuleSpec:
    """The spec of a module, or of a package's ``__main__``."""
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
        shown.__traceback__ = _visible(shown.__traceback__)
        shown = shown.__cause__ or shown.__context__


def _visible(traceback: Optional[types.TracebackType]) -> Optional[types.TracebackType]:
    frames = []
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename not in _HIDDEN_FILES:
            frames.append(traceback)
        traceback = traceback.tb_next
    following = None
    for frame in reversed(frames):
        frame.tb_next = following
        following = frame
    return following

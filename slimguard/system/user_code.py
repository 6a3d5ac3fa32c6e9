"""The user's code: its files, their frames in a traceback, and the cells of a notebook."""

import functools
import importlib.util
import os
import re
import sys
import sysconfig
import types
from typing import Any, List, Optional, Sequence, Tuple

_PYTHON = os.path.join(sysconfig.get_path('stdlib'), '')
# Where slimguard itself is.
SLIMGUARD = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), '')
_PACKAGES = (
    'tensorflow tensorflow_core tensorflow_estimator tf_slim keras tf_keras slimguard six IPython '
    'ipykernel'
).split()


@functools.lru_cache(maxsize=None)
def is_users(file: str) -> bool:
    """Whether a file, as a traceback names it, is the user's own.

    A file is the user's if it belongs to none of TensorFlow, tf-slim, Keras, slimguard and Python.
    """
    if file.startswith(_directories()):
        return False
    # Packages inside Python's own directory may be the user's.
    return not file.startswith(_PYTHON) or bool(re.search(r'[/\\\\](site|dist)-packages', file))


def frames_of(traceback: Optional[types.TracebackType]) -> List[types.TracebackType]:
    """The frames of a traceback; the last one raised the error."""
    frames = []
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    return frames


def traceback_of(frames: Sequence[types.TracebackType]) -> Optional[types.TracebackType]:
    """A traceback of these frames only, linked to each other; None if there are no frames."""
    for frame, following in zip(frames, [*frames[1:], None]):
        frame.tb_next = following
    return frames[0] if frames else None


def file_of(frame: types.TracebackType) -> str:
    """The file of the code that a frame runs."""
    return frame.tb_frame.f_code.co_filename


def until_users(
    traceback: Optional[types.TracebackType],
) -> Optional[types.TracebackType]:
    """The traceback up to the last frame in a file of the user's; None if it has no such frame."""
    frames = frames_of(traceback)
    while frames and not is_users(file_of(frames[-1])):
        frames.pop()
    return traceback_of(frames)


def ends_in_slimguard(traceback: Optional[types.TracebackType]) -> bool:
    """Whether an error with this traceback was raised in a file of slimguard."""
    return any(file_of(frame).startswith(SLIMGUARD) for frame in frames_of(traceback)[-1:])


@functools.lru_cache(maxsize=None)
def _directories() -> Tuple[str, ...]:
    folders = set()
    for name in _PACKAGES:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            continue
        if spec is not None and spec.origin and os.path.basename(spec.origin) == '__init__.py':
            folders.add(os.path.dirname(spec.origin))
    # TensorFlow 1.15 keeps its modules beside `tensorflow`, in a package that nobody imports.
    beside = {os.path.dirname(path) for path in folders if os.path.basename(path) == 'tensorflow'}
    folders.update(os.path.join(folder, name) for folder in beside for name in _PACKAGES)
    return tuple(os.path.join(directory, '') for directory in folders)


# IPython and Jupyter. Code that runs in IPython has it imported already.

_CELL_OF_IPYTHON_7 = re.compile(r'<ipython-input-(\d+)-')


def _shell() -> Any:
    """IPython's shell, or None in plain Python."""
    ipython = sys.modules.get('IPython')
    get = getattr(ipython, 'get_ipython', None)
    return None if get is None else get()


def is_notebook() -> bool:
    """Whether a Jupyter kernel runs this. Users see its stderr, although it is no terminal."""
    return getattr(_shell(), 'kernel', None) is not None


def place_of(file: str) -> str:
    """A file as users know it: for a cell, its number, if that is known."""
    number = _CELL_OF_IPYTHON_7.match(file)
    if number:
        return 'cell [%s]' % number.group(1)
    named = getattr(getattr(_shell(), 'compile', None), 'format_code_name', None)
    kind_and_name = named(file) if named is not None else None
    if kind_and_name is not None:
        return 'cell ' + kind_and_name[1].replace('In[', '[')
    return 'a cell' if os.path.basename(os.path.dirname(file)).startswith('ipykernel_') else file

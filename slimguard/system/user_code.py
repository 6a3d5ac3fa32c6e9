"""Tells the user's files from those of the libraries that every training goes through."""

import functools
import importlib.util
import os
import re
import sysconfig
import types
from typing import Optional, Tuple

_PYTHON = os.path.join(sysconfig.get_path('stdlib'), '')
_SLIMGUARD = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), '')
_PACKAGES = (
    'tensorflow tensorflow_core tensorflow_estimator tf_slim keras tf_keras slimguard six IPython '
    'ipykernel'
).split()


@functools.lru_cache(maxsize=None)
def is_users(file: str) -> bool:
    """Whether a file, as a traceback names it, is the user's own.

    It is if it belongs to none of TensorFlow, tf-slim, Keras, slimguard and Python.
    """
    if file.startswith(_directories()):
        return False
    # Packages inside Python's own directory may well be the user's.
    return not file.startswith(_PYTHON) or bool(re.search(r'[/\\\\](site|dist)-packages', file))


def until_users(
    traceback: Optional[types.TracebackType],
) -> Optional[types.TracebackType]:
    """The traceback up to the last frame in a file of the user's; None if it has no such frame."""
    last = None
    frame = traceback
    while frame is not None:
        last = frame if is_users(frame.tb_frame.f_code.co_filename) else last
        frame = frame.tb_next
    if last is None:
        return None
    last.tb_next = None
    return traceback


def ends_in_slimguard(traceback: Optional[types.TracebackType]) -> bool:
    """Whether an error with this traceback was raised in a file of slimguard's."""
    file = ''
    while traceback is not None:
        file, traceback = traceback.tb_frame.f_code.co_filename, traceback.tb_next
    return file.startswith(_SLIMGUARD)


@functools.lru_cache(maxsize=None)
def _directories() -> Tuple[str, ...]:
    found = set()
    for name in _PACKAGES:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            continue
        if spec is not None and spec.origin and os.path.basename(spec.origin) == '__init__.py':
            found.add(os.path.dirname(spec.origin))
    # Modules of TensorFlow 1.15 lie beside `tensorflow`, under a name that nobody imports.
    beside = {os.path.dirname(path) for path in found if os.path.basename(path) == 'tensorflow'}
    found.update(os.path.join(folder, name) for folder in beside for name in _PACKAGES)
    return tuple(os.path.join(directory, '') for directory in found)

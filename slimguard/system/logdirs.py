"""Tells whether a directory is the log directory of a training, by the files in it.

Imports no TensorFlow for a local path.
"""

import contextlib
import fnmatch
import math
import os
import re
import shlex
import tempfile
from typing import Iterable, List, Optional, Sequence

from slimguard.system import files, texts

_MARKS = (
    *('checkpoint', 'checkpoint.bad', '*.index', '*.meta', '*-?????-of-?????'),
    *('events.out.tfevents.*', 'graph.pbtxt'),
)
# Wild cards of a glob. TensorFlow takes a checkpoint's path for a glob when it looks for the
# checkpoint, so it never finds one whose path has a wild card.
_WILD = '*?[\\'
_FOLDER = 'slimguard'
BUNDLE = 'incident.json'  # the file that makes a folder a bundle
_TIME = re.compile(rb'"time": (\d+(?:\.\d+)?)\b')
_LOOKED_AT = 1 << 10  # bytes of incident.json that are read for its time
# The folder that `run` makes for the records of scripts that have saved nothing yet.
FALLBACK = 'slimguard-logs'
_MOST_NAMES = 5
# A folder named slimguard may also be a copy of this package.
_MARKS_IN_FOLDER = ('incidents.jsonl*', 'step-*', 'learning_rate.json', 'report.*', '.making-*')


class LogdirError(ValueError):
    """A path is no log directory; the message says what makes one."""


def as_logdir(path: files.Path, name: str = 'logdir') -> str:
    """As `files.as_path`, for a directory that checkpoints are saved to and restored from.

    Raises:
      ValueError: also if TensorFlow could not restore checkpoints from there; if the path, or a
        folder above it, is no directory; or if it is a bundle.
    """
    text = files.as_path(path, name)
    wild = [letter for letter in text if letter in _WILD]
    if wild:
        raise ValueError(
            '%s %r holds %r: TensorFlow takes it for a wild card when it looks for a checkpoint to '
            'restore, so what is saved there could never be restored; choose a path without %s'
            % (name, text, wild[0], ' '.join(_WILD))
        )
    if files.is_remote(text):
        return text
    nearest = _nearest(text)
    if not os.path.isdir(nearest):
        raise ValueError('%s %r cannot be used: %r is no directory' % (name, text, nearest))
    said = _said_of_bundle(text)
    if said is not None:
        raise ValueError(said)
    return text


def require_writable(logdir: str) -> None:
    """Makes the directory; raises ValueError if this process cannot make it or write to it."""
    if files.is_remote(logdir):
        return
    try:
        files.make_dirs(logdir)
        tempfile.TemporaryFile(dir=logdir).close()
    except OSError as error:
        raise ValueError(
            'logdir %r cannot be used: this process cannot write to it (%s). Checkpoints and the '
            'record of incidents go there; give another folder, or change the permissions of this '
            'one' % (logdir, error.strerror)
        ) from None


def _nearest(path: str) -> str:
    """A local path, or the nearest folder above it that exists."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def require_logdir(logdir: files.Path) -> str:
    """A log directory as an absolute str; `path` may also be its folder `slimguard`.

    Raises:
      LogdirError: if there is no such directory, or if it holds nothing of a training.
      TypeError, ValueError: if it is no path, as :func:`files.as_path` says.
    """
    path = meant_by(files.as_path(logdir))
    missing = what_is_missing(path)
    if missing is not None:
        raise LogdirError(missing)
    return path


def meant_by(path: str) -> str:
    """The logdir, if `path` is the folder `slimguard` in a logdir; else `path`."""
    parent, name = os.path.split(path.rstrip('/'))
    with contextlib.suppress(*files.errors(path)):  # whoever opens the path gets the error
        if name == _FOLDER and _has_any(files.list_dir(path), _MARKS_IN_FOLDER):
            return parent
    return path


def what_is_missing(logdir: str) -> Optional[str]:
    """Why a path is no log directory, as a sentence; None if it is one."""
    try:
        if not files.is_dir(logdir):
            what = 'a file, and no directory' if files.exists(logdir) else 'no directory'
            return 'there is %s %r' % (what, logdir)
        names = files.list_dir(logdir)
        if _is_one(logdir, names):
            return None
        said = _said_of_bundle(logdir)
        if said is not None:
            return said
    except files.errors(logdir) as error:
        return cannot_be_read(logdir, error)
    below = _below(logdir, names)
    cure = 'Give the folder that holds these; ' + NAMED_BY
    if below:
        given = [shlex.quote(os.path.join(logdir, name)) for name in below]
        cure = 'Give one of the folders in it: ' + texts.listed(given, _MOST_NAMES)
    return (
        '%s is no logdir of a training: it holds no checkpoint, no summaries and no record of '
        'incidents. %s' % (logdir, cure)
    )


def _said_of_bundle(folder: str) -> Optional[str]:
    """A sentence that says that a folder is a bundle; None if it is none."""
    parent = os.path.dirname(folder.rstrip('/'))
    if os.path.basename(parent) == _FOLDER and files.is_file(folder + '/' + BUNDLE):
        logdir = shlex.quote(os.path.dirname(parent))
        return '%s is a bundle, and no logdir: give %s' % (folder, logdir)
    return None


def time_of_bundle(folder: str) -> float:
    """The time of a bundle's incident; -Inf if there is none.

    Reads only the beginning of the file, which may be large.
    """
    path = os.path.join(folder, BUNDLE)
    try:
        with files.open_to_read(path) as file:
            match = _TIME.search(file.read(_LOOKED_AT))
    except files.errors(path):
        match = None
    return float(match.group(1)) if match else -math.inf


def _is_one(logdir: str, names: Sequence[str]) -> bool:
    return _has_any(names, _MARKS) or (_FOLDER in names and _is_ours(logdir))


def _below(folder: str, names: Sequence[str]) -> List[str]:
    """The logdirs in a folder and in its `slimguard-logs`; logdirs with a record come first."""
    records = os.path.join(folder, FALLBACK)
    with contextlib.suppress(*files.errors(records)):
        names = [*names, *(os.path.join(FALLBACK, name) for name in files.list_dir(records))]
    found = [name for name in sorted(names) if _is_one_below(os.path.join(folder, name))]
    return sorted(found, key=lambda name: not _is_ours(os.path.join(folder, name)))


def _is_one_below(path: str) -> bool:
    with contextlib.suppress(*files.errors(path)):
        return files.is_dir(path) and _is_one(path, files.list_dir(path))
    return False


NAMED_BY = (
    'the line "to see what happened" at the end of a training\'s output names the folder of its '
    'record'
)


def cannot_be_read(logdir: str, error: Exception) -> str:
    return '%s cannot be read: %s' % (logdir, getattr(error, 'message', error))


def _is_ours(logdir: str) -> bool:
    folder = os.path.join(logdir, _FOLDER)
    if not files.is_dir(folder):
        return False
    names = files.list_dir(folder)
    return not names or _has_any(names, _MARKS_IN_FOLDER)


def _has_any(names: Iterable[str], patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)

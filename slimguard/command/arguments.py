"""Reads the values of options, and checks that a command has what it needs.

The readers of options raise `argparse.ArgumentTypeError`: argparse puts the option's name before
the message. The checks of a logdir and of TensorFlow end the command.
"""

import argparse
import contextlib
import importlib
import math
import os
from typing import Callable, Iterator, List, NoReturn, Optional

from slimguard import compat
from slimguard.command.documents import refuse
from slimguard.incidents import policy_language
from slimguard.incidents import spike as spikes
from slimguard.system import files, logdirs


@contextlib.contextmanager
def _as_misfit() -> Iterator[None]:
    """Turns a ValueError into an error whose message argparse shows."""
    try:
        yield
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def policy(text: str) -> str:
    """Checks the text of a fallback chain, such as ``skip:5,raise``, and returns it."""
    with _as_misfit():
        policy_language.parse_chain(text)
    return text


def spike(text: str) -> Optional[spikes.Spike]:
    """The limits of a `Spike`, such as ``loss=10,gradient_norm=100``."""
    with _as_misfit():
        return spikes.as_spike(text, '')


def positive(text: str) -> float:
    """A positive finite number."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError('expected a positive finite number, not %r' % text)
    return number


def whole(least: int) -> Callable[[str], int]:
    """A reader of whole numbers that are at least `least`."""

    def read(text: str) -> int:
        if not text.isdigit() or int(text) < least:
            why = 'expected a whole number, %d or more, not %r' % (least, text)
            raise argparse.ArgumentTypeError(why)
        return int(text)

    return read


def logdir(text: str) -> str:
    """The absolute path of a directory to write to, which exists or can be made."""
    with _as_misfit():
        path = files.as_path(text) if files.is_remote(text) else logdirs.as_logdir(text)
        logdirs.require_writable(path)
    return path


def folder(given: str, parser: argparse.ArgumentParser, as_json: bool = False) -> str:
    """The absolute path of an existing directory; else ends the command with an error."""

    def misfit(why: str) -> NoReturn:
        if as_json:
            refuse(why, as_json)
        parser.error(why)

    try:
        path = files.as_path(given, 'the directory')
    except ValueError as error:
        misfit(str(error))
    if files.is_remote(path):
        require_tensorflow(as_json)
    elif not files.is_dir(path):
        found = os.path.lexists(path)
        said = '%r is a file; expected a directory' if found else 'there is no directory %r'
        misfit(said % given + _near(path))
    return logdirs.meant_by(path)


def _near(path: str) -> str:
    """The end of an error about a missing folder: a similar name, or how to find logdirs."""
    parent = os.path.dirname(path)
    if os.path.isfile(path) and logdirs.what_is_missing(logdirs.meant_by(parent)) is None:
        return '; did you mean %r?' % logdirs.meant_by(parent)
    names: List[str] = []
    with contextlib.suppress(OSError):
        names = sorted(os.listdir(parent))
    bundles = [name for name in names if os.path.isfile(os.path.join(parent, name, logdirs.BUNDLE))]
    if bundles:
        bundles.sort(key=lambda name: logdirs.time_of_bundle(os.path.join(parent, name)))
        return '; the bundles in %s, the newest last: %s' % (parent, ', '.join(bundles))
    return '; %s' % logdirs.NAMED_BY


def find_tensorflow(as_json: bool = False, besides: str = '') -> None:
    """Looks for TensorFlow without importing it; ends the command if it is not installed.

    Args:
      as_json: whether the error goes into a JSON document.
      besides: the end of the error's sentence.
    """
    try:
        compat.require_tensorflow()
    except ImportError as error:
        refuse(str(error) + besides, as_json)


def require_tensorflow(as_json: bool = False, besides: str = '') -> None:
    """Imports TensorFlow; ends the command with a sentence if the import fails."""
    find_tensorflow(as_json, besides)
    try:
        with without_stderr():
            importlib.import_module('tensorflow')
    except Exception as error:  # numpy or protobuf may raise anything
        refuse(
            'TensorFlow is installed and cannot be imported (%s: %s); slimguard doctor says how to '
            'mend it' % (type(error).__name__, error),
            as_json,
        )


@contextlib.contextmanager
def without_stderr() -> Iterator[None]:
    """Drops the lines that TensorFlow's libraries print when they are loaded.

    No environment variable silences all of these lines. A failing import still raises its error.
    """
    try:
        stderr = os.dup(2)
    except OSError:  # it is closed
        yield
        return
    try:
        with open(os.devnull, 'wb') as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def require_file_system(folder: str) -> None:
    """Ends the command if TensorFlow does not support the directory's file system."""
    try:
        files.exists(folder)
    except files.errors(folder) as error:
        refuse(logdirs.cannot_be_read(folder, error))


def require_logdir(folder: str, as_json: bool = False) -> None:
    """Ends the command if the directory holds nothing of a training."""
    missing = logdirs.what_is_missing(folder)
    if missing is not None:
        refuse(missing, as_json)

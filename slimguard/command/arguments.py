"""Reads the values of options from their texts, or says what was expected.

Errors are `argparse.ArgumentTypeError`: argparse puts the option's name before the message.
"""

import argparse
import contextlib
import math
import os
from typing import Callable, Iterator, NoReturn, Optional

from slimguard.command import documents
from slimguard.incidents import policy_language
from slimguard.incidents import spike as spikes
from slimguard.system import files


@contextlib.contextmanager
def _as_misfit() -> Iterator[None]:
    """Turns a ValueError into an error whose message argparse shows."""
    try:
        yield
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def policy(text: str) -> str:
    """The text of a fallback chain, such as ``skip:5,raise``, after a check that it is one."""
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
    """Reads a whole number of at least so much."""

    def read(text: str) -> int:
        if not text.isdigit() or int(text) < least:
            why = 'expected a whole number, %d or more, not %r' % (least, text)
            raise argparse.ArgumentTypeError(why)
        return int(text)

    return read


def logdir(text: str) -> str:
    """The absolute path of a directory to write to, which exists or can be made."""
    with _as_misfit():
        path = files.as_path(text) if files.is_remote(text) else files.as_logdir(text)
    if not files.is_remote(path) and not os.access(files.nearest(path), os.W_OK):
        raise argparse.ArgumentTypeError('nothing can be written to %r' % files.nearest(path))
    return path


def folder(given: str, parser: argparse.ArgumentParser, as_json: bool = False) -> str:
    """The absolute path of an existing directory; else ends the command with an error."""

    def refuse(why: str) -> NoReturn:
        if as_json:
            documents.refuse(why, as_json)
        parser.error(why)

    try:
        path = files.as_path(given, 'the directory')
    except ValueError as error:
        refuse(str(error))
    # TensorFlow looks for a remote one, once it is imported.
    if not files.is_remote(path) and not files.is_dir(path):
        found = os.path.lexists(path)
        refuse(('%r is no directory' if found else 'there is no directory %r') % given)
    return path

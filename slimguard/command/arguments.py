"""Reads the values of options from their texts, or says what was expected.

Errors are `argparse.ArgumentTypeError`: argparse puts the option's name before the message.
"""

import argparse
import math
import os
from typing import NoReturn, Optional

from slimguard.command import documents
from slimguard.incidents import policy_language
from slimguard.incidents import spike as spikes
from slimguard.system import files


def _misfit(text: str, why: str) -> argparse.ArgumentTypeError:
    """The error for a text that is no value of its option."""
    if text.endswith('.py') or os.path.isfile(text):
        why += '. The option needs a value before the script'
    return argparse.ArgumentTypeError(why)


def policy(text: str) -> str:
    """The text of a fallback chain, such as ``skip:5,raise``, after a check that it is one."""
    try:
        policy_language.parse_chain(text)
    except ValueError as error:
        raise _misfit(text, str(error)) from None
    return text


def positive(text: str) -> float:
    """A positive finite number."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise _misfit(text, 'expected a positive finite number, not %r' % text)
    return number


def count(text: str) -> int:
    """A whole number above 0."""
    if not text.isdigit() or not int(text):
        raise _misfit(text, 'expected a whole number, 1 or more, not %r' % text)
    return int(text)


def number(text: str) -> int:
    """A whole number, 0 or more."""
    if not text.isdigit():
        raise _misfit(text, 'expected a whole number, 0 or more, not %r' % text)
    return int(text)


def spike(text: str) -> Optional[spikes.Spike]:
    """The limits of a `Spike`, such as ``loss=10,gradient_norm=100``."""
    try:
        return spikes.as_spike(text, '')
    except ValueError as error:
        raise _misfit(text, str(error)) from None


def row(text: str) -> int:
    """The number of a row of a batch."""
    if not text.isdigit():
        raise argparse.ArgumentTypeError('expected a row of the batch, 0 or more, not %r' % text)
    return int(text)


def logdir(text: str) -> str:
    """The absolute path of a directory to write to, which exists or can be made."""
    try:
        path = files.as_path(text) if files.is_remote(text) else files.as_logdir(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
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

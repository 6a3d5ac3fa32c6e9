"""Checks that a command has what it needs, a logdir or TensorFlow, or says what is missing."""

import importlib

from slimguard import compat
from slimguard.command.documents import refuse
from slimguard.system import files, logdirs


def tensorflow_to_be_found(as_json: bool = False, besides: str = '') -> None:
    """Looks for TensorFlow, imports nothing; ends the command with a sentence if there is none.

    Args:
      as_json: whether to say so in a document.
      besides: what else to say then.
    """
    try:
        compat.require_tensorflow()
    except ImportError as error:
        refuse(str(error) + besides, as_json)


def tensorflow(as_json: bool = False, besides: str = '') -> None:
    """Imports TensorFlow; ends the command with a sentence if that is not possible."""
    tensorflow_to_be_found(as_json, besides)
    try:
        importlib.import_module('tensorflow')
    except Exception as error:  # numpy or protobuf may raise anything
        refuse(
            'TensorFlow is installed and cannot be imported (%s: %s); slimguard doctor says how to '
            'mend it' % (type(error).__name__, error),
            as_json,
        )


def file_system(folder: str) -> None:
    """Refuses a directory, existing or not, on a file system that TensorFlow does not support."""
    try:
        files.exists(folder)
    except files.errors(folder) as error:
        refuse(logdirs.cannot_be_read(folder, error))


def logdir(folder: str, as_json: bool = False) -> None:
    """Refuses a directory in which no training has left anything."""
    missing = logdirs.what_is_missing(folder)
    if missing is not None:
        refuse(missing, as_json)

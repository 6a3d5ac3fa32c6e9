"""Protobuf messages as text, without a tenth of the time of the tests that train."""

from google.protobuf import text_format
from google.protobuf.internal import api_implementation

_in_python = text_format.MessageToString


def write_in_c() -> None:
    """Has `text_format.MessageToString` make its text in C, as `str` of a message does.

    Each training writes its graph as text, several times. `MessageToString` does so in Python,
    field by field, and takes twenty times as long for a text of the same meaning.
    """
    if api_implementation.Type() != 'python':  # whose `str` is `MessageToString`
        text_format.MessageToString = _to_string


def _to_string(message, *args, **kwargs):
    if args or kwargs not in ({}, {'float_format': ''}):
        return _in_python(message, *args, **kwargs)
    return str(message)

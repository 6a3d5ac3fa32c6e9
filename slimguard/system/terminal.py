"""Prints text of unknown origin (names of files, lines of a record) to any kind of stdout.

It shows escape sequences, bidirectional controls and line ends as escapes, and cuts the cells of a
table. No traceback comes of a stdout that is closed or full, or that cannot encode a character.
"""

import contextlib
import os
import sys
from typing import Any, Iterator, Sequence

from slimguard.system import texts

# As a shell shows it of a program that SIGPIPE has ended (`git log | head`). The exit code that
# Python's documentation suggests, 1, has a meaning of its own in our commands.
_PIPE_CLOSED = 141
_CANNOT_WRITE = 2

_IN_A_CELL, _IN_THE_LAST_CELL, _IN_A_SENTENCE = 60, 300, 10000


def visible(text: Any, most: int = _IN_A_SENTENCE) -> str:
    """Any text in one line of at most `most` characters that are what they look like.

    What is too long loses its middle.
    """
    return _cut(texts.in_one_line(_cut(str(text), most)), most)


def say(text: Any) -> None:
    """Prints a sentence to stdout."""
    print(encodable(visible(text), sys.stdout))


def complain(text: Any) -> None:
    """Prints a sentence to stderr, if anybody listens there."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # ValueError: it was closed in Python
            print('slimguard: ' + visible(text), file=sys.stderr, flush=True)


def encodable(text: str, stream: Any) -> str:
    """`text` with escapes for the characters that a stream has no letters for."""
    encoding = getattr(stream, 'encoding', None) or 'utf-8'
    return text.encode(encoding, 'backslashreplace').decode(encoding)


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Prints rows of cells, each column as wide as its widest cell."""
    most = [_IN_A_CELL] * (len(rows[0]) - 1) + [_IN_THE_LAST_CELL]
    rows = [[visible(cell, m) for cell, m in zip(row, most)] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        print('  '.join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


@contextlib.contextmanager
def streams() -> Iterator[None]:
    """While it lasts, stdout takes whatever is printed, or ends the process without a traceback.

    * A character that stdout cannot encode is written as an escape.
    * A pipe that was closed (``| head -1``) ends the process without a word, with the exit code
      that a shell gives to SIGPIPE.
    * Where nothing can be written (a full disk), a sentence on stderr says so, and the exit code is
      2. So it is after any other `OSError`, for which the user, and no bug, is to be looked at.
    * A stdout that was closed from the beginning (``>&-``) is nobody's loss: the exit code is what
      was asked for.
    """
    before = sys.stdout, sys.stderr
    _open_what_is_closed()
    errors = _set_errors(sys.stdout, 'backslashreplace')
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _drop_the_rest()
        sys.exit(_PIPE_CLOSED)
    except OSError as error:
        # Opening names a file; writing to a stream that was given does not.
        is_stdout = error.errno is not None and error.filename is None
        complain('stdout cannot be written: %s' % error.strerror if is_stdout else str(error))
        _drop_the_rest()
        sys.exit(_CANNOT_WRITE)
    finally:
        _set_errors(sys.stdout, errors)
        sys.stdout, sys.stderr = before


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    dots = _dots()
    kept = most - len(dots)
    return text[: kept - kept // 3] + dots + text[len(text) - kept // 3 :]


def _dots() -> str:
    try:
        '\N{HORIZONTAL ELLIPSIS}'.encode(getattr(sys.stdout, 'encoding', None) or 'ascii')
    except (UnicodeEncodeError, LookupError):
        return '...'
    return '\N{HORIZONTAL ELLIPSIS}'


def _open_what_is_closed() -> None:
    """Puts /dev/null where there is no stdin, stdout or stderr.

    Else a file that is opened later gets a number of theirs, and what was meant for them.
    """
    number = os.open(os.devnull, os.O_RDWR)
    while number <= 2:
        number = os.open(os.devnull, os.O_RDWR)
    os.close(number)
    if sys.stdout is None:
        sys.stdout = open(os.devnull, 'w')
    if sys.stderr is None:
        sys.stderr = open(os.devnull, 'w')


def _set_errors(stream, errors) -> Any:
    """Says what a stream does with what it cannot encode; returns what it did so far."""
    before = getattr(stream, 'errors', None)
    # A notebook's stream has nothing to set. The stream of a pipe that is closed would be flushed.
    with contextlib.suppress(AttributeError, OSError, ValueError):
        stream.reconfigure(errors=errors)
    return before


def _drop_the_rest() -> None:
    """Lets nobody, the interpreter's own end included, try once more to write what stdout holds."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)

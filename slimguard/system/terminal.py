"""Prints text of unknown origin (names of files, lines of a record) to any kind of stdout.

It shows escape sequences, bidirectional controls and line ends as escapes, and cuts the cells of a
table. If stdout is closed or full, or cannot encode a character, there is no traceback.
"""

import contextlib
import os
import sys
from typing import Any, Iterator, Sequence

from slimguard.system import texts

# A shell reports this for a program that SIGPIPE has ended (`git log | head`). The documentation of
# Python suggests 1, but 1 has a meaning of its own in our commands.
_PIPE_CLOSED = 141
_CANNOT_WRITE = 2

_IN_A_CELL, _IN_THE_LAST_CELL, _IN_A_SENTENCE = 60, 300, 10000


def visible(text: Any, most: int = _IN_A_SENTENCE) -> str:
    """A text in one line of at most `most` characters; invisible characters become escapes.

    A text that is too long loses its middle.
    """
    return _cut(texts.in_one_line(_cut(str(text), most)), most)


def say(text: Any) -> None:
    """Prints a sentence to stdout."""
    print(encodable(visible(text), sys.stdout))


def complain(text: Any) -> None:
    """Prints a sentence to stderr, if it is open."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # ValueError: it was closed in Python
            print('slimguard: ' + visible(text), file=sys.stderr, flush=True)


def encodable(text: str, stream: Any) -> str:
    """`text` with escapes for the characters that a stream cannot encode."""
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
    """Inside, an error of stdout is avoided, or ends the process without a traceback.

    * A character that stdout cannot encode is written as an escape.
    * A pipe that was closed (``| head -1``) ends the process without a word, with the exit code
      that a shell gives to SIGPIPE.
    * If nothing can be written (a full disk), a sentence on stderr says so, and the exit code is 2.
      The same holds for any other `OSError`: it is no bug, but a problem for the user to solve.
    * If stdout was closed from the beginning (``>&-``), nothing is written, and the exit code is
      the command's own.
    """
    errors = _set_errors(sys.stdout, 'backslashreplace')
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        _drop_the_rest()
        sys.exit(_PIPE_CLOSED)
    except OSError as error:
        # An error of `open` names the file; an error of writing to stdout does not.
        is_stdout = error.errno is not None and error.filename is None
        complain('stdout cannot be written: %s' % error.strerror if is_stdout else str(error))
        _drop_the_rest()
        sys.exit(_CANNOT_WRITE)
    finally:
        _set_errors(sys.stdout, errors)


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    kept = most - len('...')
    return text[: kept - kept // 3] + '...' + text[len(text) - kept // 3 :]


def _set_errors(stream, errors) -> Any:
    """Sets a stream's handling of characters that it cannot encode; returns the previous one."""
    before = getattr(stream, 'errors', None)
    # A notebook's stream cannot be set. A closed pipe raises, since setting flushes it.
    with contextlib.suppress(AttributeError, OSError, ValueError):
        stream.reconfigure(errors=errors)
    return before


def _drop_the_rest() -> None:
    """Drops the rest of stdout, or the interpreter would try to write it again when it exits."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)

"""Makes text of unknown origin (names, errors, lines of a record) visible, and cuts it.

Imports no TensorFlow.
"""

import unicodedata
from typing import Any, Sequence


def visible(value: Any) -> str:
    r"""The text of `value`, in visible characters only; line ends and tabs stay.

    An escape (``\x1b``, ``\u202e``) stands for each character that is invisible, changes the
    direction of the text, or controls the terminal.
    """
    return _escaped(str(value), kept='\n\t')


def in_one_line(value: Any) -> str:
    """As `visible`, but with line ends and tabs as escapes, too."""
    return _escaped(str(value), kept='')


def cut(value: Any, most: int, dots: str = '\N{HORIZONTAL ELLIPSIS}') -> str:
    """The text of `value`, cut to at most `most` characters, `dots` included."""
    text = str(value)
    return text if len(text) <= most else text[: most - len(dots)] + dots


def listed(things: Sequence[Any], most: int) -> str:
    """The first of `things`, at most `most`, and how many more there are."""
    more = len(things) - most
    return ', '.join(map(str, things[:most])) + (' and %d more' % more if more > 0 else '')


def _escaped(text: str, kept: str) -> str:
    if text.isprintable():
        return text
    return ''.join(c if c in kept or _shows(c) else _escape(c) for c in text)


def _shows(character: str) -> bool:
    category = unicodedata.category(character)
    return category[0] != 'C' and category not in ('Zl', 'Zp')  # these are line ends


def _escape(character: str) -> str:
    return character.encode('unicode_escape').decode('ascii')

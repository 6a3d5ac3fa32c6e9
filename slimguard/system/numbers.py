"""Tells numbers from other values of users and records: a bool is none."""

from typing import Any


def is_number(value: Any) -> bool:
    """Whether a value is an int or a float."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_whole(value: Any) -> bool:
    """Whether a value is an int."""
    return isinstance(value, int) and not isinstance(value, bool)


def require_bool(name: str, value: Any) -> None:
    """Raises ValueError unless an argument is True or False."""
    if value not in (True, False):
        raise ValueError('%s must be True or False, not %r' % (name, value))

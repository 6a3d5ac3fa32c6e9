"""Tells whether values from users and records are numbers; a bool is not."""

import math
from typing import Any


def is_number(value: Any) -> bool:
    """Whether a value is an int or a float."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_whole(value: Any) -> bool:
    """Whether a value is an int."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_positive(value: Any) -> bool:
    """Whether a value is a positive finite number of Python or numpy; False for a str."""
    try:
        return not isinstance(value, (bool, str, bytes)) and 0 < float(value) < math.inf
    except (TypeError, ValueError):
        return False


def require_bool(name: str, value: Any) -> None:
    """Raises ValueError unless an argument is True or False."""
    if value not in (True, False):
        raise ValueError('%s must be True or False, not %r' % (name, value))

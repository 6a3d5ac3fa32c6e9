"""What counts as a number in what users give and in what records hold: a bool does not."""

import numbers
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


def require_number_of_steps(value: Any) -> None:
    """Raises ValueError unless it is a number, which numpy's are as well, or None for no end."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, numbers.Real)):
        raise ValueError(
            'number_of_steps must be a number, the global step at which to end, or None; not %r'
            % (value,)
        )

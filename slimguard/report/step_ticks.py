"""Ticks for the axis of steps where each step has a column, and numbers need not grow."""

from typing import List, Optional, Sequence, Tuple

# The width in pixels of a letter, and of what there is for the columns: on a phone, on a desk.
_LETTER, NARROW, WIDE = 6.8, 140, 520


def ticks_of(
    step: Sequence[Optional[int]], width: float = WIDE, taken: Sequence[Tuple[float, str]] = ()
) -> List[Tuple[float, str]]:
    """Places of columns and their labels, which leave each other room.

    The last column has one, and as many of the round numbers as there is room for.

    Args:
      step: the global step of each column. Without any, columns are counted back from the last.
      width: of the axis in pixels.
      taken: ticks that are there already.
    """
    numbers = _numbers_of(step)
    found = list(taken)
    for column in [len(numbers) - 1] + _round_columns(numbers) + [0]:
        tick = (column + 0.5) / len(numbers), _label(numbers[column])
        if all(_have_room(tick, other, width) for other in found):
            found.append(tick)
    return sorted(found)


def _numbers_of(step: Sequence[Optional[int]]) -> List[int]:
    known = [number for number in step if number is not None]
    return known if len(known) == len(step) else list(range(1 - len(step), 1))


def _round_columns(numbers: List[int]) -> List[int]:
    """Those where a round number is come to, the last one first."""
    size = _round_size(max(numbers) - min(numbers))
    columns = range(len(numbers) - 1, -1, -1)
    return [
        c for c in columns if numbers[c] % size == 0 and (not c or numbers[c - 1] != numbers[c])
    ]


def _round_size(distance: int) -> int:
    rough = max(1, distance // 6)
    power = 10 ** (len(str(rough)) - 1)
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)


def _have_room(one: Tuple[float, str], other: Tuple[float, str], width: float) -> bool:
    letters = (len(one[1]) + len(other[1])) / 2 + 2
    # At the ends labels are moved inwards.
    return abs(one[0] - other[0]) * width > 1.3 * letters * _LETTER


def _label(number: int) -> str:
    return str(number).replace('-', '\N{MINUS SIGN}')

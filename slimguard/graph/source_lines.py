"""Which line of the user's code made an op.

The user's frame is the innermost frame of an op's traceback outside of TensorFlow, tf-slim, Keras,
slimguard and Python's own library. All gradient ops come from one call of `minimize`, so a gradient
op gets the line of the op that was differentiated.
"""

import linecache
import os
import re
from typing import Any, Dict, Iterator, NamedTuple, Optional, Tuple

import tensorflow as tf

from slimguard.compat import tf_private
from slimguard.system.user_code import is_users


class Line(NamedTuple):
    """A line of code."""

    file: str
    number: int
    function: str
    text: str

    def __str__(self) -> str:
        place = '%s:%d' % (self.file, self.number)
        return '%s, in %s: %s' % (place, self.function, self.text) if self.text else place


class Origin(NamedTuple):
    """Where an op comes from: the user's line and, for a gradient op, the forward op.

    A gradient op has the line of its forward op.
    """

    line: Optional[Line]
    forward: Optional[str]


class Origins:
    """The origins of the ops of a graph that was built in this process, by their names."""

    def __init__(self, graph: tf.Graph):
        self._graph = graph
        self._lines: Dict[Tuple[str, int, str], Optional[Line]] = {}

    def __call__(self, name: str) -> Origin:
        try:
            op = self._graph.get_operation_by_name(name)
        except KeyError:  # our own name for an op inside a function
            return Origin(None, None)
        forward = tf_private.op_that_was_differentiated(op)
        return Origin(self._line(forward or op), forward.name if forward is not None else None)

    def _line(self, op) -> Optional[Line]:
        for frame in _frames(op):
            if is_users(frame[0]):
                if frame not in self._lines:
                    self._lines[frame] = _line_of(*frame)
                line = self._lines[frame]
                if line is not None:
                    return line
        return None


class Recorded:
    """Recorded origins, for a graph that was imported; another process may have recorded them."""

    def __init__(self, table: dict):
        self._lines = [Line(*line) for line in table['lines']]
        self._ops = table['ops']

    def __contains__(self, name: str) -> bool:
        return name in self._ops

    def __call__(self, name: str) -> Origin:
        number, forward = self._ops.get(name, (None, None))
        return Origin(None if number is None else self._lines[number], forward)


def record(origins: Origins, ops) -> Dict[str, Any]:
    """The origins of `ops` as a table for :class:`Recorded`, made of lists and dictionaries."""
    lines: Dict[Optional[Line], Optional[int]] = {None: None}
    table = {}
    for op in ops:
        origin = origins(op.name)
        number = lines.setdefault(origin.line, len(lines) - 1)
        table[op.name] = [number, origin.forward]
    return {'lines': [list(line) for line in lines if line is not None], 'ops': table}


def assigned_name(op) -> Optional[str]:
    """What the user's code calls the result of `op`: ``cost`` in ``cost = tf.reduce_mean(x)``.

    If a function returns the result, this is the name that the caller gives it. None if the line
    gives the result no name.
    """
    for frame in _frames(op):
        if is_users(frame[0]):
            line = _line_of(*frame)
            # Drop the comment. A line with a semicolon counts as nameless: the semicolon may end
            # another statement, or be in a string, and no name is better than a wrong one.
            text = '' if line is None else line.text.partition('#')[0].rstrip(' ;')
            assigned = None if ';' in text else _ASSIGNMENT.match(text)
            if assigned or not text.startswith('return '):
                return assigned[1] if assigned else None
    return None


_ASSIGNMENT = re.compile(r'((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)\s*=(?!=)')


def _frames(op) -> Iterator[Tuple[str, int, str]]:
    """File, line and function of each call that led to `op`, the innermost first.

    An op has dozens of these frames, and the user's is among the first.
    """
    # Read attributes: an indexed frame of some TensorFlow 2 versions reads its line of source, and
    # searches all of `sys.modules` if the source file does not exist, as in a notebook.
    for frame in reversed(tf_private.frames_of(op) or ()):
        yield (
            (frame.filename, frame.lineno, frame.name) if hasattr(frame, 'filename') else frame[:3]
        )


def _started_in() -> str:
    try:
        return os.getcwd()
    except OSError:  # the folder is gone
        return ''


# Python before 3.9 has a script's path relative to this folder, even after `os.chdir`.
_STARTED_IN = _started_in()


def _line_of(file: str, number: int, function: str) -> Optional[Line]:
    """The line, or None if its file cannot be opened."""
    from_start = os.path.join(_STARTED_IN, file)
    file = from_start if os.path.exists(from_start) else file
    text = linecache.getline(file, number).strip()
    # IPython keeps the source of a cell; code that was frozen, evaluated or typed in has none.
    return None if file.startswith('<') and not text else Line(file, number, function, text)

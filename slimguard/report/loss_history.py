"""The loss of a training, from the summaries in its event files."""

import array
import os
import re
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.system import files

_LOSS = re.compile(r'(^|[^a-z])(total_?)?loss(es)?([^a-z]|$)')
_NO_LOSS = re.compile(r'scale|weight|rate')
_PART_OF_IT = re.compile(r'regulari[sz]|clone|aux|val|eval|test|raw')
_MOST_POINTS, _MOST_SEGMENTS = 2000, 100
LEAST_POINTS = 3  # fewer points get no chart
_EVENTS = 'events.out.tfevents.'


class Curve(NamedTuple):
    """The loss over the global step.

    Attributes:
      tag: the tag of the summaries.
      segments: arrays [points, 2] of steps and finite losses, in the order in which they were
        written. After a restart or a rollback, where the step goes back, a new array begins.
      points: how many points there were, before the curve was thinned out.
      bad: how many of them were not finite.
      begins: the steps at which the loss goes on where the step went back, or in a new event file.
    """

    tag: str
    segments: List[np.ndarray]
    points: int
    bad: int
    begins: Sequence[float] = ()

    @property
    def count(self) -> int:
        """How many points are drawn."""
        return sum(map(len, self.segments))


def read(logdir: str) -> Tuple[Optional[Curve], List[str]]:
    """Reads the loss from the event files of a log directory.

    Args:
      logdir: the directory, which may be remote.

    Returns:
      The curve, or None if no scalar in the event files looks like a loss; and sentences about
      files that could not be read completely.
    """
    series: Dict[str, List[array.array]] = {}  # by tags, an array for each file
    paths, troubles = _event_files(logdir)
    for path in paths:
        found: Dict[str, array.array] = {}
        try:
            _read_file(path, found)
        except Exception as error:  # it ends the reading of this file only
            told = os.path.basename(path), first_line(error)
            troubles.append('%s was read only in part: %s' % told)
        for tag, points in found.items():
            series.setdefault(tag, []).append(points)
    if not series:
        return None, troubles
    tag = min(series, key=lambda t: _rank(t, sum(map(len, series[t]))))
    return curve_of(tag, [np.array(points).reshape(-1, 2) for points in series[tag]]), troubles


def first_line(error: Exception) -> str:
    """The first line of an error's message; its type if it has none."""
    return str(getattr(error, 'message', error)).partition('\n')[0] or type(error).__name__


def has_event_files(logdir: str) -> bool:
    """Whether a log directory has event files, readable or not; True if it cannot be listed."""
    return _event_files(logdir) != ([], [])


def looks_like_loss(tag: str) -> bool:
    """Whether a summary's tag names a loss: total_loss, losses/x, loss_1."""
    return bool(_LOSS.search(tag.lower())) and not _NO_LOSS.search(tag.lower())


def _rank(tag: str, points: int) -> Tuple[bool, bool, int, int, str]:
    """A key for sorting tags: the smallest is most likely the loss that is trained."""
    lower = tag.lower()
    is_part = bool(_PART_OF_IT.search(lower))
    return is_part, 'total' not in lower, -points, lower.count('/'), tag


def _event_files(logdir: str) -> Tuple[List[str], List[str]]:
    """The event files, the oldest first (the time is in the name), and notes on unreadable ones."""
    try:
        names = files.list_dir(logdir)
    except (OSError, tf.errors.OpError) as error:
        return [], ['%s cannot be listed: %s' % (logdir, error)]
    paths, troubles = [], []
    for name in names:
        path = os.path.join(logdir, name)
        if name.startswith(_EVENTS) and files.is_file(path):  # opening a FIFO may never return
            paths.append(path)
        elif name.startswith(_EVENTS):
            troubles.append('%s was not read: it is no regular file.' % name)
    return paths, troubles


def _read_file(path: str, series: Dict[str, array.array]) -> None:
    for event in _events(path):
        for value in event.summary.value:
            if looks_like_loss(value.tag):
                number = _number(value)
                if number is not None:
                    series.setdefault(value.tag, array.array('d')).extend([event.step, number])


def _events(path: str):
    verbosity = tf1.logging.get_verbosity()
    # Hides TensorFlow's warning that this reader is deprecated: there is no other public reader.
    tf1.logging.set_verbosity(tf1.logging.ERROR)
    try:
        yield from tf1.train.summary_iterator(path)
    finally:
        tf1.logging.set_verbosity(verbosity)


def _number(value) -> Optional[float]:
    kind = value.WhichOneof('value')
    if kind == 'simple_value':
        return value.simple_value
    if kind != 'tensor' or value.tensor.dtype not in (tf.float32, tf.float64, tf.float16):
        return None
    try:
        found = tf.make_ndarray(value.tensor)
    except (ValueError, TypeError):
        return None
    return float(found.item()) if found.size == 1 else None


def curve_of(tag: str, files_of_points: Sequence[np.ndarray]) -> Curve:
    """The curve of points [n, 2] of each event file, each a step and a loss.

    About `_MOST_POINTS` of them are kept.

    A step number below the previous one begins a new segment. An equal number does not: two event
    files may have the same step, and a held step is repeated with the next batch.
    """
    points = np.concatenate(files_of_points)
    good = points[np.isfinite(points).all(axis=1)]
    back = np.flatnonzero(np.diff(good[:, 0]) < 0) + 1
    segments = [s for s in np.split(good, back) if len(s)]
    begins = {s[0, 0] for s in [*segments[1:], *files_of_points[1:]]}
    if len(segments) > _MOST_SEGMENTS:
        least = sorted(map(len, segments))[-_MOST_SEGMENTS]
        segments = [s for s in segments if len(s) >= least][:_MOST_SEGMENTS]
    total = sum(map(len, segments))
    segments = [_thin_out(s, max(4, _MOST_POINTS * len(s) // total)) for s in segments]
    begins = sorted(begins)[:_MOST_SEGMENTS]
    return Curve(tag, segments, len(points), len(points) - len(good), begins)


def _thin_out(points: np.ndarray, most: int) -> np.ndarray:
    """Keeps about `most` of the points [n, 2]: the lowest and the highest loss of each piece."""
    if len(points) <= most:
        return points
    kept = {0, len(points) - 1}
    edges = np.linspace(0, len(points), max(1, most // 2) + 1).astype(int)
    for start, end in zip(edges[:-1], edges[1:]):
        if end > start:
            kept.add(start + int(np.argmin(points[start:end, 1])))
            kept.add(start + int(np.argmax(points[start:end, 1])))
    return points[sorted(kept)]

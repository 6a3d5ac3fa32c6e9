"""The loss of a training, from the summaries in its event files and its bundles' last steps."""

import array
import itertools
import os
import re
import struct
from typing import Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.report.last_steps import LastSteps
from slimguard.system import files

_LOSS = re.compile(r'(^|[^a-z])(total_?)?loss(es)?([^a-z]|$)')
_NO_LOSS = re.compile(r'scale|weight|rate')
_PART_OF_IT = re.compile(r'regulari[sz]|clone|aux|val|eval|test|raw')
_MOST_SEGMENTS, _MOST_OF_TAILS = 100, 3000
_EVENTS = 'events.out.tfevents.'
_FRAME, _LARGEST = 16, 1 << 31  # bytes: around a record; the most that protobuf can read


class Curve(NamedTuple):
    """The loss over the global step.

    Attributes:
      tag: the tag of the summary.
      segments: arrays [points, 2] of steps and finite losses, in the order in which they were
        written. After a restart or a rollback, where the step goes back, a new array begins.
      points: how many points there were, before the curve was thinned out.
      bad: how many of them were not finite.
      tails: like `segments`, for the last steps before incidents.
    """

    tag: str
    segments: List[np.ndarray]
    points: int
    bad: int
    tails: Sequence[np.ndarray] = ()


def read(logdir: str, most: int = 2000) -> Tuple[Optional[Curve], List[str]]:
    """Reads the loss from the event files of a log directory.

    Args:
      logdir: the directory, which may be remote.
      most: about how many points are kept. A longer curve is cut into pieces, and the least and
        the largest point of each piece are kept.

    Returns:
      The curve, or None if no scalar in the event files looks like a loss; and sentences about
      files that could not be read to their end.
    """
    series: Dict[str, array.array] = {}
    paths, troubles = _event_files(logdir)
    for path in paths:
        try:
            _read_file(path, series)
        except Exception as error:  # TensorFlow's, the system's, protobuf's: all end this file only
            what = str(getattr(error, 'message', error)).partition('\n')[0]
            troubles.append('%s was read only in part: %s' % (os.path.basename(path), what))
    if not series:
        return None, troubles
    tag = min(series, key=lambda t: _rank(t, len(series[t])))
    return _curve(tag, np.frombuffer(series[tag], np.float64).reshape(-1, 2), most), troubles


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
        troubles = _not_listed(logdir, names)
    except (OSError, tf.errors.OpError) as error:
        return [], ['%s cannot be listed: %s' % (logdir, error)]
    paths = []
    for name in names:
        path = os.path.join(logdir, name)
        if not name.startswith(_EVENTS):
            continue
        if files.is_file(path):  # to open a FIFO might take for ever
            paths.append(path)
        else:
            troubles.append('%s was not read: it is no regular file.' % name)
    return paths, troubles


def _not_listed(logdir: str, listed: List[str]) -> List[str]:
    names = [] if files.is_remote(logdir) else os.listdir(logdir)
    return [
        '%s was not read: its name is no UTF-8, and TensorFlow opens no such file.' % ascii(name)
        for name in sorted(set(names) - set(listed))
        if name.startswith(_EVENTS)
    ]


def _read_file(path: str, series: Dict[str, array.array]) -> None:
    for event in _events(path):
        for value in event.summary.value:
            if looks_like_loss(value.tag):
                number = _number(value)
                if number is not None:
                    series.setdefault(value.tag, array.array('d')).extend([event.step, number])


def _events(path: str):
    whole, why = (None, '') if files.is_remote(path) else _whole_records(path)
    verbosity = tf1.logging.get_verbosity()
    # TensorFlow warns that its only public reader of event files is deprecated.
    tf1.logging.set_verbosity(tf1.logging.ERROR)
    try:
        yield from itertools.islice(tf1.train.summary_iterator(path), whole)
    finally:
        tf1.logging.set_verbosity(verbosity)
    if why:
        raise ValueError(why)


def _whole_records(path: str) -> Tuple[int, str]:
    """How many whole records a local file begins with, and what is wrong with the next one.

    TensorFlow's reader allocates what a record claims to need, and a damaged one kills the process.
    """
    size, place, count = os.path.getsize(path), 0, 0
    with open(path, 'rb') as file:
        while place < size:
            file.seek(place)
            header = file.read(8)
            length = struct.unpack('<Q', header)[0] if len(header) == 8 else size
            place += _FRAME + length
            if place > size or length > _LARGEST:
                return count, 'record %d is cut off, or damaged' % (count + 1)
            count += 1
    return count, ''


def _number(value) -> Optional[float]:
    kind = value.WhichOneof('value')
    if kind == 'simple_value':
        return value.simple_value
    if kind != 'tensor' or value.tensor.dtype not in (tf.float32, tf.float64, tf.float16):
        return None
    if any(dimension.size != 1 for dimension in value.tensor.tensor_shape.dim):
        return None
    try:
        found = tf.make_ndarray(value.tensor)
    except (ValueError, TypeError):
        return None
    return float(found.item()) if found.size == 1 else None


def _curve(tag: str, points: np.ndarray, most: int) -> Curve:
    good = points[np.isfinite(points).all(axis=1)]
    back = np.flatnonzero(np.diff(good[:, 0]) < 0) + 1
    segments = [s for s in np.split(good, back) if len(s)]
    if len(segments) > _MOST_SEGMENTS:
        least = sorted(map(len, segments))[-_MOST_SEGMENTS]
        segments = [s for s in segments if len(s) >= least][:_MOST_SEGMENTS]
    total = sum(map(len, segments))
    segments = [thin_out(s, max(4, most * len(s) // total)) for s in segments]
    return Curve(tag, segments, len(points), len(points) - len(good))


def thin_out(points: np.ndarray, most: int) -> np.ndarray:
    """About `most` of the points [n, 2] at most: the least and the largest of each piece."""
    if len(points) <= most:
        return points
    kept = {0, len(points) - 1}
    edges = np.linspace(0, len(points), max(1, most // 2) + 1).astype(int)
    for start, end in zip(edges[:-1], edges[1:]):
        if end > start:
            kept.add(start + int(np.argmin(points[start:end, 1])))
            kept.add(start + int(np.argmax(points[start:end, 1])))
    return points[sorted(kept)]


# The last steps before incidents, out of the bundles.

Point = Tuple[float, float]


def with_tails(curve: Optional[Curve], histories: Sequence[LastSteps]) -> Optional[Curve]:
    """The curve with the last steps; a curve of these alone if `curve` is None; None without any.

    Args:
      curve: the curve from the event files.
      histories: the last steps of each bundle, the oldest bundle first. Steps that were not written
        are left out, as they are no part of the training.
    """
    tails: List[np.ndarray] = []
    seen: Set[Point] = set()
    for steps in histories:
        for run in _runs(steps):
            tails.extend(_new_parts(run, seen))
            seen.update(run)
    if not tails:
        return curve
    total = sum(map(len, tails))
    thin = [thin_out(tail, max(4, _MOST_OF_TAILS * len(tail) // total)) for tail in tails]
    return Curve('', [], 0, 0, thin) if curve is None else curve._replace(tails=thin)


def _runs(steps: LastSteps) -> List[List[Point]]:
    """The written steps with a finite loss, in parts from one rollback to the next."""
    if steps.loss is None or steps.axis != 'global step':
        return []
    runs: List[List[Point]] = [[]]
    for step, loss, written in zip(steps.step, steps.loss.tolist(), steps.written):
        if written and np.isfinite(loss):
            if runs[-1] and step <= runs[-1][-1][0]:
                runs.append([])
            runs[-1].append((float(step), loss))
    return runs


def _new_parts(run: List[Point], seen: Set[Point]) -> List[np.ndarray]:
    """The parts of a run that no other bundle holds; each begins where another bundle ends."""
    parts: List[List[Point]] = [[]]
    for point in run:
        if point in seen:
            parts.append([point])
        else:
            parts[-1].append(point)
    return [np.array(part) for part in parts if not seen.issuperset(part)]

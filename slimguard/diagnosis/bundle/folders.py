"""The folders of the bundles of a training: listed, named, removed.

A bundle is written under the name that it will have, ``incident.json`` last, and removed with that
file first. A folder without it is no bundle: somebody is writing it, or was killed while writing.
That holds on object stores too, where no folder can be renamed in one step.
"""

import itertools
import math
import os
import re
from typing import List, Optional, Set, Tuple

import tensorflow as tf

from slimguard.diagnosis.bundle.reading import DRAWN, GRAPH, JSON, STATE, BundleError, read_json
from slimguard.incidents.incident_groups import kind_of
from slimguard.system import files

_NAME = re.compile(r'incident-(\d+|unknown)(-\d+)?$')
_TIME = re.compile(rb'"time": (\d+(?:\.\d+)?)\b')
_LOOKED_AT = 1 << 10  # bytes of incident.json that are read for its time

# The bundles that this process made. The record names them for good, so the name of a removed
# bundle is not used again.
_made: Set[str] = set()


def folder(logdir: files.Path) -> str:
    """Where the bundles of a training are."""
    return os.path.join(files.as_path(logdir), 'slimguard')


def paths(logdir: files.Path) -> List[str]:
    """The bundles in a log directory, the oldest first, by the times of their incidents.

    A bundle that does not tell its time counts as the oldest. The times of files are not used:
    copying changes them.
    """
    parent = folder(logdir)
    found = [os.path.join(parent, name) for name in files.list_dir(parent) if _NAME.match(name)]
    # A link leads to one that is not ours to remove.
    found = [path for path in found if not os.path.islink(path) and is_bundle(path)]
    return sorted(found, key=_order)


def is_bundle(path: str) -> bool:
    """Whether a folder holds a bundle, whole or damaged; reading it tells which.

    Raises:
      tf.errors.OpError: if a remote file system cannot be asked.
    """
    return files.exists(os.path.join(path, JSON))


def _order(path: str) -> Tuple[float, str]:
    """The time of the incident. Only the beginning of incident.json is read: it may be large."""
    try:
        with files.open_to_read(os.path.join(path, JSON)) as file:
            found = _TIME.search(file.read(_LOOKED_AT))
    except (OSError, tf.errors.OpError):
        found = None
    return float(found.group(1)) if found else -math.inf, path


def make(parent: str, step: Optional[int]) -> str:
    """Makes the folder for the bundle of a step, under a name that was never used.

    On remote file systems, two trainings that share a logdir may choose the same name at once.
    """
    name = 'incident-%s' % ('unknown' if step is None else step)
    for number in itertools.count(1):
        path = os.path.join(parent, name if number == 1 else '%s-%d' % (name, number))
        if path not in _made and _make(path):
            _made.add(path)
            return path
    raise AssertionError('not reached')


def _make(path: str) -> bool:
    if files.is_remote(path):
        if files.exists(path):
            return False
        files.make_dirs(path)
        return True
    try:
        os.mkdir(path)
    except FileExistsError:
        return False
    return True


def remove_beyond(logdir: files.Path, most: int, kept: str) -> None:
    """Removes bundles beyond `most`: first those that repeat an older one's kind, then the oldest.

    `kept` stays in any case.
    """
    found = paths(logdir)
    kinds: Set[str] = set()
    firsts, repeats = [], []
    for path in found if len(found) > most else ():
        kind = _kind(path)
        (repeats if kind is None or kind in kinds else firsts).append(path)
        kinds.add(kind or '')
    goes = [path for path in repeats + firsts if path != kept]
    for path in goes[: max(0, len(found) - most)]:
        remove(path)


def _kind(path: str) -> Optional[str]:
    try:
        return kind_of(str(read_json(path)['incident'].get('reason')))
    except BundleError:
        return None


def remove(path: str) -> None:
    """Removes a bundle as far as possible: the files that we write, and the folder if it is empty.

    ``incident.json`` goes first, so that nobody finds half a bundle.
    """
    delete = tf.io.gfile.remove if files.is_remote(path) else os.remove
    try:
        for name in sorted(_parts(path), key=lambda name: name != JSON):
            delete(os.path.join(path, name))
        if not files.is_remote(path):
            os.rmdir(path)
        elif not files.list_dir(path):
            tf.io.gfile.rmtree(path)
    except (OSError, tf.errors.OpError):
        pass  # we may not remove it, or it holds somebody else's file


def _parts(path: str) -> List[str]:
    """The names of our files in a folder, the temporary file of incident.json included."""
    ours = (DRAWN, GRAPH, STATE, JSON)
    return [each for each in files.list_dir(path) if each in ours or each.startswith(JSON + '.')]

"""Reads the record of incidents, whatever others, a kill or a full disk have made of it.

Imports no TensorFlow for a logdir of this machine.
"""

import collections
import contextlib
import dataclasses
import json
import os
import re
import warnings
from typing import Any, Deque, Iterable, Iterator, List, NamedTuple, Optional, Tuple

from slimguard.incidents import advice
from slimguard.incidents.incident import Incident
from slimguard.incidents.record_json import LONGEST_LINE, with_short_strings
from slimguard.incidents.record_path import path_in
from slimguard.system import files, logdirs

# What is read of a record: so many incidents, the newest, of so many bytes at its end.
_MOST_INCIDENTS, _MOST_BYTES = 50000, 2**24
_CHUNK = 2**18
# As newer Pythons have it; older ones take seconds to read an int of a million digits.
_MOST_DIGITS = 4300

_UNREADABLE = object()

NO_RECORD = (
    'there is no record of incidents in %s: no guarded training has written there, or the record '
    'was deleted. If you ran a script with slimguard run, its last line names the folder. A '
    'NanLossHook needs logdir=... where its session saves nothing, and watch() always.'
)
FOREIGN = '%s is no record of slimguard, or a damaged one: it has no incident'


class Record(NamedTuple):
    """What the record of a logdir holds.

    Attributes:
      incidents: the oldest first, with the bundles that are still there.
      unreadable: how many lines are no JSON, or longer than any of ours.
      foreign: how many lines are JSON, and no incident of ours.
      is_whole: whether `incidents` are all; of a long record they are the newest.
    """

    incidents: List[Incident]
    unreadable: int
    foreign: int
    is_whole: bool

    @property
    def is_foreign(self) -> bool:
        """Whether it has lines, and no incident can be read in any."""
        return not self.incidents and self.unreadable + self.foreign > 0

    @property
    def notes(self) -> List[str]:
        """What a reader is to know besides the incidents, in sentences."""
        notes = []
        if not self.is_whole:
            notes.append(
                'The record is long: only its newest %d incidents were read.' % len(self.incidents)
            )
        if self.unreadable:
            notes.append(
                '%s of the record could not be read; a kill can cut one short.'
                % _lines_in_words(self.unreadable)
            )
        if self.foreign:
            is_or_are = 'is no incident' if self.foreign == 1 else 'are no incidents'
            notes.append(
                '%s of the record %s of slimguard.' % (_lines_in_words(self.foreign), is_or_are)
            )
        return notes


def read_incidents(logdir: files.Path) -> List[Incident]:
    """The incidents that trainings have recorded in a log directory, the oldest first.

    Imports no TensorFlow for a logdir of this machine. An empty list says that a guarded training
    ran there and had no incident. Lines that cannot be read, as a kill may cut one short, and those
    of a very long record that are too old to be read, are told in a `RuntimeWarning` each.

    Args:
      logdir: a directory (a str, bytes or `os.PathLike`, relative or absolute), on any file system
        that `tf.io.gfile` knows.

    Raises:
      FileNotFoundError: if there is no record, or no such directory.
      ValueError: if there is one, and no line of it is an incident; or if `logdir` is no path.
      TypeError: if `logdir` is no path.
      OSError: if it cannot be read.

    Example::

        for incident in slimguard.read_incidents('logs'):
            print(incident.step, incident.action, incident.reason)
    """
    path = files.as_path(logdir)
    try:
        record = read_record(path)
    except FileNotFoundError:
        raise FileNotFoundError(logdirs.what_is_missing(path) or NO_RECORD % path) from None
    if record.is_foreign:
        raise ValueError(FOREIGN % path_in(path))
    for note in record.notes:
        warnings.warn('%s (%s)' % (note, path_in(path)), RuntimeWarning, stacklevel=2)
    return record.incidents


def read_record(logdir: files.Path) -> Record:
    """Reads the record of a logdir, whatever is in it.

    Args:
      logdir: a str, bytes or `os.PathLike`.

    Raises:
      FileNotFoundError: if there is none.
      OSError: if it cannot be read: it is a directory or a FIFO, or the rights to read it are
        missing.
    """
    incidents: Deque[Incident] = collections.deque(maxlen=_MOST_INCIDENTS)
    count = unreadable = foreign = 0
    with _opened(logdir) as (file, is_whole):
        for value in _values(file):
            incident = _incident_of(value)
            if incident is not None:
                incidents.append(incident)
                count += 1
            elif value is _UNREADABLE:
                unreadable += 1
            else:
                foreign += 1
    found = _with_bundles_of_today(logdir, incidents)
    return Record(found, unreadable, foreign, is_whole and count == len(incidents))


def _with_bundles_of_today(logdir: files.Path, incidents: Iterable[Incident]) -> List[Incident]:
    """Incidents with the bundles that are there, where they are now: a logdir can be moved.

    Of bundles of one name, all but the last were removed.
    """
    folder = os.path.dirname(path_in(logdir))
    there, found = set(files.list_dir(folder)), []
    for incident in reversed(list(incidents)):
        if incident.bundle is not None:
            name = re.split(r'[\\/]', incident.bundle.rstrip('\\/'))[-1]
            path = os.path.join(folder, name)
            if name in there and files.exists(os.path.join(path, 'incident.json')):
                there.remove(name)
                incident = dataclasses.replace(incident, bundle=path)
            else:
                told = incident.advice and advice.without_bundle(incident.advice)
                incident = dataclasses.replace(incident, bundle=None, advice=told)
        found.append(incident)
    return found[::-1]


@contextlib.contextmanager
def _opened(logdir: files.Path) -> Iterator[Tuple[Any, bool]]:
    """The record, open for reading where the reading is to begin, and whether that is its start."""
    path = path_in(logdir)
    try:
        with files.open_to_read(path) as file:
            skipped = max(0, files.size_of(file) - _MOST_BYTES)
            file.seek(skipped)
            if skipped:  # into the middle of a line, and on to its end
                file.readline()
            yield file, not skipped
    except files.errors_of_absence(path):
        raise FileNotFoundError('there is no record of incidents: %s' % path) from None
    except OSError:
        raise
    except files.errors(path) as error:
        raise OSError('%s: %s' % (path, getattr(error, 'message', error))) from None


def _values(file) -> Iterator[Any]:
    """What each line says: an object of JSON, a list, a number, or `_UNREADABLE`."""
    for line in _lines(file):
        if line is None or line.strip():
            yield _UNREADABLE if line is None else _value_of(line)


def _lines(file) -> Iterator[Optional[bytes]]:
    """The lines of a file; None for one that is too long to be ours, which is never held whole."""
    line: Optional[bytes] = b''
    for chunk in iter(lambda: file.read(_CHUNK), b''):
        pieces = chunk.split(b'\n')
        pieces[0] = None if line is None else line + pieces[0]
        line = pieces.pop()
        if line is not None and len(line) > LONGEST_LINE:
            line = None
        yield from pieces
    yield line


def _value_of(line: bytes) -> Any:
    try:
        return json.loads(line.decode('utf-8'), parse_int=_int)
    except (ValueError, RecursionError):
        return _UNREADABLE


def _int(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError('an int of %d digits' % len(digits))
    return int(digits)


def _incident_of(value: Any) -> Optional[Incident]:
    """The incident that a line stands for, its strings no longer than anybody wants to see."""
    if not isinstance(value, dict):
        return None
    try:
        incident = Incident.from_dict(value)
    except ValueError:
        return None
    short = with_short_strings(vars(incident))
    return dataclasses.replace(incident, **dict(short, tensors=tuple(short['tensors'])))


def _lines_in_words(count: int) -> str:
    return '1 line' if count == 1 else '%d lines' % count

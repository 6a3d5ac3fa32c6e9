"""The record, ``slimguard/incidents.jsonl`` in the logdir: appends incidents, reads and lists them.

It has one JSON object on each line: the attributes of an `Incident`, and its process.
A guarded training makes the file when it begins: an empty file means that there was no incident,
and no file means that nothing was guarded. Each line is one write to a file opened for appending,
so several workers may share the file. A write that is cut short (by a kill, or a full disk) spoils
only its own line. Readers count such lines.

Imports no TensorFlow for a local logdir.
"""

import contextlib
import dataclasses
import errno
import json
import os
import re
import socket
import time
import warnings
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from slimguard.incidents.incident import Incident
from slimguard.system import files, logdirs, texts
from slimguard.system.log import log

# Texts, names and lists are cut to these lengths: a model may have 100,000 tensors.
_LONGEST_TEXT, _LONGEST_NAME, _MOST_NAMES = 5000, 500, 1000

WHY_NO_RECORD = (
    'no guarded training has written one there, or it was deleted. If you ran a script with '
    'slimguard run, the end of its output names the folder, which is in slimguard-logs if the '
    'script had saved nothing before its first bad step. A NanLossHook needs logdir=... where its '
    'session saves nothing, and watch() always.'
)
NO_RECORD = 'there is no record of incidents in %s: ' + WHY_NO_RECORD
FOREIGN = '%s is no record of slimguard, or a damaged one: it has no incident'


def path_in(logdir: files.Path) -> str:
    """The path of the record in a logdir."""
    return os.path.join(files.as_path(logdir), 'slimguard', 'incidents.jsonl')


class IncidentFile:
    """The record in a logdir, for appending.

    A failure to write is logged once and not raised, so that the training goes on. When the file
    is closed, the log says how many incidents are missing.

    Args:
      logdir: the directory, as a str, bytes or `os.PathLike`; '' is the working directory.

    Attributes:
      missing: how many incidents could not be written.
    """

    def __init__(self, logdir: files.Path):
        self._path = path_in(logdir or os.curdir)
        self._process = '%s:%d' % (socket.gethostname(), os.getpid())
        self.missing = 0
        self._trouble = ''
        self._count = self._counted_to = 0  # incidents, and the bytes with them

    def make(self) -> None:
        """Makes an empty file if there is none: the file shows that a guard watches."""
        self._write(b'')

    def append(self, incident: Incident) -> int:
        """Writes a line. Returns the number of incidents in the record, with this one."""
        self.missing += not self._write(line_of(incident, self._process))
        with contextlib.suppress(*files.errors(self._path)):
            with files.open_to_read(self._path) as file:  # other processes write to it as well
                file.seek(self._counted_to)
                for line in file:
                    self._counted_to += len(line)
                    self._count += line.endswith(b'}\n')  # else a write was cut short
        return self._count

    def close(self) -> None:
        """Logs how many incidents the record lacks."""
        if self.missing:
            why = self._trouble or 'it could not be written for a while'
            log().error('%s: %s', missing_in(self._path, self.missing), why)
            self.missing = 0

    def _write(self, line: bytes) -> bool:
        trouble = ''
        try:
            files.make_dirs(os.path.dirname(self._path))
            with files.open_to_append(self._path) as file:
                _write_line(file, line)
        except files.errors(self._path) as error:
            trouble = str(error)
        if trouble and trouble != self._trouble:
            log().error('%s cannot be written: %s', self._path, trouble)
        self._trouble = trouble
        return not trouble


def missing_in(path: str, count: int) -> str:
    """How many incidents a record lacks, in words."""
    return '%d incident%s missing in %s' % (count, ' is' if count == 1 else 's are', path)


def _write_line(file: Any, line: bytes) -> None:
    """Appends a line; if an earlier write was cut short, a line end before it."""
    size = files.size_of(file)
    if size and line:
        file.seek(size - 1)
        line = line if file.read(1) == b'\n' else b'\n' + line
    written = file.write(line)
    if written not in (None, len(line)) and file.write(line[written:]) != len(line) - written:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.name)


def line_of(incident: Incident, process: str) -> bytes:
    """The line for an incident in a process, line end included."""
    record = {key: _cut(value, _LONGEST_TEXT) for key, value in incident.to_dict().items()}
    names = record['tensors']
    more = ['and %d more' % (len(names) - _MOST_NAMES)] if len(names) > _MOST_NAMES else []
    record['tensors'] = [_cut(name, _LONGEST_NAME) for name in names[:_MOST_NAMES]] + more
    record['process'] = process
    return json.dumps(record, sort_keys=True, default=_plain).encode('utf-8') + b'\n'


def _cut(value: Any, most: int) -> Any:
    return texts.cut(value, most, '...') if isinstance(value, str) else value


def _plain(value: Any) -> Any:
    """A value that JSON can write; an incident that a user's callable made may hold anything."""
    return value.item() if hasattr(value, 'item') else str(value)


class Record(NamedTuple):
    """The contents of a logdir's record.

    Attributes:
      incidents: the oldest first, with the bundles that are still there.
      unreadable: how many lines are not an incident.
    """

    incidents: List[Incident]
    unreadable: int = 0

    @property
    def is_foreign(self) -> bool:
        """Whether the record has lines, but none of them is an incident."""
        return not self.incidents and self.unreadable > 0

    @property
    def notes(self) -> List[str]:
        """Sentences for the reader about lines that are missing here."""
        if not self.unreadable:
            return []
        lines = '1 line' if self.unreadable == 1 else '%d lines' % self.unreadable
        return [lines + ' of the record could not be read; a kill can cut one short.']


def read_incidents(logdir: files.Path) -> List[Incident]:
    """The incidents that trainings have recorded in a log directory, the oldest first.

    Imports no TensorFlow for a local logdir. An empty list means that a guarded training
    ran there and had no incident. A `RuntimeWarning` says how many lines could not be read (a kill
    may cut a line short).

    Args:
      logdir: a directory (a str, bytes or `os.PathLike`, relative or absolute), on any file system
        that `tf.io.gfile` knows.

    Raises:
      FileNotFoundError: if there is no record, or no such directory.
      ValueError: if no line of the record is an incident; or if `logdir` is no path.
      TypeError: if `logdir` is no path.
      OSError: if the record cannot be read.

    Example::

        for incident in slimguard.read_incidents('logs'):
            print(incident.step, incident.action, incident.reason)
    """
    record = read_record(logdir)
    if record.is_foreign:
        raise ValueError(FOREIGN % path_in(logdir))
    for note in record.notes:
        warnings.warn('%s (%s)' % (note, path_in(logdir)), RuntimeWarning, stacklevel=2)
    return record.incidents


def read_record(logdir: files.Path) -> Record:
    """Reads the record of a logdir.

    Args:
      logdir: a str, bytes or `os.PathLike`.

    Raises:
      FileNotFoundError: if there is none.
      OSError: if it cannot be read: it is a directory or a FIFO, or the rights to read it are
        missing.
    """
    path = path_in(logdir)
    incidents: List[Incident] = []
    unreadable = 0
    try:
        with files.open_to_read(path) as file:
            for line in file:
                incident = _incident_of(line)
                if incident is not None:
                    incidents.append(incident)
                elif line.strip():
                    unreadable += 1
    except files.errors_of_absence(path):
        logdir = files.as_path(logdir)
        raise FileNotFoundError(logdirs.what_is_missing(logdir) or NO_RECORD % logdir) from None
    except OSError:
        raise
    except files.errors(path) as error:
        raise OSError('%s: %s' % (path, getattr(error, 'message', error))) from None
    return Record(_with_bundles_of_today(os.path.dirname(path), incidents), unreadable)


def _incident_of(line: bytes) -> Optional[Incident]:
    """The incident that a line stands for; None if the line is no incident."""
    try:
        value: Dict[str, Any] = json.loads(line.decode('utf-8'))
        return Incident.from_dict(value) if isinstance(value, dict) else None
    except (ValueError, RecursionError):
        return None


def _with_bundles_of_today(folder: str, incidents: Sequence[Incident]) -> List[Incident]:
    """Incidents with the present paths of their bundles, since a logdir may have been moved.

    A bundle belongs to the newest incident that names it; older bundles of that name were removed.
    """
    there, newest_first = set(files.list_dir(folder)), []
    for incident in reversed(incidents):
        if incident.bundle is not None:
            name = re.split(r'[\\/]', incident.bundle.rstrip('\\/'))[-1]
            path = os.path.join(folder, name)
            if name in there and files.exists(os.path.join(path, 'incident.json')):
                there.remove(name)
                incident = dataclasses.replace(incident, bundle=path)
            else:
                incident = dataclasses.replace(incident, bundle=None)
        newest_first.append(incident)
    return newest_first[::-1]


def table(incidents: List[Incident]) -> List[Tuple[str, ...]]:
    """A header and a row for each incident: number, time, step, loss, action, and reason.

    If the cause is known, the last cell has it, and of the reason only what was bad.
    """
    rows: List[Tuple[str, ...]] = [('number', 'time', 'step', 'loss', 'action', 'reason')]
    for number, incident in enumerate(incidents, 1):
        reason = incident.reason_in_short
        if incident.diagnosis:
            reason = '%s; %s' % (incident.cause, reason.partition('; ')[0])
        rows.append(
            (
                str(number),
                when(incident.time),
                '' if incident.step is None else str(incident.step),
                '' if incident.loss is None else '%g' % incident.loss,
                incident.action or '',
                reason,
            )
        )
    return rows


def when(seconds: Optional[float]) -> str:
    """A time for people; '' for none."""
    try:
        return time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(seconds)) if seconds else ''
    except (OverflowError, OSError, ValueError):
        return ''

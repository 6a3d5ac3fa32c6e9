"""The record of incidents: the log line, ``slimguard/incidents.jsonl`` in the logdir, TensorBoard.

The file has one JSON object a line, the attributes of an `Incident` and the process it happened
in. It is made, empty, when a guarded training begins: so that no incident can be told from no
guard. Each line is one write to a file opened for appending, so several workers may share it, and
what cuts a write short (a kill, a full disk) costs that line alone. Readers leave such a line out.
"""

import collections
import contextlib
import json
import os
import socket
import time
from typing import Any, Callable, Deque, Dict, Iterator, List, NamedTuple, Optional, Tuple

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.incidents.incident import Incident
from slimguard.system import files, texts
from slimguard.system.rate import Rate

# The first incidents are logged one by one.
_FIRST = 10

# No line is longer: readers need not hold what may be gigabytes.
_LONGEST_LINE = 2**20
# What is kept of a record that would be longer.
_LONGEST_TEXT, _LONGEST_NAME, _MOST_NAMES = 5000, 500, 1000
# How many incidents wait for a file that cannot be written, and how often a write is tried anew
# that wrote only a part.
_MOST_WAITING, _TRIES = 1000, 3
# What is read of a record: so many incidents, the newest, of so many bytes at its end.
_MOST_INCIDENTS, _MOST_BYTES = 50000, 2**24
_CHUNK = 2**18
# As newer Pythons have it; older ones take seconds to read an int of a million digits.
_MOST_DIGITS = 4300

_DONE = {
    'raise': 'raising NanLossError',
    'stop': 'stopping the training',
    'skip': 'skipping this batch',
    'rollback': 'rolling back',
}


def path_in(logdir: files.Path) -> str:
    """The path of the record in a logdir."""
    return os.path.join(files.as_path(logdir), 'slimguard', 'incidents.jsonl')


class IncidentFile:
    """The file of incidents in a logdir, for appending.

    What keeps it from being written is logged, once: the training is worth more. What could not be
    written is tried again with the next incident, and when the file is closed.

    Args:
      logdir: the directory, as a str, bytes or `os.PathLike`; '' is the working directory.
    """

    def __init__(self, logdir: files.Path):
        self._path = path_in(logdir or os.curdir)
        self._file = (_RemoteFile if files.is_remote(self._path) else _LocalFile)(self._path)
        self._process = '%s:%d' % (socket.gethostname(), os.getpid())
        self._waiting: Deque[bytes] = collections.deque()
        self._lost = 0
        self._trouble = ''

    def make(self) -> None:
        """Makes the file, empty, unless it is there: somebody watches for incidents."""
        self._try(self._file.open)
        self._file.close()  # most trainings need it no more

    def append(self, incident: Incident) -> None:
        """Writes a line."""
        self._waiting.append(_line_of(incident, self._process))
        if len(self._waiting) > _MOST_WAITING:
            self._waiting.popleft()
            self._lost += 1
        self._try(self._write)

    def close(self) -> None:
        if self._waiting:
            self._try(self._write)
        if self._waiting or self._lost:
            tf1.logging.error(
                'slimguard: %d incidents are missing in %s: %s',
                len(self._waiting) + self._lost,
                self._path,
                self._trouble or 'it could not be written for a while',
            )
            self._waiting.clear()
            self._lost = 0
        self._file.close()

    def _write(self) -> None:
        while self._waiting:
            self._file.append(self._waiting[0])
            self._waiting.popleft()

    def _try(self, write: Callable[[], None]) -> None:
        trouble = ''
        try:
            write()
        except (OSError, tf.errors.OpError) as error:
            trouble = str(error)
        if trouble and trouble != self._trouble:
            tf1.logging.error('slimguard: %s cannot be written: %s', self._path, trouble)
        elif self._trouble and not trouble:
            tf1.logging.warning('slimguard: %s can be written again', self._path)
        self._trouble = trouble


class _LocalFile:
    """A file of the operating system's, to which several processes append."""

    def __init__(self, path: str):
        self._path = path
        self._file: Any = None

    def open(self) -> None:
        """Makes the file if it is not there."""
        if self._file is not None and not self._is_there():
            tf1.logging.warning(_GONE, self._path)
            self.close()
        if self._file is None:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
            self._file = files.open_regular(self._path, flags, 'r+b', buffering=0)

    def append(self, line: bytes) -> None:
        """Writes a line, on a line of its own."""
        self.open()
        written = 0
        for _ in range(_TRIES):
            before = b'' if _ends_a_line(self._file) else b'\n'
            written = self._file.write(before + line)
            # Another process may have been cut short between the look and the write.
            if written == len(before + line) and (before or self._began_a_line(written)):
                return
        raise OSError('%d of %d bytes were written' % (written, len(line)))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _is_there(self) -> bool:
        """Whether the path still leads to the file that is open."""
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._file.fileno()))
        except OSError:
            return False

    def _began_a_line(self, written: int) -> bool:
        start = self._file.tell() - written
        if start <= 0:
            return True
        self._file.seek(start - 1)
        return self._file.read(1) == b'\n'


class _RemoteFile:
    """A file that only TensorFlow reaches.

    Object stores (``gs://``) append by writing the object anew: of two processes that do so at the
    same moment, one loses its line.
    """

    def __init__(self, path: str):
        self._path = path
        self._was_there = False

    def open(self) -> None:
        """Makes the file if it is not there."""
        if tf.io.gfile.exists(self._path):
            self._was_there = True
            return
        if self._was_there:
            tf1.logging.warning(_GONE, self._path)
        tf.io.gfile.makedirs(os.path.dirname(self._path))
        with tf.io.gfile.GFile(self._path, 'ab') as file:
            file.write(b'')
        self._was_there = True

    def append(self, line: bytes) -> None:
        """Writes a line, on a line of its own."""
        self.open()
        with tf.io.gfile.GFile(self._path, 'rb') as file:
            before = b'' if _ends_a_line(file) else b'\n'
        with tf.io.gfile.GFile(self._path, 'ab') as file:
            file.write(before + line)

    def close(self) -> None:
        """Each line closes the file."""


_GONE = 'slimguard: %s was deleted or replaced while the training ran; it is begun anew'


def _ends_a_line(file) -> bool:
    """Whether the next line written to the end of a file begins a line."""
    size = files.size_of(file)
    if size == 0:
        return True
    file.seek(size - 1)
    return file.read(1) == b'\n'


def _line_of(incident: Incident, process: str) -> bytes:
    record = dict(incident.to_dict(), process=process)
    line = _encoded(record)
    if len(line) >= _LONGEST_LINE:
        line = _encoded(_shortened(record))
    return line


def _encoded(record: Dict[str, Any]) -> bytes:
    return json.dumps(record, sort_keys=True, default=_plain).encode('utf-8') + b'\n'


def _plain(value: Any) -> Any:
    """What stands for a value that JSON does not know, in an incident that somebody changed."""
    return value.item() if hasattr(value, 'item') else str(value)


def _shortened(record: Dict[str, Any]) -> Dict[str, Any]:
    short = {key: _cut(value, _LONGEST_TEXT) for key, value in record.items()}
    names = [_cut(name, _LONGEST_NAME) for name in record['tensors']]
    more = len(names) - _MOST_NAMES
    short['tensors'] = names[:_MOST_NAMES] + (['and %d more' % more] if more > 0 else [])
    return short


def _cut(value: Any, most: int) -> Any:
    return texts.cut(value, most, '...') if isinstance(value, str) else value


class Journal:
    """Writes incidents down, everywhere.

    Args:
      logdir: where the file goes, which is made at once; None for no file.
      summary_writer: a `tf.compat.v1.summary.FileWriter` for the count of incidents and their
        reasons, or None.
      clock: seconds that only grow.

    Attributes:
      count: the number of incidents so far.
    """

    def __init__(
        self,
        logdir: Optional[str] = None,
        summary_writer=None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.count = 0
        self._file = None if logdir is None else IncidentFile(logdir)
        self._summary_writer = summary_writer
        self._rate = Rate(_FIRST, clock=clock)
        if self._file is not None:
            self._file.make()

    def record(self, incident: Incident, done_by: str = '') -> None:
        """Writes one incident down; `done_by` is who acted, where no policy did."""
        self.count += 1
        if self._file is not None:
            self._file.append(incident)
        self._summarize(incident)
        self._log(incident, done_by)

    def close(self) -> None:
        """Says how many log lines were held back, and closes the file."""
        if self._rate.held_back:
            tf1.logging.warning(
                'slimguard: %d incidents in all; the last %d were not logged one by one.',
                self.count,
                self._rate.held_back,
            )
            self._rate.held_back = 0
        if self._file is not None:
            self._file.close()

    # TensorBoard.

    def _summarize(self, incident: Incident) -> None:
        if self._summary_writer is None:
            return
        summary = tf1.Summary()
        summary.value.add(tag='slimguard/incidents', simple_value=self.count)
        reason = '%s (%s)' % (incident.reason, incident.action)
        text = summary.value.add(tag='slimguard/reason', tensor=tf1.make_tensor_proto(reason))
        text.metadata.plugin_data.plugin_name = 'text'
        self._summary_writer.add_summary(summary, incident.step)
        self._summary_writer.flush()

    # The log.

    def _log(self, incident: Incident, done_by: str) -> None:
        goes_on = incident.action in ('skip', 'on_nan_loss')
        if not self._rate.is_due(must=not goes_on):
            return
        done = _DONE.get(incident.action or '', 'left to ' + done_by)
        if incident.restored is not None:
            done += ' to ' + incident.restored
        log = tf1.logging.warning if incident.action == 'skip' else tf1.logging.error
        log('slimguard: incident %d %s; %s.%s', self.count, incident, done, self._rate.told())


class Record(NamedTuple):
    """What the record of a logdir holds.

    Attributes:
      incidents: the oldest first.
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
    return Record(list(incidents), unreadable, foreign, is_whole and count == len(incidents))


_UNREADABLE = object()


def _incident_of(value: Any) -> Optional[Incident]:
    """The incident that a line stands for, its strings no longer than anybody wants to see."""
    if not isinstance(value, dict):
        return None
    try:
        incident = Incident.from_dict(value)
    except ValueError:
        return None
    names = tuple(_cut(name, _LONGEST_NAME) for name in incident.tensors)
    texts = {key: _cut(value, _LONGEST_TEXT) for key, value in vars(incident).items()}
    return Incident(**dict(texts, tensors=names))


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
    except (FileNotFoundError, tf.errors.NotFoundError):
        raise FileNotFoundError('there is no record of incidents: %s' % path) from None
    except tf.errors.OpError as error:
        raise OSError('%s: %s' % (path, error.message)) from None


def _values(file) -> Iterator[Any]:
    """What each line says: an object of JSON, a list, a number, or `_UNREADABLE`."""
    for line in _lines(file):
        if line is None or line.strip():
            yield _UNREADABLE if line is None else _value_of(line)


def _value_of(line: bytes) -> Any:
    try:
        return json.loads(line.decode('utf-8'), parse_int=_int)
    except (ValueError, RecursionError):
        return _UNREADABLE


def _int(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError('an int of %d digits' % len(digits))
    return int(digits)


def _lines(file) -> Iterator[Optional[bytes]]:
    """The lines of a file; None for one that is too long to be ours, which is never held whole."""
    line: Optional[bytes] = b''
    for chunk in iter(lambda: file.read(_CHUNK), b''):
        pieces = chunk.split(b'\n')
        pieces[0] = None if line is None else line + pieces[0]
        line = pieces.pop()
        if line is not None and len(line) > _LONGEST_LINE:
            line = None
        yield from pieces
    yield line


def _lines_in_words(count: int) -> str:
    return '1 line' if count == 1 else '%d lines' % count


def when(seconds: Optional[float]) -> str:
    """A time for people; '' for none."""
    try:
        return time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(seconds)) if seconds else ''
    except (OverflowError, OSError, ValueError):
        return ''


def table(incidents: List[Incident]) -> List[Tuple[str, ...]]:
    """Rows for people: when, at which step, the loss, what was done, and why."""
    rows: List[Tuple[str, ...]] = [('time', 'step', 'loss', 'action', 'reason')]
    for incident in incidents:
        rows.append(
            (
                when(incident.time),
                '' if incident.step is None else str(incident.step),
                '' if incident.loss is None else '%g' % incident.loss,
                incident.action or '',
                incident.reason,
            )
        )
    return rows

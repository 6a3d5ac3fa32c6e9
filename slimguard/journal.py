"""The record of incidents: the log line, ``slimguard/incidents.jsonl`` in the logdir, TensorBoard.

The file has one JSON object a line, the attributes of an `Incident` and the process it happened
in. Each line is one write to a file opened for appending, so several workers may share it, and a
kill tears the last line at most. Readers leave such a line out.
"""

import json
import os
import socket
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

import tensorflow as tf

from slimguard.incident import Incident

tf1 = tf.compat.v1

# The first incidents are logged one by one; of those after them that a training goes on from, one
# in so many seconds.
_FIRST, _SECONDS = 10, 10.0

_DONE = {
    'raise': 'raising NanLossError',
    'stop': 'stopping the training',
    'skip': 'skipping this batch',
    'rollback': 'rolling back',
}


def path_in(logdir: str) -> str:
    """The path of the record in a logdir."""
    return os.path.join(logdir, 'slimguard', 'incidents.jsonl')


class IncidentFile:
    """The file of incidents in a logdir, for appending.

    Args:
      logdir: the directory; it is made with the first incident.
    """

    def __init__(self, logdir: str):
        self._path = path_in(tf.compat.as_str_any(logdir))
        self._file = None  # type: Any
        self._process = '%s:%d' % (socket.gethostname(), os.getpid())

    def append(self, incident: Incident) -> None:
        """Writes a line. What keeps it from doing so is logged: the training is worth more."""
        line = json.dumps(dict(incident.to_dict(), process=self._process), sort_keys=True) + '\n'
        try:
            if '://' in self._path:  # not the operating system's: a bucket, say
                self._append_remotely(line)
            else:
                self._append_locally(line.encode('utf-8'))
        except (OSError, tf.errors.OpError) as error:
            tf1.logging.error('slimguard: %s cannot be written: %s', self._path, error)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _append_locally(self, line: bytes) -> None:
        if self._file is None:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            self._file = open(self._path, 'ab', buffering=0)
            if not _ends_a_line(self._path):
                line = b'\n' + line  # its last writer was killed
        self._file.write(line)

    def _append_remotely(self, line: str) -> None:
        tf.io.gfile.makedirs(os.path.dirname(self._path))
        with tf.io.gfile.GFile(self._path, 'a') as remote:
            remote.write(line)


class Journal:
    """Writes incidents down, everywhere.

    Args:
      logdir: where the file goes; None for no file.
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
        self._clock = clock
        self._held_back = 0
        self._spoke = 0.0

    def record(self, incident: Incident, done_by: str = '') -> None:
        """Writes one incident down; `done_by` is who acted, where no policy did."""
        self.count += 1
        if self._file is not None:
            self._file.append(incident)
        self._summarize(incident)
        self._log(incident, done_by)

    def close(self) -> None:
        """Says how many log lines were held back, and closes the file."""
        if self._held_back:
            tf1.logging.warning(
                'slimguard: %d incidents in all; the last %d were not logged one by one.',
                self.count,
                self._held_back,
            )
            self._held_back = 0
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
        now = self._clock()
        if goes_on and self.count > _FIRST and now - self._spoke < _SECONDS:
            self._held_back += 1
            return
        self._spoke = now
        done = _DONE.get(incident.action or '', 'left to ' + done_by)
        if incident.restored is not None:
            done += ' to ' + incident.restored
        held_back = ''
        if self._held_back:
            held_back = ' (%d more since the last of these lines)' % self._held_back
            self._held_back = 0
        log = tf1.logging.warning if incident.action == 'skip' else tf1.logging.error
        log('slimguard: incident %d %s; %s.%s', self.count, incident, done, held_back)


def _ends_a_line(path: str) -> bool:
    with open(path, 'rb') as file:
        if file.seek(0, os.SEEK_END) == 0:
            return True
        file.seek(-1, os.SEEK_END)
        return file.read() == b'\n'


def read(logdir: str) -> Tuple[List[Dict[str, Any]], int]:
    """The recorded incidents of a logdir, and the number of lines that could not be read.

    Raises:
      FileNotFoundError: if there is no record in `logdir`.
    """
    path = path_in(logdir)
    if not tf.io.gfile.exists(path):
        raise FileNotFoundError('there is no record of incidents: %s' % path)
    records, torn = [], 0
    with tf.io.gfile.GFile(path, 'rb') as file:
        lines = file.read().split(b'\n')
    for line in filter(None, lines):
        try:
            record = json.loads(line.decode('utf-8'))
        except ValueError:
            record = None
        if isinstance(record, dict):
            records.append(record)
        else:
            torn += 1
    return records, torn


def when(seconds: Optional[float]) -> str:
    """A time for people; '' for none."""
    try:
        return time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(seconds)) if seconds else ''
    except (OverflowError, OSError, ValueError):
        return ''


def table(records: List[Dict[str, Any]]) -> List[Tuple[str, ...]]:
    """Rows for people: when, at which step, the loss, what was done, and why."""
    rows = [('time', 'step', 'loss', 'action', 'reason')]  # type: List[Tuple[str, ...]]
    for record in records:
        loss, step = record.get('loss'), record.get('step')
        rows.append(
            (
                when(record.get('time')),
                '' if step is None else str(step),
                '' if loss is None else '%g' % float(loss),
                str(record.get('action')),
                str(record.get('reason')),
            )
        )
    return rows

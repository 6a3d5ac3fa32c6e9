"""The record's file, ``slimguard/incidents.jsonl`` in the logdir, to which trainings append.

It has one JSON object a line, the attributes of an `Incident` and the process it happened in. It is
made when a guarded training begins: an empty file means that there was no incident, and no file
that nothing was guarded. Each
line is one write to a file opened for appending, so several workers may share it, and what cuts a
write short (a kill, a full disk) costs that line alone. Readers leave such a line out.
"""

import collections
import os
import socket
import threading
from typing import Any, Callable, Deque

import tensorflow as tf

from slimguard.incidents.incident import Incident
from slimguard.incidents.record_json import line_of
from slimguard.incidents.record_path import path_in
from slimguard.system import files
from slimguard.system.log import log

# How many incidents wait for a file that cannot be written, and how often a write is tried anew
# that wrote only a part.
_MOST_WAITING, _TRIES = 1000, 3
_PATIENCE = 5.0  # seconds that a thread waits for another to write

_GONE = 'slimguard: %s was deleted or replaced while the training ran; it is begun anew'


class IncidentFile:
    """The file of incidents in a logdir, for appending.

    If it cannot be written, that is logged once and raises nothing: the training is worth more.
    Lines that could not be written are tried again with the next incident, and when the file is
    closed.

    Args:
      logdir: the directory, as a str, bytes or `os.PathLike`; '' is the working directory.
    """

    def __init__(self, logdir: files.Path):
        self._path = path_in(logdir or os.curdir)
        self._file = (_RemoteFile if files.is_remote(self._path) else _LocalFile)(self._path)
        self._process = '%s:%d' % (socket.gethostname(), os.getpid())
        self._waiting: Deque[bytes] = collections.deque()
        self._writing = threading.Lock()
        self._lost = 0
        self._trouble = ''

    def make(self) -> None:
        """Makes the file, empty, unless it is there: somebody watches for incidents."""
        self._try(self._file.open)
        self._file.close()  # most trainings need it no more

    def append(self, incident: Incident) -> None:
        """Writes a line."""
        self._waiting.append(line_of(incident, self._process))
        if len(self._waiting) > _MOST_WAITING:
            self._waiting.popleft()
            self._lost += 1
        self._try(self._write)

    def close(self) -> None:
        if self._waiting:
            self._try(self._write)
        if self._waiting or self._lost:
            log().error(
                'slimguard: %d incidents are missing in %s: %s',
                len(self._waiting) + self._lost,
                self._path,
                self._trouble or 'it could not be written for a while',
            )
            self._waiting.clear()
            self._lost = 0
        self._file.close()

    def _write(self) -> None:
        # Several threads may train in one session. A process that was forked from one of them may
        # have got the lock as it was: taken, for ever.
        is_mine = self._writing.acquire(timeout=_PATIENCE)
        try:
            while self._waiting:
                self._file.append(self._waiting[0])
                self._waiting.popleft()
        finally:
            if is_mine:
                self._writing.release()

    def _try(self, write: Callable[[], None]) -> None:
        trouble = ''
        try:
            write()
        except (OSError, tf.errors.OpError) as error:
            trouble = str(error)
        if trouble and trouble != self._trouble:
            log().error('slimguard: %s cannot be written: %s', self._path, trouble)
        elif self._trouble and not trouble:
            log().warning('slimguard: %s can be written again', self._path)
        self._trouble = trouble


class _LocalFile:
    """A file of the operating system's, to which several processes append."""

    def __init__(self, path: str):
        self._path = path
        self._file: Any = None

    def open(self) -> None:
        """Makes the file if it is not there."""
        if self._file is not None and not self._is_there():
            log().warning(_GONE, self._path)
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
            log().warning(_GONE, self._path)
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


def _ends_a_line(file) -> bool:
    """Whether the next line written to the end of a file begins a line."""
    size = files.size_of(file)
    if size == 0:
        return True
    file.seek(size - 1)
    return file.read(1) == b'\n'

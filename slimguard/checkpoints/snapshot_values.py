"""Where the values of a snapshot are: in memory, or in a file without a name.

Such a file is of the process alone: the system removes it when it is closed, or the process ends,
however it is killed. Values are written and read one by one, so that there is room for one of them
in memory at a time.
"""

import collections.abc
import errno
import os
import tempfile
import weakref
from typing import Any, Dict, Iterable, Iterator, NamedTuple, Optional, Tuple, Union

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.checkpoints.unlisted import fetched
from slimguard.system import files, memory


class InMemory(Dict[str, np.ndarray]):
    """Values by name, in memory."""

    def shape_of(self, name: str) -> Tuple[int, ...]:
        """The shape of a value."""
        return self[name].shape

    def close(self) -> None:
        """Forgets the values."""
        self.clear()


class _Written(NamedTuple):
    """A value in a file."""

    offset: int
    shape: Tuple[int, ...]
    dtype: Any


class OnDisk(collections.abc.Mapping):
    """Values by name, in a file of a folder; each is read when it is asked for.

    Args:
      values: the names and the values, which are written as they come.
      folder: the folder.

    Raises:
      OSError: if they cannot be written.
    """

    def __init__(self, values: Iterable[Tuple[str, np.ndarray]], folder: str):
        self._written: Dict[str, _Written] = {}
        self._objects: Dict[str, np.ndarray] = {}  # strings, which have no bytes of their own
        file: Any = tempfile.TemporaryFile(dir=folder, buffering=0)
        self._file = file
        self.close = weakref.finalize(self, file.close)
        try:
            for name, value in values:
                self._write(name, value)
        except BaseException:
            self.close()
            raise

    def _write(self, name: str, value: np.ndarray) -> None:
        written = _Written(self._file.tell(), value.shape, value.dtype)
        if value.dtype.hasobject:
            self._objects[name] = value
        else:
            left = _bytes_of(np.ascontiguousarray(value))
            while len(left):  # of two gigabytes and more, Linux writes a part at a time
                left = left[self._file.write(left) :]
        self._written[name] = written

    def __getitem__(self, name: str) -> np.ndarray:
        offset, shape, dtype = self._written[name]
        if name in self._objects:
            return self._objects[name]
        value = np.empty(shape, dtype)
        self._file.seek(offset)
        left = _bytes_of(value)
        while len(left):
            count = self._file.readinto(left)
            if not count:
                raise OSError('the file with snapshot values of %r is shorter than it was' % name)
            left = left[count:]
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._written)

    def __len__(self) -> int:
        return len(self._written)

    def shape_of(self, name: str) -> Tuple[int, ...]:
        """The shape of a value."""
        return self._written[name].shape


Values = Union[InMemory, OnDisk]


def _bytes_of(value: np.ndarray) -> memoryview:
    """The memory of a contiguous array, whatever its type."""
    as_bytes: Any = value.reshape(-1).view(np.uint8)
    return memoryview(as_bytes)


def read_variables(session, variables: Dict[str, Any]) -> InMemory:
    """By name, copies of the values of those variables that are initialized."""
    try:
        values = session.run({name: fetched(each) for name, each in variables.items()})
    except tf.errors.FailedPreconditionError:
        values = dict(_one_by_one(session, variables))
    # What is fetched of a variable of the old kind is the variable's own memory.
    return InMemory({name: np.array(value) for name, value in values.items()})


def _one_by_one(session, variables: Dict[str, Any]) -> Iterator[Tuple[str, np.ndarray]]:
    for name, variable in variables.items():
        try:
            value = session.run(fetched(variable))
        except tf.errors.FailedPreconditionError:
            continue
        yield name, np.asarray(value)


def assign(session, values: Iterable[Tuple[Any, np.ndarray]]) -> None:
    """Puts values into variables, by the ops that initialize these: a graph may be finalized."""
    for variable, value in values:  # one by one, as two may begin with the same tensor
        session.run(variable.initializer, {variable.initializer.inputs[1]: value})


def size_of(session, variables: Dict[str, Any]) -> int:
    """The bytes of some variables, without reading those whose shapes are known."""
    size, unknown = 0, {}
    for name, variable in variables.items():
        count = variable.shape.num_elements()
        if count is None:
            unknown[name] = variable
        else:
            size += count * variable.dtype.base_dtype.size
    return size + sum(value.nbytes for _, value in _one_by_one(session, unknown))


class Room(NamedTuple):
    """Where snapshots are kept, and how many.

    Attributes:
      folder: the folder of their files; None for in memory.
      count: how many; fewer than are wanted where there is little room.
      size: the bytes of each.
      free: the bytes that there are; None if that is not known.
    """

    folder: Optional[str]
    count: int
    size: int
    free: Optional[int]

    def read(self, session, variables: Dict[str, Any]) -> Values:
        """By name, the values of those variables that are initialized.

        Raises:
          OSError: if there is no room for them any more, or none for a checkpoint beside them.
        """
        if self.folder is None:
            return read_variables(session, variables)
        free = files.free_bytes(self.folder)
        if free is not None and free < 2 * self.size:
            raise OSError(errno.ENOSPC, '%d MB are free' % (free >> 20), self.folder)
        return OnDisk(_one_by_one(session, variables), self.folder)

    def __str__(self) -> str:
        return 'an unknown amount' if self.free is None else '%d MB' % (self.free >> 20)


def find_room(size: int, most: int) -> Room:
    """Room for at most `most` snapshots, in memory, or else on disk; a log line says how much.

    They are to take at most half of what is free.

    Args:
      size: the bytes of each.
      most: how many.
    """
    ram = _room(None, size, most, memory.available())
    if ram.count == most:
        tf1.logging.info(_IN_MEMORY, most, size >> 20, ram)
        return ram
    disk = max(_disks(size, most), key=lambda room: room.count, default=None)
    if disk is not None and disk.count > max(1, ram.count):
        tf1.logging.warning(_ON_DISK, disk.count, size >> 20, disk.folder, disk, ram)
        return disk
    of_disk = '' if disk is None else _OF_DISK % (disk, disk.folder)
    tf1.logging.warning(_FEWER, size >> 20, ram, of_disk, ram.count, most)
    return ram


def _disks(size: int, most: int) -> Iterator[Room]:
    """Where files may be: as `TMPDIR` says, or where they outlive a restart of the machine."""
    for folder in dict.fromkeys([tempfile.gettempdir(), '/var/tmp']):
        free = files.free_bytes(folder)
        if free is not None and os.access(folder, os.W_OK) and not memory.is_in_memory(folder):
            yield _room(folder, size, most, free)


def _room(folder: Optional[str], size: int, most: int, free: Optional[int]) -> Room:
    count = most if free is None or not size else min(most, free // (2 * size))
    return Room(folder, count if count > 1 else 0, size, free)  # one would always be on probation


_IN_MEMORY = 'slimguard: up to %d snapshots of %d MB are kept in memory, of which %s is free.'
_ON_DISK = (
    'slimguard: up to %d snapshots of %d MB are kept on disk, in %s, where %s is free; of memory '
    'only %s is.'
)
_FEWER = (
    'slimguard: a snapshot of the variables takes %d MB, and %s of memory is free%s: rollback has '
    '%d of them to go back to, not %d, and else the checkpoints.'
)
_OF_DISK = ', and %s of the disk in %s'

"""The files of a bundle, opened as if an enemy had made them, wherever `tf.io.gfile` goes.

Only regular files in the folder itself are opened, never through a link, and none that is larger
than it may be. Those of a remote bundle are copied to this machine first, each when it is asked
for.
"""

import os
import re
import reprlib
import shutil
import stat
import tempfile
import weakref
from typing import IO, Any, List

import tensorflow as tf

from slimguard.system import files

JSON, ARRAYS, GRAPH, STATE = 'incident.json', 'drawn.npz', 'step.pb', 'state'
INDEX = STATE + '.index'
_SHARD = re.compile(STATE + r'\.data-\d{5}-of-\d{5}$')
# All that a bundle is made of; `making-` is the claim of who is still writing it.
PARTS = re.compile(
    r'(incident\.json(\.making-[0-9a-f]{32})?|drawn\.npz|step\.pb|state\.index'
    r'|state\.data-\d{5}-of-\d{5}|making-\d+-[0-9a-f]{32})$'
)

# What is parsed takes a multiple of its file: JSON 25 times as much at worst.
_MOST_BYTES = {JSON: 64 << 20, GRAPH: 512 << 20, INDEX: 256 << 20}
_COPIED_AT_ONCE = 1 << 20

_brief = reprlib.Repr()
_brief.maxstring = _brief.maxother = 80


class BundleError(ValueError):
    """A folder is no bundle, or a damaged one; the message says which file, and what is wrong."""


def damaged(path: str, why) -> BundleError:
    """The error for a file, or a folder, that is not as it should be."""
    return BundleError('%s is damaged: %s' % (os.path.basename(path) or path, str(why)[:500]))


def brief(value: Any) -> str:
    """`repr`, and short even where somebody has put megabytes into a name."""
    return _brief.repr(value)


def most_bytes(name: str) -> int:
    """How large a file of a bundle may be.

    Arrays are held in memory as they are, so half of the machine's is their limit. The state is
    read variable by variable and has none.
    """
    return _memory() // 2 if name == ARRAYS else _MOST_BYTES.get(name, 1 << 62)


def _memory() -> int:
    try:
        return os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
    except (AttributeError, OSError, ValueError):
        return 16 << 30


class Files:
    """Opens the files of one bundle.

    Args:
      path: the folder. The copy of a remote one lasts as long as this object, and is removed when
        nobody holds it any more or the process ends.

    Raises:
      BundleError: if there is no such folder; by all methods, if a file is not as it should be.
    """

    def __init__(self, path: str):
        self.path = path
        self._is_remote = files.is_remote(path)
        self._local = os.path.realpath(path)
        try:
            if not files.exists(os.path.join(path, JSON)) and not files.is_dir(path):
                raise BundleError('there is no bundle %r; expected a folder with %s' % (path, JSON))
            if self._is_remote:
                self._local = tempfile.mkdtemp(prefix='slimguard-')
                self._finalizer = weakref.finalize(self, _remove_copy, self._local, os.getpid())
        except (OSError, tf.errors.OpError) as error:
            raise BundleError('%s cannot be opened: %s' % (path, error)) from None

    def close(self) -> None:
        """Removes the copy of a remote bundle, sooner than nobody holds it."""
        if self._is_remote:
            self._finalizer()

    def open(self, name: str) -> IO[bytes]:
        """Opens a file to be read, without ever waiting for a FIFO or a device."""
        if self._is_remote:
            self._fetch(name)
        file = _open(self._local, name)
        if os.fstat(file.fileno()).st_size > most_bytes(name):
            file.close()
            raise damaged(name, 'larger than %d bytes' % most_bytes(name))
        return file

    def read(self, name: str) -> bytes:
        """The content of a file."""
        with self.open(name) as file:
            return file.read(most_bytes(name) + 1)

    def shards(self) -> List[str]:
        """The names of the data files of the state."""
        names = files.list_dir(self.path) if self._is_remote else os.listdir(self._local)
        return sorted(name for name in names if _SHARD.match(name))

    def size(self, name: str) -> int:
        """The size of a file in bytes, without copying it."""
        if self._is_remote:
            return _remote_size(self.path, name)
        with _open(self._local, name) as file:
            return os.fstat(file.fileno()).st_size

    def state_prefix(self) -> str:
        """What TensorFlow opens the state by, after all of it was copied to this machine."""
        for name in [INDEX] + self.shards():
            self.open(name).close()
        return os.path.join(self._local, STATE)

    def _fetch(self, name: str) -> None:
        target = os.path.join(self._local, name)
        if os.path.exists(target):
            return
        size = _remote_size(self.path, name)
        if size > most_bytes(name):
            raise damaged(name, 'larger than %d bytes' % most_bytes(name))
        free = shutil.disk_usage(self._local).free
        if size > free:
            raise BundleError(
                '%s has %d bytes, and where it is copied to, %s, there are only %d free; set '
                'TMPDIR to a directory with more' % (name, size, tempfile.gettempdir(), free)
            )
        making = target + '.making'
        with tf.io.gfile.GFile(os.path.join(self.path, name), 'rb') as source:
            with open(making, 'wb') as copy:
                _copy(source, copy, size)
        os.rename(making, target)


def _copy(source, target, size: int) -> None:
    while size > 0:
        block = source.read(min(size, _COPIED_AT_ONCE))
        if not block:
            return
        target.write(block)
        size -= len(block)


def _remote_size(folder: str, name: str) -> int:
    path = os.path.join(folder, name)
    if not files.is_file(path):
        raise damaged(folder, 'there is no file %s' % name)
    return tf.io.gfile.stat(path).length


def _open(folder: str, name: str) -> IO[bytes]:
    path = os.path.join(folder, name)
    if os.path.islink(path):
        raise damaged(folder, '%s leads out of the folder' % name)
    flags = os.O_RDONLY | getattr(os, 'O_NONBLOCK', 0) | getattr(os, 'O_NOFOLLOW', 0)
    try:
        number = os.open(path, flags | getattr(os, 'O_BINARY', 0))
    except FileNotFoundError:
        raise damaged(folder, 'there is no file %s' % name) from None
    except OSError as error:
        raise damaged(folder, '%s cannot be opened: %s' % (name, error.strerror)) from None
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise damaged(folder, '%s is no regular file' % name)
    return open(number, 'rb')


def _remove_copy(folder: str, owner: int) -> None:
    # A child that was forked has the object too, and ends earlier.
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)

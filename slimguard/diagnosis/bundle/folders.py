"""Where the bundles of a training are: found, put in order, made, removed.

On this machine's file systems a bundle is written in a hidden folder and renamed. Elsewhere
renaming a folder is no single step, so it is written here and copied, ``incident.json`` last: a
folder without that file is no bundle.
"""

import hashlib
import itertools
import math
import os
import platform
import re
import shutil
import stat
import tempfile
import time
import uuid
from typing import List, Optional, Set, Tuple

import tensorflow as tf

from slimguard.diagnosis.bundle.files import JSON, PARTS
from slimguard.system import files

try:
    import fcntl
except ImportError:  # no POSIX: what a killed process left is told by its age alone
    fcntl = None

_NAME = re.compile(r'incident-(\d+|unknown)(?:-(\d+))?$')
_TIME = re.compile(rb'"time"\s*:\s*(-?\d{1,20}(?:\.\d{1,40})?(?:[eE][-+]?\d{1,3})?)\s*[,}]')
_LOOKED_AT = 1 << 20  # bytes of incident.json that are read for its time
_MAKING, _LOCK = '.making-', 'lock'
_CLAIM = re.compile(r'making-(\d+)-[0-9a-f]{32}$')
_DAY = 24 * 3600.0


def folder(logdir: files.Path) -> str:
    """Where the bundles of a training are."""
    return os.path.join(files.as_path(logdir), 'slimguard')


def paths(logdir: files.Path) -> List[str]:
    """The bundles in a log directory, the oldest first, by the times of their incidents.

    One that does not tell its time counts as older than all that do. The times of files are not
    looked at: copying changes them.
    """
    parent = folder(logdir)
    found = [os.path.join(parent, name) for name in files.list_dir(parent) if _NAME.match(name)]
    return sorted((path for path in found if is_bundle(path)), key=_order)


def own_paths(logdir: files.Path) -> List[str]:
    """As `paths`, without links to bundles elsewhere: these are counted, and the oldest removed."""
    return [path for path in paths(logdir) if not os.path.islink(path)]


def is_bundle(path: str) -> bool:
    """Whether a folder holds a bundle, whole or damaged; reading it tells which.

    Raises:
      tf.errors.OpError: if a remote file system cannot be asked.
    """
    if files.is_remote(path):
        return files.exists(os.path.join(path, JSON))
    try:
        os.lstat(os.path.join(path, JSON))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # a folder that we may not look into
    return True


def _order(path: str) -> Tuple[float, float, int]:
    found = _NAME.match(os.path.basename(path))
    step, number = found.groups() if found else ('unknown', None)
    return _time_of(path), -1.0 if step == 'unknown' else float(step), int(number or 1)


def _time_of(path: str) -> float:
    """When the incident was, from the beginning of incident.json; all of it may be large.

    JSON puts a backslash before each quotation mark within a string, so the first match is a key.
    """
    try:
        with files.open_to_read(os.path.join(path, JSON)) as file:
            found = _TIME.search(file.read(_LOOKED_AT))
    except (OSError, tf.errors.OpError):
        return -math.inf
    return float(found.group(1)) if found else -math.inf


# Making.


# By this process. The record names them for good, also those that have been removed.
_published: Set[str] = set()


class Making:
    """A folder to write a bundle in; `publish` turns it into one. A context manager.

    Attributes:
      path: the folder, on this machine.
    """

    def __init__(self, parent: str):
        self._parent = parent
        self._is_remote = files.is_remote(parent)
        if self._is_remote:
            self.path, self._lock = tempfile.mkdtemp(prefix='slimguard-'), None
        else:
            self.path = os.path.join(parent, '%s%s-%s' % (_MAKING, _kernel(), uuid.uuid4().hex))
            # Not by tempfile: the umask says who may read it, and a file that is there is an error.
            os.mkdir(self.path)
            self._lock = _hold(self.path)

    def publish(self, step: Optional[int]) -> str:
        """Makes it the bundle of a step, under a name that nothing has or had; returns its path."""
        self._release()
        name = 'incident-%s' % ('unknown' if step is None else step)
        move = _copy_to if self._is_remote else _rename_to
        for number in itertools.count(1):
            path = os.path.join(self._parent, name if number == 1 else '%s-%d' % (name, number))
            if path not in _published and move(self.path, path):
                _published.add(path)
                return path
        raise AssertionError('not reached')

    def _release(self) -> None:
        if self._lock is not None:
            os.remove(os.path.join(self.path, _LOCK))
            os.close(self._lock)
            self._lock = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._lock is not None:
            os.close(self._lock)
        shutil.rmtree(self.path, ignore_errors=True)


def _rename_to(making: str, path: str) -> bool:
    """Moves a folder, unless there is something: a folder that is not empty is never replaced."""
    if os.path.lexists(path):
        return False
    try:
        os.rename(making, path)
    except OSError:
        if os.path.lexists(path):
            return False
        raise
    return True


def _copy_to(making: str, path: str) -> bool:
    """Copies a folder to another file system, unless there is one that somebody has or makes.

    An object store cannot make a folder exclusively, but it lists every file that was written. So
    each process writes a claim, and then lists the folder: the one that finds its own claim alone
    has the folder, and the others try the next name.
    """
    if _parts(path):
        return False
    claim = 'making-%d-%s' % (time.time(), uuid.uuid4().hex)
    tf.io.gfile.makedirs(path)
    if not _lay(path, claim):
        _remove_parts(path, [claim])
        return False
    try:
        for name in sorted(os.listdir(making)):
            if name != JSON:
                tf.io.gfile.copy(os.path.join(making, name), os.path.join(path, name))
        with open(os.path.join(making, JSON), 'rb') as file:
            files.write_atomically(os.path.join(path, JSON), file.read())
    except BaseException:
        remove(path)
        raise
    _remove_parts(path, [claim])
    return True


def _lay(path: str, claim: str) -> bool:
    """Lays a claim to a remote folder; whether it is the only one there."""
    with tf.io.gfile.GFile(os.path.join(path, claim), 'wb') as file:
        file.write(b'This bundle is still being written.\n')
    return _parts(path) == [claim]


# Removing.


def remove_oldest(logdir: files.Path, most: int, kept: str) -> None:
    """Removes the oldest bundles beyond `most`, but never `kept`, nor one that is only linked."""
    ours = own_paths(logdir)
    others = [path for path in ours if path != kept]
    for path in others[: max(0, len(ours) - most)]:
        remove(path)


def remove(path: str) -> None:
    """Removes a bundle as far as possible: the files that we write, and the folder if it is empty.

    ``incident.json`` goes first, so that nobody finds half a bundle.
    """
    try:
        _remove_parts(path, [JSON])
        if is_bundle(path):
            return
        _remove_parts(path, _parts(path))
        if not files.is_remote(path):
            os.rmdir(path)
        elif not files.list_dir(path):
            tf.io.gfile.rmtree(path)
    except (OSError, tf.errors.OpError):
        pass  # it is not ours to remove, or something of somebody's is in it


def _parts(path: str) -> List[str]:
    return [name for name in files.list_dir(path) if PARTS.match(name)]


def _remove_parts(path: str, names: List[str]) -> None:
    delete = tf.io.gfile.remove if files.is_remote(path) else os.remove
    for name in names:
        try:
            delete(os.path.join(path, name))
        except (OSError, tf.errors.OpError):
            pass


def remove_abandoned(logdir: files.Path) -> None:
    """Removes what processes that were killed have left of bundles they were writing.

    A process that writes holds a lock on a file in its folder, and the system lets go of it when
    the process ends, however it ends: no process id that is used again can mislead. Locks are
    believed only of the kernel that runs here, whose id is in the folder's name, since on a shared
    file system they may not reach other machines. All else (another machine's, a file system
    without locks, a remote one) is left for a day after the last file in it was written.
    """
    parent = folder(logdir)
    is_remote = files.is_remote(parent)
    for name in files.list_dir(parent):
        path = os.path.join(parent, name)
        if is_remote and _NAME.match(name) and not is_bundle(path) and _is_old_claim(path):
            remove(path)
        elif not is_remote and name.startswith(_MAKING) and _is_abandoned(path):
            shutil.rmtree(path, ignore_errors=True)


def _is_abandoned(path: str) -> bool:
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            return False
        if os.path.basename(path).startswith('%s%s-' % (_MAKING, _kernel())):
            is_free = _is_free(os.path.join(path, _LOCK))
            if is_free is not None:
                return is_free
        return _now_at(os.path.dirname(path)) - _last_written(path) > _DAY
    except OSError:
        return False  # it is somebody else's, or just gone


def _is_old_claim(path: str) -> bool:
    claims = [_CLAIM.match(name) for name in files.list_dir(path)]
    times = [float(claim.group(1)) for claim in claims if claim]
    return bool(times) and time.time() - max(times) > _DAY


def _last_written(path: str) -> float:
    names = [path] + [os.path.join(path, name) for name in os.listdir(path)]
    return max(os.lstat(name).st_mtime for name in names)


def _now_at(parent: str) -> float:
    """The time by the clock of the file system, which may be another machine's."""
    with tempfile.TemporaryFile(dir=parent) as file:
        return os.fstat(file.fileno()).st_mtime


def _hold(path: str) -> Optional[int]:
    """Makes a locked file in a folder; None where files cannot be locked."""
    if fcntl is None:
        return None
    lock = os.path.join(path, _LOCK)
    number = os.open(lock + '.new', os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Only now does it get its name: nobody ever finds it free while we live.
        os.rename(lock + '.new', lock)
        return number
    except OSError:
        os.close(number)
        os.remove(lock + '.new')
        return None


def _is_free(lock: str) -> Optional[bool]:
    """Whether nobody holds a lock; None if that cannot be told."""
    if fcntl is None or not os.path.isfile(lock) or os.path.islink(lock):
        return None
    number = os.open(lock, os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    except OSError:
        return None
    finally:
        os.close(number)


def _kernel() -> str:
    """An id of the kernel that runs here: of this machine, since it was started."""
    try:
        with open('/proc/sys/kernel/random/boot_id') as file:
            text = file.read()
    except OSError:
        text = '%s %d' % (platform.node(), uuid.getnode())
    return hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:12]

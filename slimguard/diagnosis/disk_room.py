"""Room on the disk: a bundle never costs a checkpoint.

A bundle is as large as a checkpoint, and written where the checkpoints are. So it is not written
unless the next checkpoint finds room after it. If the disk is full all the same when a checkpoint
is saved, bundles that this training wrote are deleted for it.
"""

import contextlib
import os
from typing import Callable, Dict, Iterator, List, NamedTuple, Tuple

from slimguard.checkpoints.finite_saver import FiniteSaver
from slimguard.diagnosis.bundle import folders
from slimguard.diagnosis.bundle.files import JSON
from slimguard.system import files


class NoRoomError(OSError):
    """A bundle is not written, for the next checkpoint would not find room after it."""


class _Written(NamedTuple):
    """A bundle of this training: which folder it is, and whom to tell when it is removed."""

    identity: Tuple[int, int, int]
    on_removed: Callable[[], None]


class Room:
    """The room that bundles and checkpoints of a training share.

    It is a context manager: while it is entered, the saver asks it for room. It knows local file
    systems only: who could tell how much room there is on others?

    Args:
      logdir: where bundles go.
      saver: what saves the training's checkpoints.
    """

    def __init__(self, logdir: str, saver: FiniteSaver):
        self._logdir = logdir
        self._saver = saver
        self._written: Dict[str, _Written] = {}

    @contextlib.contextmanager
    def for_bundle(self) -> Iterator[None]:
        """While a bundle is looked at and written, nobody saves: neither takes the other's room."""
        with self._saver.lock:
            yield

    def require(self, size: int) -> None:
        """Requires that the next checkpoint finds room after a bundle of so many bytes.

        Raises:
          NoRoomError: if it does not.
        """
        folder = folders.folder(self._logdir)
        if files.is_remote(folder) or not files.is_same_disk(folder, self._logdir):
            return
        free = files.free_bytes(folder)
        if free is None:
            return
        needed = self._saver.room_needed()
        if free - size < needed:
            raise NoRoomError(
                'it takes about %s, and of the %s that are free in %s the next checkpoint may need '
                '%s. Make room there, or choose another logdir'
                % (
                    files.megabytes(size),
                    files.megabytes(free),
                    self._logdir,
                    files.megabytes(needed),
                )
            )

    def note(self, path: str, on_removed: Callable[[], None]) -> None:
        """Notes that this training wrote the bundle at `path`; `on_removed` hears of its end."""
        if not files.is_remote(path):
            self._written[path] = _Written(_identity(path), on_removed)

    def make(self, folder: str, needed: int) -> List[str]:
        """Removes bundles of this training, the oldest first, until `needed` bytes are gained.

        Those of others stay, and so do those on another disk than `folder`.

        Returns:
          The paths of those that are gone.
        """
        removed: List[str] = []
        gained = 0
        for path, written in list(self._written.items()):
            if gained >= needed:
                break
            if not _is_still(path, written) or not files.is_same_disk(path, folder):
                continue
            size = _size_of(path)
            folders.remove(path)
            if folders.is_bundle(path):
                continue  # somebody has taken the right to remove it
            del self._written[path]
            written.on_removed()
            removed.append(path)
            gained += size
        return removed

    def __enter__(self) -> 'Room':
        self._saver.make_room = self.make
        return self

    def __exit__(self, *_) -> None:
        self._saver.make_room = None


def _identity(path: str) -> Tuple[int, int, int]:
    found = os.lstat(path)
    # The number of a folder that was removed is given away again, and then the time tells.
    written = os.lstat(os.path.join(path, JSON)).st_mtime_ns
    return found.st_dev, found.st_ino, written


def _is_still(path: str, written: _Written) -> bool:
    """Whether it is still what we wrote: somebody may have moved it, and put another there."""
    try:
        return _identity(path) == written.identity
    except OSError:
        return False


def _size_of(folder: str) -> int:
    try:
        return sum(os.lstat(os.path.join(folder, n)).st_size for n in files.list_dir(folder))
    except OSError:
        return 0

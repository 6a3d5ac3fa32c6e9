"""Disk space: a bundle is written only if the next checkpoint fits beside it."""

from slimguard.checkpoints.finite_saver import FiniteSaver
from slimguard.diagnosis.bundle import folder
from slimguard.system import files


class NoRoomError(OSError):
    """A bundle is not written, since the next checkpoint would not fit on the disk after it."""


class Room:
    """The disk space that the bundles and checkpoints of a training share.

    It checks local file systems only, since others do not tell how much space is free.

    Args:
      logdir: where bundles go.
      saver: saves the training's checkpoints.

    Attributes:
      lock: held while a checkpoint is saved; hold it to write a bundle, so that neither takes the
        other's room.
    """

    def __init__(self, logdir: str, saver: FiniteSaver):
        self.lock = saver.lock
        self._logdir = logdir
        self._saver = saver

    def require(self, size: int) -> None:
        """Requires that the next checkpoint still fits after a bundle of `size` bytes.

        Raises:
          NoRoomError: if it would not.
        """
        if files.is_remote(self._logdir):
            return
        free, needed = files.free_bytes(folder(self._logdir)), self._saver.room_needed()
        if free is not None and free - size < needed:
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

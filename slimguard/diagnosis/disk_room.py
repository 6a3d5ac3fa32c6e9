"""Room on the disk: a bundle is written only where the next checkpoint finds room beside it."""

from slimguard.checkpoints.finite_saver import FiniteSaver
from slimguard.diagnosis.bundle import folder
from slimguard.system import files


class NoRoomError(OSError):
    """A bundle is not written, since the next checkpoint would not fit on the disk after it."""


class Room:
    """The room that bundles and checkpoints of a training share.

    It knows local file systems only, since others do not tell how much room they have.

    Args:
      logdir: where bundles go.
      saver: what saves the training's checkpoints.

    Attributes:
      lock: held while a checkpoint is saved; hold it to write a bundle, so that neither takes the
        other's room.
    """

    def __init__(self, logdir: str, saver: FiniteSaver):
        self.lock = saver.lock
        self._logdir = logdir
        self._saver = saver

    def require(self, size: int) -> None:
        """Requires that the next checkpoint finds room after a bundle of so many bytes.

        Raises:
          NoRoomError: if it does not.
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

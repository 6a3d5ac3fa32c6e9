"""What a script hears once of what cannot be guarded: :class:`Refusals`."""

from typing import Set

from slimguard.system.log import log
from slimguard.unedited.ending import Seen


class Refusals:
    """Says, once for each train op, that it is not guarded, or not against all that was asked for.

    Args:
      seen: what became of the trainings, where it is noted as well.
    """

    def __init__(self, seen: Seen):
        self._seen = seen
        self._without_loss: Set[str] = set()  # train ops whose loss was said to be unknown

    def refuse(self, name: str, error: Exception) -> None:
        """Says that something is not guarded, and why not."""
        if name not in self._seen.refused:
            what = getattr(error, 'of', 'train op')
            self._seen.note_refused(what, name, str(error))
            log().error('%s %r is NOT guarded: %s', what, name, error)

    def say_no_loss(self, name: str) -> None:
        """Says that a train op has no loss to compare with `max_loss`."""
        if name not in self._without_loss:
            self._without_loss.add(name)
            log().warning(
                'max_loss is not compared with anything in train op %r, which has no '
                'single loss; what is not finite is guarded all the same',
                name,
            )

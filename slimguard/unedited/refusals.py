"""What a script hears once of what cannot be guarded: :class:`Refusals`."""

from typing import Set

from slimguard.system.log import log
from slimguard.unedited.ending import Account


class Refusals:
    """Logs, once for each train op, that it is not guarded, or not by all limits asked for.

    Args:
      seen: the account of the trainings, which notes it as well.
    """

    def __init__(self, seen: Account):
        self._seen = seen
        self._without_loss: Set[str] = set()  # train ops whose loss was said to be unknown

    def refuse(self, name: str, error: Exception) -> None:
        """Logs that something is not guarded, and why not."""
        if name not in self._seen.refused:
            what = getattr(error, 'of', 'train op')
            self._seen.note_refused(what, name, str(error))
            log().error('%s %r is NOT guarded: %s', what, name, error)

    def say_no_loss(self, name: str, why: str) -> None:
        """Logs that the loss of a train op is not known, and why; '' if it trains no loss."""
        if name not in self._without_loss:
            self._without_loss.add(name)
            log().warning(
                'the loss of train op %r is not known, so it is neither checked nor '
                'compared with max_loss: %s. Its gradients, and what it writes, are checked all '
                'the same. slimguard.guard(train_op, loss=...) gives it a loss.',
                name,
                why or 'it computes no gradients of a loss',
            )

"""The entry of this process in the shared table of its job."""

import random
import threading
from typing import Dict, Optional

import tensorflow as tf

from slimguard.cluster.job_table import Entry, SharedTable
from slimguard.system.log import log

# The number of the chief's entry; the other processes take random numbers.
CHIEF = 0


class OwnEntry:
    """The one entry that this process writes. Threads may share it.

    Args:
      table: the shared table.
      is_chief: whether this process is the chief.
      worker: the name of the process, such as ``'/job:worker/task:1'``.

    Attributes:
      table: the shared table.
      number: the key of the entry in the table.
      worker: the name of the process.
      round: the number of the round that the process takes part in, or None.
      lock: held while the entry or the round changes.
    """

    def __init__(self, table: SharedTable, is_chief: bool, worker: str):
        self.table = table
        self.number = CHIEF if is_chief else new_number()
        self.worker = worker
        self.round: Optional[int] = None
        self.lock = threading.RLock()
        self._entry: Entry = {'round': None, 'open': False, 'beat': 0, 'worker': worker}

    def write(self, **news) -> None:
        """Changes the entry.

        Raises:
          tf.errors.OpError: if the process that holds the table does not answer.
        """
        with self.lock:
            self._entry.update(news)
            self.table.write(self.number, self._entry)

    def tell(self, **news) -> None:
        """As `write`, but an error is logged, and not raised."""
        try:
            self.write(**news)
        except tf.errors.OpError as error:
            log().error('the other processes could not be told: %s', error)

    def beat(self) -> Dict[int, Entry]:
        """Shows that this process lives; returns the entries of all. Raises as `write` does."""
        with self.lock:
            self._entry['beat'] += 1
            return self.table.exchange(self.number, self._entry)


def new_number() -> int:
    """A number that no other process chooses, and no other round has."""
    return random.SystemRandom().randrange(1, 2**53)

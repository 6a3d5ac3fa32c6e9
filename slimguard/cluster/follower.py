"""A worker of a job that is not its chief: it joins the rounds that the chief opens."""

import time
from typing import Any, Callable, Optional

import tensorflow as tf

from slimguard.cluster.job_table import CHIEF, Entry, OwnEntry
from slimguard.cluster.waiting import PAUSE, Reminder, insist
from slimguard.incidents.incident import Incident
from slimguard.system.log import log
from slimguard.system.rate import Rate

# How long to wait for a chief that was never seen, in seconds.
_NO_CHIEF = 120.0

_NO_CHIEF_SEEN = (
    'the chief of this job does not train under slimguard, so %s cannot tell it of '
    'incidents, nor hear of any.'
)
_CHIEF_HAS_ENDED = (
    'the chief of this job had ended when %s came. It waits %d s for another chief, and '
    'ends if there is none.'
)


class Follower:
    """What a process other than the chief does in a job.

    Args:
      entry: its entry.

    Attributes:
      rollbacks: how often the job went back to a checkpoint.
    """

    def __init__(self, entry: OwnEntry):
        self.rollbacks = 0
        self._entry = entry
        self._asked_in: Optional[int] = None

    def join(self, coordinator: Any, is_done: Callable[[], bool]) -> bool:
        """Waits for an open round and joins it. False if there is none to join."""
        started, reminder, late = time.monotonic(), Reminder(), Rate(seconds=None)
        was_there = self._entry.round is not None
        while not coordinator.should_stop():
            chief = insist(self._entry.table.read).get(CHIEF)
            waited = time.monotonic() - started
            if chief is None:
                if waited > _NO_CHIEF:
                    log().warning(_NO_CHIEF_SEEN, self._entry.worker)
                    return False
            elif chief.get('ends') is not None:
                # A process that started before the chief ended is done; a new process may have come
                # for the next chief.
                if was_there or is_done() or waited > _NO_CHIEF:
                    log().info('the job has ended.')
                    coordinator.request_stop()
                    return False
                if late.is_due():
                    log().warning(_CHIEF_HAS_ENDED, self._entry.worker, _NO_CHIEF)
            elif chief['open'] and chief['round'] != self._asked_in:
                self._take_part(chief)
                return True
            reminder.say('waits for the chief')
            time.sleep(PAUSE)
        return False

    def roll_back(self, incident: Incident) -> None:
        """Asks the chief to send the whole job back to the newest good checkpoint."""
        self._asked_in = self._entry.round
        self._entry.tell(asks=self._entry.round, incident=incident.to_dict())

    def leave(self, restarts: bool) -> None:
        """Leaves the round: for good, unless a new session follows."""
        try:
            self._entry.write(round=None, done=None if restarts else self._entry.round)
        except tf.errors.OpError:
            pass  # the table is gone, and the entry with it

    def _take_part(self, chief: Entry) -> None:
        self._entry.round = chief['round']
        self.rollbacks = chief['rollbacks']
        insist(lambda: self._entry.write(round=self._entry.round, done=None))

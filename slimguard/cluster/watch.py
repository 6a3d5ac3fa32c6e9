"""Watches the shared table while a session trains, and stops the session if others say so.

Here a process learns of a rollback of its job: the chief has begun a new round.
"""

import threading
from typing import Any, Dict, Optional

from slimguard.cluster.chief import Chief
from slimguard.cluster.job_table import CHIEF, Entry, OwnEntry
from slimguard.cluster.session_end import aborted, error_of, stop
from slimguard.cluster.sync_replicas import Replicas
from slimguard.cluster.waiting import GONE, PAUSE


class Watch:
    """Reads the shared table, in a thread of its own, until this process leaves the round.

    Args:
      entry: the entry of this process.
      replicas: the accumulators and tokens of a `SyncReplicasOptimizer`.
      coordinator: the coordinator of the session, which is asked to stop.
      chief: answers the others, if this process is the chief; else None.

    Attributes:
      coordinator: that coordinator.
      left: set when this process leaves the round.
    """

    def __init__(
        self, entry: OwnEntry, replicas: Replicas, coordinator: Any, chief: Optional[Chief]
    ):
        self.coordinator = coordinator
        self.left = threading.Event()
        self._entry = entry
        self._replicas = replicas
        self._chief = chief
        self._hurries = False

    def start(self) -> None:
        threading.Thread(target=self._run, name='slimguard-job', daemon=True).start()

    def check(self) -> None:
        """Raises the error that the coordinator was asked to stop with, if any."""
        self.coordinator.raise_requested_exception()

    def _run(self) -> None:
        while not self.left.wait(PAUSE):
            with self._entry.lock:
                try:
                    if not self.left.is_set():
                        self._look()
                except GONE:
                    pass  # the process that holds the table is gone, as the step under way will see

    def _look(self) -> None:
        entries = self._entry.beat()
        self._look_at(entries)
        # A worker that is done sends no more gradients.
        is_deserted = any(entry.get('done') == self._entry.round for entry in entries.values())
        if self._replicas and (self._hurries or is_deserted or self._has_failed()):
            self._replicas.release()

    def _has_failed(self) -> bool:
        """Whether a thread failed. Without the one that hands out tokens, a step waits for ever."""
        try:
            self.check()
        except Exception:
            return True
        return False

    def _look_at(self, entries: Dict[int, Entry]) -> None:
        """Asks the coordinator to stop if one of the entries says so."""
        if self.coordinator.should_stop():
            return
        for who, entry in entries.items():
            if who != self._entry.number and entry.get('ends') == self._entry.round:
                if self._chief is not None:  # sent again, for processes that come late
                    self._entry.tell(ends=self._entry.round, incident=entry['incident'])
                return self._hurry(error_of(entry['incident']))
            if self._chief is not None and entry.get('asks') == self._entry.round:
                return self._hurry(self._chief.grant(entry))
        chief = entries.get(CHIEF)
        if self._chief is None and chief is not None and chief['round'] != self._entry.round:
            self._hurry(aborted('the chief begins a new round'))

    def _hurry(self, error: Optional[Exception]) -> None:
        # A step may be waiting for a peer that has ended; `_look` then gives it a token.
        self._hurries = True
        stop(self.coordinator, error)

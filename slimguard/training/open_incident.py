"""An incident while it is handled: an `Incident` never changes, so each news makes a new one."""

import dataclasses
import threading
from typing import Any, Callable, List, Mapping, Optional, Tuple

from slimguard.diagnosis.evidence import Evidence, Found
from slimguard.incidents.incident import Incident
from slimguard.incidents.nan_loss_error import NanLossError
from slimguard.training.incident_reading import Reading

# How many incidents a hook remembers; the record in the logdir has them all.
_REMEMBERED = 1000


class IncidentList:
    """The incidents of a hook, each in its newest version.

    Attributes:
      incidents: the last thousand, the newest at the end.
      count: how many there were in all.
    """

    def __init__(self):
        self.incidents: List[Incident] = []
        self.count = 0
        self._lock = threading.Lock()  # threads that train may handle incidents at once

    def add(self, incident: Incident) -> None:
        """Adds one; the oldest may go."""
        with self._lock:
            self.incidents.append(incident)
            self.count += 1
            del self.incidents[:-_REMEMBERED]

    def replace(self, old: Incident, new: Incident) -> None:
        """Lists `new` in the place of `old`, if that is still there."""
        with self._lock:
            for index in reversed(range(len(self.incidents))):  # most often it is the last
                if self.incidents[index] is old:
                    self.incidents[index] = new
                    return


class OpenIncident:
    """One bad step as far as it is known; it grows while the incident is handled.

    Args:
      incident: the first version.
      replaced: called with an incident and its new version.

    Attributes:
      bad_rows: the rows of the batch that are not finite, none if it is no batch; None if it is not
        known that data are at fault.
      kind: the kind of the cause, as policies ask for it.
      phase: that of the diagnosis; 'unknown' without one.
      drew_finite: whether all that the step drew is known to be finite.
      rows: the bad rows that it drew, as `Found` has them.
      again: a text about a row of them that an earlier incident had; '' if none is known.
      cause: the diagnosis in one line; None if it is not known.
      remarks: what was added to the reason.
      spent: how much of the acting policy is used up; '' without one, or if it has no limit.
    """

    def __init__(self, incident: Incident, replaced: Callable[[Incident, Incident], None]):
        self.cause: Optional[str] = None
        self.remarks = self.spent = ''
        self.bad_rows: Optional[List[int]] = None
        self.kind = ''
        self.phase = 'unknown'
        self.drew_finite = False
        self.rows: Mapping[str, str] = {}
        self.again = ''
        self._versions: List[Incident] = [incident]
        self._replaced = replaced
        self._error: Optional[NanLossError] = None
        self._lock = threading.Lock()  # threads that train may handle incidents at once
        self._to_log: List[Tuple[Callable, Tuple[Any, ...]]] = []

    @property
    def incident(self) -> Incident:
        """The newest version."""
        return self._versions[-1]

    def note(self, **changes) -> Incident:
        """Makes the next version, with other values of some attributes, and returns it."""
        with self._lock:
            self._add(dataclasses.replace(self.incident, **changes))
        return self.incident

    def note_reason(self, more: str) -> None:
        """Adds to the reason."""
        if more:
            self.remarks += more
            self.note(reason=self.incident.reason + more)

    def take(self, incident: Incident) -> None:
        """Makes `incident` the next version, unless it is one already."""
        with self._lock:
            if not self._has(incident):
                self._add(incident)

    def is_told_by(self, error: NanLossError) -> None:
        """Makes an error that carries a version carry the newest, also in future."""
        with self._lock:
            if self._has(error.incident):
                self._error = error
                error.incident = self.incident

    def note_found(self, found: Found) -> None:
        """Notes what an examination has found, and whether data are at fault."""
        diagnosis = found.diagnosis
        self.bad_rows = None if diagnosis is None else diagnosis.bad_rows
        self.cause = None if diagnosis is None else diagnosis.in_short
        self.kind = found.cause
        self.phase = 'unknown' if diagnosis is None else diagnosis.phase
        self.drew_finite, self.rows = found.drew_finite, found.bad_rows
        told = None if diagnosis is None else str(diagnosis)
        self.note(diagnosis=told, bundle=found.bundle)

    def log_after(self, log: Callable, *args) -> None:
        """Has `log(*args)` called once the incident has a line in the log."""
        self._to_log.append((log, args))

    def is_logged(self) -> None:
        """Notes that the incident has a line in the log, or was held back."""
        for log, args in self._to_log:
            log(*args)
        del self._to_log[:]

    def _has(self, incident: Incident) -> bool:
        return any(incident is version for version in self._versions)

    def _add(self, new: Incident) -> None:
        old = self.incident
        self._versions.append(new)
        self._replaced(old, new)
        if self._error is not None:
            self._error.incident = new


def examine(
    by: Optional[Evidence],
    session,
    reading: Reading,
    handled: OpenIncident,
    decides: bool = False,
    ends: bool = False,
) -> Found:
    """Finds and notes what made a step bad, before anybody acts: the weights are as it found them.

    Args:
      by: what examines the bad steps of its gate; None for nothing.
      session: the session.
      reading: the incident, and what told of it.
      handled: the same, while it is handled.
      decides: whether what is done depends on what is found.
      ends: whether the training ends with this incident, whatever is found.
    """
    if by is None or reading.gate is None:
        return Found()
    labels = reading.gate.labels_of(reading.bad)
    found = by.examine(session, handled.incident, labels, decides, ends, reading.history)
    handled.note_found(found)
    return found


def keep(
    by: Optional[Evidence],
    session,
    reading: Reading,
    handled: OpenIncident,
    found: Found,
    ends: bool,
) -> None:
    """Writes the bundle; searches all of the step first if the training `ends` with it."""
    if by is None or reading.gate is None:
        return
    labels, history = reading.gate.labels_of(reading.bad), reading.history
    found = by.keep(session, handled.incident, labels, found, ends, history)
    handled.note_found(found)
    handled.note_reason(found.why_not)

"""An incident while it is handled: an `Incident` never changes, so each news makes a new one."""

import dataclasses
import time
from typing import Any, Callable, List, Mapping, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard import graph as graphs
from slimguard.checkpoints.snapshots import IS_RUINED
from slimguard.diagnosis.evidence import Evidence, Found
from slimguard.incidents import advice
from slimguard.incidents.fallback_chain import FallbackChain
from slimguard.incidents.incident import Incident
from slimguard.incidents.nan_loss_error import NanLossError
from slimguard.incidents.policies import BATCH, COMES_AGAIN, EXPLOSION, Policy, Rollback, Skip
from slimguard.training.watched_run import Reading


class OpenIncident:
    """One bad step as far as it is known; it grows while the incident is handled.

    Args:
      reading: the incident, and the values that showed it.

    Attributes:
      incident: the newest version.
      reading: as given.
      policy: the policy that takes it; None until that is decided.
      acting: what acts on it, as the log calls it.
      has_failed: whether that failed, with the last good state still in memory.
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

    def __init__(self, reading: Reading):
        self.incident = reading.incident
        self.reading = reading
        self.policy: Optional[Policy] = None
        self.acting = 'on_nan'
        self.has_failed = False
        self.cause: Optional[str] = None
        self.remarks = self.spent = ''
        self.bad_rows: Optional[List[int]] = None
        self.kind = ''
        self.phase = 'unknown'
        self.drew_finite = False
        self.rows: Mapping[str, str] = {}
        self.again = ''
        self._versions = [reading.incident]
        self._to_log: List[Tuple[Callable, Tuple[Any, ...]]] = []

    def note(self, **changes) -> Incident:
        """Makes the next version, with other values of some attributes, and returns it."""
        self.take(dataclasses.replace(self.incident, **changes))
        return self.incident

    def note_reason(self, more: str) -> None:
        """Adds to the reason."""
        if more:
            self.remarks += more
            self.note(reason=self.incident.reason + more)

    def take(self, incident: Incident) -> None:
        """Makes `incident` the next version, unless it is one already."""
        if not self._has(incident):
            self._versions.append(incident)
            self.incident = incident

    def is_told_by(self, error: NanLossError) -> None:
        """Makes an error that carries a version carry the newest."""
        if self._has(error.incident):
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

    def close(self) -> None:
        """Logs what is to come after the incident's line, and drops the values of the step."""
        for log, args in self._to_log:
            log(*args)
        self.reading = Reading(self.incident)
        self._versions, self._to_log, self.rows = [self.incident], [], {}

    def _has(self, incident: Incident) -> bool:
        return any(incident is version for version in self._versions)


def examine(
    by: Optional[Evidence],
    session,
    opened: OpenIncident,
    decides: bool = False,
    ends: bool = False,
) -> Found:
    """Finds and notes what made a step bad, before anybody acts: the weights are as it found them.

    Args:
      by: what examines the bad steps of its gate; None for nothing.
      session: the session.
      opened: the incident.
      decides: whether what is done depends on what is found.
      ends: whether the training ends with this incident, whatever is found.
    """
    if by is None:
        return Found()
    reading = opened.reading
    given = opened.incident, reading.labels, decides, ends, reading.history
    found = by.examine(session, *given)
    opened.note_found(found)
    return found


def keep(by: Optional[Evidence], session, opened: OpenIncident, found: Found, ends: bool) -> None:
    """Writes the bundle; searches all of the step first if the training `ends` with it."""
    if by is None:
        return
    reading = opened.reading
    given = opened.incident, reading.labels, found, ends, reading.history
    found = by.keep(session, *given)
    opened.note_found(found)
    opened.note_reason(found.why_not)


def advice_on(opened: OpenIncident, policies: FallbackChain) -> Optional[str]:
    """Advice for a training that ends in spite of rollbacks, or whose incident calls for some."""
    if not (_asks_for_advice(opened.incident) or policies.rollbacks):
        if not isinstance(opened.policy, Rollback):
            return None
    skips, goes_back = policies.may(Skip), policies.may(Rollback)
    if opened.bad_rows is not None:
        return advice.for_bad_data(opened.bad_rows, opened.incident.bundle, skips)
    if opened.kind == COMES_AGAIN:
        return None  # a log line said that nothing here changes it
    if opened.kind == BATCH:
        return advice.for_a_bad_batch(skips)
    if opened.incident.state_lost or opened.phase == 'variable':
        return advice.for_lost_state(goes_back)
    may_explode = opened.kind == EXPLOSION or opened.phase == 'unknown'
    if may_explode or _asks_for_advice(opened.incident):
        return advice.for_an_explosion(policies.learning_rate, opened.incident.reason)
    return None


def _asks_for_advice(incident: Incident) -> bool:
    if incident.state_lost:
        return True
    return gates.ABOVE_MAX_LOSS in incident.reason or IS_RUINED in incident.reason


# Seconds to wait before each look. Together they are longer than another process takes to restore a
# variable.
_PAUSES = (0.0, 0.1, 0.3, 0.6)
# The labels of what was not finite before the step.
_LOST = ('before', 'state')


def look_again(session, reading: Reading) -> Reading:
    """The report of a bad step, unless the variables that it found bad are finite now.

    An update that overflows is written, checked and put back. Another worker may read a weight in
    between: an asynchronous worker, or a replica slower than the others. Then its own step is bad,
    and nothing is lost.
    """
    gate = reading.gate
    if gate is None or not reading.incident.state_lost:
        return reading
    lost = {label.name for label in gate.labels_of(reading.bad) if label.kind in _LOST}
    with session.graph.as_default():
        each = graphs.on_each_device(tf1.global_variables())
        variables = [v for v in each if v.op.name in lost]
    if len(variables) != len(lost) or not _are_finite_soon(session, variables):
        return reading
    bad = [is_bad and label.kind not in _LOST for label, is_bad in zip(gate.labels, reading.bad)]
    verdict = gate.explain(bad)
    if any(bad):
        reason = verdict.reason + '; it read a weight that another process was putting back'
    else:  # its update did not begin, since the gate found the weight bad
        verdict = gate.explain(reading.bad)
        reason = verdict.reason + '; another process was putting that back'
    incident = dataclasses.replace(
        reading.incident, reason=reason, tensors=verdict.tensors, state_lost=False
    )
    return reading._replace(incident=incident, bad=bad)


def _are_finite_soon(session, variables) -> bool:
    for pause in _PAUSES:
        time.sleep(pause)
        if all(np.isfinite(value).all() for value in session.run(variables)):
            return True
    return False

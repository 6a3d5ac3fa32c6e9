"""An incident while it is handled: an `Incident` never changes, so each news makes a new one."""

import dataclasses
import time
from typing import Any, Callable, List, Optional, Tuple

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
      found: what an examination has found.
      again: a text about a bad row that an earlier incident had; '' if none is known.
      remarks: what was added to the reason.
      spent: how much of the acting policy is used up; '' without one, or if it has no limit.
    """

    def __init__(self, reading: Reading):
        self.incident = reading.incident
        self.reading = reading
        self.policy: Optional[Policy] = None
        self.acting = 'on_nan'
        self.has_failed = False
        self.found = Found()
        self.remarks = self.spent = self.again = ''
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

    @property
    def cause(self) -> Optional[str]:
        """The diagnosis in one line; None if it is not known."""
        return None if self.found.diagnosis is None else self.found.diagnosis.in_short

    def note_found(self, found: Found) -> None:
        """Notes what an examination has found."""
        self.found = found
        told = None if found.diagnosis is None else str(found.diagnosis)
        self.note(diagnosis=told, bundle=found.bundle)

    def log_after(self, log: Callable, *args) -> None:
        """Has `log(*args)` called once the incident has a line in the log."""
        self._to_log.append((log, args))

    def close(self) -> None:
        """Logs what is to come after the incident's line, and drops the values of the step."""
        for log, args in self._to_log:
            log(*args)
        self.reading = Reading(self.incident)
        self.found = Found()
        self._versions, self._to_log = [self.incident], []

    def _has(self, incident: Incident) -> bool:
        return any(incident is version for version in self._versions)


def examine(
    by: Optional[Evidence],
    session,
    opened: OpenIncident,
    decides: bool = False,
    ends: bool = False,
) -> None:
    """Finds and notes what made a step bad, before anybody acts: the weights are as it found them.

    Args:
      by: what examines the bad steps of its gate; None for nothing.
      session: the session.
      opened: the incident.
      decides: whether what is done depends on what is found.
      ends: whether the training ends with this incident, whatever is found.
    """
    if by is not None:
        labels, history = opened.reading.labels, opened.reading.history
        opened.note_found(by.examine(session, opened.incident, labels, decides, ends, history))


def keep(by: Optional[Evidence], session, opened: OpenIncident, ends: bool) -> None:
    """Writes the bundle; searches all of the step first if the training `ends` with it."""
    if by is not None:
        labels, history = opened.reading.labels, opened.reading.history
        opened.note_found(by.keep(session, opened.incident, labels, opened.found, ends, history))
        opened.note_reason(opened.found.why_not)


def advice_on(opened: OpenIncident, policies: FallbackChain) -> Optional[str]:
    """Advice for a training that bad data end, or that rollbacks did not help; else None."""
    skips, goes_back = policies.may(Skip), policies.may(Rollback)
    diagnosis, kind = opened.found.diagnosis, opened.found.kind
    phase = 'unknown' if diagnosis is None else diagnosis.phase
    if diagnosis is not None and diagnosis.bad_rows is not None:
        return advice.for_bad_data(diagnosis.bad_rows, opened.incident.bundle, skips)
    if not (_asks_for_advice(opened.incident) or policies.rollbacks):
        if not isinstance(opened.policy, Rollback):
            return None
    if kind == COMES_AGAIN:
        return None  # a log line said that nothing here changes it
    if kind == BATCH:
        return advice.for_a_bad_batch(skips)
    if opened.incident.state_lost or phase == 'variable':
        return advice.for_lost_state(goes_back)
    if kind == EXPLOSION or phase == 'unknown' or _asks_for_advice(opened.incident):
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

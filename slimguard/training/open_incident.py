""":class:`OpenIncident`: a bad step, from its discovery to its line in the record.

The values or the error of a run open it: `of_gate`, `of_loss`, `of_error`. The examination and the
handler add to it. An `Incident` never changes, so each addition makes a new version.
"""

import dataclasses
import time
from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard import graph as graphs
from slimguard.diagnosis.evidence import Examination
from slimguard.gate.reading.losses import label_of
from slimguard.incidents.history import History
from slimguard.incidents.incident import Incident
from slimguard.incidents.nan_loss_error import NanLossError
from slimguard.incidents.policies import Policy

# The ops of `tf.debugging.check_numerics`.
_CHECKS = ('CheckNumerics', 'CheckNumericsV2')
# The kinds of labels of values that are finite, but out of bounds.
_OUT_OF_BOUNDS = (gates.Label.LIMIT, gates.Label.NORM, gates.Label.RANK)


class OpenIncident:
    """One bad step, with what is known so far.

    Args:
      incident: the `Incident`, as the values of the step show it.
      gate: the gate whose flags showed it, or None.
      bad: the flags, one for each label of the gate.

    Attributes:
      incident: the newest version.
      gate, bad: as given, until it is closed.
      history: the last steps, this one included, if they are known.
      is_spike: whether all values were finite, but far above the last good steps' values.
      ruin: why finite weights count as ruined; '' if they do not, or if unknown.
      policy: the policy that takes it; None before the decision.
      acting: the log's name for what acts on it: 'on_nan', or a method of the user.
      has_failed: whether the action failed while the last good state was still in memory.
      found: what an examination has found.
      again: a text about a bad row that an earlier incident also had; or ''.
      remarks: what was added to the reason.
      spent: how much of the acting policy is used up; '' if no policy acts, or it has no limit.
    """

    def __init__(
        self, incident: Incident, gate: Optional[gates.Gate] = None, bad: Sequence[bool] = ()
    ):
        self.incident = incident
        self.gate, self.bad = gate, bad
        self.history: Optional[History] = None
        self.is_spike = False
        self.policy: Optional[Policy] = None
        self.acting = 'on_nan'
        self.has_failed = False
        self.found = Examination()
        self.remarks = self.spent = self.again = self.ruin = ''
        self._versions = [incident]
        self._to_log: List[Tuple[Callable, Tuple[Any, ...]]] = []

    # What is known of the step.

    @property
    def train_op(self) -> str:
        """The name of the train op whose step was bad; '' if no gate showed it."""
        return '' if self.gate is None else self.gate.original.name

    @property
    def labels(self) -> Sequence[gates.Label]:
        """The labels of what the gate found to be bad."""
        return [] if self.gate is None else self.gate.labels_of(self.bad)

    @property
    def is_finite(self) -> bool:
        """Whether the gate found no NaN or Inf: values were out of bounds only."""
        return all(label.kind in _OUT_OF_BOUNDS for label in self.labels)

    @property
    def cause(self) -> Optional[str]:
        """The diagnosis in one line; None if it is not known."""
        return None if self.found.diagnosis is None else self.found.diagnosis.in_short

    # Its versions.

    def note(self, **changes) -> Incident:
        """Makes the next version, with other values of some attributes, and returns it."""
        self.add_version(dataclasses.replace(self.incident, **changes))
        return self.incident

    def note_reason(self, more: str) -> None:
        """Adds `more` to the reason."""
        if more:
            self.remarks += more
            self.note(reason=self.incident.reason + more)

    def note_found(self, found: Examination) -> None:
        """Notes what an examination has found."""
        self.found = found
        diagnosis = None if found.diagnosis is None else str(found.diagnosis)
        self.note(diagnosis=diagnosis, bundle=found.bundle)

    def add_version(self, incident: Incident) -> None:
        """Makes `incident` the next version, unless it is one already."""
        if not self._has(incident):
            self._versions.append(incident)
            self.incident = incident

    def refresh(self, error: NanLossError) -> None:
        """Puts the newest version into an error that has an older version of the incident."""
        if self._has(error.incident):
            error.incident = self.incident

    def _has(self, incident: Incident) -> bool:
        return any(incident is version for version in self._versions)

    # Its end.

    def log_after(self, log: Callable, *args) -> None:
        """Calls `log(*args)` once the incident has a line in the log."""
        self._to_log.append((log, args))

    def close(self) -> None:
        """Makes the calls of `log_after`, and drops the values of the step."""
        for log, args in self._to_log:
            log(*args)
        self.gate, self.bad, self.history = None, (), None
        self.found = Examination()
        self._versions, self._to_log = [self.incident], []


def of_gate(
    gate: gates.Gate,
    report: gates.Told,
    limits: Optional[Mapping[str, str]] = None,
    max_loss: Optional[float] = None,
) -> OpenIncident:
    """The bad step that a gate reports; `limits` and `max_loss` are as for `Gate.explain`."""
    step = None if report.step is None else int(report.step)
    loss = None if report.loss is None else float(report.loss)
    strategy = 'check_numerics' if gate.raises else 'hook'
    verdict = gate.explain(report.bad, limits, max_loss)
    incident = Incident.now(step=step, loss=loss, strategy=strategy, **verdict._asdict())
    return OpenIncident(incident, gate, report.bad)


def of_loss(
    loss: tf.Tensor, value, max_loss: Optional[float], step: Callable[[], Optional[int]]
) -> Optional[OpenIncident]:
    """The bad step that a loss shows if no gate holds the update; None if the loss is good.

    Args:
      loss: the loss.
      value: its fetched value.
      max_loss: the largest loss that is no incident, or None.
      step: returns the global step; called only after a bad loss.
    """
    value = float(value)
    is_finite = np.isfinite(value)
    if is_finite and (max_loss is None or value <= max_loss):
        return None
    name = label_of(loss)
    what = '%s=%g' % (gates.ABOVE_MAX_LOSS, max_loss) if is_finite else 'not finite'
    reason = '%s: %s' % (what, name)
    known = dict(step=step(), loss=value, reason=reason, tensors=(name,), strategy='hook')
    return OpenIncident(Incident.now(held=False, **known))


def of_error(error: tf.errors.OpError, step: Callable[[], int]) -> Optional[OpenIncident]:
    """The bad step that the error of a numeric check shows; None for any other error."""
    labels = gates.labels_in(error.message)
    if labels:
        verdict = gates.explain(labels)
    elif error.op is not None and error.op.type in _CHECKS:
        checked = error.op.inputs[0].op.name
        message = tf.compat.as_str(error.op.get_attr('message'))
        verdict = gates.Verdict((checked,), 'not finite: %s (%s)' % (checked, message), False)
    else:
        return None
    known = dict(verdict._asdict(), step=step(), loss=None, strategy='check_numerics')
    return OpenIncident(Incident.now(**known))


# Where several processes write the same variables.

# Seconds to wait before each look. Their sum is longer than another process takes to restore a
# variable.
_PAUSES = (0.0, 0.1, 0.3, 0.6)
# The kinds of labels of values that were not finite before the step.
_LOST = (gates.Label.BEFORE, gates.Label.STATE)


def look_again(session, opened: OpenIncident) -> None:
    """If the variables that a bad step found bad are finite now, notes that no state is lost.

    An update that overflows is written, checked and undone. In between, another worker may read a
    weight: an asynchronous worker, or a slow replica. Then its step is bad, but no weight is lost.
    """
    gate = opened.gate
    if gate is None or not opened.incident.state_lost:
        return
    lost = {label.name for label in opened.labels if label.kind in _LOST}
    with session.graph.as_default():
        each = graphs.on_each_device(tf1.global_variables())
        variables = [v for v in each if v.op.name in lost]
    if len(variables) != len(lost) or not _are_finite_soon(session, variables):
        return
    bad = [is_bad and label.kind not in _LOST for label, is_bad in zip(gate.labels, opened.bad)]
    verdict = gate.explain(bad)
    if any(bad):
        reason = verdict.reason + '; it read a weight that another process was putting back'
    else:  # its update did not begin, since the gate found the weight bad
        verdict = gate.explain(opened.bad)
        reason = verdict.reason + '; another process was putting that back'
    opened.bad = bad
    opened.note(reason=reason, tensors=verdict.tensors, state_lost=False)


def _are_finite_soon(session, variables) -> bool:
    for pause in _PAUSES:
        time.sleep(pause)
        if all(np.isfinite(value).all() for value in session.run(variables)):
            return True
    return False

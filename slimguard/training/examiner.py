"""Has the bad steps of a training examined, and their bundles written: `Examiner`."""

from typing import Mapping, Optional

from slimguard import gate as gates
from slimguard.diagnosis.evidence import Evidence, Found
from slimguard.incidents.fallback_chain import FallbackChain
from slimguard.incidents.policies import Rollback, Skip
from slimguard.training.incident_reading import Reading
from slimguard.training.open_incident import OpenIncident


class Examiner:
    """Has bad steps examined before the policy acts: the weights are as the step found them.

    Args:
      evidence: by gate, what examines its bad steps.
    """

    def __init__(self, evidence: Mapping[gates.Gate, Evidence]):
        self._evidence = evidence

    def examine(
        self,
        session,
        reading: Reading,
        handled: OpenIncident,
        decides: bool = False,
        ends: bool = False,
    ) -> Found:
        """Finds and notes what made a step bad.

        Args:
          session: the session.
          reading: the incident, and the values that showed it.
          handled: its `OpenIncident`.
          decides: whether the policy depends on the findings.
          ends: whether the training ends with this incident, whatever is found.
        """
        gate = reading.gate
        if gate is None or gate not in self._evidence:
            return Found()
        labels, examine = gate.labels_of(reading.bad), self._evidence[gate].examine
        found = examine(session, handled.incident, labels, decides, ends)
        handled.note_found(found, reading.history)
        return found

    def keep(
        self, session, reading: Reading, handled: OpenIncident, found: Found, ends: bool
    ) -> None:
        """Writes the bundle; searches all of the step first if the training `ends` with it."""
        gate = reading.gate
        if gate is None or gate not in self._evidence:
            return
        labels, history = gate.labels_of(reading.bad), reading.history
        keep = self._evidence[gate].keep
        found = keep(session, handled.incident, labels, found, ends, history)
        handled.note_found(found, history)
        handled.note_reason(found.why_not)

    def examine_ahead(
        self,
        session,
        reading: Reading,
        handled: OpenIncident,
        policies: Optional[FallbackChain],
        ruin: str,
    ) -> Found:
        """As `examine`, before the decision.

        Args:
          session: the session.
          reading: the incident, and what told of it.
          handled: the same, while it is handled.
          policies: the policies that will decide; None if a user decides.
          ruin: why the weights are ruined, as they are told.
        """
        foreseen = None if policies is None else policies.foresee(handled.incident, ruin)
        ends = foreseen is not None and foreseen.ends
        decides = ends or isinstance(foreseen, Rollback)
        may_go_on = policies is not None and policies.may(Skip)
        return self.examine(session, reading, handled, decides, ends and not may_go_on)

    def examine_and_keep(
        self, session, reading: Reading, handled: OpenIncident, ends: bool
    ) -> None:
        """Examines and keeps, where no policy decides."""
        found = self.examine(session, reading, handled, ends=ends)
        self.keep(session, reading, handled, found, ends)

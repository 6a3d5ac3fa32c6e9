"""After a bad step: takes what it drew, finds the cause, and writes both into a bundle.

:class:`Evidence` puts :mod:`capture`, :mod:`diagnose` and :mod:`bundle` together for the loops that
train. Errors here are logged, not raised: they must not hide the incident. The same error may come
with each bad step, so the log has the first of each kind, and at the end a count of the others.
"""

import collections
import enum
from typing import Counter, Dict, Mapping, NamedTuple, Optional, Sequence, Set

import numpy as np

from slimguard.diagnosis import bundle
from slimguard.diagnosis.bad_rows import bad_row_digests
from slimguard.diagnosis.capture import BadStep, Capture, bytes_of
from slimguard.diagnosis.diagnose import bad_sources, diagnose, glance
from slimguard.diagnosis.diagnosis import Diagnosis
from slimguard.diagnosis.explain_step import with_limit
from slimguard.gate import Gate, Label, name_of
from slimguard.graph import Writes, is_float
from slimguard.graph.collectives import collectives_in
from slimguard.graph.sessions import OWN_WORK
from slimguard.incidents.history import History, explosion_in
from slimguard.incidents.incident import Incident
from slimguard.incidents.incident_groups import symptom_of
from slimguard.system import files, memory
from slimguard.system.log import log
from slimguard.system.numbers import require_bool

_NO_SEARCH = 'the step was not searched for the cause: '
_ENOUGH = 'max_bundles=%d is reached'
_NOT_EXAMINED = '; cause not looked for: ' + _ENOUGH
_IN_BUNDLE = 'python -m slimguard replay BUNDLE searches all of it'
_NO_MEMORY = 'a copy of its variables takes %s, and %s of memory are free'
_NO_LOGDIR = 'with a logdir there would be a bundle, which is searched by replay'

# How long the search for a cause may take while the training waits for it. A session run cannot be
# interrupted, and the first run of a large graph spends most of its time on preparing it, so the
# time is estimated beforehand. Both rates were measured on two cores, with a step of ResNet-50 and
# one of a detector with 10,000 ops.
SECONDS = 10.0
_SECONDS_AN_OP = 5e-4
_SECONDS_A_BYTE = 4e-9


class Depth(enum.IntEnum):
    """How far a bad step is searched for the cause."""

    DRAWN = 0  # only the values that it drew
    SHORT = 1  # the whole step if that takes ten seconds at most; else DRAWN
    FULL = 2  # the whole step, however long that takes


class Examination(NamedTuple):
    """What the examination of a bad step has found so far.

    Attributes:
      bad_step: the step; None if what it drew was not kept.
      diagnosis: what made the step bad; None if it was not examined.
      bundle: the path of its bundle, or None.
      depth: how far the step was searched: DRAWN or FULL.
      gets_bundle: whether `keep` writes a bundle even if the training goes on.
      drew_finite: whether all that the step drew is known to be finite, on all ranks.
      row_digests: by the name of a bad row that the step drew, such as 'row 1 of x:0', a digest of
        the row's bytes.
      why_not: what to add to the reason if the step was not examined; else ''.
    """

    bad_step: Optional[BadStep] = None
    diagnosis: Optional[Diagnosis] = None
    bundle: Optional[str] = None
    depth: Depth = Depth.DRAWN
    gets_bundle: bool = False
    drew_finite: bool = False
    row_digests: Mapping[str, str] = {}
    why_not: str = ''

    @property
    def kind(self) -> str:
        """The kind of the cause, for policies."""
        return '' if self.diagnosis is None else self.diagnosis.kind


class _Kinds:
    """The kinds of incidents that were examined before.

    Args:
      most: the most kinds to examine, and the most bundles.
    """

    def __init__(self, most: int):
        self._most = most
        self._known: Set[str] = set()
        self._is_told = False

    def is_wanted(self, incident: Incident, logdir: Optional[str]) -> bool:
        """Whether to examine an incident though the training goes on; the first no is logged."""
        kind = symptom_of(incident)
        is_new = kind not in self._known and len(self._known) < self._most
        if is_new:
            self._known.add(kind)
        if is_new or logdir is None or self._has_room(logdir):
            return True
        if not self._is_told:
            self._is_told = True
            log().warning(
                '%s has as many bundles (folders to run a bad step again from) as max_bundles=%d '
                'allows. Of a bad step like an earlier one slimguard now looks for NaN and Inf in '
                'the batch only, and looks for another cause when the policy would raise or go '
                'back.',
                bundle.folder(logdir),
                self._most,
            )
        return False

    def _has_room(self, logdir: str) -> bool:
        try:
            return len(bundle.paths(logdir)) < self._most
        except Exception:
            return True  # writing the bundle will fail with the reason


class Evidence:
    """Keeps, explains and writes down the bad steps of a gate.

    Args:
      gate: the gate. Its graph must not be finalized.
      logdir: where bundles go; None to write none.
      max_bundles: how many bundles there may be in `logdir`.

    Attributes:
      capture: the `Capture`.
    """

    def __init__(
        self,
        gate: Gate,
        logdir: Optional[str] = None,
        max_bundles: int = 5,
    ):
        require_capture(True, max_bundles)
        self.capture = Capture(gate)
        # Ranks that share their gradients must decide alike, but only one may have the bad batch.
        # So this rank's findings decide nothing.
        self._is_shared = bool(collectives_in(self.capture.ops, Writes(gate.bad.graph)))
        self._logdir = None if logdir is None else files.as_path(logdir)
        self._max_bundles = max_bundles
        self._kinds = _Kinds(max_bundles)
        self._failures: Counter[str] = collections.Counter()

    def keep_in(self, logdir: str) -> None:
        """Writes the bundles to `logdir` from now on, unless a logdir was given before."""
        if self._logdir is None:
            self._logdir = files.as_path(logdir)

    def examine(
        self,
        session,
        incident: Incident,
        labels: Sequence[Label],
        depth: Depth = Depth.DRAWN,
        history: Optional[History] = None,
    ) -> Examination:
        """Diagnoses the bad step that just ran.

        A step that only other ranks found bad is not examined here: the cause is on those ranks,
        and the reason names them.

        Args:
          session, incident, labels: as in `BadStep`.
          depth: how far the step is searched at least. It is raised to `Depth.SHORT` while there
            are fewer than `max_bundles` bundles, and for the first incident of each kind, up to
            `max_bundles` kinds.
          history: as in `BadStep`.
        """
        with OWN_WORK:
            try:
                values = self.capture.take(session)
                fed = [t.name for t in self.capture.sources if t.op.type == 'Placeholder']
                # Values are missing if the run bypassed the hooks, or fed a computed tensor, so
                # that the sources behind it did not run. Then the step cannot be run again.
                if not values.keys() >= set(fed) or (self.capture.sources and not values):
                    return Examination()
                explosion = '' if history is None else explosion_in(history.to_dict())
                is_full = depth is Depth.FULL
                gets_bundle = is_full or self._kinds.is_wanted(incident, self._logdir)
            except Exception as error:
                self._say('what the bad step drew could not be taken', error)
                return Examination()
            if _is_elsewhere(self.capture.gate, labels):
                return Examination()
            bad = bad_sources(self.capture, values)
            name = bad[0].name if bad else ''
            rows = bad_row_digests(values[name]) if bad else {}
            examination = Examination(
                BadStep(session, self.capture, values, labels, incident, history, explosion),
                gets_bundle=gets_bundle,
                drew_finite=not bad and not self._is_shared,
                row_digests={'row %d of %s' % (row, name): name + rows[row] for row in rows},
            )
            depth = max(depth, Depth.SHORT) if gets_bundle else depth
            if depth is Depth.DRAWN and not bad:
                return examination._replace(why_not=_NOT_EXAMINED % self._max_bundles)
            return self._diagnose(examination, depth)

    def keep(self, examination: Examination, incident: Incident, depth: Depth) -> Examination:
        """Writes the bundle of an examined bad step, once the policy has decided.

        Args:
          examination: what `examine` returned.
          incident: the `Incident` as it is known by now.
          depth: FULL if the training ends with this incident: then the whole step is searched, and
            its bundle is written in any case.
        """
        if examination.bad_step is None:
            return examination
        bad_step = examination.bad_step._replace(incident=incident)
        examination = examination._replace(bad_step=bad_step)
        with OWN_WORK:
            if examination.depth < depth:
                examination = self._diagnose(examination, depth)
            if self._logdir is None or not (depth is Depth.FULL or examination.gets_bundle):
                return examination
            diagnosis, most = examination.diagnosis, self._max_bundles
            try:
                path = bundle.write(self._logdir, bad_step, diagnosis, most)
            except Exception as error:
                self._say('the bundle could not be written', error)
                return examination
            return examination._replace(bundle=path)

    def _diagnose(self, examination: Examination, depth: Depth) -> Examination:
        """Finds the cause by a search as far as `depth`, which may be cut short."""
        bad_step = examination.bad_step
        assert bad_step is not None and bad_step.incident is not None
        try:
            why_not = self._why_no_search(bad_step.values, depth, examination.gets_bundle)
            if why_not:
                diagnosis = glance(bad_step, _NO_SEARCH + why_not)
            else:
                diagnosis = diagnose(bad_step)
        except Exception as error:
            self._say('the bad step could not be diagnosed', error)
            return examination._replace(depth=Depth.FULL)  # no second search: it would fail again
        if self._is_shared:
            diagnosis = diagnosis._replace(kind='')
        diagnosis = with_limit(diagnosis, bad_step.incident)
        reached = Depth.DRAWN if why_not else Depth.FULL
        return examination._replace(diagnosis=diagnosis, depth=reached, why_not='')

    def _why_no_search(self, values: Dict[str, np.ndarray], depth: Depth, gets_bundle: bool) -> str:
        """Why the step is not searched; '' if it is."""
        size, free = self.capture.bytes_to_copy(), memory.available()
        if free is not None and size > free:
            return _NO_MEMORY % (files.megabytes(size), files.megabytes(free))
        rows = max([len(value) for value in values.values() if np.ndim(value)], default=1)
        if depth is Depth.DRAWN:
            return _ENOUGH % self._max_bundles
        if depth is Depth.FULL or is_within(SECONDS, self.capture, rows):
            return ''
        where = _NO_LOGDIR if self._logdir is None else _IN_BUNDLE
        where = where if gets_bundle else _ENOUGH % self._max_bundles
        return 'the training would wait for longer than %g s; %s' % (SECONDS, where)

    def close(self) -> None:
        """Logs how many errors like the first of each kind were left out of the log."""
        for what, count in self._failures.items():
            if count > 1:
                log().error('%s: %d more not shown', what, count - 1)
        self._failures.clear()

    def _say(self, what: str, error: Exception) -> None:
        self._failures[what] += 1
        if self._failures[what] == 1:
            log().error('%s: %s: %s', what, type(error).__name__, error)


def collect(
    evidence: Dict[Gate, Evidence],
    gate: Gate,
    logdir: Optional[str] = None,
    max_bundles: int = 5,
) -> None:
    """Adds the `Evidence` of a gate to `evidence`.

    If a graph cannot be captured, the training runs without `Evidence`, and a log line says so. A
    gate gets none if a thread runs it beside the steps: neither the gradients that the chief of
    several workers applies nor a batch that was drawn for summaries can be had again.
    """
    if gate.is_beside:
        return
    try:
        evidence[gate] = Evidence(gate, logdir, max_bundles)
    except Exception as error:
        log().warning('nothing will be captured: %s', error)


def is_within(seconds: float, capture: Capture, rows: int) -> bool:
    """Whether a search through a captured step takes no longer than `seconds`.

    Args:
      seconds: the longest time for the search.
      capture: the `Capture`.
      rows: the size of the batch.
    """
    left = seconds - len(capture.ops) * _SECONDS_AN_OP
    floats = (t for op in capture.ops for t in op.outputs if is_float(t))
    size = capture.bytes_to_copy() + sum(bytes_of(tensor, rows) for tensor in floats)
    return size * _SECONDS_A_BYTE <= left


def _is_elsewhere(gate: Gate, labels: Sequence[Label]) -> bool:
    """Whether other ranks found the step bad, and this one found nothing of its own."""
    ranks = [label.name for label in labels if label.kind == Label.RANK]
    return bool(ranks) and name_of(gate.ranks.rank) not in ranks


def require_capture(capture, max_bundles) -> None:
    """Raises ValueError unless `capture` is a bool and `max_bundles` a positive int."""
    require_bool('capture', capture)
    if isinstance(max_bundles, bool) or not isinstance(max_bundles, int) or max_bundles < 1:
        raise ValueError('max_bundles must be an int, at least 1, not %r' % (max_bundles,))

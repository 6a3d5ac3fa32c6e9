"""After a bad step: takes its captured values, finds the cause, and writes both into a bundle.

:class:`Evidence` puts :mod:`capture`, :mod:`diagnose` and :mod:`bundle` together for the loops that
train. Errors here are logged, not raised: they must not hide the incident. Each bad step may meet
the same error, so the log has the first of each kind, and at the end a count of the others.
"""

import collections
import contextlib
import enum
import time
from typing import Callable, Counter, Dict, Iterator, Mapping, NamedTuple, Optional, Sequence, Set

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
from slimguard.incidents.incident_groups import kind_of
from slimguard.system import files, memory
from slimguard.system.log import log
from slimguard.system.numbers import require_bool

_NO_SEARCH = 'the step was not searched for the cause: '
_NO_TIME = "searches and bundles had taken over a tenth of the training's time"
_NOT_EXAMINED = '; cause not looked for: ' + _NO_TIME
_IN_BUNDLE = 'python -m slimguard replay BUNDLE searches all of it, if a bundle was written'
_NO_MEMORY = 'a copy of its variables takes %s, and %s of memory are free'
_NO_LOGDIR = 'with a logdir there would be a bundle, which is searched by replay'

# How long the search for a cause may take while the training waits for it. A session run cannot be
# interrupted, and the first run of a large graph spends most of its time on preparing it, so the
# time is estimated beforehand. Both rates were measured on two cores, with a step of ResNet-50 and
# one of a detector with 10,000 ops.
SECONDS = 10.0
_SECONDS_AN_OP = 5e-4
_SECONDS_A_BYTE = 4e-9
# While a training goes on, all its searches and bundles together may take this many seconds plus
# this share of the training's time.
_FREE_SECONDS, _SHARE = 10.0, 0.1
# The log says that there is no time for searches if that holds for more than this many seconds.
_WORTH_TELLING = 5.0


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
      bundle: the path of the step's bundle, or None.
      depth: how far the step was searched: DRAWN or FULL.
      drew_finite: whether all that the step drew is known to be finite, on all ranks.
      row_digests: by the name of a bad row that the step drew, such as 'row 1 of x:0', a digest of
        the row's bytes.
      why_not: what to add to the reason if the step was not examined; else ''.
    """

    bad_step: Optional[BadStep] = None
    diagnosis: Optional[Diagnosis] = None
    bundle: Optional[str] = None
    depth: Depth = Depth.DRAWN
    drew_finite: bool = False
    row_digests: Mapping[str, str] = {}
    why_not: str = ''

    @property
    def kind(self) -> str:
        """The kind of the cause, for policies."""
        return '' if self.diagnosis is None else self.diagnosis.kind


class Evidence:
    """Keeps, explains and writes down the bad steps of a gate.

    Args:
      gate: the gate. Its graph must not be finalized.
      logdir: where bundles go; None to write none.
      max_bundles: how many bundles there may be in `logdir`.
      clock: a monotonic clock, in seconds.

    Attributes:
      capture: the `Capture`.
    """

    def __init__(
        self,
        gate: Gate,
        logdir: Optional[str] = None,
        max_bundles: int = 5,
        clock: Callable[[], float] = time.monotonic,
    ):
        require_capture(True, max_bundles)
        self.capture = Capture(gate)
        # Ranks that share their gradients must decide alike, but perhaps only one has the bad
        # batch. So the findings of this rank have no part in the decision.
        self._is_shared = bool(collectives_in(self.capture.ops, Writes(gate.bad.graph)))
        self._logdir = None if logdir is None else files.as_path(logdir)
        self._max_bundles = max_bundles
        self._kinds: Set[str] = set()  # kinds of incidents that got a bundle, or needed none
        self._clock, self._began = clock, clock()
        self._spent = 0.0  # seconds for searches and bundles
        self._is_told = False  # whether the log has said that these took too long
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
          depth: how far the step is searched at least. It is raised to `Depth.SHORT` as long as
            all searches and bundles together took at most 10 s and a tenth of the time since this
            object was made.
          history: as in `BadStep`.
        """
        with OWN_WORK:
            try:
                values = self.capture.take(session)
                fed = [t.name for t in self.capture.sources if t.op.type == 'Placeholder']
                # If the run bypassed the hooks, or fed a computed tensor whose sources then did not
                # run, values are missing, and the step cannot be run again.
                if not values.keys() >= set(fed) or (self.capture.sources and not values):
                    return Examination()
                explosion = '' if history is None else explosion_in(history.to_dict())
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
                drew_finite=not bad and not self._is_shared,
                row_digests={'row %d of %s' % (row, name): name + rows[row] for row in rows},
            )
            if depth is Depth.DRAWN and self._has_time():
                depth = Depth.SHORT
            if depth is Depth.DRAWN and not bad:
                return examination._replace(why_not=_NOT_EXAMINED)
            return self._diagnose(examination, depth)

    def keep(self, examination: Examination, incident: Incident, depth: Depth) -> Examination:
        """Writes the bundle of an examined bad step; call it once the policy has decided.

        While the training goes on, an incident gets a bundle if there are fewer than `max_bundles`,
        or if there was none of its kind.

        Args:
          examination: what `examine` returned.
          incident: the `Incident` as it is known by now, with what `examine` found.
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
            if self._logdir is None or examination.why_not:
                return examination
            diagnosis, most = examination.diagnosis, self._max_bundles
            with self._timed('the bundle could not be written'):
                if depth is Depth.FULL or self._has_room(self._logdir, kind_of(incident)):
                    path = bundle.write(self._logdir, bad_step, diagnosis, most)
                    return examination._replace(bundle=path)
            return examination

    def _has_room(self, logdir: str, kind: str) -> bool:
        """Whether there are fewer than `max_bundles` bundles, or there was none of this kind."""
        paths, is_known = bundle.paths(logdir), kind in self._kinds
        self._kinds.add(kind)
        if len(paths) < self._max_bundles:
            return True
        return not is_known and kind not in map(bundle.kind_in, paths)

    def _diagnose(self, examination: Examination, depth: Depth) -> Examination:
        """Finds the cause by a search as far as `depth`, which may be cut short."""
        bad_step = examination.bad_step
        assert bad_step is not None and bad_step.incident is not None
        with self._timed('the bad step could not be diagnosed'):
            why_not = self._why_no_search(bad_step.values, depth)
            found = glance(bad_step, _NO_SEARCH + why_not) if why_not else diagnose(bad_step)
            if self._is_shared:
                found = found._replace(kind='')
            found = with_limit(found, bad_step.incident)
            depth = Depth.DRAWN if why_not else Depth.FULL
            return examination._replace(diagnosis=found, depth=depth, why_not='')
        # No second search: it would fail in the same way.
        return examination._replace(depth=Depth.FULL, why_not='')

    def _why_no_search(self, values: Dict[str, np.ndarray], depth: Depth) -> str:
        """Why the step is not searched; '' if it is."""
        if depth is Depth.DRAWN:
            return _NO_TIME
        size, free = self.capture.bytes_to_copy(), memory.available()
        if free is not None and size > free:
            return _NO_MEMORY % (files.megabytes(size), files.megabytes(free))
        rows = max([len(value) for value in values.values() if np.ndim(value)], default=1)
        if depth is Depth.FULL or is_within(SECONDS, self.capture, rows):
            return ''
        where = _NO_LOGDIR if self._logdir is None else _IN_BUNDLE
        return 'the training would wait for longer than %g s; %s' % (SECONDS, where)

    def _has_time(self) -> bool:
        """Whether there is time for a search while the training goes on; logs a first long wait."""
        allowed = _FREE_SECONDS + _SHARE * (self._clock() - self._began)
        wait = (self._spent - allowed) / _SHARE
        if wait > _WORTH_TELLING and not self._is_told:
            self._is_told = True
            log().warning(
                'Finding and recording causes has taken %.0f s, so in the next %.0f s slimguard '
                'looks only at the batch of a bad step, unless the policy would raise, stop or '
                'roll back; the policy acts all the same.',
                self._spent,
                wait,
            )
        return self._spent <= allowed

    @contextlib.contextmanager
    def _timed(self, failure: str) -> Iterator[None]:
        """Adds the time of a search or a bundle to the total; logs an error as `failure`."""
        began = self._clock()
        try:
            yield
        except Exception as error:
            self._say(failure, error)
        finally:
            self._spent += self._clock() - began

    def close(self) -> None:
        """Logs, for each kind of error, how many errors after the first are not in the log."""
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
    gate that a thread runs beside the steps gets none: the gradients that a chief applies, or a
    batch for summaries, cannot be drawn again.
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
    """Whether other ranks found the step bad, and this rank found nothing."""
    ranks = [label.name for label in labels if label.kind == Label.RANK]
    return bool(ranks) and name_of(gate.ranks.rank) not in ranks


def require_capture(capture, max_bundles) -> None:
    """Raises ValueError unless `capture` is a bool and `max_bundles` a positive int."""
    require_bool('capture', capture)
    if isinstance(max_bundles, bool) or not isinstance(max_bundles, int) or max_bundles < 1:
        raise ValueError('max_bundles must be an int, at least 1, not %r' % (max_bundles,))

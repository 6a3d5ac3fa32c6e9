"""After a bad step: takes what it drew, finds the cause, and writes both into a bundle.

:class:`Evidence` puts :mod:`capture`, :mod:`diagnose` and :mod:`bundle` together for the loops that
train. Errors here are logged and forgotten: they must not hide the incident.
A failure may come with each bad step: the log has the first of a kind in full, then at most one
every ten seconds, with a count of those left out.
"""

import collections
import functools
import math
import time
import weakref
from typing import Callable, Dict, Mapping, NamedTuple, Optional, Sequence, Set

import numpy as np
import tensorflow.compat.v1 as tf1

from slimguard.diagnosis import bundle
from slimguard.diagnosis.budget import Estimate, seconds_for
from slimguard.diagnosis.capture import Capture
from slimguard.diagnosis.diagnose import bad_sources, diagnose, glance
from slimguard.diagnosis.diagnosis import Diagnosis
from slimguard.diagnosis.disk_room import NoRoomError, Room
from slimguard.diagnosis.ranges import bad_row_digests
from slimguard.diagnosis.rerun import ExportOnce
from slimguard.gate import Gate, Label, name_of
from slimguard.graph import Writes
from slimguard.graph.collectives import collectives_in
from slimguard.graph.sessions import OWN_WORK
from slimguard.incidents.history import History
from slimguard.incidents.incident import replay_hint
from slimguard.incidents.incident_groups import kind_of
from slimguard.system import files
from slimguard.system.log import log
from slimguard.system.numbers import require_bool
from slimguard.system.rate import Rate

_NO_SEARCH = (
    'the step was not searched for the cause: the training would wait for longer than %.3g s; %s'
)
_IN_BUNDLE = 'python -m slimguard replay BUNDLE searches all of it'
_NO_BUNDLE = 'with a logdir there would be a bundle, which is searched by replay'


class Found(NamedTuple):
    """What is known after an incident.

    Attributes:
      diagnosis: what made the step bad; None if it was not examined.
      bundle: the path of its bundle, or None.
      values: what the step drew, by the Tensors' names; None if that was not kept.
      is_searched: whether all of the step was searched, and not only what it drew.
      is_wanted: whether there is to be a bundle.
      drew_finite: whether all that the step drew is known to be finite, on all ranks.
      bad_rows: by the name of a row of what it drew, such as 'row 1 of x:0', what tells it from
        others by its bytes.
    """

    diagnosis: Optional[Diagnosis] = None
    bundle: Optional[str] = None
    values: Optional[Dict[str, np.ndarray]] = None
    is_searched: bool = False
    is_wanted: bool = False
    drew_finite: bool = False
    bad_rows: Mapping[str, str] = {}

    @property
    def cause(self) -> str:
        """The kind of the cause, as policies ask for it."""
        return '' if self.diagnosis is None else self.diagnosis.kind

    def __str__(self) -> str:
        lines = [] if self.diagnosis is None else [str(self.diagnosis)]
        if self.bundle is not None:
            lines.append(replay_hint(self.bundle))
        return '\n'.join(lines)


# Of which folders it was said that they are full: once for all train ops of a graph.
_FULL: 'weakref.WeakKeyDictionary[tf1.Graph, Set[str]]' = weakref.WeakKeyDictionary()


class _Kinds:
    """The kinds of incidents that were examined before.

    Args:
      most: how many there may be, and how many bundles.
      graph: the graph of the training.
    """

    def __init__(self, most: int, graph: tf1.Graph):
        self._most = most
        self._graph = graph
        self._known: Set[str] = set()

    def is_wanted(self, reason: str, logdir: Optional[str]) -> bool:
        """Whether an incident of a training that goes on is examined; said once if not."""
        kind = kind_of(reason)
        is_new = kind not in self._known and len(self._known) < self._most
        if is_new:
            self._known.add(kind)
        if is_new or logdir is None or self._has_room(logdir):
            return True
        folder = bundle.folder(logdir)
        told = _FULL.setdefault(self._graph, set())
        if folder not in told:
            told.add(folder)
            log().warning(
                'slimguard: %s has %d bundles, as many as there may be: further incidents are '
                'recorded, and of those only the first of a kind is examined, and those on which '
                'it depends what is done. More are kept with max_bundles.',
                folder,
                self._most,
            )
        return False

    def _has_room(self, logdir: str) -> bool:
        try:
            return len(bundle.own_paths(logdir)) < self._most
        except Exception:
            return True  # the attempt to write will say what is wrong there


class Evidence:
    """Keeps, explains and writes down the bad steps of a gate.

    Args:
      gate: the gate. Its graph must not be finalized.
      logdir: where bundles go; None to write none. Unfinished bundles of processes that were killed
        are removed from it.
      max_bundles: how many bundles there may be in `logdir`.
      room: what bundles share with the training's checkpoints; None if there are none to be.
      clock: seconds that only grow.

    Attributes:
      capture: the `Capture`.
      fetch: an Operation to fetch in every step, beside the train op.
    """

    def __init__(
        self,
        gate: Gate,
        logdir: Optional[str] = None,
        max_bundles: int = 5,
        room: Optional[Room] = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        require_capture(True, max_bundles)
        self.capture = Capture(gate)
        self.fetch = self.capture.fetch
        # For diagnosis and bundle, of all incidents: it takes as long as some steps.
        self._export = ExportOnce(self.capture)
        # Ranks that share their gradients have to decide the same, and the bad batch may be one's
        # alone: so what this one finds does not decide.
        self._is_shared = bool(collectives_in(self.capture.ops, Writes(gate.bad.graph)))
        self._estimate = Estimate(self.capture)
        self._logdir = None if logdir is None else files.as_path(logdir)
        self._max_bundles = max_bundles
        self._room = room
        self._no_room = Rate(seconds=None)
        self._kinds = _Kinds(max_bundles, gate.bad.graph)
        self._failures: Dict[str, Rate] = collections.defaultdict(lambda: Rate(clock=clock))
        if self._logdir is not None:
            _tidy_up(self._logdir)

    def keep_in(self, logdir: str) -> None:
        """From now on writes bundles, where there was no logdir to write them to."""
        if self._logdir is None:
            self._logdir = files.as_path(logdir)
            _tidy_up(self._logdir)

    def examine(
        self,
        session,
        incident,
        labels: Sequence[Label],
        decides: bool = False,
        is_last: bool = False,
        step_seconds: float = 0.0,
    ) -> Found:
        """Diagnoses the bad step that just ran.

        Not where other ranks found it, which the reason says: there the cause is.

        While the training goes on it waits for this, so the search for the cause takes no longer
        than a second, or twenty steps. Where it would, only what the step drew is looked at.

        Args:
          session: the session, with the variables as the bad step left them.
          incident: the `Incident`.
          labels: the labels of what the gate found to be bad.
          decides: whether what is done depends on what is found. Then the step is examined in any
            case. Else incidents are examined until there are as many bundles as there may be; then
            the first of each kind, as many kinds as bundles, and the others cost nothing.
          is_last: whether the training ends with it, so that the search may take its time.
          step_seconds: how long a step takes; 0 if that is not known.
        """
        with OWN_WORK:
            try:
                values = self.capture.take(session)
                fed = [t.name for t in self.capture.sources if t.op.type == 'Placeholder']
                # A run that went past the hooks, or left out what some of it is computed from.
                if not values.keys() >= set(fed) or (self.capture.sources and not values):
                    return Found()
                is_wanted = is_last or self._kinds.is_wanted(incident.reason, self._logdir)
            except Exception as error:
                self._say('what the bad step drew could not be taken', error)
                return Found()
            if _is_elsewhere(self.capture.gate, labels):
                return Found()
            bad = bad_sources(self.capture, values)
            name = bad[0].name if bad else ''
            rows = bad_row_digests(values[name]) if bad else {}
            found = Found(
                values=values,
                is_wanted=is_wanted,
                drew_finite=not bad and not self._is_shared,
                bad_rows={'row %d of %s' % (row, name): name + rows[row] for row in rows},
            )
            if not (is_wanted or decides):
                return found
            seconds = math.inf if is_last else seconds_for(step_seconds)
            if not is_last and bad:
                seconds = seconds_for(0.0)  # a glance tells as much, all but certainly
            return self._diagnose(session, found, labels, seconds, incident.loss)

    def keep(
        self,
        session,
        incident,
        labels: Sequence[Label],
        found: Found,
        is_last: bool = True,
        history: Optional[History] = None,
    ) -> Found:
        """Writes the bundle of a bad step that was examined, now that it is known what is done.

        Args:
          session: the session, with the variables as the bad step left them.
          incident: the `Incident`.
          labels: the labels of what the gate found to be bad.
          found: what `examine` returned.
          is_last: whether the training ends with it. Then it is searched in any case, as long as
            that takes, and has a bundle.
          history: the last steps, for the bundle; None if they are not known.
        """
        values = found.values
        if values is None:
            return found
        with OWN_WORK:
            if is_last and not found.is_searched:
                found = self._diagnose(session, found, labels, math.inf, incident.loss)
            if self._logdir is None or not (is_last or found.is_wanted):
                return found
            write = functools.partial(
                bundle.write,
                self._logdir,
                session,
                self.capture,
                incident,
                values,
                found.diagnosis,
                self._max_bundles,
                export=self._export,
                history=history,
            )
            return found._replace(bundle=self._keep(write))

    def _diagnose(
        self,
        session,
        found: Found,
        labels: Sequence[Label],
        seconds: float,
        loss: Optional[float],
    ) -> Found:
        values = found.values or {}
        rows = max([len(value) for value in values.values() if np.ndim(value)], default=1)
        try:
            is_searched = self._estimate.is_within(seconds, rows)
            if is_searched:
                said = diagnose(session, self.capture, values, labels, self._export, loss)
            else:
                why = _NO_SEARCH % (seconds, _NO_BUNDLE if self._logdir is None else _IN_BUNDLE)
                said = glance(self.capture, values, why)
        except Exception as error:
            self._say('the bad step could not be diagnosed', error)
            return found._replace(is_searched=True)  # it would fail again
        if self._is_shared:
            said = said._replace(kind='')
        return found._replace(diagnosis=said, is_searched=is_searched)

    def _keep(self, write: Callable[..., str]) -> Optional[str]:
        """Writes a bundle if it can; returns its path."""
        try:
            return write() if self._room is None else _write_in(self._room, write)
        except NoRoomError as error:
            if self._no_room.is_due():
                log().warning(
                    'slimguard: no bundle is written: %s. Until there is room, incidents have '
                    'none; this is said once.',
                    error,
                )
        except Exception as error:
            self._say('the bundle could not be written', error)
        return None

    def close(self) -> None:
        """Says how many lines were held back."""
        told = [(what, rate) for what, rate in self._failures.items() if rate.held_back]
        for what, rate in told:
            log().error(
                'slimguard: %s: %d more since the last of these lines', what, rate.held_back
            )
            rate.held_back = 0
        if self._no_room.held_back:
            log().warning(
                'slimguard: for lack of room %d incidents more have no bundle.',
                self._no_room.held_back,
            )
            self._no_room.held_back = 0

    def _say(self, what: str, error: Exception) -> None:
        rate = self._failures[what]
        if rate.is_due():
            _log_failure(what, error, rate.told())


def collect(
    found: Dict[Gate, Evidence],
    gate: Gate,
    logdir: Optional[str] = None,
    max_bundles: int = 5,
    room: Optional[Room] = None,
) -> None:
    """Adds the `Evidence` of a gate to `found`.

    A graph beyond what we know is trained all the same; then a log line says that it has none.
    Of what a thread runs there is none: a chief's gradients were taken, and nothing computes them
    again; a batch that was drawn for summaries is gone.
    """
    if gate.is_beside:
        return
    try:
        found[gate] = Evidence(gate, logdir, max_bundles, room)
    except Exception as error:
        log().warning('slimguard: nothing will be captured: %s', error)


def _is_elsewhere(gate: Gate, labels: Sequence[Label]) -> bool:
    """Whether other ranks found what made the step bad, and this one nothing of its own."""
    told = [label.name for label in labels if label.kind == 'rank']
    return bool(told) and name_of(gate.ranks.rank) not in told


def _write_in(room: Room, write: Callable[..., str]) -> str:
    """Writes a bundle where checkpoints need room too."""
    with room.lock:
        return write(require_room=room.require)


def _tidy_up(logdir: str) -> None:
    """Removes what a process that was killed has left of a bundle."""
    try:
        bundle.remove_abandoned(logdir)
    except Exception as error:
        _log_failure(
            'what is left of unfinished bundles in %s could not be removed' % logdir, error
        )


def require_capture(capture, max_bundles) -> None:
    """Raises ValueError unless `capture` is a bool and `max_bundles` a positive int."""
    require_bool('capture', capture)
    if isinstance(max_bundles, bool) or not isinstance(max_bundles, int) or max_bundles < 1:
        raise ValueError('max_bundles must be an int, at least 1, not %r' % (max_bundles,))


def _log_failure(what: str, error: Exception, more: str = '') -> None:
    log().error('slimguard: %s: %s: %s%s', what, type(error).__name__, error, more)

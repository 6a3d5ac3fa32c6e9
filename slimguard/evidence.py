"""After a bad step: takes what it drew, finds the cause, and writes both into a bundle.

:class:`Evidence` puts :mod:`capture`, :mod:`diagnose` and :mod:`bundle` together for the loops that
train. Whatever goes wrong here is logged and forgotten: it must not hide the incident.
"""

from typing import NamedTuple, Optional, Sequence

import tensorflow as tf

from slimguard import bundle, files
from slimguard.capture import Capture
from slimguard.diagnose import Diagnosis, diagnose
from slimguard.gate import Gate, Label
from slimguard.incident import replay_hint

tf1 = tf.compat.v1


class Found(NamedTuple):
    """What is known after an incident; None for what is not."""

    diagnosis: Optional[Diagnosis] = None
    bundle: Optional[str] = None

    def __str__(self) -> str:
        lines = [] if self.diagnosis is None else [str(self.diagnosis)]
        if self.bundle is not None:
            lines.append(replay_hint(self.bundle))
        return '\n'.join(lines)


class Evidence:
    """Keeps, explains and writes down the bad steps of a gate.

    Args:
      gate: the gate. Its graph must not be finalized.
      logdir: where bundles go; None to write none. What a process that was killed has left of one
        there is removed.
      max_bundles: how many bundles there may be in `logdir`.

    Attributes:
      capture: the `Capture`.
      fetch: an Operation to fetch in every step, beside the train op.
    """

    def __init__(self, gate: Gate, logdir: Optional[str] = None, max_bundles: int = 5):
        require_max_bundles(max_bundles)
        self.capture = Capture(gate)
        self.fetch = self.capture.fetch
        self._logdir = None if logdir is None else files.as_path(logdir)
        self._max_bundles = max_bundles
        if self._logdir is not None:
            _tidy_up(self._logdir)

    def examine(self, session, incident, labels: Sequence[Label], is_last: bool = True) -> Found:
        """Diagnoses the bad step that just ran, and writes its bundle.

        Args:
          session: the session, with the variables as the bad step left them.
          incident: the `Incident`.
          labels: the labels of what the gate found to be bad.
          is_last: whether the training ends with it. While it goes on, as many bundles are
            written as there may be, and later incidents cost nothing; the last one always is.
        """
        try:
            values = self.capture.take(session)
            if not (is_last or self._has_room()):
                return Found()
        except Exception as error:
            return _failed('what the bad step drew could not be taken', error)
        try:
            diagnosis = diagnose(session, self.capture, values, labels)  # type: Optional[Diagnosis]
        except Exception as error:
            diagnosis = _failed('the bad step could not be diagnosed', error).diagnosis
        if self._logdir is None:
            return Found(diagnosis)
        try:
            path = bundle.write(
                self._logdir, session, self.capture, incident, values, diagnosis, self._max_bundles
            )
        except Exception as error:
            return _failed('the bundle could not be written', error)._replace(diagnosis=diagnosis)
        return Found(diagnosis, path)

    def _has_room(self) -> bool:
        try:
            return self._logdir is None or len(bundle.own_paths(self._logdir)) < self._max_bundles
        except Exception:
            return True  # the attempt to write will say what is wrong there


def _tidy_up(logdir: str) -> None:
    """Removes what a process that was killed has left of a bundle."""
    try:
        bundle.remove_abandoned(logdir)
    except Exception as error:
        _failed('what is left of unfinished bundles in %s could not be removed' % logdir, error)


def require_max_bundles(max_bundles) -> None:
    """Raises ValueError unless `max_bundles` is a positive int."""
    if isinstance(max_bundles, bool) or not isinstance(max_bundles, int) or max_bundles < 1:
        raise ValueError('max_bundles must be an int, at least 1, not %r' % (max_bundles,))


def _failed(what: str, error: Exception) -> Found:
    tf1.logging.error('slimguard: %s: %s: %s', what, type(error).__name__, error)
    return Found()

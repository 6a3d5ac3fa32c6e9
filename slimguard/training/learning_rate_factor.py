"""The factor of the learning rates after rollbacks, kept beside the checkpoints for a restart.

A session holds the factor (:mod:`slimguard.gate.learning_rates`), and loses it when it is closed.
For a restart the factor is also in the file ``LOGDIR/slimguard/learning_rate.json``, and not in the
checkpoints, which plain slim must be able to read.
"""

import json
import os
from typing import Callable, Optional

import tensorflow as tf

from slimguard import gate as gates
from slimguard.incidents.fallback_chain import FallbackChain
from slimguard.system import files
from slimguard.system.log import log

# The most bytes to read from the file; it normally has some forty.
_MOST_BYTES = 10000
_ALONE = gates.Ranks()


class LearningRateFactor:
    """The factor of one training's learning rates: in its sessions, and in its logdir.

    Args:
      rates: multiplies the learning rates by the factor of a session.
      directory: returns the directory of the checkpoints; None as long as it is not known.
      ranks: the processes that train together. The first keeps the factor, and sends it to the
        others before they train.
    """

    def __init__(
        self,
        rates: gates.LearningRates,
        directory: Callable[[], Optional[str]],
        ranks: gates.Ranks = _ALONE,
    ):
        self._rates = rates
        self._ranks = ranks
        is_told = ranks.exchange is not None or not ranks.are_several
        self._directory = directory if is_told and not ranks.rank else lambda: None
        self._factor = 1.0
        self._kept_in: Optional[str] = None
        self._is_told = False  # whether the log says that it is kept nowhere

    def enter(self, session) -> None:
        """Sets the factor in a session before it trains; a smaller factor in the logdir counts."""
        self._catch_up()
        if self._ranks.exchange is not None:
            self._factor = float(self._ranks.exchange('factor', repr(self._factor))[0])
        self._rates.set(session, self._factor)

    def before_step(self, session) -> None:
        """As `enter`, once it is known where the checkpoints are."""
        if self._directory() != self._kept_in and not self._ranks.are_several:
            self.enter(session)

    def after(self, session, by: float) -> float:
        """The factor after one more rollback that multiplies it by `by`."""
        if not self._rates.is_used:
            raise gates.NoLearningRateError(_NOT_USED % by)
        return min(self._factor, self._rates.get(session)) * by

    def shrink_to(self, session, factor: float) -> str:
        """Lowers the factor to `factor`, unless it is smaller already; keeps it on disk.

        Returns the sentence to log if it could not be kept; else ''.
        """
        why_not = ''
        if factor < self._factor:
            self._factor = factor
            why_not = self._keep()
        self._rates.set(session, self._factor)
        return why_not

    def _catch_up(self) -> None:
        """Uses the factor of the logdir if it is smaller."""
        directory = self._directory()
        if directory is None or directory == self._kept_in:
            return
        kept = _read(directory)
        self._kept_in = directory
        if kept < self._factor:
            self._factor = kept
            log().warning(
                'the learning rate is x%g, as rollbacks of an earlier run lowered it; %s keeps '
                'that. For the full rate, end this run, remove the file, and start again.',
                kept,
                _path_in(directory),
            )
        elif self._factor < kept:
            log_error(self._keep())

    def _keep(self) -> str:
        """Writes the factor to the logdir; returns what to log if that fails, else ''."""
        directory = self._directory()
        if self._ranks.rank:
            return ''
        if directory is None:
            told, self._is_told = '' if self._is_told else _NOT_KEPT, True
            return told
        self._kept_in = directory
        path = _path_in(directory)
        try:
            files.make_dirs(os.path.dirname(path))
            files.write_atomically(path, json.dumps({'factor': self._factor}).encode() + b'\n')
        except (OSError, tf.errors.OpError) as error:
            return _NOT_WRITTEN % (self._factor, path, error)
        return ''


def log_error(told: str) -> None:
    """Logs a sentence as an error; '' is none."""
    if told:
        log().error('%s', told)


def rate_factor_in(
    graph: tf.Graph,
    policies: FallbackChain,
    directory: Callable[[], Optional[str]],
    is_shared: bool,
    ranks: gates.Ranks = _ALONE,
) -> Optional[LearningRateFactor]:
    """The `LearningRateFactor` of a graph; None if no policy lowers or lowered its learning rate.

    Args:
      graph: the graph of the training.
      policies: the policies in force.
      directory: tells where the checkpoints are.
      is_shared: whether all processes of a job use the same factor.
      ranks: the processes that train together.

    Raises:
      ValueError: if an op writes weights without a learning rate.
    """
    rates = gates.learning_rates_of(graph)
    if policies.learning_rate is None:
        warn_of_another_policy(directory())
        return None if rates is None else LearningRateFactor(rates, lambda: None, ranks)
    rates = rates or gates.scale_learning_rates(graph, is_shared)
    return LearningRateFactor(rates, directory, ranks)


def warn_of_another_policy(directory: Optional[str]) -> None:
    """Warns that a training uses its full learning rate again if an earlier training used less."""
    kept = 1.0 if directory is None else _read(directory)
    if directory is not None and kept < 1:
        log().warning(
            'the learning rate was x%g when the training in %s ended, as %s says. It is the full '
            'rate again, as no policy here has a factor; rollback:3x0.1 would go on with x%g.',
            kept,
            directory,
            _path_in(directory),
            kept,
        )


def _path_in(directory: str) -> str:
    return os.path.join(directory, 'slimguard', 'learning_rate.json')


def _read(directory: str) -> float:
    """The factor that is kept in a directory; 1 if there is no factor, or it cannot be read."""
    path = _path_in(directory)
    try:
        with files.open_to_read(path) as file:
            factor = json.loads(file.read(_MOST_BYTES).decode('utf-8'))['factor']
        if not isinstance(factor, (int, float)) or not 0 < factor <= 1:
            raise ValueError('its factor is %r, not above 0 and at most 1' % (factor,))
        return float(factor)
    except files.errors_of_absence(path):
        return 1.0
    except (*files.errors(path), ValueError, TypeError, KeyError) as error:
        log().error(_UNREADABLE, path, error)
        return 1.0


_NOT_KEPT = (
    'the learning rate is smaller from now on. No checkpoint is saved yet, so this is kept '
    'nowhere: save one, or a restart begins with the full rate.'
)
_NOT_WRITTEN = (
    'the learning rate is x%g from now on, but %s cannot be written: %s. Mend that, or lower the '
    'rate by hand, before a restart: it would begin with the full rate.'
)
_NOT_USED = (
    'Rollback(learning_rate=%g) cannot make updates smaller: no guarded op here takes a learning '
    'rate. Leave the factor out (rollback:3), or lower the rate in Rollback(on_rollback=...)'
)
_UNREADABLE = (
    '%s cannot be read, so the learning rate is the full one: %s. Remove the file to keep that, or '
    'write {"factor": 0.5} there for half of it'
)

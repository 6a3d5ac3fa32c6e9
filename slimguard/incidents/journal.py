"""The journal of a training: each incident goes to the log, the record's file and TensorBoard."""

import time
from typing import Callable, Optional

import tensorflow.compat.v1 as tf1

from slimguard.incidents.incident import Incident
from slimguard.incidents.record_file import IncidentFile
from slimguard.system.rate import Rate

# The first incidents are logged one by one.
_FIRST = 10

_DONE = {
    'raise': 'raising NanLossError',
    'stop': 'stopping the training',
    'skip': 'skipping this batch',
    'rollback': 'rolling back',
}


class Journal:
    """Writes incidents down, everywhere.

    Args:
      logdir: where the file goes, which is made at once; None for no file.
      summary_writer: a `tf.compat.v1.summary.FileWriter` for the count of incidents and their
        reasons, or None.
      clock: seconds that only grow.

    Attributes:
      count: the number of incidents so far.
    """

    def __init__(
        self,
        logdir: Optional[str] = None,
        summary_writer=None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.count = 0
        self._file = None if logdir is None else IncidentFile(logdir)
        self._summary_writer = summary_writer
        self._rate = Rate(_FIRST, clock=clock)
        if self._file is not None:
            self._file.make()

    def keep_in(self, logdir: str) -> None:
        """From now on keeps a file, where there was no logdir."""
        if self._file is None:
            self._file = IncidentFile(logdir)
            self._file.make()

    def record(self, incident: Incident, done_by: str = '', cause: Optional[str] = None) -> None:
        """Writes one incident down.

        Args:
          incident: the incident, with its action.
          done_by: who acted, where no policy did.
          cause: what made the step bad, in one line without a full stop; None if it is not known.
        """
        self.count += 1
        if self._file is not None:
            self._file.append(incident)
        self._summarize(incident)
        self._log(incident, done_by, cause)

    def close(self, told: str = '') -> None:
        """Says how many log lines were held back, and what else there is, and closes the file."""
        if self._rate.held_back:
            tf1.logging.warning(
                'slimguard: %d incidents in all; the last %d were not logged one by one.',
                self.count,
                self._rate.held_back,
            )
            self._rate.held_back = 0
        if told:
            tf1.logging.warning('slimguard: %s.', told)
        if self._file is not None:
            self._file.close()

    # TensorBoard.

    def _summarize(self, incident: Incident) -> None:
        if self._summary_writer is None:
            return
        summary = tf1.Summary()
        summary.value.add(tag='slimguard/incidents', simple_value=self.count)
        reason = '%s (%s)' % (incident.reason, incident.action)
        text = summary.value.add(tag='slimguard/reason', tensor=tf1.make_tensor_proto(reason))
        text.metadata.plugin_data.plugin_name = 'text'
        if incident.learning_rate is not None:
            tag = 'slimguard/learning_rate_factor'
            summary.value.add(tag=tag, simple_value=incident.learning_rate)
        self._summary_writer.add_summary(summary, incident.step)
        self._summary_writer.flush()

    # The log.

    def _log(self, incident: Incident, done_by: str, cause: Optional[str]) -> None:
        goes_on = incident.action in ('skip', 'on_nan_loss')
        if not self._rate.is_due(must=not goes_on):
            return
        others = '%s failed' if incident.action == 'error' else 'left to %s'
        done = _DONE.get(incident.action or '', others % done_by)
        if incident.restored is not None:
            done += ' to ' + incident.restored
        if incident.learning_rate is not None:
            done += ', learning rate x%g from now on' % incident.learning_rate
        log = tf1.logging.warning if incident.action == 'skip' else tf1.logging.error
        # A NanLossError tells it itself.
        why = (
            ''
            if cause is None or incident.action == 'raise'
            else ' Why the step was bad: %s.' % cause
        )
        told = self._rate.told()
        log('slimguard: incident %d %s; %s.%s%s', self.count, incident, done, why, told)

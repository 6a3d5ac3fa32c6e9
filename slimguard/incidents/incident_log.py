""":class:`IncidentLog`: the log lines of incidents. It also writes the record, by record_file.py.

In the log, the first line of an incident gives its cause and place, the second line the action.
A third line gives its advice, unless the error that it raises does. A later incident with the same
cause has one line. The last line of a training gives the command that shows what happened.
"""

import time
import types
from typing import Callable, Dict, Mapping, Optional, Tuple

import tensorflow.compat.v1 as tf1

from slimguard.incidents.incident import Incident, report_hint
from slimguard.incidents.incident_groups import kind_of, symptom_of
from slimguard.incidents.record_file import IncidentFile
from slimguard.system.log import log

# The first incidents, and the first of each cause, are logged one by one. Others that do not end
# the training are logged at most once in this many seconds.
_FIRST, _SECONDS = 3, 10.0

_DONE = {
    'raise': 'raising NanLossError',
    'stop': 'stopping the training',
    'skip': 'batch skipped',
    'rollback': 'rolled back',
}
# The number of bad rows that are remembered.
_MOST_ROWS = 10000
_NO_RECORD = (
    'no record of incidents is kept, as no logdir is known; pass '
    "logdir='logs' to slimguard.watch(), slimguard.train() or NanLossHook() to keep one."
)


class IncidentLog:
    """Writes incidents to the log, the record and TensorBoard.

    Args:
      logdir: the directory of the record; its file is made at once. None for no record.
      summary_writer: a `tf.compat.v1.summary.FileWriter` for the count of incidents and their
        reasons, or None.
      clock: a monotonic clock, in seconds.
      is_elsewhere: whether another process writes the record.

    Attributes:
      count: the number of incidents of this training so far.
      logdir: the directory of the record, or None.
    """

    def __init__(
        self,
        logdir: Optional[str] = None,
        summary_writer=None,
        clock: Callable[[], float] = time.monotonic,
        is_elsewhere: bool = False,
    ):
        self.count = self._number = 0  # _number: the place of the last incident in the record
        self.logdir: Optional[str] = None
        self._file: Optional[IncidentFile] = None
        self._summary_writer = summary_writer
        self._is_elsewhere = is_elsewhere
        self._clock = clock
        self._last_logged = 0.0
        self._held_back = 0  # how many incidents were not logged since then
        self._is_raised = False  # whether the last incident ended in a NanLossError
        # By kind and by symptom, the number of the first incident that was logged.
        self._kinds: Dict[str, int] = {}
        # By digest of a bad row: the number of its first incident, and how many incidents had it.
        self._rows: Dict[str, Tuple[int, int]] = {}
        if logdir is not None:
            self.keep_in(logdir)

    def keep_in(self, logdir: str) -> None:
        """From now on keeps a record in `logdir`, unless there was a logdir before."""
        if self._file is None:
            self.logdir = logdir
            self._file = IncidentFile(logdir)
            self._file.make()

    @property
    def missing(self) -> int:
        """How many incidents could not be written to the record."""
        return 0 if self._file is None else self._file.missing

    def again(self, rows: Mapping[str, str]) -> str:
        """The end of a reason that says that an earlier incident had one of the bad rows; or ''.

        Args:
          rows: the bad rows of the incident, as for `record`.
        """
        came = [
            (self._rows[row][1] + 1, name, row) for name, row in rows.items() if row in self._rows
        ]
        if not came:
            return ''
        times, name, row = max(came)
        return _CAME % (name, self._rows[row][0], times)

    def record(
        self,
        incident: Incident,
        done_by: str = '',
        cause: Optional[str] = None,
        spent: str = '',
        why: str = '',
        rows: Mapping[str, str] = types.MappingProxyType({}),
    ) -> None:
        """Writes one incident down.

        Args:
          incident: the incident, with its action.
          done_by: what acted, for the log: 'on_nan' for a policy, else the user's method.
          cause: what made the step bad, in one line without a full stop; None if it is not known.
          spent: how much of its policy is used up, such as ' (1 of 3 times)'.
          why: the end of its reason: why this action, and why earlier policies did not apply.
          rows: digests of the bad rows that the step drew, by the names of the rows.
        """
        self.count += 1
        recorded = 0 if self._file is None else self._file.append(incident)
        self._number = max(self._number + 1, recorded)
        for row in set(rows.values()):
            if row in self._rows or len(self._rows) < _MOST_ROWS:
                first, times = self._rows.get(row, (self._number, 0))
                self._rows[row] = first, times + 1
        self._summarize(incident)
        self._is_raised = incident.action == 'raise'
        self._log(incident, cause, _done(incident, done_by) + spent, why)
        if self._file is None and self.count == 1 and not self._is_elsewhere:
            log().warning(_NO_RECORD)

    def close(self, told: str = '') -> None:
        """Logs how many lines were left out, then `told` if it is not empty; closes the file."""
        if self._held_back:
            log().warning(
                '%d incidents in all; the last %d were not logged one by one.',
                self.count,
                self._held_back,
            )
            self._held_back = 0
        if told and self.logdir is not None and self.count > self.missing and not self._is_raised:
            log().warning('%s.\n    %s', told, report_hint(self.logdir))
        elif told:
            log().warning('%s.', told)
        if self._file is not None:
            self._file.close()

    # TensorBoard.

    def _summarize(self, incident: Incident) -> None:
        if self._summary_writer is None:
            return
        summary = tf1.Summary()
        summary.value.add(tag='slimguard/incidents', simple_value=self._number)
        reason = '%s (%s)' % (incident.reason, incident.action)
        text = summary.value.add(tag='slimguard/reason', tensor=tf1.make_tensor_proto(reason))
        text.metadata.plugin_data.plugin_name = 'text'
        if incident.learning_rate is not None:
            tag = 'slimguard/learning_rate_factor'
            summary.value.add(tag=tag, simple_value=incident.learning_rate)
        self._summary_writer.add_summary(summary, incident.step)
        self._summary_writer.flush()

    # The log.

    def _log(self, incident: Incident, cause: Optional[str], done: str, why: str) -> None:
        symptom = symptom_of(incident)
        kind = symptom if cause is None else kind_of(incident)
        goes_on = incident.action in ('skip', 'on_nan_loss')
        now = self._clock()
        is_new = cause is not None and kind not in self._kinds
        may_wait = goes_on and self.count > _FIRST and not is_new
        if may_wait and now - self._last_logged < _SECONDS:
            self._held_back += 1
            return
        self._last_logged = now
        first = self._kinds.setdefault(kind, self._number)
        # If a cause was logged in full, its symptom was, too.
        self._kinds.setdefault(symptom, first)
        is_first = first == self._number
        say = log().warning if incident.action == 'skip' and not is_first else log().error
        if self._held_back:
            done += ' (%d more not shown)' % self._held_back
            self._held_back = 0
        what, between = cause or incident.reason_in_short.replace(why, ''), '.\n    '
        if not is_first:
            what, between = what.partition('; ')[0], '; '
            seen, listed, _ = incident.reason.partition(': ')
            if cause is None and listed and len(incident.tensors) > 1:
                what = '%s: the tensors of incident %d' % (seen, first)
            else:
                what += ', see incident %d' % first
        done += why + '.'
        if incident.advice and is_first and not self._is_raised:
            done += '\n    ' + incident.advice
        say('incident %d %s: %s%s%s', self._number, incident.where, what, between, done)


_CAME = (
    '; %s is, byte for byte, a bad row of incident %d (%d times so far): where a data set or a '
    'buffer draws it again, take it out there'
)


def _done(incident: Incident, done_by: str) -> str:
    """What happened to the update and to the training."""
    if incident.action in ('error', 'interrupted'):  # `why` names the signal or the error
        return incident.update
    done = _DONE.get(incident.action or '', 'left to %s' % done_by)
    if incident.restored is not None:
        done += ' to ' + incident.restored
    if incident.learning_rate is not None:
        done += ', learning rate x%g from now on' % incident.learning_rate
    return '%s, %s' % (incident.update, done)

"""All there is to report about a training: read from its log directory, checked, and made plain."""

import datetime
import os
from typing import List, NamedTuple, Optional, Tuple

import tensorflow as tf

import slimguard
from slimguard.diagnosis import bundle
from slimguard.incidents import record_reader
from slimguard.report import bundle_view, incident_view, loss_history, loss_tails
from slimguard.report.bundle_view import AnyBundle, BundleView
from slimguard.report.incident_view import ACTIONS, IncidentView
from slimguard.report.last_steps import LastSteps
from slimguard.report.loss_history import Curve
from slimguard.system import files
from slimguard.system.texts import cut

# So many bundles, and so much of each: a page has to open on a phone.
_MOST_BUNDLES, _MOST_IMAGES = 20, 12 << 20  # bytes, of all bundles
_MOST_NOTES = 20


class ReportData(NamedTuple):
    """All there is to report.

    Attributes:
      title: the base name of the log directory.
      made: when, and with what.
      curve: the loss, or None.
      incidents: the record of incidents, the oldest first.
      bundles: the oldest first.
      notes: what could not be read.
      has_record: whether there is a record of incidents, readable or not.
      broken: why the record as a whole cannot be read; '' if it can.
    """

    title: str
    made: str
    curve: Optional[Curve]
    incidents: List[IncidentView]
    bundles: List[AnyBundle]
    notes: List[str]
    has_record: bool = True
    broken: str = ''


class _Record(NamedTuple):
    incidents: List[IncidentView]
    notes: List[str]
    is_there: bool = True
    broken: str = ''


def gather(logdir: str) -> ReportData:
    """Reads what the log directory of a training holds. Never fails because of what is in it."""
    curve, notes = loss_history.read(logdir)
    record = _record(logdir)
    bundles, more = _bundles(logdir)
    return ReportData(
        title=title_of(logdir),
        made=_made(),
        curve=loss_tails.with_tails(curve, _histories(bundles)),
        incidents=record.incidents,
        bundles=bundles,
        notes=_not_too_many(notes + record.notes + more),
        has_record=record.is_there,
        broken=record.broken,
    )


def _histories(bundles: List[AnyBundle]) -> List[LastSteps]:
    readable = [bundle for bundle in bundles if isinstance(bundle, BundleView)]
    return [bundle.steps for bundle in readable if bundle.steps is not None]


def title_of(logdir: str) -> str:
    """The base name of a log directory."""
    path = files.as_path(logdir)
    return os.path.basename(path.rstrip('/\\')) or path


def _made() -> str:
    now = datetime.datetime.now().strftime('%Y-%m-%d %H:%M')
    versions = 'TensorFlow %s, slimguard %s' % (tf.__version__, slimguard.__version__)
    return 'Made %s with %s' % (now, versions)


def _not_too_many(notes: List[str]) -> List[str]:
    shown = [cut(note, 1000) for note in notes[:_MOST_NOTES]]
    left_out = len(notes) - len(shown)
    return shown + ['%d more notes like these are not shown.' % left_out] if left_out else shown


def _record(logdir: str) -> _Record:
    try:
        record = record_reader.read_record(logdir)
    except FileNotFoundError:
        return _Record([], [], is_there=False)
    except Exception as error:  # whatever it is, it must not cost the rest of the page
        return _Record([], [], broken=_sentence(error))
    if record.is_foreign:
        count = record.unreadable + record.foreign
        what = 'its only line is no' if count == 1 else 'none of its %d lines is an' % count
        return _Record([], [], broken='%s incident (slimguard/incidents.jsonl).' % what)
    incidents = enumerate(record.incidents, 1)
    views = [incident_view.view_of(number, incident.to_dict()) for number, incident in incidents]
    return _Record(views, record.notes)


def _bundles(logdir: str) -> Tuple[List[AnyBundle], List[str]]:
    """The newest bundles, and notes on the others."""
    try:
        paths = bundle.paths(logdir)
    except Exception as error:
        return [], ['The bundles cannot be listed: %s' % _sentence(error)]
    shown = paths[-_MOST_BUNDLES:]
    views = [bundle_view.view_of(path, _MOST_IMAGES // len(shown)) for path in shown]
    left_out = len(paths) - len(shown)
    return views, ['%d older bundles are not shown.' % left_out] if left_out else []


def _sentence(error: Exception) -> str:
    what = str(getattr(error, 'message', error)).partition('\n')[0]
    return cut(what or type(error).__name__, 1000)


# In a sentence or two.


def summary(data: ReportData) -> str:
    """The report in a sentence or two."""
    readable = sum(isinstance(b, BundleView) for b in data.bundles)
    if not readable:
        return told(data)
    kept = '%d bad steps were' % readable if readable > 1 else 'One bad step was'
    return '%s %s kept and examined.' % (told(data), kept)


def told(data: ReportData) -> str:
    """What the record tells, in a sentence."""
    if data.broken:
        return 'The record of incidents cannot be read: %s.' % data.broken.rstrip('.')
    if not data.has_record and data.bundles:
        return 'There is no record of incidents, though bad steps were kept.'
    if not data.has_record:
        return _NO_RECORD
    if not data.incidents:
        return 'No incident is on record.'
    counts = [(action, sum(i.kind == action for i in data.incidents)) for action in ACTIONS]
    said = ', '.join('%d %s' % (count, _DONE[action]) for action, count in counts if count)
    one = len(data.incidents) == 1
    return '%s: %s.' % ('One incident' if one else '%d incidents' % len(data.incidents), said)


_NO_RECORD = (
    'There is no record of incidents: no guarded training has written here, or the record was '
    'deleted. If you ran a script with slimguard run, its last line names the folder. A '
    'NanLossHook needs logdir=... where its session saves nothing, and watch() always.'
)
_DONE = {
    'raise': 'raised',
    'stop': 'stopped the training',
    'rollback': 'rolled back',
    'skip': 'skipped',
    'save refused': 'kept out of a checkpoint',
    'other': 'left to the user',
    'not said': 'with no word on what was done',
}

"""The data of a report on a training: read from its log directory, checked, and put into words.

The record and the bundles may come from a stranger, so this module checks them and runs nothing in
them. For a damaged bundle the page has a note.
"""

import datetime
import os
from typing import List, NamedTuple, Optional, Sequence, Tuple

import tensorflow as tf

import slimguard
from slimguard.checkpoints import state_file
from slimguard.checkpoints.checkpoint_reader import step_of
from slimguard.diagnosis import bundle
from slimguard.incidents import record_file
from slimguard.incidents.incident import Incident
from slimguard.incidents.incident_groups import (
    NOT_EXAMINED,
    by_kind,
    not_examined,
    starts_of,
    without_rows,
)
from slimguard.report import loss_history
from slimguard.report.cards import (
    ACTIONS,
    IncidentView,
    bundle_name,
    incident_of,
    opened_of,
)
from slimguard.report.loss_history import LEAST_POINTS, Curve
from slimguard.system import files

# The most bundles and samples that a page shows. The page must open on a phone, and has each sample
# twice, with up to 100 kB each time.
_MOST_BUNDLES, _MOST_SAMPLES = 20, 40
_MOST_NOTES, _MOST_KINDS = 20, 20
_ENOUGH_STEPS = 10  # fewer steps before an incident show little of how it began
_ENDED = ('raise', 'stop', 'error')
NO_SUMMARY = (
    'No scalar in the event files here looks like a loss. Add tf.compat.v1.summary.scalar('
    "'total_loss', total_loss) to the graph, and the next report shows all of the training."
)
NO_EVENT_FILES = (
    'There are no event files here, so the page has no loss chart of the whole training: '
    "write tf.compat.v1.summary.scalar('total_loss', total_loss) to some."
)
TOO_FEW_POINTS = (
    'There are too few points for a curve. For a point every 10 steps, add this to the hooks of '
    'the training: tf.compat.v1.train.SummarySaverHook(10, output_dir=logdir, summary_op='
    "tf.compat.v1.summary.scalar('total_loss', total_loss, collections=[]))."
)


class ReportData(NamedTuple):
    """The data of a report.

    Attributes:
      title: the path of the log directory.
      made: when the report was made, and with which versions.
      curve: the loss, or None.
      incidents: the record of incidents, the oldest first.
      unrecorded: the incidents of bundles that the record does not name.
      notes: sentences on what could not be read.
      curve_note: a sentence on what the curve shows, or why there is no curve; or ''.
      has_record: whether there is a record of incidents, readable or not.
      broken: why the record as a whole cannot be read; '' if it can.
      reached: how far the training came, in a sentence; '' if no step was seen.
    """

    title: str
    made: str
    curve: Optional[Curve]
    incidents: List[IncidentView]
    unrecorded: List[IncidentView]
    notes: List[str]
    curve_note: str = ''
    has_record: bool = True
    broken: str = ''
    reached: str = ''


def gather(logdir: str) -> ReportData:
    """Reads the log directory of a training. Damaged or hostile contents raise no error."""
    path = files.as_path(logdir)
    curve, notes = loss_history.read(logdir)
    bundles, more = _bundles(logdir)
    now = datetime.datetime.now().strftime('%Y-%m-%d %H:%M')
    versions = 'TensorFlow %s, slimguard %s' % (tf.__version__, slimguard.__version__)
    data = ReportData(
        title=path,
        made='Made %s with %s' % (now, versions),
        curve=curve,
        incidents=[],
        unrecorded=bundles,
        notes=more + notes,
    )
    data = _with_record(data, logdir)
    data = data._replace(reached=_reached(data, state_file.newest_in(logdir)))
    data = _with_curve(data, loss_history.has_event_files(logdir))
    left_out = len(data.notes) - _MOST_NOTES
    more = ['%d more notes like these are not shown.' % left_out] if left_out > 0 else []
    return data._replace(notes=data.notes[:_MOST_NOTES] + more)


def _reached(data: ReportData, checkpoint: Optional[str]) -> str:
    """The step of the newest checkpoint or loss, and how far it is beyond the last incident."""
    seen = []
    saved = None if checkpoint is None else step_of(checkpoint)
    if saved is not None:
        seen.append((saved, 'The newest checkpoint is of step %d' % saved))
    if data.curve is not None and data.curve.segments:
        logged = int(data.curve.segments[-1][-1, 0])
        seen.append((logged, 'The event files have a loss up to step %d' % logged))
    step, said = max(seen, key=lambda each: each[0], default=(0, ''))
    last = data.incidents[-1].step if data.incidents else None
    if said and last is not None and step > last:
        count = '1 step' if step - last == 1 else '%d steps' % (step - last)
        said += ', %s beyond the last incident (step %d)' % (count, last)
    return said and said + '.'


def _bundles(logdir: str) -> Tuple[List[IncidentView], List[str]]:
    """The newest bundles, from old to new; and notes on bundles that are not shown."""
    try:
        paths = bundle.paths(logdir)
    except Exception as error:
        return [], ['The bundles cannot be listed: %s' % loss_history.first_line(error)]
    shown, views, notes = paths[-_MOST_BUNDLES:], [], []
    for path in shown:
        try:
            read = bundle.read(path)
            opened = opened_of(read, min(16, _MOST_SAMPLES // len(shown)))
            views.append(incident_of(Incident.from_dict(read.incident), opened=opened))
        except Exception as error:  # the page must show the other bundles
            is_said = isinstance(error, (bundle.BundleError, OSError))
            what = '' if is_said else 'incident.json is damaged: %s: ' % type(error).__name__
            told = os.path.basename(path), what, error
            notes.append('%s cannot be read: %s%s' % told)
    left_out = len(paths) - len(shown)
    return views, notes + (['%d older bundles are not shown.' % left_out] if left_out else [])


def _with_curve(data: ReportData, has_event_files: bool) -> ReportData:
    """Removes a curve with too few points, and adds the note on the curve."""
    curve, notes = data.curve, []
    if curve is None:
        notes.append(NO_SUMMARY if has_event_files else NO_EVENT_FILES)
    elif curve.bad:
        said = 'The curve leaves out the recorded values that are not finite: %d of %d.'
        notes.append(said % (curve.bad, curve.points))
    if curve is not None and curve.count < LEAST_POINTS:
        curve = None
        notes.append(TOO_FEW_POINTS)
    return data._replace(curve=curve, curve_note=' '.join(notes))


def _all(data: ReportData) -> List[IncidentView]:
    return data.incidents + data.unrecorded


def _with_record(data: ReportData, logdir: str) -> ReportData:
    try:
        record = record_file.read_record(logdir)
    except FileNotFoundError:
        return data._replace(has_record=False)
    except Exception as error:  # the page must show the rest
        return data._replace(broken=loss_history.first_line(error))
    if record.is_foreign:
        count = record.unreadable
        what = 'its only line is no' if count == 1 else 'none of its %d lines is an' % count
        return data._replace(broken='%s incident (slimguard/incidents.jsonl).' % what)
    opened = {it.opened.name: it.opened for it in data.unrecorded if it.opened}
    starts = starts_of(record.incidents)
    views = [
        incident_of(it, number, opened.get(bundle_name(it)), start if starts[-1] > 1 else 0)
        for number, (it, start) in enumerate(zip(record.incidents, starts), 1)
    ]
    named = {bundle_name(it) for it in views}
    others = [it for it in data.unrecorded if it.opened and it.opened.name not in named]
    return data._replace(incidents=views, unrecorded=others, notes=data.notes + record.notes)


# In a sentence.


def told(data: ReportData) -> str:
    """The record in a sentence."""
    if data.broken:
        return 'The record of incidents cannot be read: %s.' % data.broken.rstrip('.')
    if not data.has_record:
        return 'There is no record of incidents, but there are folders of bad steps.'
    if not data.incidents:
        return 'No incident is on record.'
    one = len(data.incidents) == 1
    head = 'One incident' if one else '%d incidents' % len(data.incidents)
    head += _in_starts(data.incidents)
    return '%s: %s.' % (head, _done(data.incidents))


def _in_starts(incidents: Sequence[IncidentView]) -> str:
    """The starts of incidents, in words; '' if the record has only one."""
    starts = sorted({it.start for it in incidents if it.start})
    if len(starts) < 2:
        return ', in start %d' % starts[0] if starts else ''
    return ', in %d starts of the training' % len(starts)


def _done(incidents: Sequence[IncidentView]) -> str:
    """How often each action was taken, in words."""
    counts = [(said, sum(i.kind == kind for i in incidents)) for kind, said in ACTIONS.items()]
    one = len(incidents) == 1
    return ', '.join(said if one else '%d %s' % (n, said) for said, n in counts if n)


# The kinds of incidents. Incidents are of one kind if their causes differ in numbers only.


class Kind(NamedTuple):
    """Incidents of one kind.

    Attributes:
      headline: the cause in a sentence; of several incidents, without the rows of the first.
      said: how many incidents, at which steps, the actions, and which incident is shown in full; ''
        for one examined incident that did not end the training.
      to_do: what to do; '' if it is not known.
      first: the most important incident.
      alike: the other incidents with a bundle.
    """

    headline: str
    said: str
    to_do: str
    first: IncidentView
    alike: List[IncidentView]


def kinds_of(data: ReportData) -> List[Kind]:
    """The kinds of incidents: the kind that ended the training, then examined kinds, then others.

    Among examined kinds, and among others, the kind with the most incidents comes first.
    """
    ended = next((i for i in reversed(data.incidents) if i.action in _ENDED), None)

    def order(members: List[IncidentView]) -> Tuple[bool, bool, int]:
        is_end = any(it is ended for it in members)
        return not is_end, not any(it.diagnosis for it in members), -len(members)

    kinds: List[Kind] = []
    for members in sorted(by_kind(_all(data)), key=order)[:_MOST_KINDS]:
        kept = [it for it in members if it.opened is not None]
        is_end = any(it is ended for it in members)
        long = [it for it in kept if _has_history(it)]
        first = ended if ended is not None and is_end else (long or kept or members)[0]
        to_do = first.to_do
        if to_do and any(to_do == kind.first.to_do for kind in kinds):
            to_do = 'The same as above.'
        alike = [it for it in kept if it is not first]
        headline = without_rows(first.headline) if members[1:] else first.headline
        kinds.append(Kind(headline, _said(members, first, is_end, data), to_do, first, alike))
    return kinds


def _has_history(it: IncidentView) -> bool:
    steps = it.opened and it.opened.steps
    return bool(steps) and len(steps.step) >= _ENOUGH_STEPS


def _said(members: List[IncidentView], first: IncidentView, is_end: bool, data: ReportData) -> str:
    told, left_out = [], not_examined(members)
    if len(members) > 1:
        steps = sorted({i.step for i in members if i.step is not None})
        span = ', at steps %d and %d' if len(steps) == 2 else ', at steps %d to %d'
        where = ', at step %d' if len(steps) == 1 else span
        where = where % tuple(steps[:1] + steps[1:][-1:]) if steps else ''
        where += _in_starts(members)
        # If these are all incidents, the page has their actions above.
        is_all = len(members) == len(data.incidents) and not data.unrecorded
        count = 'Both' if is_all and len(members) == 2 else '%s%d' % ('All ' * is_all, len(members))
        many = '%s incidents are of this kind%s' % (count, where)
        told.append(many if is_all else '%s: %s' % (many, _done(members)))
    if left_out:
        told.append(NOT_EXAMINED % left_out)
    elif not any(it.diagnosis for it in members) and 'not looked for' not in first.reason:
        told.append('The cause was not looked for')
    which = 'This incident' if len(members) == 1 else 'Below is the one that'
    if is_end and first is data.incidents[-1]:
        told.append(which + ' ended the training')
    elif is_end:
        told.append(which + ' ended a run; another run followed')
    elif len(members) > 1:
        which, why = first.heading.partition(',')[0], ''
        if first.opened is not None:
            long = ', the first with a history of %d steps' % _ENOUGH_STEPS
            why = long if _has_history(first) else ', the first with a bundle'
        told.append('Below is ' + ('the first' if first is members[0] else which.lower() + why))
    return ' '.join(sentence + '.' for sentence in told)

"""The data of a report on a training: read from its log directory, checked, and made plain.

The record and the bundles may come from a stranger, so this module checks them. It replaces a
damaged bundle by a sentence, and runs nothing.
"""

import dataclasses
import datetime
import os
import re
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

import slimguard
from slimguard.diagnosis import bundle
from slimguard.diagnosis.diagnosis import PHASES
from slimguard.diagnosis.ranges import Range
from slimguard.incidents import record_file
from slimguard.incidents.incident import Incident
from slimguard.report import last_steps, layer_ranges, loss_history, samples, words
from slimguard.report.last_steps import LastSteps
from slimguard.report.layer_ranges import Layer
from slimguard.report.loss_history import Curve
from slimguard.report.samples import Sheet
from slimguard.system import files

ACTIONS = ('raise', 'stop', 'rollback', 'skip', 'save refused', 'other', 'not said')
# The most bundles and samples that a page shows: it must open on a phone, and a sample takes up to
# 100 kB, twice.
_MOST_BUNDLES, _MOST_SAMPLES = 20, 40
_MOST_NOTES, _MOST_FACTS = 20, 20
_FEW_POINTS = 10  # a curve of fewer shows little


class Fact(NamedTuple):
    """A fact: its name, then code, words, and a line of code, each '' if there is none."""

    name: str
    code: str = ''
    words: str = ''
    line: str = ''


class BundleView(NamedTuple):
    """The contents of a bundle, but for its incident.

    Attributes:
      path: its folder, absolute.
      phase: where it began, as in `Diagnosis`; '' if there is no diagnosis.
      explosion: what the steps before show of an explosion, in words, or ''.
      trouble: what happened, in a sentence; '' if there is no diagnosis.
      cause: the same as the diagnosis says it.
      bad_rows: the rows of the batch that are at fault, as far as they are known.
      facts: the other facts of the diagnosis.
      batch: the arrays of the batch that are no images: a name, and lines of numbers.
      layers: the ranges along the step.
      sheets: the samples of the batch.
      versions: the versions of the packages that made it.
      steps: the last steps before the incident; None if they are not known.
    """

    path: str
    phase: str = ''
    explosion: str = ''
    trouble: str = ''
    cause: str = ''
    bad_rows: Sequence[int] = ()
    facts: Sequence[Fact] = ()
    batch: Sequence[Tuple[str, str]] = ()
    layers: Sequence[Layer] = ()
    sheets: Sequence[Sheet] = ()
    versions: str = ''
    steps: Optional[LastSteps] = None

    @property
    def name(self) -> str:
        """The name of its folder."""
        return os.path.basename(self.path)


@dataclasses.dataclass(frozen=True)
class IncidentView(Incident):
    """An incident, its place in the record, from 1 on, and its bundle.

    The number is 0 for an incident that only a bundle tells of.
    """

    number: int = 0
    opened: Optional[BundleView] = dataclasses.field(default=None, compare=False)

    @property
    def kind(self) -> str:
        """The action, or 'other' if no colour stands for it.

        No action is known if the process was killed between the step and its policy.
        """
        if self.action in (None, '', 'interrupted'):
            return 'not said'
        return self.action if self.action in ACTIONS else 'other'

    @property
    def bundle_name(self) -> str:
        """The name of the bundle's folder. Its path is of the system that the training ran on."""
        return re.split(r'[/\\]', (self.bundle or '').rstrip('/\\'))[-1]

    @property
    def notes(self) -> List[str]:
        """Further facts, in a few words each."""
        notes = ['restored %s' % os.path.basename(self.restored)] if self.restored else []
        if self.learning_rate is not None:
            notes.append('learning rate x%g from then on' % self.learning_rate)
        notes += [] if self.held else ['the update had landed']
        return notes + (['variables were bad before the step'] if self.state_lost else [])


def incident_of(number: int, record: Dict[str, Any], opened: Any = None) -> IncidentView:
    """An incident from the dictionary in a line of the record, or in a bundle.

    Raises:
      ValueError: if it is no record of an incident.
    """
    return IncidentView(number=number, opened=opened, **vars(Incident.from_dict(record)))


# The bundles.


def _bundles(logdir: str) -> Tuple[List[IncidentView], List[str], List[str]]:
    """The newest bundles, the oldest first; why others cannot be read; a note on older ones."""
    try:
        paths = bundle.paths(logdir)
    except Exception as error:
        return [], [], ['The bundles cannot be listed: %s' % _first_line(error)]
    shown, views, unreadable = paths[-_MOST_BUNDLES:], [], []
    for path in shown:
        try:
            opened = bundle.read(path)
            most = min(16, _MOST_SAMPLES // len(shown))
            view = _view(path, opened, most)
            views.append(incident_of(0, opened.incident, view))
        except Exception as error:  # one damaged bundle must not cost the others
            is_said = isinstance(error, (bundle.BundleError, OSError))
            what = '' if is_said else 'incident.json is damaged: %s: ' % type(error).__name__
            told = os.path.basename(path), what, error
            unreadable.append('%s cannot be read: %s%s' % told)
    left_out = len(paths) - len(shown)
    return views, unreadable, ['%d older bundles are not shown.' % left_out] if left_out else []


def _view(path: str, opened: bundle.Bundle, most: int) -> BundleView:
    said = opened.diagnosis
    drawn = _drawn_by_the_user(opened)
    versions = ', '.join('%s %s' % pair for pair in sorted(opened.versions.items()))
    steps = last_steps.last_steps_of(opened.history)
    if said is None:
        sheets, batch = samples.sheets(drawn, most=most), samples.in_numbers(drawn)
        return BundleView(path, batch=batch, sheets=sheets, versions=versions, steps=steps)
    bad, rows = _bad_rows(said)
    suspects = bad if said['phase'] != 'input' else []
    return BundleView(
        path,
        phase=said['phase'],
        explosion=str(said.get('explosion', '')),
        trouble='%s: %s.'
        % (words.begun(PHASES.get(said['phase'], said['phase'])), said['trouble']),
        cause=str(said['trouble']),
        bad_rows=bad,
        facts=_facts(said),
        batch=samples.in_numbers(drawn, bad, rows),
        layers=layer_ranges.layers_of(said['ranges'], said['tensor']),
        sheets=samples.sheets(drawn, suspects, rows, most),
        versions=versions,
        steps=steps,
    )


def _facts(said: Dict[str, Any]) -> List[Fact]:
    line, facts = said['line'], []
    if said['op'] is not None:
        of = ', gradient of %s' % said['forward_op'] if said['forward_op'] else ''
        tensor = said['tensor'] or said['op']
        facts.append(Fact('Tensor', '%s (%s%s)' % (tensor, said['op_type'], of)))
    if line:
        code = '%(file)s:%(number)s, in %(function)s' % line
        facts.append(Fact('Your line', code, line=str(line['text'])))
    for given in said['inputs'][:_MOST_FACTS]:
        found = ': '.join(filter(None, [_range(given['range']), given['where']]))
        if found:  # not so the axes of a sum, and other ints
            facts.append(Fact('Input', str(given['name']), found))
    facts.append(Fact('Value', words=_range(said['output'])))
    positions = [] if said['non_finite'] is None else said['non_finite']['positions']
    shown = ['%s = %g' % (list(place), float(value)) for place, value in positions[:6]]
    more = ', \N{HORIZONTAL ELLIPSIS}' if len(positions) > 6 else ''
    facts.append(Fact('Not finite', ', '.join(shown) + more))
    facts += [Fact('Note', words=str(why)) for why in said['not_seen'][:_MOST_FACTS]]
    return [fact for fact in facts if any(fact[1:])]


def _range(said: Optional[Dict[str, Any]]) -> str:
    if said is None:
        return ''
    return str(Range(**dict(said, shape=tuple(int(size) for size in said['shape']))))


def _drawn_by_the_user(opened: bundle.Bundle) -> Dict[str, np.ndarray]:
    """The values that the step took in, without random numbers and slimguard's own."""
    sources = opened.exported.names['sources']
    return {
        name: value
        for name, value in opened.values.items()
        if not name.startswith('slimguard/') and 'Random' not in sources[name][1]
    }


def _bad_rows(said: Dict[str, Any]) -> Tuple[List[int], int]:
    """The rows that are bad in the input, or made a later tensor bad; and the number of rows.

    A later tensor may have another first dimension than the batch: `samples` compares.
    """
    found = said['non_finite']
    if said['phase'] not in ('input', 'forward', 'backward') or not said['output'] or not found:
        return [], 0
    shape = said['output']['shape']
    rows = [row for row in found['rows'] if isinstance(row, int)]
    # Half of the outputs of a batch norm are by channel.
    is_batch = shape and isinstance(shape[0], int) and not str(said['op_type']).startswith('FusedB')
    # If most rows are bad, none is at fault.
    return (rows, shape[0]) if is_batch and 2 * len(rows) <= shape[0] else ([], 0)


# All of it.


class ReportData(NamedTuple):
    """The data of a report.

    Attributes:
      title: the base name of the log directory.
      made: when the report was made, and with which versions.
      curve: the loss, or None.
      incidents: the record of incidents, the oldest first.
      unrecorded: the incidents of bundles that the record does not name.
      unreadable: a sentence for each bundle that cannot be read.
      notes: sentences on what else could not be read.
      curve_note: a sentence on what the curve is, or why there is none; or ''.
      has_record: whether there is a record of incidents, readable or not.
      broken: why the record as a whole cannot be read; '' if it can.
    """

    title: str
    made: str
    curve: Optional[Curve]
    incidents: List[IncidentView]
    unrecorded: List[IncidentView]
    unreadable: List[str]
    notes: List[str]
    curve_note: str = ''
    has_record: bool = True
    broken: str = ''


def gather(logdir: str) -> ReportData:
    """Reads the log directory of a training. Damaged or hostile contents make no error."""
    curve, notes = loss_history.read(logdir)
    bundles, unreadable, more = _bundles(logdir)
    curve, curve_note = _curve_of(curve, [it.opened.steps for it in bundles if it.opened])
    now = datetime.datetime.now().strftime('%Y-%m-%d %H:%M')
    versions = 'TensorFlow %s, slimguard %s' % (tf.__version__, slimguard.__version__)
    data = ReportData(
        title=title_of(logdir),
        made='Made %s with %s' % (now, versions),
        curve=curve,
        incidents=[],
        unrecorded=bundles,
        unreadable=unreadable,
        notes=notes,
        curve_note=curve_note,
    )
    data = _with_record(data, logdir)
    notes = data.notes + more
    left_out = len(notes) - _MOST_NOTES
    more = ['%d more notes like these are not shown.' % left_out] if left_out > 0 else []
    return data._replace(notes=notes[:_MOST_NOTES] + more)


def _curve_of(
    curve: Optional[Curve], histories: Sequence[Optional[LastSteps]]
) -> Tuple[Optional[Curve], str]:
    """The loss to draw, and a sentence on it, or ''.

    Where the event files have few points, these are of the last steps before an incident.
    """
    points, note = (0, words.NO_SUMMARY) if curve is None else (curve.count, '')
    if points < _FEW_POINTS:
        curves = [last_steps.curve(steps) for steps in histories if steps is not None]
        best = max([it for it in curves if it], key=lambda it: it.count, default=None)
        if best is not None and best.count > points:
            curve, points = best, best.count
            note += words.OF_LAST_STEPS
    if curve is not None and curve.bad:
        one, many = 'was not finite, and is', 'were not finite, and are'
        said = '%d of the %d recorded values %s not in the curve. '
        note += said % (curve.bad, curve.points, one if curve.bad == 1 else many)
    if curve is not None and points < 2:
        curve, note = None, note + words.TOO_FEW_POINTS
    return curve, note.strip()


def title_of(logdir: str) -> str:
    """The base name of a log directory."""
    path = files.as_path(logdir)
    return os.path.basename(path.rstrip('/\\')) or path


def _with_record(data: ReportData, logdir: str) -> ReportData:
    try:
        record = record_file.read_record(logdir)
    except FileNotFoundError:
        return data._replace(has_record=False)
    except Exception as error:  # a damaged record must not cost the rest of the page
        return data._replace(broken=_first_line(error))
    if record.is_foreign:
        count = record.unreadable
        what = 'its only line is no' if count == 1 else 'none of its %d lines is an' % count
        return data._replace(broken='%s incident (slimguard/incidents.jsonl).' % what)
    opened = {it.opened.name: it.opened for it in data.unrecorded if it.opened}
    views = [IncidentView(**vars(it), number=n) for n, it in enumerate(record.incidents, 1)]
    views = [dataclasses.replace(it, opened=opened.get(it.bundle_name)) for it in views]
    named = {it.bundle_name for it in views}
    others = [it for it in data.unrecorded if it.opened and it.opened.name not in named]
    return data._replace(incidents=views, unrecorded=others, notes=data.notes + record.notes)


def _first_line(error: Exception) -> str:
    what = str(getattr(error, 'message', error)).partition('\n')[0]
    return what or type(error).__name__


# In a sentence or two.


def summary(data: ReportData) -> str:
    """The report in a sentence or two."""
    readable = sum(it.opened is not None for it in data.incidents + data.unrecorded)
    if not readable:
        return told(data)
    kept = '%d of them are' % readable if readable > 1 else 'One of them is'
    if len(data.incidents) == 1:  # its bundle, or another's
        kept = 'Its step is' if data.incidents[0].opened else kept
    return '%s %s kept, to be run again.' % (told(data), kept)


def told(data: ReportData) -> str:
    """The record in a sentence."""
    if data.broken:
        return 'The record of incidents cannot be read: %s.' % data.broken.rstrip('.')
    if not data.has_record and (data.unrecorded or data.unreadable):
        return 'There is no record of incidents, though bad steps were kept.'
    if not data.has_record:
        return 'There is no record of incidents: ' + record_file.WHY_NO_RECORD
    if not data.incidents:
        return 'No incident is on record.'
    one = len(data.incidents) == 1
    head = 'One incident' if one else '%d incidents' % len(data.incidents)
    return '%s: %s.' % (head, done(data.incidents, _DONE))


def done(incidents: List[IncidentView], names: Dict[str, str]) -> str:
    """How often each action was taken, in words."""
    counts = [(action, sum(i.kind == action for i in incidents)) for action in ACTIONS]
    return ', '.join('%d %s' % (n, names.get(action, action)) for action, n in counts if n)


_DONE = {
    'raise': 'raised',
    'stop': 'stopped the training',
    'rollback': 'rolled back',
    'skip': 'skipped',
    'save refused': 'kept out of a checkpoint',
    'other': 'left to the user',
    'not said': 'with no word on what was done',
}

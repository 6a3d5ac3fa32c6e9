"""The data of a report on a training: read from its log directory, checked, and made plain.

The record and the bundles may come from a stranger, so this module checks them. It replaces a
damaged bundle by a sentence, and runs nothing.
"""

import dataclasses
import datetime
import os
import re
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np
import tensorflow as tf

import slimguard
from slimguard.diagnosis import bundle
from slimguard.diagnosis.ranges import Range
from slimguard.incidents import record_file
from slimguard.incidents.incident import Incident
from slimguard.report import last_steps, layer_ranges, loss_history, samples
from slimguard.report.last_steps import LastSteps
from slimguard.report.layer_ranges import Layer
from slimguard.report.loss_history import Curve
from slimguard.report.samples import Sheet
from slimguard.system import files

ACTIONS = ('raise', 'stop', 'rollback', 'skip', 'save refused', 'other', 'not said')
# The most bundles that a page shows, and the most bytes of their images: it must open on a phone.
_MOST_BUNDLES, _MOST_IMAGES = 20, 6 << 20  # bytes, of all bundles; each image is drawn twice
_MOST_NOTES, _MOST_FACTS = 20, 20


@dataclasses.dataclass(frozen=True)
class IncidentView(Incident):
    """An incident, and its place in the record, from 1 on; 0 for the incident of a bundle."""

    number: int = 0

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


def incident_of(number: int, record: Dict[str, Any]) -> IncidentView:
    """An incident from the dictionary in a line of the record, or in a bundle.

    Raises:
      ValueError: if it is no record of an incident.
    """
    return IncidentView(number=number, **vars(Incident.from_dict(record)))


# The bundles.


class BundleView(NamedTuple):
    """The contents of a bundle.

    Attributes:
      name: the name of its folder.
      incident: the incident.
      phase: where it began, as in `Diagnosis`; '' if there is no diagnosis.
      trouble: what happened, in a sentence.
      cause: what happened, as the diagnosis says it; '' if there is no diagnosis.
      bad_rows: the rows of the batch that are at fault, as far as they are known.
      facts: the other facts of the diagnosis: a name, code, words, and a line, each '' for none.
      batch: the arrays of the batch that are no images: a name, and lines of numbers.
      layers: the ranges along the step.
      sheets: the samples of the batch.
      versions: the versions of the packages that made it.
      steps: the last steps before the incident; None if they are not known.
    """

    name: str
    incident: IncidentView
    phase: str = ''
    trouble: str = ''
    cause: str = ''
    bad_rows: Sequence[int] = ()
    facts: Sequence[Tuple[str, ...]] = ()
    batch: Sequence[Tuple[str, str]] = ()
    layers: Sequence[Layer] = ()
    sheets: Sequence[Sheet] = ()
    versions: str = ''
    steps: Optional[LastSteps] = None


class UnreadableBundle(NamedTuple):
    """A bundle that cannot be read, and why."""

    name: str
    why: str


AnyBundle = Union[BundleView, UnreadableBundle]


def bundle_of(path: str, room: int) -> AnyBundle:
    """The bundle in the folder `path`; its samples take at most about `room` bytes."""
    name = os.path.basename(path)
    try:
        return _view(name, bundle.read(path), room)
    except (bundle.BundleError, OSError) as error:
        return UnreadableBundle(name, str(error))
    except Exception as error:  # one damaged bundle must not cost the others
        said = 'incident.json is damaged: %s: %s' % (type(error).__name__, error)
        return UnreadableBundle(name, said)


def _view(name: str, opened: bundle.Bundle, room: int) -> BundleView:
    said = opened.diagnosis
    drawn = _drawn_by_the_user(opened)
    versions = ', '.join('%s %s' % pair for pair in sorted(opened.versions.items()))
    view = BundleView(
        name,
        incident_of(0, opened.incident),
        versions=versions,
        steps=last_steps.last_steps_of(opened.history),
    )
    if said is None:
        sheets = samples.sheets(drawn, room=room)
        return view._replace(batch=samples.in_numbers(drawn), sheets=sheets)
    bad, rows = _bad_rows(said)
    suspects = bad if said['phase'] != 'input' else []
    return view._replace(
        phase=said['phase'],
        trouble='%s: %s.' % (_PHASES.get(said['phase'], said['phase']), said['trouble']),
        cause=str(said['trouble']),
        bad_rows=bad,
        facts=_facts(said),
        batch=samples.in_numbers(drawn, bad, rows),
        layers=layer_ranges.layers_of(said['ranges'], said['tensor']),
        sheets=samples.sheets(drawn, suspects, rows, room=room),
    )


_PHASES = {
    'input': 'In the input',
    'forward': 'In the forward pass',
    'backward': 'In the backward pass',
    'update': 'In the update',
    'variable': 'In a variable',
    'constant': 'A constant is bad',
    'unknown': 'Not found',
}


def _facts(said: Dict[str, Any]) -> List[Tuple[str, str, str, str]]:
    """The facts of a diagnosis: name, code, words and line of each."""
    line, facts = said['line'], []
    if said['op'] is not None:
        of = ', gradient of %s' % said['forward_op'] if said['forward_op'] else ''
        tensor = said['tensor'] or said['op']
        facts.append(('Tensor', '%s (%s%s)' % (tensor, said['op_type'], of), '', ''))
    if line:
        code = '%(file)s:%(number)s, in %(function)s' % line
        facts.append(('Your line', code, '', str(line['text'])))
    for given in said['inputs'][:_MOST_FACTS]:
        found = ': '.join(filter(None, [_range(given['range']), given['where']]))
        facts.append(('Input', str(given['name']), found, ''))
    facts.append(('Value', '', _range(said['output']), ''))
    positions = [] if said['non_finite'] is None else said['non_finite']['positions']
    shown = ['%s = %g' % (list(place), float(value)) for place, value in positions[:6]]
    more = ', \N{HORIZONTAL ELLIPSIS}' if len(positions) > 6 else ''
    facts.append(('Not finite', ', '.join(shown) + more, '', ''))
    facts += [('Note', '', str(why), '') for why in said['not_seen'][:_MOST_FACTS]]
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
      bundles: the oldest first.
      notes: sentences on what could not be read.
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


def gather(logdir: str) -> ReportData:
    """Reads the log directory of a training. Damaged or hostile contents make no error."""
    curve, notes = loss_history.read(logdir)
    bundles, more = _bundles(logdir)
    now = datetime.datetime.now().strftime('%Y-%m-%d %H:%M')
    versions = 'TensorFlow %s, slimguard %s' % (tf.__version__, slimguard.__version__)
    data = ReportData(
        title=title_of(logdir),
        made='Made %s with %s' % (now, versions),
        curve=curve,
        incidents=[],
        bundles=bundles,
        notes=notes,
    )
    data = _with_record(data, logdir)
    notes = data.notes + more
    left_out = len(notes) - _MOST_NOTES
    more = ['%d more notes like these are not shown.' % left_out] if left_out > 0 else []
    return data._replace(notes=notes[:_MOST_NOTES] + more)


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
    incidents = enumerate(record.incidents, 1)
    views = [IncidentView(number=number, **vars(incident)) for number, incident in incidents]
    return data._replace(incidents=views, notes=data.notes + record.notes)


def _bundles(logdir: str) -> Tuple[List[AnyBundle], List[str]]:
    """The newest bundles, and notes on the others."""
    try:
        paths = bundle.paths(logdir)
    except Exception as error:
        return [], ['The bundles cannot be listed: %s' % _first_line(error)]
    shown = paths[-_MOST_BUNDLES:]
    views = [bundle_of(path, _MOST_IMAGES // len(shown)) for path in shown]
    left_out = len(paths) - len(shown)
    return views, ['%d older bundles are not shown.' % left_out] if left_out else []


def _first_line(error: Exception) -> str:
    what = str(getattr(error, 'message', error)).partition('\n')[0]
    return what or type(error).__name__


# In a sentence or two.


def summary(data: ReportData) -> str:
    """The report in a sentence or two."""
    readable = sum(isinstance(b, BundleView) for b in data.bundles)
    if not readable:
        return told(data)
    kept = '%d of them are kept' % readable if readable > 1 else 'One is kept'
    return '%s %s, to be run again.' % (told(data), kept)


def told(data: ReportData) -> str:
    """The record in a sentence."""
    if data.broken:
        return 'The record of incidents cannot be read: %s.' % data.broken.rstrip('.')
    if not data.has_record and data.bundles:
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

"""The data of a report on a training: read from its log directory, checked, and made plain.

The record and the bundles may come from a stranger, so this module checks them. It leaves out a
value of the wrong kind, replaces a damaged bundle by a sentence, and runs nothing.
"""

import datetime
import os
import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

import numpy as np
import tensorflow as tf

import slimguard
from slimguard.diagnosis import bundle
from slimguard.diagnosis.ranges import Range
from slimguard.incidents import record_file
from slimguard.report import last_steps, layer_ranges, loss_history, samples
from slimguard.report.last_steps import LastSteps
from slimguard.report.layer_ranges import Layer
from slimguard.report.loss_history import Curve
from slimguard.report.samples import Sheet
from slimguard.system import files
from slimguard.system.numbers import is_whole
from slimguard.system.texts import cut

ACTIONS = ('raise', 'stop', 'rollback', 'skip', 'save refused', 'other', 'not said')
# The most bundles that a page shows, and the most bytes of their images: it must open on a phone.
_MOST_BUNDLES, _MOST_IMAGES = 20, 6 << 20  # bytes, of all bundles; each image is drawn twice
_MOST_NOTES, _MOST_FACTS = 20, 20


class IncidentView(NamedTuple):
    """An incident; an attribute that is missing or wrong in the record is None or ''.

    Attributes:
      number: its place in the record, from 1 on; 0 for the incident of a bundle.
      step, loss, reason, tensors, time, gradient_norm, gradient_norm_ratio, diagnosis, advice: as
        in `Incident`.
      action: as in `Incident`. It is missing if the process was killed between the step and its
        policy.
      bundle: the name of the bundle's folder, without its path: a log directory may be moved.
      notes: further facts, in a few words each.
    """

    number: int
    step: Optional[int]
    loss: Optional[float]
    action: str
    reason: str
    tensors: Tuple[str, ...]
    time: Optional[float]
    bundle: str
    notes: Tuple[str, ...]
    gradient_norm: Optional[float]
    gradient_norm_ratio: Optional[float]
    diagnosis: str
    advice: str

    @property
    def kind(self) -> str:
        """The action, or 'other' if no colour stands for it."""
        if self.action in ('', 'interrupted'):
            return 'not said'
        return self.action if self.action in ACTIONS else 'other'

    @property
    def cause(self) -> str:
        """What made the step bad, in a line, if that was found; else the reason."""
        return self.diagnosis.partition('\n')[0] or self.reason


def incident_of(number: int, record: Dict[str, Any]) -> IncidentView:
    """An incident from the dictionary in a line of the record, or in a bundle."""
    return IncidentView(
        number=number,
        step=_int(record.get('step')),
        loss=_float(record.get('loss')),
        action=_str(record.get('action'), 60),
        reason=_str(record.get('reason'), 1000),
        tensors=_names(record.get('tensors')),
        time=_float(record.get('time')),
        # The path is of the system that the training ran on.
        bundle=re.split(r'[/\\]', _str(record.get('bundle'), 1000).rstrip('/\\'))[-1],
        notes=tuple(_notes(record)),
        gradient_norm=_float(record.get('gradient_norm')),
        gradient_norm_ratio=_float(record.get('gradient_norm_ratio')),
        diagnosis=_str(record.get('diagnosis'), 2000),
        advice=_str(record.get('advice'), 1000),
    )


def _notes(record: Dict[str, Any]) -> List[str]:
    factor, restored = _float(record.get('learning_rate')), _str(record.get('restored'), 1000)
    notes = ['restored %s' % cut(os.path.basename(restored), 200)] if restored else []
    notes += [] if factor is None else ['learning rate x%g from then on' % factor]
    notes += ['the update had landed'] if record.get('held') is False else []
    return notes + (
        ['variables were bad before the step'] if record.get('state_lost') is True else []
    )


def _str(value: Any, most: int) -> str:
    return cut(value, most) if isinstance(value, str) else ''


def _names(value: Any) -> Tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, (list, tuple)) else ()


def _int(value: Any) -> Optional[int]:
    return value if is_whole(value) and abs(value) < 10**15 else None


def _float(value: Any) -> Optional[float]:
    try:
        return None if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


# The bundles.


class BundleView(NamedTuple):
    """The contents of a bundle.

    Attributes:
      name: the name of its folder.
      incident: the incident.
      phase: where it began, as in `Diagnosis`; '' if there is no diagnosis.
      trouble: what happened, in a sentence.
      facts: the other facts of the diagnosis: a name, code, words, and a line of code, each '' for
        none.
      layers: the ranges along the step.
      sheets: the samples of the batch.
      versions: the versions of the packages that made it.
      steps: the last steps before the incident; None if they are not known.
    """

    name: str
    incident: IncidentView
    phase: str
    trouble: str
    facts: List[Tuple[str, ...]]
    layers: List[Layer]
    sheets: List[Sheet]
    versions: str
    steps: Optional[LastSteps]


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
        return UnreadableBundle(name, cut(error, 1000))
    except Exception as error:  # one damaged bundle must not cost the others
        said = 'incident.json is damaged: %s: %s' % (type(error).__name__, error)
        return UnreadableBundle(name, cut(said, 1000))


def _view(name: str, opened: bundle.Bundle, room: int) -> BundleView:
    said = opened.diagnosis or {}
    suspects, rows = _suspects(said)
    return BundleView(
        name=name,
        incident=incident_of(0, opened.incident),
        phase=(said.get('phase') or 'unknown') if said else '',
        trouble=_sentence(said) if said else '',
        facts=[tuple(cut(part, 1000) for part in fact) for fact in _facts(said)] if said else [],
        layers=layer_ranges.layers_of(said['ranges'], said['tensor']) if said else [],
        sheets=samples.sheets(_drawn_by_the_user(opened), suspects, rows, room=room),
        versions=cut(', '.join('%s %s' % pair for pair in sorted(opened.versions.items())), 600),
        steps=last_steps.last_steps_of(opened.history),
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


def _sentence(said: Dict[str, Any]) -> str:
    phase = said.get('phase') or 'unknown'
    return '%s: %s.' % (cut(_PHASES.get(phase, phase), 60), cut(said['trouble'], 1000))


def _facts(said: Dict[str, Any]) -> List[Tuple[str, str, str, str]]:
    """The facts of a diagnosis: name, code, words and line of each."""
    line, facts = said.get('line'), []
    if said['op'] is not None:
        of = ', gradient of %s' % said['forward_op'] if said['forward_op'] else ''
        tensor = said['tensor'] or said['op']
        facts.append(('Tensor', '%s (%s%s)' % (tensor, said['op_type'], of), '', ''))
    if line:
        facts.append(('Your line', '%(file)s:%(number)s, in %(function)s' % line, '', line['text']))
    for given in said['inputs'][:_MOST_FACTS]:
        facts.append(('Input', given['name'], _range(given['range']), ''))
    facts.append(('Value', '', _range(said['output']), ''))
    shown = [
        '%s = %g' % (list(place), layer_ranges.float_of(v)) for place, v in said['positions'][:6]
    ]
    more = ', \N{HORIZONTAL ELLIPSIS}' if len(said['positions']) > 6 else ''
    facts.append(('Not finite', ', '.join(shown) + more, '', ''))
    facts += [('Note', '', why, '') for why in said['not_seen'][:_MOST_FACTS]]
    return [fact for fact in facts if any(fact[1:])]


def _range(said: Optional[Dict[str, Any]]) -> str:
    if said is None:
        return ''
    shape = tuple(int(size) for size in said['shape'])
    least, largest = layer_ranges.ends_of(said)
    return str(Range(said['dtype'], shape, least, largest, said['nan'], said['inf']))


def _drawn_by_the_user(opened: bundle.Bundle) -> Dict[str, np.ndarray]:
    """The values that the step took in, without random numbers and slimguard's own."""
    sources = opened.exported.names['sources']
    return {
        name: value
        for name, value in opened.values.items()
        if not name.startswith('slimguard/') and 'Random' not in sources[name][1]
    }


def _suspects(said: Dict[str, Any]) -> Tuple[List[int], int]:
    """The rows of the batch that made a tensor of the forward pass bad, and how many there are.

    A tensor further on may have another first dimension than the batch: `samples` compares.
    """
    if not said or said['phase'] != 'forward' or said['output'] is None:
        return [], 0
    shape = said['output']['shape']
    rows = [row for row in said['rows'] if isinstance(row, int)]
    # Half of the outputs of a batch norm are by channel.
    is_batch = shape and isinstance(shape[0], int) and not str(said['op_type']).startswith('FusedB')
    # If all rows are bad, none is a suspect.
    return (rows, shape[0]) if is_batch and len(rows) < shape[0] else ([], 0)


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
    histories = [b.steps for b in bundles if isinstance(b, BundleView) and b.steps is not None]
    now = datetime.datetime.now().strftime('%Y-%m-%d %H:%M')
    versions = 'TensorFlow %s, slimguard %s' % (tf.__version__, slimguard.__version__)
    data = ReportData(
        title=title_of(logdir),
        made='Made %s with %s' % (now, versions),
        curve=loss_history.with_tails(curve, histories),
        incidents=[],
        bundles=bundles,
        notes=notes,
    )
    data = _with_record(data, logdir)
    notes = data.notes + more
    left_out = len(notes) - _MOST_NOTES
    notes = [cut(note, 1000) for note in notes[:_MOST_NOTES]]
    notes += ['%d more notes like these are not shown.' % left_out] if left_out > 0 else []
    return data._replace(notes=notes)


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
    views = [incident_of(number, incident.to_dict()) for number, incident in incidents]
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

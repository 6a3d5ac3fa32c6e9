"""What there is to report about a training: read from its log directory, checked, and made plain.

Everything here was written by a run, or by somebody who says so. What is not as it should be is
left out or becomes a sentence; nothing of it is run.
"""

import datetime
import os
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import tensorflow as tf

import slimguard
from slimguard.diagnosis import bundle
from slimguard.diagnosis.ranges import Range
from slimguard.incidents import record_reader
from slimguard.report import layer_ranges, loss_history, samples
from slimguard.report.layer_ranges import Layer
from slimguard.report.loss_history import Curve
from slimguard.report.samples import Sheet
from slimguard.system import files
from slimguard.system.texts import cut

ACTIONS = ('raise', 'stop', 'rollback', 'skip', 'save refused', 'other', 'not said')
# So many bundles, and so much of each: a page has to open on a phone.
_MOST_BUNDLES, _MOST_IMAGES = 20, 12 << 20  # bytes, of all bundles
_MOST_FACTS, _MOST_NOTES = 20, 20
_PHASES = {
    'input': 'In the input',
    'forward': 'In the forward pass',
    'backward': 'In the backward pass',
    'update': 'In the update',
    'variable': 'A variable was bad before the step',
    'constant': 'A constant is bad',
    'unknown': 'Not found',
}


class Entry(NamedTuple):
    """An incident of the record; what the record does not say, or says wrongly, is None or ''.

    It may have no action: a process that is killed between the step and its policy says none.
    """

    number: int
    step: Optional[int]
    loss: Optional[float]
    action: str
    reason: str
    time: Optional[float]
    notes: Tuple[str, ...]

    @property
    def kind(self) -> str:
        """The action, or 'other' for one that we have no colour for."""
        if not self.action:
            return 'not said'
        return self.action if self.action in ACTIONS else 'other'


class Finding(NamedTuple):
    """What a bundle says.

    Attributes:
      name: of its folder.
      entry: the incident.
      phase: where it began, in words; '' if there is no diagnosis.
      trouble: what happened.
      where: the tensor, its op's type, and the forward op of a gradient.
      place, code: the user's line: file, number and function; and its text.
      output: the range of the tensor.
      inputs: names and ranges.
      spots: positions and values that are not finite.
      not_seen: where the diagnosis could not look.
      layers: the ranges along the step.
      sheets: the samples of the batch.
      versions: where it was made.
    """

    name: str
    entry: Entry
    phase: str
    trouble: str
    where: str
    place: str
    code: str
    output: str
    inputs: List[Tuple[str, str]]
    spots: str
    not_seen: List[str]
    layers: List[Layer]
    sheets: List[Sheet]
    versions: str


class Unreadable(NamedTuple):
    """A bundle that cannot be read, and why."""

    name: str
    why: str


class Findings(NamedTuple):
    """All there is to report.

    Attributes:
      title: the base name of the log directory.
      made: when, and with what.
      curve: the loss, or None.
      entries: the record of incidents, the oldest first.
      bundles: `Finding` or `Unreadable`, the oldest first.
      notes: what could not be read.
      has_record: whether there is a record of incidents, readable or not.
      broken: why the record as a whole cannot be read; '' if it can.
    """

    title: str
    made: str
    curve: Optional[Curve]
    entries: List[Entry]
    bundles: List[Any]
    notes: List[str]
    has_record: bool = True
    broken: str = ''


class _Record(NamedTuple):
    entries: List[Entry]
    notes: List[str]
    is_there: bool = True
    broken: str = ''


def gather(logdir: str) -> Findings:
    """Reads what the log directory of a training holds. Never fails because of what is in it."""
    loss, notes = loss_history.read(logdir)
    record = _record(logdir)
    bundles, more = _bundles(logdir)
    notes = [cut(note, 1000) for note in notes + record.notes + more]
    if len(notes) > _MOST_NOTES:
        left_out = len(notes) - _MOST_NOTES
        notes[_MOST_NOTES:] = ['%d more notes like these are not shown.' % left_out]
    return Findings(
        title=title_of(logdir),
        made=_made(),
        curve=loss,
        entries=record.entries,
        bundles=bundles,
        notes=notes,
        has_record=record.is_there,
        broken=record.broken,
    )


def title_of(logdir: str) -> str:
    """The base name of a log directory."""
    path = files.as_path(logdir)
    return os.path.basename(path.rstrip('/\\')) or path


def summary(found: Findings) -> str:
    """The report in a sentence or two."""
    readable = sum(isinstance(b, Finding) for b in found.bundles)
    if not readable:
        return told(found)
    kept = '%d bad steps were' % readable if readable > 1 else 'One bad step was'
    return '%s %s kept and examined.' % (told(found), kept)


def told(found: Findings) -> str:
    """What the record tells, in a sentence."""
    entries = found.entries
    if found.broken:
        return 'The record of incidents cannot be read: %s.' % found.broken.rstrip('.')
    if not found.has_record and found.bundles:
        return 'There is no record of incidents, though bad steps were kept.'
    if not found.has_record:
        return NO_RECORD
    if not entries:
        return 'No incident is on record.'
    counts = [(a, sum(e.kind == a for e in entries)) for a in ACTIONS]
    said = ', '.join('%d %s' % (n, _DONE[a]) for a, n in counts if n)
    one = len(entries) == 1
    return '%s: %s.' % ('One incident' if one else '%d incidents' % len(entries), said)


NO_RECORD = (
    'There is no record of incidents: no guard was to write here, or else it was deleted. A '
    'guarded training makes one, empty, when it begins; a NanLossHook needs logdir=... for that.'
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


def _made() -> str:
    now = datetime.datetime.now().strftime('%Y-%m-%d %H:%M')
    versions = 'TensorFlow %s, slimguard %s' % (tf.__version__, slimguard.__version__)
    return 'made %s with %s' % (now, versions)


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
    entries = [entry_of(number, incident.to_dict()) for number, incident in incidents]
    return _Record(entries, record.notes)


def entry_of(number: int, record: Dict[str, Any]) -> Entry:
    """An incident out of what a line of the record, or a bundle, says."""
    notes = []
    if isinstance(record.get('restored'), str):
        notes.append('restored %s' % cut(os.path.basename(record['restored']), 200))
    if record.get('held') is False:
        notes.append('the update had landed')
    if record.get('state_lost') is True:
        notes.append('variables were bad before the step')
    return Entry(
        number=number,
        step=_int(record.get('step')),
        loss=_float(record.get('loss')),
        action=cut(_str(record.get('action')), 60),
        reason=cut(_str(record.get('reason')), 1000),
        time=_float(record.get('time')),
        notes=tuple(notes),
    )


def _str(value) -> str:
    return value if isinstance(value, str) else ''


def _int(value) -> Optional[int]:
    is_int = isinstance(value, int) and not isinstance(value, bool)
    return value if is_int and abs(value) < 10**15 else None


def _float(value) -> Optional[float]:
    try:
        return None if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


# Bundles.


def _bundles(logdir: str) -> Tuple[List[Any], List[str]]:
    """The newest bundles, and notes on the others."""
    try:
        paths = bundle.paths(logdir)
    except Exception as error:
        return [], ['The bundles cannot be listed: %s' % _sentence(error)]
    shown = paths[-_MOST_BUNDLES:]
    found = [_finding(path, _MOST_IMAGES // len(shown)) for path in shown]
    left_out = len(paths) - len(shown)
    return found, ['%d older bundles are not shown.' % left_out] if left_out else []


def _finding(path: str, room: int):
    """What a bundle says; `room` is for its samples, in bytes."""
    name = os.path.basename(path)
    try:
        return _read(name, bundle.read(path), room)
    except (bundle.BundleError, OSError) as error:
        return Unreadable(name, cut(error, 1000))
    except Exception as error:  # whatever it is, it must not cost the other bundles
        said = 'incident.json is damaged: %s: %s' % (type(error).__name__, error)
        return Unreadable(name, cut(said, 1000))


def _sentence(error: Exception) -> str:
    what = str(getattr(error, 'message', error)).partition('\n')[0]
    return cut(what or type(error).__name__, 1000)


def _read(name: str, it: bundle.Bundle, room: int) -> Finding:
    said = it.diagnosis or {}
    phase = said.get('phase')
    sources = it.plain.names['sources']
    shown = {
        name: value
        for name, value in it.values.items()
        if not name.startswith('slimguard/') and 'Random' not in sources[name][1]
    }
    suspects, rows = _suspects(said)
    line = said.get('line')
    versions = ', '.join('%s %s' % (k, v) for k, v in sorted(it.versions.items()))
    return Finding(
        name=name,
        entry=entry_of(0, it.incident),
        phase='' if not said else cut(_PHASES.get(phase, phase or 'Not found'), 60),
        trouble=cut(said['trouble'], 1000) if said else '',
        where=cut(_where(said), 600) if said else '',
        place='' if not line else cut('%(file)s:%(number)s, in %(function)s' % line, 600),
        code='' if not line else cut(line['text'], 1000),
        output='' if not said or said['output'] is None else _range(said['output']),
        inputs=[_input(given) for given in (said['inputs'] if said else ())[:_MOST_FACTS]],
        spots=cut(_spots(said['positions']), 1000) if said else '',
        not_seen=[cut(why, 600) for why in (said['not_seen'] if said else ())[:_MOST_FACTS]],
        layers=layer_ranges.layers_of(said['ranges'], said['tensor']) if said else [],
        sheets=samples.sheets(shown, suspects, rows, room=room),
        versions=cut(versions, 600),
    )


def _input(given: Dict[str, Any]) -> Tuple[str, str]:
    return cut(given['name'], 400), '' if given['range'] is None else _range(given['range'])


def _where(said: Dict[str, Any]) -> str:
    if said['op'] is None:
        return ''
    of = ', gradient of %s' % said['forward_op'] if said['forward_op'] else ''
    return '%s (%s%s)' % (said['tensor'] or said['op'], said['op_type'], of)


def _range(said: Dict[str, Any]) -> str:
    numbers = {k: None if said[k] is None else float(bundle.number(said[k])) for k in _ENDS}
    shape = tuple(int(size) for size in said['shape'])
    found = Range(said['dtype'], shape, numbers['min'], numbers['max'], said['nan'], said['inf'])
    return cut(found, 400)


_ENDS = ('min', 'max')


def _spots(positions: List[Any]) -> str:
    shown = ['%s = %g' % (list(place), float(bundle.number(v))) for place, v in positions[:6]]
    more = ', \N{HORIZONTAL ELLIPSIS}' if len(positions) > 6 else ''
    return ', '.join(shown) + more


def _suspects(said: Dict[str, Any]) -> Tuple[List[int], int]:
    """The rows of the batch that made a tensor of the forward pass bad, and how many there are.

    A tensor further on may have another first dimension than the batch: the caller compares.
    """
    if not said or said['phase'] != 'forward' or said['output'] is None:
        return [], 0
    if str(said['op_type']).startswith('FusedBatchNorm'):
        return [], 0  # half of what it puts out is by channel
    shape = said['output']['shape']
    rows = [row for row in said['rows'] if isinstance(row, int)]
    if not shape or not isinstance(shape[0], int):
        return [], 0
    # If all of them are bad, that says nothing about any.
    return (rows, shape[0]) if len(rows) < shape[0] else ([], 0)

"""What there is to report about a training: read from its log directory, checked, and made plain.

Everything here was written by a run, or by somebody who says so. What is not as it should be is
left out or becomes a sentence; nothing of it is run.
"""

import datetime
import os
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import tensorflow as tf

import slimguard
from slimguard import bundle, curve, journal, layers, samples
from slimguard.curve import Curve
from slimguard.layers import Layer
from slimguard.ranges import Range
from slimguard.samples import Sheet

ACTIONS = ('raise', 'stop', 'rollback', 'skip', 'save refused', 'other')
_MOST_BUNDLES = 20
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
    """An incident of the record; what the record does not say, or says wrongly, is None or ''."""

    number: int
    step: Optional[int]
    loss: Optional[float]
    action: str
    reason: str
    tensors: Tuple[str, ...]
    time: Optional[float]
    notes: Tuple[str, ...]

    @property
    def kind(self) -> str:
        """The action, or 'other' for one that we have no colour for."""
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
    """

    title: str
    made: str
    curve: Optional[Curve]
    entries: List[Entry]
    bundles: List[Any]
    notes: List[str]


def gather(logdir: str) -> Findings:
    """Reads what the log directory of a training holds. Never fails because of what is in it."""
    loss, notes = curve.read(logdir)
    entries, torn = _entries(logdir, notes)
    if torn:
        lines = '1 line' if torn == 1 else '%d lines' % torn
        notes.append('%s of the record could not be read; a kill can tear one.' % lines)
    paths = bundle.paths(logdir)
    if len(paths) > _MOST_BUNDLES:
        notes.append('%d older bundles are not shown.' % (len(paths) - _MOST_BUNDLES))
    bundles = [_finding(path) for path in paths[-_MOST_BUNDLES:]]
    return Findings(title_of(logdir), _made(), loss, entries, bundles, notes)


def title_of(logdir: str) -> str:
    """The base name of a log directory."""
    path = logdir if '://' in logdir else os.path.abspath(logdir)
    return os.path.basename(path.rstrip('/\\')) or path


def summary(found: Findings) -> str:
    """The report in a sentence or two."""
    entries = found.entries
    if not entries:
        return 'No incident is on record.'
    counts = [(a, sum(e.kind == a for e in entries)) for a in ACTIONS]
    said = ', '.join('%d %s' % (n, _DONE[a]) for a, n in counts if n)
    one = len(entries) == 1
    sentence = '%s: %s.' % ('One incident' if one else '%d incidents' % len(entries), said)
    readable = sum(isinstance(b, Finding) for b in found.bundles)
    if readable:
        kept = '%d bad steps were' % readable if readable > 1 else 'One bad step was'
        sentence += ' %s kept and examined.' % kept
    return sentence


_DONE = {
    'raise': 'raised',
    'stop': 'stopped the training',
    'rollback': 'rolled back',
    'skip': 'skipped',
    'save refused': 'kept out of a checkpoint',
    'other': 'left to the user',
}


def _made() -> str:
    now = datetime.datetime.now().strftime('%Y-%m-%d %H:%M')
    versions = 'TensorFlow %s, slimguard %s' % (tf.__version__, slimguard.__version__)
    return 'made %s with %s' % (now, versions)


def _entries(logdir: str, notes: List[str]) -> Tuple[List[Entry], int]:
    try:
        records, torn = journal.read(logdir)
    except FileNotFoundError:
        return [], 0
    except (OSError, tf.errors.OpError, RecursionError) as error:
        notes.append('The record of incidents cannot be read: %s' % error)
        return [], 0
    return [entry_of(number, record) for number, record in enumerate(records, 1)], torn


def entry_of(number: int, record: Dict[str, Any]) -> Entry:
    """An incident out of what a line of the record, or a bundle, says."""
    notes = []
    if isinstance(record.get('restored'), str):
        notes.append('restored %s' % os.path.basename(record['restored']))
    if record.get('held') is False:
        notes.append('the update had landed')
    if record.get('state_lost') is True:
        notes.append('variables were bad before the step')
    tensors = record.get('tensors')
    return Entry(
        number=number,
        step=_int(record.get('step')),
        loss=_float(record.get('loss')),
        action=_str(record.get('action')),
        reason=_str(record.get('reason')),
        tensors=tuple(map(str, tensors)) if isinstance(tensors, list) else (),
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


def _finding(path: str):
    name = os.path.basename(path)
    try:
        return _read(name, bundle.read(path))
    except (bundle.BundleError, OSError) as error:
        return Unreadable(name, str(error))
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        MemoryError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        return Unreadable(name, 'incident.json is damaged: %s: %s' % (type(error).__name__, error))


def _read(name: str, it: bundle.Bundle) -> Finding:
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
    return Finding(
        name=name,
        entry=entry_of(0, it.incident),
        phase='' if not said else _PHASES.get(phase, str(phase)),
        trouble=str(said['trouble']) if said else '',
        where=_where(said) if said else '',
        place='' if not line else '%s:%s, in %s' % (line['file'], line['number'], line['function']),
        code='' if not line else str(line['text']),
        output='' if not said or said['output'] is None else _range(said['output']),
        inputs=[
            (str(given['name']), '' if given['range'] is None else _range(given['range']))
            for given in (said['inputs'] if said else ())[:20]
        ],
        spots=_spots(said['positions']) if said else '',
        not_seen=[str(sentence) for sentence in (said['not_seen'] if said else ())],
        layers=layers.layers_of(said['ranges'], said['tensor']) if said else [],
        sheets=samples.sheets(shown, suspects, rows),
        versions=', '.join('%s %s' % (k, v) for k, v in sorted(it.versions.items())),
    )


def _where(said: Dict[str, Any]) -> str:
    if said['op'] is None:
        return ''
    of = ', gradient of %s' % said['forward_op'] if said['forward_op'] else ''
    return '%s (%s%s)' % (said['tensor'] or said['op'], said['op_type'], of)


def _range(said: Dict[str, Any]) -> str:
    numbers = {k: None if said[k] is None else float(bundle.number(said[k])) for k in _ENDS}
    shape = tuple(int(size) for size in said['shape'])
    return str(
        Range(str(said['dtype']), shape, numbers['min'], numbers['max'], said['nan'], said['inf'])
    )


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

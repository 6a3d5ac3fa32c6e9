"""An incident as the page and the picture show it: its card, in words.

The words come from the incident, as the record has it. A bundle adds the batch, the last steps and
the ranges along the step.
"""

import dataclasses
import math
import os
import re
import shlex
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from slimguard.diagnosis.bundle import Bundle
from slimguard.diagnosis.diagnosis import PHASES, Phase
from slimguard.diagnosis.ranges import Range
from slimguard.incidents import advice
from slimguard.incidents.incident import Incident
from slimguard.report import last_steps, samples
from slimguard.report.last_steps import LastSteps, multiple, number
from slimguard.report.samples import Numbers, Sheet
from slimguard.system import texts

# The actions in words. Any other action comes from a subclass of NanLossHook.
ACTIONS = {
    'raise': 'raised an error',
    'stop': 'stopped',
    'rollback': 'rolled back',
    'skip': 'skipped',
    'save refused': 'refused to save',
    'on_nan_loss': 'left to on_nan_loss',
    'not said': 'action not recorded',
}
_MOST_RANGES = 40


class Fact(NamedTuple):
    """A fact: its name, then code, words, and a line of code; each of these may be ''."""

    name: str
    code: str = ''
    words: str = ''
    line: str = ''


class RangeRow(NamedTuple):
    """A row of the table of ranges: is the tensor bad, and did non-finite numbers begin in it."""

    tensor: str
    range: str
    is_bad: bool
    begins: bool


class Opened(NamedTuple):
    """What a bundle adds to its incident.

    Attributes:
      path: its folder, absolute.
      text: the diagnosis in a few lines; '' if there is none.
      bad_rows: the rows of the batch that are known to be at fault.
      batch: the arrays of the batch that are no images.
      batch_note: a sentence on which array of the batch is at fault; '' if the page shows that.
      ranges: the range of the tensor at fault, then the ranges of tensors before and after it.
      ranges_note: sentences that explain `ranges`.
      sheets: the samples of the batch.
      versions: the versions of the packages that made it.
      steps: the last steps before the incident; None if they are not known.
    """

    path: str
    text: str = ''
    bad_rows: Sequence[int] = ()
    batch: Sequence[Numbers] = ()
    batch_note: str = ''
    ranges: Sequence[RangeRow] = ()
    ranges_note: str = ''
    sheets: Sequence[Sheet] = ()
    versions: str = ''
    steps: Optional[LastSteps] = None

    @property
    def name(self) -> str:
        """The name of its folder."""
        return os.path.basename(self.path)


@dataclasses.dataclass(frozen=True)
class IncidentView(Incident):
    """An incident, its number in the record, from 1 on, and its bundle.

    The number is 0 for an incident that is in a bundle but not in the record. `start` is the number
    of its start; 0 if the record has only one start.
    """

    number: int = 0
    start: int = 0
    opened: Optional[Opened] = dataclasses.field(default=None, compare=False)

    @property
    def kind(self) -> str:
        """The action, as one of `ACTIONS`.

        No action is known if the process was killed between the step and its policy.
        """
        if self.action in (None, '', 'interrupted'):
            return 'not said'
        return self.action if self.action in ACTIONS else 'on_nan_loss'

    @property
    def done(self) -> str:
        """The action in words."""
        return ACTIONS[self.kind] if self.kind != 'on_nan_loss' else self.action or ''

    @property
    def heading(self) -> str:
        """The number of the incident, its step, and its start."""
        known = ['incident %d' % self.number] if self.number else []
        known += [] if self.step is None else ['step %d' % self.step]
        known += ['start %d' % self.start] if self.start else []
        return begun(', '.join(known)) or (self.opened.name if self.opened else '')

    @property
    def headline(self) -> str:
        """The cause in a sentence; if it is not known, what was seen."""
        return begun(_OF_A_LIMIT.sub('', self.cause)) + '.' * bool(self.diagnosis)

    @property
    def more(self) -> str:
        """For an explosion, a second sentence: what the explosion made bad; else ''."""
        told = self._lines[:1]
        return begun(told[0]) + '.' if told and told[0] != self.cause else ''

    @property
    def is_explosion(self) -> bool:
        """Whether the diagnosis says at which step the training began to explode."""
        return ' went from ' in self.cause

    @property
    def _lines(self) -> List[str]:
        """The lines of the diagnosis, without the lines of an explosion."""
        told = (self.diagnosis or '').split('\n')
        return told if told[0].partition(': ')[0] in _PHASES else told[1:]

    @property
    def to_do(self) -> str:
        """What to do."""
        return advice.what_to_do(self)

    @property
    def commands(self) -> List[str]:
        """Commands that run the step again, with and without its bad row; [] without a bundle."""
        if self.opened is None:
            return []
        replay = 'python -m slimguard replay ' + shlex.quote(self.opened.path)
        without = ['%s --without %d' % (replay, row) for row in self.opened.bad_rows]
        return [replay, *(without if len(without) == 1 else [])]

    @property
    def facts(self) -> List[Fact]:
        """Further facts: lines of the diagnosis, numbers, the action, versions."""
        not_applied = ['the update was not applied'] if self.held else []
        # Without a diagnosis the headline has the reason as a whole.
        symptom, policy, why_not = self.reason.partition("; '")
        why = ["'" + why_not] if policy and self.diagnosis else []
        facts = [
            *sorted(map(_fact_of, self._lines[1:]), key=lambda fact: fact.name != 'Your line'),
            Fact('Symptom', words=symptom if self.diagnosis else ''),
            Fact('Loss', words=_finite(self.loss)),
            Fact('Gradient norm', words=self.norm),
            Fact('Action', words='; '.join([begun(self.done), *self.notes, *not_applied, *why])),
            Fact('Versions', words='' if self.opened is None else self.opened.versions),
        ]
        return [fact for fact in facts if any(fact[1:])]

    @property
    def notes(self) -> List[str]:
        """Further facts, in a few words each."""
        notes = ['restored %s' % os.path.basename(self.restored)] if self.restored else []
        if self.learning_rate is not None:
            rate = 'the learning rate is %g times that of the script from then on'
            notes.append(rate % self.learning_rate)
        notes += [] if self.held else ['the update was applied already']
        return notes + (['variables were bad before the step'] if self.state_lost else [])

    @property
    def norm(self) -> str:
        """The gradient norm, and its multiple of the median; '' if it is not a finite number."""
        said, ratio = _finite(self.gradient_norm), self.gradient_norm_ratio
        if not said or ratio is None or not math.isfinite(ratio):
            return said
        return '%s, %s times the median of the last good steps' % (said, multiple(ratio))


def _finite(value: Optional[float]) -> str:
    # A non-finite number is left out: the symptom names it.
    return number(value) if value is not None and math.isfinite(value) else ''


# The phase of a loss or norm above its limit, which says nothing more.
_OF_A_LIMIT = re.compile('^in the [^:]*: (?=.*, and everything is finite)')
# The words at the beginning of a diagnosis. An explosion's line comes before them.
_PHASES = frozenset(PHASES.values())
# Names for the other lines of a diagnosis; the first pattern that matches counts.
_FACTS = (
    ('Input', re.compile(r'input (?P<code>.*?): (?P<words>.*)')),
    ('Value', re.compile(r'output: (?P<words>.*)')),
    ('Where', re.compile(r'at (?P<words>\[.*)')),
    ('Tensor', re.compile(r'(?P<code>\S+ \(.*\))$')),
    ('Your line', re.compile(r'(?P<code>\S.*?:\d+(, in \S+)?)(: (?P<line>.*))?$')),
    ('Note', re.compile('(?P<words>.*)')),
)


def _fact_of(line: str) -> Fact:
    """Parses a line of the text of a `Diagnosis` into a fact."""
    for name, form in _FACTS:
        found = form.match(line.strip())
        if found:
            fact = Fact(name, **found.groupdict(''))
            return fact._replace(words=_plain(fact.words))
    raise AssertionError('not reached')


def _plain(said: str) -> str:
    """Rewrites the range or the places in a line of a `Diagnosis` for readers of the page."""
    said = re.sub(r'^(\w+)\[\], (1 of 1 )?', r'\1, a scalar: ', said)
    if said.startswith('[]'):
        return ''  # for a scalar the range is enough
    return re.sub(r'(\[[\d, ]+\]) = (-?\w+)', r'\2 at \1', said)


def bundle_name(incident: Incident) -> str:
    """The name of the bundle's folder; if the training ran on Windows, its path has \\ in it."""
    return re.split(r'[/\\]', (incident.bundle or '').rstrip('/\\'))[-1]


def begun(said: str) -> str:
    """`said` with a capital letter, as a sentence begins."""
    return said[:1].upper() + said[1:]


def incident_of(
    incident: Incident, number: int = 0, opened: Optional[Opened] = None, start: int = 0
) -> IncidentView:
    """An incident with its number, its bundle and its start."""
    view = IncidentView(number=number, opened=opened, start=start, **vars(incident))
    text = None if opened is None else opened.text or None
    return view if view.diagnosis else dataclasses.replace(view, diagnosis=text)


def opened_of(read: Bundle, most: int) -> Opened:
    """What a bundle adds to its incident.

    Args:
      read: the bundle. Only its main fields were checked, so damaged contents may raise any error.
      most: the most samples to show.
    """
    drawn = _drawn_by_the_user(read)
    opened = Opened(
        read.path,
        read.text,
        versions=', '.join('%s %s' % pair for pair in sorted(read.versions.items())),
        steps=last_steps.last_steps_of(
            read.history, [said for _, said in read.exported.names['labels']]
        ),
    )
    said = read.diagnosis or {}
    bad, size = _bad_rows(said) if said else ([], 0)
    fitting = [name for name, value in drawn.items() if np.shape(value)[:1] == (size,) and bad]
    suspects = [name for name in said.get('drawn') or [said.get('tensor')] if name in drawn]
    suspects = suspects or fitting
    bad_rows = {name: bad for name in fitting if name in suspects}
    opened = opened._replace(
        bad_rows=bad,
        batch=samples.in_numbers(drawn, bad_rows, suspects, _places(said)),
        sheets=samples.sheets(drawn, {} if said.get('phase') == Phase.INPUT else bad_rows, most),
    )
    if all(map(samples.is_finite, drawn.values())):
        opened = opened._replace(batch_note=_batch_note(suspects))
    return _with_ranges(opened, said) if said else opened


def _batch_note(suspects: List[str]) -> str:
    if not suspects:
        return 'No value of the batch is known to be at fault.'
    told = 'The bad value was computed from %s' % texts.listed(suspects, 5)
    return told + ('; which of them is at fault is not known.' if len(suspects) > 1 else '.')


def _drawn_by_the_user(read: Bundle) -> Dict[str, np.ndarray]:
    """The values that the step drew, without random numbers and slimguard's own limits."""
    sources = read.exported.names['sources']
    return {
        name: value
        for name, value in read.values.items()
        if not name.startswith('slimguard/') and 'Random' not in sources[name][1]
    }


def _places(said: Dict[str, Any]) -> Dict[str, List[Tuple[int, ...]]]:
    """The indices of the first numbers that the op at fault cannot take, by names of its inputs."""
    return {
        given['name']: [
            tuple(map(int, place.split(',')))
            for place in re.findall(r' at \[([\d, ]+)\]', given.get('where') or '')
        ]
        for given in said.get('inputs') or ()
    }


def _bad_rows(said: Dict[str, Any]) -> Tuple[List[int], int]:
    """The rows that are bad in the input or made a later tensor bad; and the number of all rows.

    A later tensor may differ from the batch in its first dimension: the caller must compare.
    """
    found = said['non_finite']
    if (
        said['phase'] not in (Phase.INPUT, Phase.FORWARD, Phase.BACKWARD)
        or not said['output']
        or not found
    ):
        return [], 0
    shape = said['output']['shape']
    rows = [row for row in found['rows'] if isinstance(row, int)]
    # A fused batch norm is left out: its outputs with statistics have a row for each channel.
    is_batch = shape and isinstance(shape[0], int) and not str(said['op_type']).startswith('FusedB')
    # If most rows are bad, none is at fault.
    return (rows, shape[0]) if is_batch and 2 * len(rows) <= shape[0] else ([], 0)


def _with_ranges(opened: Opened, said: Dict[str, Any]) -> Opened:
    """Adds the table of ranges: first the tensor at fault, then others in the order of the step."""
    order = list(PHASES)
    rows = sorted(said['ranges'], key=lambda row: order.index(row['phase']))
    at = next((n for n, row in enumerate(rows) if row['tensor'] == said['tensor']), None)
    start = max(0, min((at or 0) - _MOST_RANGES // 2, len(rows) - _MOST_RANGES))
    shown = rows[start : start + _MOST_RANGES]
    note = 'Each line has the smallest and the largest number of a tensor, in the order of the step'
    if at is not None:
        shown = [rows[at]] + [row for row in shown if row is not rows[at]]
        note += ', but the tensor where the NaN or Inf began comes first'
    if len(shown) < len(rows):
        note += '. The table has %d of %d tensors' % (len(shown), len(rows))
    ranges = []
    for row in shown:
        found = Range(**dict(row['range'], shape=tuple(map(int, row['range']['shape']))))
        begins = at is not None and row is rows[at]
        ranges.append(RangeRow(row['tensor'], _plain(str(found)), not found.is_finite, begins))
    return opened._replace(ranges=ranges, ranges_note=note + '.')

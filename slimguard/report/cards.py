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
from slimguard.incidents import advice, record_file
from slimguard.incidents.incident import Incident
from slimguard.report import last_steps, samples
from slimguard.report.last_steps import LastSteps, multiple, number
from slimguard.report.samples import Sheet

# Any other action is that of a subclass of NanLossHook.
ACTIONS = ('raise', 'stop', 'rollback', 'skip', 'save refused', 'on_nan_loss', 'not said')
_MOST_RANGES = 40


class Fact(NamedTuple):
    """A fact: its name, then code, words, and a line of code, each '' if there is none."""

    name: str
    code: str = ''
    words: str = ''
    line: str = ''


class RangeRow(NamedTuple):
    """A line of the table of ranges: a tensor of the step, and whether it made the step bad."""

    tensor: str
    range: Range
    begins: bool


class Opened(NamedTuple):
    """What a bundle adds to its incident.

    Attributes:
      path: its folder, absolute.
      text: the diagnosis in a few lines; '' if there is none.
      bad_rows: the rows of the batch that are at fault, as far as they are known.
      batch: the arrays of the batch that are no images: a name, and lines of numbers.
      ranges: the ranges of the tensors before and after the one at fault.
      sheets: the samples of the batch.
      versions: the versions of the packages that made it.
      steps: the last steps before the incident; None if they are not known.
    """

    path: str
    text: str = ''
    bad_rows: Sequence[int] = ()
    batch: Sequence[Tuple[str, str]] = ()
    ranges: Sequence[RangeRow] = ()
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
    def heading(self) -> str:
        """Which step it was."""
        if self.step is not None:
            return 'Step %d' % self.step
        return 'Incident %d' % self.number if self.opened is None else self.opened.name

    @property
    def headline(self) -> str:
        """The cause in a sentence; else what was seen."""
        return begun(self.cause) + '.' * bool(self.diagnosis)

    @property
    def more(self) -> str:
        """After the headline of an explosion, what that made bad; else ''."""
        told = self._lines[:1]
        return begun(told[0]) + '.' if told and told[0] != self.cause else ''

    @property
    def _lines(self) -> List[str]:
        """The lines of the diagnosis, without those of an explosion."""
        told = (self.diagnosis or '').split('\n')
        return told if told[0].partition(': ')[0] in _PHASES else told[1:]

    @property
    def to_do(self) -> str:
        """What to do."""
        cure = advice.for_cause(self.cause + '\n' + self.more)
        if cure in advice.FOR_EXPLOSIONS:
            return cure
        # The commands of the card name the bundle where it is now.
        policy = begun(advice.without_bundle(self.advice or ''))
        told = ' '.join(filter(None, [cure, policy and policy.rstrip('.') + '.']))
        where = ''.join(self._lines[:1]).partition(': ')[0]
        return told or advice.BY_PHASE.get(_PHASES.get(where, ''), '')

    @property
    def commands(self) -> List[str]:
        """Run the step again, and without its bad row; none without a bundle."""
        if self.opened is None:
            return []
        replay = 'python -m slimguard replay ' + shlex.quote(self.opened.path)
        without = ['%s --without %d' % (replay, row) for row in self.opened.bad_rows]
        return [replay, *(without if len(without) == 1 else [])]

    @property
    def facts(self) -> List[Fact]:
        """What else is known."""
        facts = [
            *map(_fact_of, self._lines[1:]),
            Fact('Seen', words=self.reason if self.diagnosis else ''),
            Fact('Loss', words=number(self.loss)),
            Fact('Gradient norm', words=self.norm),
            Fact('Done', words='; '.join(filter(None, [self.action, *self.notes]))),
            Fact('When', words=record_file.when(self.time)),
            Fact('Made with', words='' if self.opened is None else self.opened.versions),
        ]
        return [fact for fact in facts if any(fact[1:])]

    @property
    def notes(self) -> List[str]:
        """Further facts, in a few words each."""
        notes = ['restored %s' % os.path.basename(self.restored)] if self.restored else []
        if self.learning_rate is not None:
            notes.append('learning rate x%g from then on' % self.learning_rate)
        notes += [] if self.held else ['the update had landed']
        return notes + (['variables were bad before the step'] if self.state_lost else [])

    @property
    def norm(self) -> str:
        """The gradient norm, and its multiple of the median; '' if it is unknown."""
        said, ratio = number(self.gradient_norm), self.gradient_norm_ratio
        if not said or ratio is None or not math.isfinite(ratio):
            return said
        return '%s, %s times the median of the last good steps' % (said, multiple(ratio))


# By the words with which a diagnosis begins, but for that of an explosion, the phase.
_PHASES = {said: phase for phase, said in PHASES.items()}
# The other lines of a diagnosis; the first form that fits counts.
_FACTS = (
    ('Input', re.compile(r'input (?P<code>.*?): (?P<words>.*)')),
    ('Value', re.compile(r'output: (?P<words>.*)')),
    ('Not finite', re.compile(r'at (?P<code>\[.*)')),
    ('Tensor', re.compile(r'(?P<code>\S+ \(.*\))$')),
    ('Your line', re.compile(r'(?P<code>\S.*?:\d+(, in \S+)?)(: (?P<line>.*))?$')),
    ('Note', re.compile('(?P<words>.*)')),
)


def _fact_of(line: str) -> Fact:
    """The fact in a line of a diagnosis, as `Diagnosis` writes it."""
    for name, form in _FACTS:
        found = form.match(line.strip())
        if found:
            return Fact(name, **found.groupdict(''))
    raise AssertionError('not reached')


def bundle_name(incident: Incident) -> str:
    """The name of the bundle's folder. Its path is of the system that the training ran on."""
    return re.split(r'[/\\]', (incident.bundle or '').rstrip('/\\'))[-1]


def begun(said: str) -> str:
    """Words as the beginning of a sentence."""
    return said[:1].upper() + said[1:]


def incident_of(
    incident: Incident, number: int = 0, opened: Optional[Opened] = None
) -> IncidentView:
    """An incident with its number and its bundle."""
    view = IncidentView(number=number, opened=opened, **vars(incident))
    text = None if opened is None else opened.text or None
    return view if view.diagnosis else dataclasses.replace(view, diagnosis=text)


def opened_of(read: Bundle, most: int) -> Opened:
    """What a bundle adds to its incident.

    Args:
      read: the bundle. Of its contents only the outline was checked, so this may raise anything.
      most: the most samples to show.
    """
    drawn = _drawn_by_the_user(read)
    opened = Opened(
        read.path,
        read.text,
        versions=', '.join('%s %s' % pair for pair in sorted(read.versions.items())),
        steps=last_steps.last_steps_of(read.history),
    )
    said = read.diagnosis
    bad, rows = ([], 0) if said is None else _bad_rows(said)
    is_later = said is not None and said['phase'] != Phase.INPUT
    opened = opened._replace(
        batch=samples.in_numbers(drawn, bad, rows),
        sheets=samples.sheets(drawn, bad if is_later else [], rows, most),
    )
    return opened if said is None else opened._replace(bad_rows=bad, ranges=_ranges_of(said))


def _drawn_by_the_user(read: Bundle) -> Dict[str, np.ndarray]:
    """The values that the step took in, without random numbers and slimguard's own."""
    sources = read.exported.names['sources']
    return {
        name: value
        for name, value in read.values.items()
        if not name.startswith('slimguard/') and 'Random' not in sources[name][1]
    }


def _bad_rows(said: Dict[str, Any]) -> Tuple[List[int], int]:
    """The rows that are bad in the input, or made a later tensor bad; and the number of rows.

    A later tensor may have another first dimension than the batch: `samples` compares.
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
    # Half of the outputs of a batch norm are by channel.
    is_batch = shape and isinstance(shape[0], int) and not str(said['op_type']).startswith('FusedB')
    # If most rows are bad, none is at fault.
    return (rows, shape[0]) if is_batch and 2 * len(rows) <= shape[0] else ([], 0)


def _ranges_of(said: Dict[str, Any]) -> List[RangeRow]:
    """The tensors of the step before and after the one at fault, in their order."""
    rows, culprit = said['ranges'], said['tensor']
    at = next((n for n, row in enumerate(rows) if row['tensor'] == culprit), 0)
    start = max(0, min(at - _MOST_RANGES // 2, len(rows) - _MOST_RANGES))
    shown = rows[start : start + _MOST_RANGES]
    return [RangeRow(it['tensor'], _range_of(it['range']), it['tensor'] == culprit) for it in shown]


def _range_of(said: Dict[str, Any]) -> Range:
    found = Range(**dict(said, shape=tuple(int(size) for size in said['shape'])))
    str(found)  # raises for what are no numbers
    return found

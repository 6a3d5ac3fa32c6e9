"""Groups incidents by cause: hundreds of incidents often have a few causes."""

import collections
import re
from typing import Any, Counter, Dict, List, NamedTuple, Optional, Sequence, Set, TypeVar

from slimguard.incidents.incident import Incident

_I = TypeVar('_I', bound=Incident)

# A number that stands alone, and not in a tensor's name.
_NUMBER = re.compile(r'(?<![^\s(=])[-+]?(\d+\.?\d*(e[-+]?\d+)?|inf|nan)(?![^\s;,)])', re.IGNORECASE)
# How the diagnosis of bad data begins.
_OF_DATA = 'in the input: '
# The line of the user's code in a diagnosis.
_LINE = re.compile(r'^  (\S.*:\d+)(?:, in |$)', re.MULTILINE)
# How many incidents of a group were not examined, and only share the others' symptom.
NOT_EXAMINED = '%d of them only have the same symptom: slimguard did not look for their cause'
# Overflows and explosions are one kind wherever they show: this part of a cause says where.
_WHEREVER = re.compile(
    r'^in the [^:]*: (?=overflow)|(?<=overflow) of [^;]*|(?<= went from ).*|[.] The weights.*'
)
# Rows, and a count in brackets, in a cause whose numbers may be '#'.
_ROWS = re.compile(r'(, in )?(\brows? N(, N)*|N of N rows)'.replace('N', r'(#|\d+)'))
_COUNT = re.compile(r' \(\d+ of \d+ \w+\)')


class Group(NamedTuple):
    """Incidents whose causes are the same, except for numbers.

    An incident that was not examined counts as one of the examined incidents with the same symptom,
    if these have a single cause.

    Attributes:
      first: the first incident that was examined; the first of all if none was.
      count: the number of incidents.
      first_step: the smallest global step among them, or None if none is known.
      last_step: the largest global step among them, or None.
      actions: how often each action was taken, in the order in which they were first taken; ''
        stands for an unknown action.
      not_examined: the number of incidents that were not examined, and only share the symptom.
      bundle: the first bundle that was kept; None if none was.
    """

    first: Incident
    count: int
    first_step: Optional[int]
    last_step: Optional[int]
    actions: Dict[str, int]
    not_examined: int = 0
    bundle: Optional[str] = None


def grouped(incidents: Sequence[Incident]) -> List[Group]:
    """The groups of incidents, in the order in which each first occurred."""
    return [_group_of(members) for members in by_kind(incidents)]


def by_kind(incidents: Sequence[_I]) -> List[List[_I]]:
    """Lists of incidents of one kind, ordered by the first incident of each kind."""
    causes: Dict[str, Set[str]] = {}  # by symptom
    for each in incidents:
        # Drawn values are always checked, so incidents that were not examined had good data.
        if each.diagnosis and not each.diagnosis.startswith(_OF_DATA):
            causes.setdefault(symptom_of(each), set()).add(kind_of(each))
    kinds: Dict[str, List[_I]] = {}
    for each in incidents:
        kind = kind_of(each)
        if len(causes.get(kind, ())) == 1:  # the kind is a symptom: it was not examined
            (kind,) = causes[kind]
        kinds.setdefault(kind, []).append(each)
    return list(kinds.values())


def starts_of(incidents: Sequence[Incident]) -> List[int]:
    """For each incident the number of its start, from 1 on: a restart is a new process.

    The workers of a cluster share a record; a start ends where one of them has another process.
    """
    numbers: List[int] = []
    number, seen = 1, {}
    for each in incidents:
        if seen.setdefault(each.worker, each.started) != each.started:
            number, seen = number + 1, {each.worker: each.started}
        numbers.append(number)
    return numbers


def not_examined(incidents: Sequence[Any]) -> int:
    """How many incidents of a kind were not examined; 0 if no incident of the kind was."""
    count = sum(not each.diagnosis for each in incidents)
    return count if count < len(incidents) else 0


def _group_of(members: List[Incident]) -> Group:
    steps = [incident.step for incident in members if incident.step is not None]
    actions: Counter[str] = collections.Counter(incident.action or '' for incident in members)
    first_step, last_step = (min(steps), max(steps)) if steps else (None, None)
    first = next((each for each in members if each.diagnosis), members[0])
    left_out = not_examined(members)
    bundle = next((each.bundle for each in members if each.bundle is not None), None)
    return Group(first, len(members), first_step, last_step, dict(actions), left_out, bundle)


def kind_of(incident: Incident) -> str:
    """The kind of an incident: its cause without numbers and rows, and the user's line.

    For bad data and overflows the line is left out. Without examination, the symptom is the kind.
    """
    if not incident.diagnosis:
        return symptom_of(incident)
    kind, is_wherever = _WHEREVER.subn('', _words_of(incident.cause))
    has_line = not is_wherever and not incident.diagnosis.startswith(_OF_DATA)
    return '\n'.join([kind, *_LINE.findall(incident.diagnosis)[: int(has_line)]])


def symptom_of(incident: Incident) -> str:
    """What was seen, without numbers. Incidents with the same symptom may have different causes."""
    return _words_of(incident.reason.partition('; ')[0])


def without_rows(cause: str) -> str:
    """A cause without its rows and its count in brackets, which are of one incident."""
    return _ROWS.sub('', _COUNT.sub('', cause))


def _words_of(told: str) -> str:
    return _ROWS.sub('', _NUMBER.sub('#', told))

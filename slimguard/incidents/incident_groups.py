"""Groups incidents by cause: hundreds of incidents are often of a few kinds."""

import collections
import re
from typing import Callable, Counter, Dict, List, NamedTuple, Optional, Sequence, TypeVar

from slimguard.incidents.incident import Incident

_T = TypeVar('_T')

# A number that stands alone, and not in a tensor's name.
_NUMBER = re.compile(r'(?<![^\s(=])[-+]?(\d+\.?\d*(e[-+]?\d+)?|inf|nan)(?![^\s;,)])', re.IGNORECASE)
_ROWS = re.compile(r'\brows? #(, #)*( and # more)?')


class Group(NamedTuple):
    """Incidents whose causes differ in numbers at most.

    Attributes:
      first: the first incident.
      count: the number of incidents.
      first_step: the smallest global step among them, or None if none is known.
      last_step: the largest one, or None.
      actions: how often each action was taken, in the order in which they were first taken; ''
        stands for an unknown action.
    """

    first: Incident
    count: int
    first_step: Optional[int]
    last_step: Optional[int]
    actions: Dict[str, int]


def grouped(incidents: Sequence[Incident]) -> List[Group]:
    """The groups of incidents, in the order in which each first occurred."""
    return [_group_of(members) for members in by_kind(incidents, lambda it: it.cause)]


def by_kind(items: Sequence[_T], cause_of: Callable[[_T], str]) -> List[List[_T]]:
    """Lists of items whose causes are of one kind, in the order of the first of each kind."""
    kinds: Dict[str, List[_T]] = {}
    for item in items:
        kinds.setdefault(kind_of(cause_of(item)), []).append(item)
    return list(kinds.values())


def _group_of(members: List[Incident]) -> Group:
    steps = [incident.step for incident in members if incident.step is not None]
    actions: Counter[str] = collections.Counter(incident.action or '' for incident in members)
    first_step, last_step = (min(steps), max(steps)) if steps else (None, None)
    return Group(members[0], len(members), first_step, last_step, dict(actions))


def kind_of(cause: str) -> str:
    """A cause without its numbers: incidents of one group have it in common."""
    return _ROWS.sub('rows', _NUMBER.sub('#', cause))

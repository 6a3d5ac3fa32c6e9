"""An incident as a line of the record file: JSON, its strings cut to what people want to see.

record_reader.py reads such lines, and believes none of them. The line in TensorFlow's log is made
in journal.py.
"""

import json
from typing import Any, Dict

from slimguard.incidents.incident import Incident
from slimguard.system import texts

# No line is longer: readers need not hold what may be gigabytes.
LONGEST_LINE = 2**20
# What is kept of a record that would be longer.
_LONGEST_TEXT, _LONGEST_NAME, _MOST_NAMES = 5000, 500, 1000


def line_of(incident: Incident, process: str) -> bytes:
    """The line that stands for an incident in a process, its end included."""
    record = dict(incident.to_dict(), process=process)
    line = _encoded(record)
    if len(line) >= LONGEST_LINE:
        line = _encoded(_shortened(record))
    return line


def with_short_strings(record: Dict[str, Any]) -> Dict[str, Any]:
    """A copy of a record whose long strings are cut."""
    short = {key: _cut(value, _LONGEST_TEXT) for key, value in record.items()}
    short['tensors'] = [_cut(name, _LONGEST_NAME) for name in record['tensors']]
    return short


def _shortened(record: Dict[str, Any]) -> Dict[str, Any]:
    short = with_short_strings(record)
    more = len(short['tensors']) - _MOST_NAMES
    if more > 0:
        short['tensors'][_MOST_NAMES:] = ['and %d more' % more]
    return short


def _encoded(record: Dict[str, Any]) -> bytes:
    return json.dumps(record, sort_keys=True, default=_plain).encode('utf-8') + b'\n'


def _plain(value: Any) -> Any:
    """What stands for a value that JSON does not know, in an incident that somebody else made."""
    return value.item() if hasattr(value, 'item') else str(value)


def _cut(value: Any, most: int) -> Any:
    return texts.cut(value, most, '...') if isinstance(value, str) else value

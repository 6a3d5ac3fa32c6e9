"""The record for people: a table of incidents, and the format of a time."""

import time
from typing import List, Optional, Tuple

from slimguard.incidents.incident import Incident


def table(incidents: List[Incident]) -> List[Tuple[str, ...]]:
    """A header and a row for each incident: time, step, loss, action, and the cause and reason."""
    rows: List[Tuple[str, ...]] = [('time', 'step', 'loss', 'action', 'reason')]
    for incident in incidents:
        what = [incident.cause] if incident.cause != incident.reason else []
        rows.append(
            (
                when(incident.time),
                '' if incident.step is None else str(incident.step),
                '' if incident.loss is None else '%g' % incident.loss,
                incident.action or '',
                '; '.join([*what, incident.reason]),
            )
        )
    return rows


def when(seconds: Optional[float]) -> str:
    """A time for people; '' for none."""
    try:
        return time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(seconds)) if seconds else ''
    except (OverflowError, OSError, ValueError):
        return ''

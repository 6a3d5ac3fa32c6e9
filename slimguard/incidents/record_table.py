"""The record for people: a table of incidents, and how a time is written in it."""

import time
from typing import List, Optional, Tuple

from slimguard.incidents.incident import Incident


def table(incidents: List[Incident]) -> List[Tuple[str, ...]]:
    """Rows for people: when, at which step, the loss, what was done, and why."""
    rows: List[Tuple[str, ...]] = [('time', 'step', 'loss', 'action', 'reason')]
    for incident in incidents:
        rows.append(
            (
                when(incident.time),
                '' if incident.step is None else str(incident.step),
                '' if incident.loss is None else '%g' % incident.loss,
                incident.action or '',
                incident.reason,
            )
        )
    return rows


def when(seconds: Optional[float]) -> str:
    """A time for people; '' for none."""
    try:
        return time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(seconds)) if seconds else ''
    except (OverflowError, OSError, ValueError):
        return ''

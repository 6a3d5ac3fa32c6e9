"""One incident of the record as the report shows it: checked, cut, in plain words.

The record was written by a run, or by somebody who says so. Values of the wrong kind are left out.
"""

import os
import re
from typing import Any, Dict, NamedTuple, Optional, Tuple

from slimguard.system.numbers import is_whole
from slimguard.system.texts import cut

ACTIONS = ('raise', 'stop', 'rollback', 'skip', 'save refused', 'other', 'not said')


class IncidentView(NamedTuple):
    """An incident; what the record does not say, or says wrongly, is None or ''.

    Attributes:
      number: its place in the record, from 1 on; 0 for the incident that a bundle tells of.
      step, loss, reason, time: as in `Incident`.
      action: as in `Incident`. It may be missing: a process that is killed between the step and
        its policy says none.
      bundle: the name of the bundle's folder, without its path: a log directory may be moved.
      notes: what else there is to know, in a few words each.
      gradient_norm, gradient_norm_ratio: as in `Incident`.
      diagnosis, advice: as in `Incident`.
    """

    number: int
    step: Optional[int]
    loss: Optional[float]
    action: str
    reason: str
    time: Optional[float]
    bundle: str
    notes: Tuple[str, ...]
    gradient_norm: Optional[float] = None
    gradient_norm_ratio: Optional[float] = None
    diagnosis: str = ''
    advice: str = ''

    @property
    def kind(self) -> str:
        """The action, or 'other' for one that we have no colour for."""
        if not self.action:
            return 'not said'
        return self.action if self.action in ACTIONS else 'other'


def view_of(number: int, record: Dict[str, Any]) -> IncidentView:
    """An incident out of what a line of the record, or a bundle, says."""
    return IncidentView(
        number=number,
        step=_int(record.get('step')),
        loss=_float(record.get('loss')),
        action=cut(_str(record.get('action')), 60),
        reason=cut(_str(record.get('reason')), 1000),
        time=_float(record.get('time')),
        bundle=_folder_name(_str(record.get('bundle'))),
        notes=_notes(record),
        gradient_norm=_float(record.get('gradient_norm')),
        gradient_norm_ratio=_float(record.get('gradient_norm_ratio')),
        diagnosis=cut(_str(record.get('diagnosis')), 2000),
        advice=cut(_str(record.get('advice')), 1000),
    )


def _notes(record: Dict[str, Any]) -> Tuple[str, ...]:
    notes = []
    if isinstance(record.get('restored'), str):
        notes.append('restored %s' % cut(os.path.basename(record['restored']), 200))
    factor = _float(record.get('learning_rate'))
    if factor is not None:
        notes.append('learning rate x%g from then on' % factor)
    if record.get('held') is False:
        notes.append('the update had landed')
    if record.get('state_lost') is True:
        notes.append('variables were bad before the step')
    return tuple(notes)


def _folder_name(path: str) -> str:
    # Of whichever system the training ran on.
    return re.split(r'[/\\]', path.rstrip('/\\'))[-1]


def _str(value: Any) -> str:
    return value if isinstance(value, str) else ''


def _int(value: Any) -> Optional[int]:
    return value if is_whole(value) and abs(value) < 10**15 else None


def _float(value: Any) -> Optional[float]:
    try:
        return None if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None

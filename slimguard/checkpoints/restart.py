"""The output of ``python -m slimguard checkpoints``: the checkpoints, and how a restart uses them.

There are two kinds of restart. :func:`slimguard.train` reads the checkpoints and takes the newest
good one; plain TensorFlow, a `MonitoredTrainingSession` with our hook included, does what the state
file says. If the two differ, both are printed.
"""

import os
from typing import Dict, List, NamedTuple, Optional, Tuple

from slimguard.checkpoints import checkpoint_reader, state_file
from slimguard.checkpoints import repair as repairs
from slimguard.checkpoints.checkpoint_files import Checkpoint, files_of
from slimguard.checkpoints.checkpoint_reader import Inspection
from slimguard.checkpoints.state_file import DamagedStateError, State, StateFileError
from slimguard.incidents import record_table
from slimguard.system import files


class Seen(NamedTuple):
    """The output of the command, and whether a restart resumes from a good checkpoint.

    Attributes:
      before: sentences on what was repaired.
      rows: the table of checkpoints, with its head.
      after: sentences on what a restart does.
      is_good: whether both kinds of restart resume from a good checkpoint; if there is none at
        all, whether no repair was asked for.
      inspected: what was found in each checkpoint, from the oldest to the newest.
      fates: what `slimguard.train` and what plain TensorFlow does; both None if there is nothing
        to resume from.
    """

    before: List[str]
    rows: List[Tuple[str, ...]]
    after: List[str]
    is_good: bool
    inspected: List[Tuple[Checkpoint, Inspection]]
    fates: Tuple[Optional['Fate'], Optional['Fate']]


class Fate(NamedTuple):
    """What a restart does.

    Attributes:
      said: in words.
      is_good: whether it resumes from a good checkpoint.
      path: the checkpoint that it resumes from, or None.
    """

    said: str
    is_good: bool
    path: Optional[str] = None


def look(logdir: str, repair: bool = False) -> Seen:
    """Opens all checkpoints in a logdir, after a repair if so asked.

    Raises:
      UnreadableError: if one of them cannot be read.
      StateFileError, OSError, tf.errors.OpError: if the repair fails.
    """
    before = []
    if repair:
        before.append(repairs.repair(logdir).said or 'nothing to repair in ' + logdir)
    state, trouble = _read_state(logdir)
    rows: List[Tuple[str, ...]] = [('checkpoint', 'step', 'written', 'size', '')]
    inspected: Dict[str, Inspection] = {}
    all_found = checkpoint_reader.checkpoints_beside(logdir, state)
    for found in all_found:
        inspected[found.path] = checkpoint_reader.inspect(found.path)
        rows.append(_row_of(found, inspected[found.path]))
    pairs = [(found, inspected[found.path]) for found in all_found]
    if not inspected and state is None and (trouble is None or _is_mended(trouble)):
        after = ['no checkpoints in ' + logdir]
        return Seen(before, rows, after, not repair, pairs, (None, None))
    ours = _under_slimguard(logdir, inspected, trouble)
    plain = _under_tensorflow(logdir, inspected, state, trouble)
    if ours == plain:
        after = ['a restart ' + ours.said]
    else:
        after = ['slimguard.train ' + ours.said, 'plain TensorFlow ' + plain.said]
    return Seen(before, rows, after, ours.is_good and plain.is_good, pairs, (ours, plain))


def _read_state(logdir: str) -> Tuple[Optional[State], Optional[StateFileError]]:
    try:
        return state_file.read(logdir), None
    except StateFileError as error:
        return None, error


def _is_mended(trouble: StateFileError) -> bool:
    """Whether `slimguard.train` replaces the state file, and does not end with an error."""
    return isinstance(trouble, DamagedStateError)


def _under_slimguard(
    logdir: str, inspected: Dict[str, Inspection], trouble: Optional[StateFileError]
) -> Fate:
    if trouble is not None and not _is_mended(trouble):
        return Fate('ends with an error: %s' % trouble, False)
    try:
        files.as_logdir(logdir)
    except ValueError as error:
        return Fate('ends with an error: %s' % error, False)
    good = [path for path, inspection in inspected.items() if inspection.is_good]
    if good:
        return _resumes(good[-1], inspected[good[-1]])
    return Fate('begins anew: no checkpoint in %s is whole and finite' % logdir, False)


def _under_tensorflow(
    logdir: str,
    inspected: Dict[str, Inspection],
    state: Optional[State],
    trouble: Optional[StateFileError],
) -> Fate:
    if trouble is not None:
        return Fate('%s: %s' % (trouble.in_tensorflow, trouble), False)
    if state is None:
        return Fate('begins anew: no state file in %s names a checkpoint' % logdir, False)
    read = state.as_read
    path = next((path for path in inspected if state_file.is_same(path, read)), read)
    if not files_of(path):
        why = 'the state file names %s, which is not there' % path
        return Fate('ends with an error: ' + why, False)
    inspection = inspected.get(path) or checkpoint_reader.inspect(path)
    if inspection.damage is not None:
        return Fate('ends with an error: %s is %s' % (path, inspection), False)
    return _resumes(path, inspection)


def _resumes(path: str, inspection: Inspection) -> Fate:
    said = 'resumes from %s, which is %s' % (path, inspection)
    return Fate(said, inspection.is_good, path)


def _row_of(found: Checkpoint, inspection: Inspection) -> Tuple[str, ...]:
    return (
        os.path.basename(found.path),
        '' if inspection.step is None else str(inspection.step),
        record_table.when(found.time),
        '%.1f MB' % (found.size / 1e6),
        str(inspection),
    )

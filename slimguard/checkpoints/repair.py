"""Repair: makes TensorFlow's state file name the newest good checkpoint, and proves that it does.

Only the state file changes. Checkpoints that are not good leave its list and stay on disk.
"""

import os
from typing import Dict, List, NamedTuple, Optional, Tuple

import tensorflow as tf

from slimguard.checkpoints import checkpoint_reader, state_file
from slimguard.checkpoints.checkpoint_files import files_of
from slimguard.checkpoints.state_file import State
from slimguard.system import files
from slimguard.system.log import log


class Repair(NamedTuple):
    """The result of a repair.

    Attributes:
      resumes_from: the checkpoint that a restart resumes from; None if it begins anew.
      said: a sentence that says what was wrong; None if nothing was.
      is_lost: whether checkpoints exist but no training can resume from any.
    """

    resumes_from: Optional[str]
    said: Optional[str]
    is_lost: bool = False


def repair(logdir: str) -> Repair:
    """Makes the state file in `logdir` name the newest good checkpoint.

    Raises:
      UnreadableError: if a checkpoint that may be good cannot be read; nothing is written.
      StateFileError: if the state file cannot be read, for example for a missing right, or if
        TensorFlow would read another checkpoint from the new one; it is left as it was.
      OSError, tf.errors.OpError: if it cannot be written; it is left as it was.
    """
    logdir = files.as_path(logdir)
    state, damage = _read_state(logdir)
    found = checkpoint_reader.checkpoints_beside(logdir, state)
    bad: Dict[str, str] = {}
    for each in reversed(found):
        inspected = checkpoint_reader.inspect(each.path)
        if inspected.is_good:
            return _resume_from(logdir, each.path, bad, state, damage)
        bad[each.path] = '%s is %s' % (os.path.basename(each.path), inspected)
    return _begin_anew(logdir, list(bad.values()), state, damage)


def resume_from_good(logdir: str) -> None:
    """Repairs, so that a restart resumes from the newest good checkpoint; logs what was wrong.

    Raises:
      As `repair`.
    """
    repaired = repair(logdir)
    if repaired.is_lost:
        log().error('%s; the training begins anew', repaired.said)
    elif repaired.said is not None:
        log().warning('%s', repaired.said)


def _resume_from(
    logdir: str, path: str, bad: Dict[str, str], state: Optional[State], damage: Optional[str]
) -> Repair:
    if state is not None and state_file.is_same(state.as_read, path):
        is_elsewhere = not state_file.is_same(os.path.dirname(path), logdir)
        return Repair(path, 'resuming from another folder: %s' % path if is_elsewhere else None)
    others = [] if state is None else [p for p in state.paths if p != path and p not in bad]
    kept = [other for other in others if checkpoint_reader.inspect(other).is_good]
    state_file.write(logdir, kept + [path])
    why = list(bad.values())
    if state is not None and not files_of(state.newest):
        why.append('the files of %s are gone' % state.newest)
    elif state is not None and state_file.is_same(state.newest, path):
        why.append('the state file named %s, of another folder' % state.as_read)
    elif not bad and damage is None:
        why.append('it was written, and the state file did not say so yet')
    if damage is not None:
        why.append(damage)
    return Repair(path, 'resuming from %s (%s)' % (path, '; '.join(why)))


def _begin_anew(
    logdir: str, bad: List[str], state: Optional[State], damage: Optional[str]
) -> Repair:
    """Puts the state file aside: it names nothing that can be resumed from."""
    path = state_file.path_in(logdir)
    if not bad and state is None and damage is None:
        return Repair(None, None)
    moved = ''
    if files.exists(path):
        tf.io.gfile.rename(path, path + '.bad', overwrite=True)
        moved = '; the state file that names it is now %s' % os.path.basename(path + '.bad')
    if damage is not None:
        bad.append(damage)
    elif not bad and state is not None:
        bad.append('the files of %s are gone' % state.newest)
    said = 'no checkpoint in %s can be resumed from (%s)%s' % (logdir, '; '.join(bad), moved)
    return Repair(None, said, is_lost=True)


def _read_state(logdir: str) -> Tuple[Optional[State], Optional[str]]:
    """What the state file says, and why it is damaged: one is None, or both without a file.

    Raises:
      StateFileError: if it cannot be read. It may be good, and it is not ours to remove.
    """
    try:
        return state_file.read(logdir), None
    except state_file.DamagedStateError as error:
        return None, str(error)

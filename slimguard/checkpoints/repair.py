"""What a restart resumes from, and the repair that makes TensorFlow's state file name it.

:func:`slimguard.train` repairs first, and resumes from the newest good checkpoint. Plain
TensorFlow, a `MonitoredTrainingSession` with our hook included, goes by its state file. A repair
changes only this file: it drops bad checkpoints from the list, and leaves their files on disk.
"""

import os
from typing import Dict, List, NamedTuple, Optional, Tuple

import tensorflow as tf

from slimguard.checkpoints import checkpoint_reader, state_file
from slimguard.checkpoints.checkpoint_files import Checkpoint, files_of
from slimguard.checkpoints.checkpoint_reader import Inspection
from slimguard.checkpoints.state_file import State, StateFileError
from slimguard.system import files, logdirs
from slimguard.system.log import log


class Repair(NamedTuple):
    """The result of a repair.

    Attributes:
      resumes_from: the checkpoint that a restart resumes from; None if it starts from step 0.
      said: a sentence that says what was wrong; None if nothing was wrong.
      is_lost: whether there are checkpoints, but none that a training can resume from.
    """

    resumes_from: Optional[str]
    said: Optional[str]
    is_lost: bool = False


def repair(logdir: str) -> Repair:
    """Makes the state file in `logdir` name the newest good checkpoint.

    Raises:
      UnreadableError: if a checkpoint that may be good cannot be read; nothing is written.
      StateFileError: if TensorFlow would read another checkpoint from the new state file; the old
        file is left as it was.
      OSError, tf.errors.OpError: if the state file cannot be written; it is left as it was.
    """
    logdir = files.as_path(logdir)
    state: Optional[State] = None
    damage = None
    try:
        state = state_file.read(logdir)
    except StateFileError as error:
        damage = str(error)
    there = checkpoint_reader.checkpoints_beside(logdir, state)
    bad: Dict[str, str] = {}
    for each in reversed(there):
        inspection = checkpoint_reader.inspect(each.path)
        if inspection.is_good:
            return _resume_from(logdir, each.path, bad, state, damage)
        bad[each.path] = '%s is %s' % (os.path.basename(each.path), inspection)
    return _begin_anew(logdir, list(bad.values()), state, damage)


def resume_from_good(logdir: str) -> None:
    """Repairs the state file for a restart from the newest good checkpoint; logs what was wrong.

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
        why.append('the state file did not name it yet')
    if damage is not None:
        why.append(damage)
    return Repair(path, 'resuming from %s (%s)' % (path, '; '.join(why)))


def _begin_anew(
    logdir: str, bad: List[str], state: Optional[State], damage: Optional[str]
) -> Repair:
    """Puts the state file aside, since no training can resume from what it names."""
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


class Fate(NamedTuple):
    """The outcome of a restart.

    Attributes:
      said: the outcome in words.
      path: the checkpoint that the restart resumes from, or None.
      is_good: whether that checkpoint is whole and finite.
    """

    said: str
    path: Optional[str] = None
    is_good: bool = False


class Seen(NamedTuple):
    """The output of the command `checkpoints`.

    Attributes:
      repaired: a sentence on what was repaired; None if no repair was asked for.
      checkpoints: each checkpoint with its `Inspection`, from the oldest to the newest.
      ours: what a guarded restart does; None if there is nothing to resume from.
      plain: the same for plain TensorFlow.
    """

    repaired: Optional[str]
    checkpoints: List[Tuple[Checkpoint, Inspection]]
    ours: Optional[Fate]
    plain: Optional[Fate]

    @property
    def is_good(self) -> bool:
        """Whether both restarts resume from a good checkpoint; without any, False once repaired."""
        if self.ours is None or self.plain is None:
            return self.repaired is None
        return self.ours.is_good and self.plain.is_good


def look(logdir: str, repairs: bool = False) -> Seen:
    """Opens all checkpoints in a logdir; if `repairs`, repairs the state file first.

    Raises:
      UnreadableError: if one of them cannot be read.
      StateFileError, OSError, tf.errors.OpError: if the repair fails.
    """
    repaired = (repair(logdir).said or 'nothing to repair in ' + logdir) if repairs else None
    state: Optional[State] = None
    trouble = 'there is none in ' + logdir
    try:
        state = state_file.read(logdir)
    except StateFileError as error:
        trouble = str(error)
    there = checkpoint_reader.checkpoints_beside(logdir, state)
    inspected = [(each, checkpoint_reader.inspect(each.path)) for each in there]
    if not inspected and state is None:
        return Seen(repaired, inspected, None, None)
    plain = Fate('goes by its state file: ' + trouble)
    if state is not None:
        plain = _as_the_state_file_says(state.as_read, inspected)
    return Seen(repaired, inspected, _newest_good(logdir, inspected), plain)


def _newest_good(logdir: str, inspected: List[Tuple[Checkpoint, Inspection]]) -> Fate:
    try:
        logdirs.as_logdir(logdir)
    except ValueError as error:
        return Fate('ends with an error: %s' % error)
    for each, inspection in reversed(inspected):
        if inspection.is_good:
            return Fate('resumes from %s, which is %s' % (each.path, inspection), each.path, True)
    return Fate('begins anew: no checkpoint in %s is whole and finite' % logdir)


def _as_the_state_file_says(path: str, inspected: List[Tuple[Checkpoint, Inspection]]) -> Fate:
    said = 'goes by its state file: it names %s, which is ' % path
    if not files_of(path):
        return Fate(said + 'not there')
    known = [it for it in inspected if state_file.is_same(it[0].path, path)]
    path, inspection = (known[0][0].path, known[0][1]) if known else (path, None)
    inspection = inspection or checkpoint_reader.inspect(path)
    if inspection.is_good:
        return Fate('resumes from %s, which is %s' % (path, inspection), path, True)
    return Fate(said + str(inspection), path)

"""The directory that the session which is just being made saves to; TensorFlow tells no hook."""

import sys
from types import FrameType
from typing import Dict, Iterator, List, Optional

import tensorflow.compat.v1 as tf1

from slimguard.checkpoints import state_file
from slimguard.system import files


def checkpoint_dirs_for(hook: tf1.train.SessionRunHook) -> List[str]:
    """Where the training that calls `hook.begin` keeps its checkpoints; empty if it keeps none.

    A hook gets neither its session nor the other hooks. But whoever calls `begin` has them, so
    they are looked for among the arguments of the callers: a `CheckpointSaverHook` in `hooks`
    beside this one, or the `checkpoint_dir` of a MonitoredTrainingSession, which has no such hook
    where the process is not the chief. There may be several; the first is the session's own.
    """
    found: Dict[str, None] = {}
    for frame in _callers():
        found.update(dict.fromkeys(_beside(hook, frame.f_locals.get('hooks'))))
        found.update(dict.fromkeys(_of_session(frame)))
    return list(found)


def _callers() -> Iterator[FrameType]:
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _beside(hook, hooks) -> List[str]:
    if not isinstance(hooks, (list, tuple)) or not any(one is hook for one in hooks):
        return []
    savers = [one for one in hooks if isinstance(one, tf1.train.CheckpointSaverHook)]
    # `_checkpoint_dir` is what the argument `checkpoint_dir` is kept as, from TensorFlow 1.0 to
    # 2.21 at least; there is no public name.
    found = [getattr(saver, '_checkpoint_dir', None) for saver in savers]
    return [each for each in found if each]


def _of_session(frame: FrameType) -> List[str]:
    module = str(frame.f_globals.get('__name__'))
    if frame.f_code.co_name != 'MonitoredTrainingSession' or not module.startswith('tensorflow'):
        return []
    found = frame.f_locals.get('checkpoint_dir')
    return [found] if found else []


def found_for(hook: tf1.train.SessionRunHook, must_restore: bool) -> Optional[str]:
    """Where the session saves, for a hook that was given no logdir; says so. None if nowhere.

    Args:
      hook: the hook.
      must_restore: whether TensorFlow has to be able to restore from there; for the record alone,
        it may be a directory that it can only save to.
    """
    dirs = checkpoint_dirs_for(hook)
    if not dirs:
        return None
    read = files.as_logdir if must_restore else files.as_path
    found = read(dirs[0], 'checkpoint_dir')
    tf1.logging.warning(
        'slimguard: %s has no logdir; incidents go to %s, where this session keeps its '
        'checkpoints.',
        type(hook).__name__,
        found,
    )
    return found


def warn_of_another(hook: tf1.train.SessionRunHook, logdir: str, may_restore: bool) -> None:
    """Says so where the session saves to another directory than a hook's logdir."""
    dirs = [files.as_path(each, 'checkpoint_dir') for each in checkpoint_dirs_for(hook)]
    if not dirs or any(state_file.is_same(logdir, each) for each in dirs):
        return
    tf1.logging.warning(
        'slimguard: %s records incidents in %s, its logdir, but this session keeps its '
        'checkpoints in %s.%s To have all in one place, pass logdir=%r, or none.',
        type(hook).__name__,
        logdir,
        dirs[0],
        _ROLLS_BACK % logdir if may_restore else '',
        dirs[0],
    )


_ROLLS_BACK = (
    ' A rollback restores what is in %s: not what this session saves, but an older state, or that '
    'of another training.'
)

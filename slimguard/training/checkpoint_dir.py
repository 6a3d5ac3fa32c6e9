"""The directory that the session which is just being made saves to; TensorFlow tells no hook."""

from typing import Optional, Sequence

import tensorflow.compat.v1 as tf1

from slimguard.checkpoints import state_file
from slimguard.system import files
from slimguard.system.log import log


def found_for(
    hook: tf1.train.SessionRunHook, dirs: Sequence[str], must_restore: bool
) -> Optional[str]:
    """Where the session saves, for a hook without a logdir; logs it. None if it saves nowhere.

    Args:
      hook: the hook.
      dirs: where the session keeps its checkpoints.
      must_restore: whether TensorFlow has to be able to restore from there. For the record alone, a
        directory that it can only save to will do.
    """
    if not dirs:
        return None
    read = files.as_logdir if must_restore else files.as_path
    found = read(dirs[0], 'checkpoint_dir')
    log().info(
        '%s has no logdir; incidents go to %s, where this session keeps its checkpoints.',
        type(hook).__name__,
        found,
    )
    return found


def warn_of_another(
    hook: tf1.train.SessionRunHook, dirs: Sequence[str], logdir: str, may_restore: bool
) -> None:
    """Warns if the session saves to a directory (one of `dirs`) that is not the hook's logdir."""
    dirs = [files.as_path(each, 'checkpoint_dir') for each in dirs]
    if not dirs or any(state_file.is_same(logdir, each) for each in dirs):
        return
    log().warning(
        '%s records incidents in %s, its logdir, but this session keeps its '
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

"""Where a hook keeps its record of incidents, and a session its checkpoints."""

from typing import Optional, Sequence

import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard.checkpoints import state_file
from slimguard.compat import tf_callers
from slimguard.incidents.fallback_chain import FallbackChain
from slimguard.incidents.policies import Rollback
from slimguard.system import files
from slimguard.system.log import log
from slimguard.training.recovery import NO_LOGDIR, may_go_back


def find_record_folder(
    hook: tf1.train.SessionRunHook,
    logdir: Optional[str],
    dirs: Sequence[str],
    policies: FallbackChain,
    ranks: gates.Ranks,
    warns: bool,
) -> Optional[str]:
    """The logdir, or where the session saves; None if there is neither, and on all ranks but one.

    Args:
      hook: the hook, for the log.
      logdir: the logdir in force, or None.
      dirs: where the session keeps its checkpoints, as far as known.
      policies: the policies in force.
      ranks: the processes that train together.
      warns: whether to warn of a logdir that the session does not save to.

    Raises:
      ValueError: if a policy rolls back, and there is no directory.
    """
    if ranks.rank:
        if logdir is not None:
            log().info(_ONE_RECORD, ranks.rank, logdir)
        return None
    goes_back = policies.may(Rollback)
    if logdir is None:
        logdir = _found_for(hook, dirs, goes_back)
    elif warns:
        _warn_of_another(hook, dirs, logdir, may_go_back(policies))
    if logdir is None and goes_back and not ranks.are_several:
        raise ValueError(NO_LOGDIR)
    return logdir


def saved_to(directory: Optional[str], calling: tf_callers.CallingSession) -> Optional[str]:
    """Where the session keeps its checkpoints, even if the hook's record is elsewhere."""
    if directory is None or not calling.dirs:
        return directory
    return files.as_path(calling.dirs[0], 'checkpoint_dir')


def _found_for(
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


def _warn_of_another(
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

_ONE_RECORD = 'rank %d keeps no record in %s: rank 0 does, for all of them.'

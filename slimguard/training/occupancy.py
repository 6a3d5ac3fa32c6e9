"""Whether another process trains in a logdir at the moment: two of them undo each other's work.

A process that trains there holds an advisory lock on the file ``LOGDIR/slimguard/lock``. The system
lets go of it when the process ends, however it ends, and children do not have it. A process on
another machine may not be noticed, nor is any where there are no such locks. Nobody is ever
refused.
"""

import contextlib
import os
from typing import Iterator

from slimguard.diagnosis import bundle
from slimguard.system import files
from slimguard.system.log import log

try:
    import fcntl
except ImportError:  # no POSIX
    fcntl = None


@contextlib.contextmanager
def occupied(logdir: str) -> Iterator[None]:
    """Marks a logdir as in use by this process; warns if another process already trains there.

    It is for the process that saves checkpoints: the others of a job share its logdir.
    """
    with contextlib.ExitStack() as stack:
        if fcntl is not None and not files.is_remote(logdir):
            folder = bundle.folder(logdir)
            try:
                files.make_dirs(folder)
                file = stack.enter_context(open(os.path.join(folder, 'lock'), 'a'))
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log().warning(
                    'another training is writing to %s at the moment. Both save there, and '
                    'either may remove or go on from what the other saved: end one of them, and '
                    'give it a logdir of its own.',
                    logdir,
                )
            except OSError:
                pass  # there are no locks here, or the next write will report the error
        yield

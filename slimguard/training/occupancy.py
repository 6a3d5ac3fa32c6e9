"""Whether another process trains in a logdir at the moment: two of them undo each other's work.

A process that trains there holds an advisory lock (`flock`) on the folder ``LOGDIR/slimguard``. No
file is made for it, and the system lets go of it when the process ends, however it ends: nothing
can be left behind. On a folder the lock stays on this machine, whatever its file system, so no
server is waited for. Hence a process on another machine is not noticed, nor is any where there are
no such locks. Nobody is ever refused.
"""

import contextlib
import os
from typing import Iterator, Optional, Set

from slimguard.diagnosis import bundle
from slimguard.system import files
from slimguard.system.log import log

try:
    import fcntl
except ImportError:  # no POSIX
    fcntl = None


# The folders that are held open in this process.
_held: Set[int] = set()


@contextlib.contextmanager
def occupied(logdir: str) -> Iterator[None]:
    """Marks a logdir as one that this process trains in; says so if another does already.

    It is for the process that saves checkpoints: the others of a job share its logdir.
    """
    number = None if files.is_remote(logdir) else _hold(logdir)
    try:
        yield
    finally:
        if number in _held:  # else it is a child's, which never had it
            _held.discard(number)
            _unlock(number)
            os.close(number)


def _hold(logdir: str) -> Optional[int]:
    folder = bundle.folder(logdir)
    if fcntl is None:
        return None
    try:
        files.make_dirs(folder)
        number = os.open(folder, os.O_RDONLY)
    except OSError:
        return None  # a write there will say what is wrong
    _held.add(number)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        log().warning(
            'another training is writing to %s at the moment. Both save there, and '
            'either may remove or go on from what the other saved: end one of them, and give it '
            'a logdir of its own.',
            logdir,
        )
    except OSError:
        pass  # there are no locks here
    return number


def _unlock(number: int) -> None:
    """Lets go of the lock for children as well: one that was just forked still has its copy."""
    assert fcntl is not None, 'what is held was locked'
    try:
        fcntl.flock(number, fcntl.LOCK_UN)
    except OSError:
        pass  # there are no locks here


def _let_go() -> None:
    """In a child: what it holds open would keep the lock of a training that was killed."""
    for number in _held:
        os.close(number)
    _held.clear()


if hasattr(os, 'register_at_fork'):
    os.register_at_fork(after_in_child=_let_go)

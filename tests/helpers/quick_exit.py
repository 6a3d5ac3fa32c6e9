"""The end of a program that the template forked, without what only takes TensorFlow apart.

An interpreter that ends takes all modules apart, which touches every object of TensorFlow: a fifth
of a second for each program, where most take half a second in all. What a program may notice of
its end is done here as there: its threads are waited for, what it registered with `atexit` runs,
what only its main module keeps is finalized, its streams are written out, its status is told, and
C's own handlers run at last. What another module keeps is not finalized: no `__del__` is called,
and no file closed.

With SLIMGUARD_WHOLE_EXIT=1 programs end as the interpreter ends them. So they do in CI with the
TensorFlows between the oldest and the newest, and in the slow tests of the newest.

The template imports this ahead of all else, multiprocessing included: the handler that `atexit`
is given first runs last.
"""

import atexit
import ctypes
import gc
import os
import sys

_status = None


def note(status):
    """Has the process end here, with this status. Otherwise it ends as Python itself ends it."""
    global _status
    _status = status


@atexit.register
def _exit():
    if _status is None or os.environ.get('SLIMGUARD_WHOLE_EXIT', '0') not in ('', '0'):
        return
    sys.modules.pop('__main__', None)
    gc.collect()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except Exception:
        return  # the interpreter says so
    # Not os._exit: TensorFlow's destructors may crash a process that ends. PyDLL keeps the lock of
    # the interpreter, so that threads that go on run no Python meanwhile.
    ctypes.PyDLL(None).exit(_status)

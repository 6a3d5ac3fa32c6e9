"""The end of a program that the template forked: all that is the program's own, and no more.

An interpreter that ends takes all modules apart, which touches every object of TensorFlow: a fifth
of a second of each program, where most take half a second in all. What a program may notice of its
end is done here as there: its threads are waited for, what it registered with `atexit` runs, its
objects are finalized, its streams written out, its status told; C's own handlers run at last.

The template imports this ahead of all else, so that its handler is the last that `atexit` runs.
"""

import atexit
import ctypes
import gc
import sys

_status = None


def note(status):
    """Has the process end quickly, with this status. Without it ends as Python itself does."""
    global _status
    _status = status


@atexit.register
def _exit():
    if _status is None:
        return
    sys.modules.pop('__main__', None)
    gc.collect()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except Exception:
        return  # the interpreter says so
    # Not os._exit: TensorFlow's destructors may crash a process that ends. And with the lock held,
    # as there: no thread that goes on runs Python again.
    ctypes.PyDLL(None).exit(_status)

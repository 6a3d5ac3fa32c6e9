"""`tf.add_check_numerics_ops` checks what a script computes, and not what guards it.

It lays a check over every float that its graph lists, one after the other, and returns an op that
waits for all. Some of ours have no value in most runs: a branch that is not taken, or a queue that
is filled for an incident only, for which it would wait for ever.
"""

import functools
import threading
from typing import Any, Callable, Dict

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs

_lock = threading.Lock()


def replacements() -> Dict[Callable, Callable]:
    """By TensorFlow's function, its replacement."""
    original = tf1.add_check_numerics_ops

    @functools.wraps(original)
    def add_check_numerics_ops():
        if tf.executing_eagerly():
            return original()  # which raises
        with _lock:
            return _without_ours(tf1.get_default_graph(), original)

    return {original: add_check_numerics_ops}


def _without_ours(graph: Any, original: Callable) -> Any:
    """The result of `original` while `graph` hides our ops from this thread."""
    list_all, thread = graph.get_operations, threading.get_ident()
    theirs = [op for op in list_all() if not op.name.startswith(graphs.OURS)]
    graph.get_operations = lambda: theirs if threading.get_ident() == thread else list_all()
    try:
        return original()
    finally:
        del graph.get_operations

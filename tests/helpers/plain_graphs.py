"""Sessions in which TensorFlow rewrites a graph less than it does, or runs it as it was built.

Its graph optimizer (Grappler) takes a quarter of the time of all tests: most graphs here are run a
few times, and each is gone over twice for that.
"""

from typing import Any, Optional

# How often it goes over each graph in the sessions that are opened from now on, 0 or 1. None: as
# often as TensorFlow has it.
passes: Optional[int] = None


def install() -> None:
    """Has every session of this process ask for so many."""
    from tensorflow.python.client import session

    owner: Any = session.BaseSession
    open_session = owner.__init__

    def open_with_passes(self, target='', graph=None, config=None):
        open_session(self, target, graph, config if passes is None else _with_passes(config))

    owner.__init__ = open_with_passes


def _with_passes(config):
    import tensorflow.compat.v1 as tf1

    copy = tf1.ConfigProto()
    if config is not None:
        copy.CopyFrom(config)
    options = copy.graph_options.rewrite_options
    if passes == 0:
        options.disable_meta_optimizer = True
    elif options.meta_optimizer_iterations == type(options).DEFAULT_NUM_ITERS:
        options.meta_optimizer_iterations = passes
    return copy

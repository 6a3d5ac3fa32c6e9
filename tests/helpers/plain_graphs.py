"""Sessions in which TensorFlow runs a graph as it was built, without rewriting it first.

Its graph optimizer (Grappler) takes a quarter of the time of all tests: most graphs here are run a
few times, and each is rewritten for that.
"""

from typing import Any

# Whether the sessions that are opened from now on are such.
are_wanted = False


def install() -> None:
    """Has every session of this process ask for it."""
    from tensorflow.python.client import session

    owner: Any = session.BaseSession
    open_session = owner.__init__

    def open_plain(self, target='', graph=None, config=None):
        open_session(self, target, graph, _plain(config) if are_wanted else config)

    owner.__init__ = open_plain


def _plain(config):
    import tensorflow.compat.v1 as tf1

    copy = tf1.ConfigProto()
    if config is not None:
        copy.CopyFrom(config)
    copy.graph_options.rewrite_options.disable_meta_optimizer = True
    return copy

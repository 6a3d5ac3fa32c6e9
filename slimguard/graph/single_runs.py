"""Runs of ours that are made once or seldom, without what a session does to make a run quick.

For each new kind of run a session of TensorFlow 1.15 has Grappler optimize the whole graph: a
quarter of a second for 15,000 ops, where most of ours take a few milliseconds. It leaves a run as
it is in which something is fed whose shape the GraphDef does not say, as it says that of a
placeholder. So each run of ours feeds such a tensor, which nothing needs. Newer versions leave out
first what a run does not need; there it costs and saves nothing.
"""

from typing import Any, Dict, List, Optional, Sequence

import numpy as np
import tensorflow as tf

from slimguard.compat import tf_private
from slimguard.graph.fixed_runs import fixed_run
from slimguard.graph.ops import our_scope
from slimguard.graph.sessions import OWN_WORK

_KEPT_AS = '_slimguard_single_runs'


def prepare(graph: tf.Graph) -> None:
    """Adds the ops that a single run feeds, unless they are there. Call it ahead of its ops."""
    if getattr(graph, _KEPT_AS, None) is None:
        with tf_private.unfinalized(graph), our_scope(graph, 'single_runs'):
            setattr(graph, _KEPT_AS, tf.identity(tf.constant(False), name='fed'))


def run_once(session, fetches: Any, feed_dict: Optional[Dict[Any, Any]] = None) -> Any:
    """As `session.run`, for something of ours that is not run again and again."""
    fed = getattr(session.graph, _KEPT_AS, None)
    feeds = feed_dict if fed is None else {**(feed_dict or {}), fed.name: False}
    with OWN_WORK:
        return session.run(fetches, feeds)


def fetch_once(
    session, tensors: Sequence[tf.Tensor], feed_dict: Dict[tf.Tensor, Any]
) -> List[Optional[np.ndarray]]:
    """The values of tensors, also of those in a branch, which `session.run` lets nobody fetch.

    Where the branch is not taken, the value is None; or, if the graph does not know the shape of a
    tensor, a vector of no elements.
    """
    feeds = {tensor.name: np.asarray(value) for tensor, value in feed_dict.items()}
    fed = getattr(session.graph, _KEPT_AS, None)
    if fed is not None:
        feeds[fed.name] = np.array(False)
    with OWN_WORK:
        names = [tensor.name for tensor in tensors]
        values = fixed_run(session, list(feeds), names, [])(*feeds.values())
    # A prepared call gives an empty vector for what has no value.
    return [
        value if np.shape(value) != (0,) or tensor.shape.is_compatible_with([0]) else None
        for tensor, value in zip(tensors, values)
    ]

"""slimguard's own runs, made once or seldom: they skip Grappler, which takes longer than a run.

For each new set of fetches and feeds, a session of TensorFlow 1.15 has Grappler optimize the whole
graph: a quarter of a second for 15,000 ops, where most of our runs take a few milliseconds.
Grappler skips a run that feeds a tensor whose shape is not in the GraphDef (a placeholder's shape
is). So each run of ours feeds such a tensor, which no op needs. Newer versions first drop the ops
that a run does not need, so there the feed makes no difference.
"""

from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy as np
import tensorflow as tf

from slimguard.compat import tf_private
from slimguard.graph.kept import kept_already, kept_on
from slimguard.graph.ops import our_scope
from slimguard.graph.sessions import OWN_WORK

_KEPT_AS = 'single_runs'
# On TensorFlow 2 a callable may return the memory of a variable, a constant, a fed array or a
# cached batch, which others read and write. `session.run` returns a copy.
_SHARES_MEMORY = not tf.__version__.startswith('1.')


def prepare(graph: tf.Graph) -> None:
    """Adds the tensor that single runs feed, once. Call it before their ops are made."""
    if kept_already(graph, _KEPT_AS) is None:
        with tf_private.unfinalized(graph), our_scope(graph, 'single_runs'):
            kept_on(graph, _KEPT_AS, lambda: tf.identity(tf.constant(False), name='fed'))


def run_once(session, fetches: Any, feed_dict: Optional[Dict[Any, Any]] = None) -> Any:
    """As `session.run`, for a run of ours that is not repeated often."""
    fed = kept_already(session.graph, _KEPT_AS)
    feeds = feed_dict if fed is None else {**(feed_dict or {}), fed.name: False}
    with OWN_WORK:
        return session.run(fetches, feeds)


def fixed_run(
    session, feeds: Sequence[str], fetches: Sequence[str], targets: Sequence[str]
) -> Callable[..., List[Any]]:
    """As `tf_private.callable_of`; it returns arrays that share no memory with others."""
    call = tf_private.callable_of(session, feeds, fetches, targets)
    return (lambda *values: _own(call(*values))) if _SHARES_MEMORY else call


def _own(values: List[Any]) -> List[Any]:
    for place, value in enumerate(values):
        if isinstance(value, np.ndarray):
            values[place] = value.copy()  # one at a time, to save memory
    return values

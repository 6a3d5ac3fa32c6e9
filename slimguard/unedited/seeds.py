"""The seeds of random ops that a script builds beside a gate are those that it has without one.

Where a graph has a seed and an op has none, TensorFlow 1.15 takes the number of the graph's last op
for the op's. What guards the script adds to that number. TensorFlow 2 counts the random ops.
"""

import sys
from typing import Optional

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.unedited.patches import Patches, kept_on


def keep_seeds(patches: Patches) -> None:
    """Leaves our ops out of the number that TensorFlow 1.15 makes seeds of."""
    if tf.__version__.startswith('1.'):
        get_seed = tf1.random.get_seed
        module = sys.modules[get_seed.__module__]  # all that draw look it up there
        patches.replace(module, 'get_seed', lambda seed: get_seed(_seed_of_op(seed)))


def _seed_of_op(seed: Optional[int]) -> Optional[int]:
    """The seed of an op, where it is given one; else where its graph has one; else None."""
    graph = tf1.get_default_graph()
    if seed is not None or graph.seed is None or tf.executing_eagerly():
        return seed
    return graph.version - kept_on(graph, 'own_ops', _OwnOps).count(graph)


class _OwnOps:
    """Counts our ops in one graph."""

    def __init__(self) -> None:
        self._looked_at = self._found = 0

    def count(self, graph: tf.Graph) -> int:
        operations = graph.get_operations()[self._looked_at :]
        self._looked_at += len(operations)
        self._found += sum(op.name.startswith(graphs.OURS) for op in operations)
        return self._found

"""How many bytes a graph takes as a GraphDef. This is slow to make, so its size is kept."""

from typing import Tuple

import tensorflow as tf
import tensorflow.compat.v1 as tf1

_KEPT_AS = '_slimguard_size'


def export(graph: tf.Graph) -> tf1.GraphDef:
    """The GraphDef of a graph; its size is kept for `bytes_of`."""
    version = graph.version
    graph_def = graph.as_graph_def()
    _keep(graph, (version, graph_def.ByteSize()))
    return graph_def


def bytes_of(graph: tf.Graph) -> int:
    """The bytes of the GraphDef; 0 if it cannot be made, as above two gigabytes."""
    if _kept(graph)[0] != graph.version:
        try:
            export(graph)
        except (ValueError, tf.errors.OpError):
            _keep(graph, (graph.version, 0))
    return _kept(graph)[1]


def _keep(graph: tf.Graph, size_of_version: Tuple[int, int]) -> None:
    setattr(graph, _KEPT_AS, size_of_version)


def _kept(graph: tf.Graph) -> Tuple[int, int]:
    return getattr(graph, _KEPT_AS, (-1, 0))

"""A graph is exported once for all who ask for its size, until there is more in it."""

import tensorflow as tf

from slimguard.graph import graph_size


def test_it_is_exported_anew_only_if_it_has_grown(monkeypatch):
    graph = tf.Graph()
    exported = []
    as_graph_def = graph.as_graph_def

    def counting():
        exported.append(len(graph.get_operations()))
        return as_graph_def()

    monkeypatch.setattr(graph, 'as_graph_def', counting)
    with graph.as_default():
        tf.constant(1.0, name='one')
        graph_def = graph_size.export(graph)
        assert [node.name for node in graph_def.node] == ['one']
        assert graph_size.bytes_of(graph) == graph_def.ByteSize()
        assert exported == [1]
        tf.constant([2.0] * 100, name='more')
        assert graph_size.bytes_of(graph) == as_graph_def().ByteSize() > graph_def.ByteSize() + 400
        assert exported == [1, 2]


def test_one_that_is_too_large_to_export_counts_as_nothing_and_is_tried_once(monkeypatch):
    graph = tf.Graph()
    tries = []

    def fail():
        tries.append(1)
        raise ValueError('GraphDef cannot be larger than 2GB.')

    monkeypatch.setattr(graph, 'as_graph_def', fail)
    assert [graph_size.bytes_of(graph) for _ in range(2)] == [0, 0]
    assert tries == [1]

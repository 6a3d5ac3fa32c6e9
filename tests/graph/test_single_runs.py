"""Runs that slimguard makes only once: TensorFlow does not optimize the graph for them."""

import numpy as np
import pytest
import tensorflow as tf

from slimguard.graph import single_runs
from slimguard.graph.sessions import SessionWrapper

tf1 = tf.compat.v1


class Traced(SessionWrapper):
    """A session that notes the types of the ops in the optimized graph of the last run."""

    def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        metadata = tf1.RunMetadata()
        options = tf1.RunOptions(output_partition_graphs=True)
        values = self._session.run(fetches, feed_dict, options, metadata)
        self.ran = {node.op for graph in metadata.partition_graphs for node in graph.node}
        return values


def turned_twice():
    """A matrix that is transposed twice, which Grappler removes."""
    return tf.transpose(tf.transpose(tf1.random_uniform([2, 3], seed=1))) + 1


@pytest.mark.skipif(tf.__version__ >= '2', reason='there it costs a small run little')
def test_a_single_run_is_run_as_it_was_built():
    end = turned_twice()
    single_runs.prepare(end.graph)
    with tf1.Session() as session:
        session = Traced(session)
        assert session.run(end).shape == (2, 3)
        assert 'Transpose' not in session.ran
        assert single_runs.run_once(session, end).shape == (2, 3)
        assert 'Transpose' in session.ran


def test_where_nothing_was_prepared_a_single_run_is_a_run():
    x = tf1.placeholder(tf.float32, [])
    with tf1.Session() as session:
        assert single_runs.run_once(session, x + 1, {x: 2}) == 3


def test_what_is_prepared_again_adds_nothing():
    graph = tf1.get_default_graph()
    single_runs.prepare(graph)
    before = len(graph.get_operations())
    single_runs.prepare(graph)
    assert len(graph.get_operations()) == before


def test_what_was_fetched_stays_as_it_was():
    """TensorFlow 2 fetches the memory of a ref variable itself, so the value must be copied."""
    variable = tf1.get_variable('v', [64], initializer=tf1.ones_initializer(), use_resource=False)
    read, update = tf.identity(variable), variable.assign_add(tf.ones_like(variable))
    with tf1.Session() as session:
        session.run(variable.initializer)
        (value,) = single_runs.fixed_run(session, [], [read.name], [])()
        session.run(update.op)
    np.testing.assert_array_equal(value, np.ones(64))

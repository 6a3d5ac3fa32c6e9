"""Sessions that run a graph as it was built; the others run one that was rewritten."""

import pytest
import tensorflow as tf
from tensorflow.python.client import session as sessions

from tests.helpers import plain_graphs

tf1 = tf.compat.v1


@pytest.mark.parametrize('is_plain', [False, True])
@pytest.mark.parametrize('has_config', [False, True])
def test_what_does_nothing_is_left_out_where_a_graph_is_rewritten(
    is_plain, has_config, monkeypatch
):
    monkeypatch.setattr(sessions.BaseSession, '__init__', sessions.BaseSession.__init__)
    plain_graphs.install()
    monkeypatch.setattr(plain_graphs, 'are_wanted', is_plain)
    end = tf.identity(tf.identity(tf1.random_uniform([2, 3], seed=1)) * 2.0) * 3.0
    config = tf1.ConfigProto(allow_soft_placement=True) if has_config else None
    told = tf1.RunMetadata()
    with tf1.Session(config=config) as session:
        session.run(end, None, tf1.RunOptions(output_partition_graphs=True), told)
    ran = {node.op for graph in told.partition_graphs for node in graph.node}
    assert ('Identity' in ran) == is_plain

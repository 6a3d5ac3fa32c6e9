"""How often TensorFlow goes over a graph, to rewrite it, in the sessions of tests."""

import pytest
import tensorflow as tf
from tensorflow.python.client import session as sessions

from tests.helpers import plain_graphs

tf1 = tf.compat.v1


@pytest.fixture(params=[False, True], ids=['no config', 'config'])
def open_session(request, monkeypatch):
    """Opens a session, with so many passes."""
    monkeypatch.setattr(sessions.BaseSession, '__init__', sessions.BaseSession.__init__)
    plain_graphs.install()

    def opened(passes):
        monkeypatch.setattr(plain_graphs, 'passes', passes)
        config = tf1.ConfigProto(allow_soft_placement=True) if request.param else None
        return tf1.Session(config=config)

    return opened


# The first time what does nothing is left out, and the second time the two factors become one.
@pytest.mark.parametrize(
    'passes, kinds', [(0, ['Add', 'Mul', 'Mul']), (1, ['Mul', 'Mul']), (None, ['Mul'])]
)
def test_a_graph_is_gone_over_so_many_times(open_session, passes, kinds):
    x = tf1.raw_ops.RandomUniform(shape=[2, 3], dtype=tf.float32)
    end = tf1.raw_ops.Add(x=x * 2.0, y=tf.zeros([2, 3])) * 3.0
    told = tf1.RunMetadata()
    with open_session(passes) as session:
        session.run(end, None, tf1.RunOptions(output_partition_graphs=True), told)
    ran = sorted(node.op for graph in told.partition_graphs for node in graph.node)
    assert [kind for kind in ran if kind in ('Add', 'Mul')] == kinds


def test_a_session_that_says_how_often_is_asked_nothing_else(monkeypatch):
    config = tf1.ConfigProto()
    options = config.graph_options.rewrite_options
    options.meta_optimizer_iterations = type(options).TWO
    monkeypatch.setattr(plain_graphs, 'passes', 1)
    assert plain_graphs._with_passes(config) == config

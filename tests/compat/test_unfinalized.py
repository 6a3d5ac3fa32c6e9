"""A finalized graph that is opened to add ops: by several threads, it stays open until the last."""

import tensorflow as tf

from slimguard.compat import tf_private


def test_it_is_open_until_the_last_one_closes_it():
    with tf.Graph().as_default() as graph:
        graph.finalize()
        first, second = tf_private.unfinalized(graph), tf_private.unfinalized(graph)
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        tf.constant(1.0)
        second.__exit__(None, None, None)
        assert graph.finalized


def test_a_graph_that_was_not_finalized_stays_so():
    with tf.Graph().as_default() as graph:
        with tf_private.unfinalized(graph):
            tf.constant(1.0)
        assert not graph.finalized

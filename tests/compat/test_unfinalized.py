"""A finalized graph that is opened to add ops: by several threads, it stays open until the last."""

import threading

import tensorflow as tf

from slimguard.compat import tf_private

tf1 = tf.compat.v1


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


def test_what_two_threads_add_at_once_does_not_depend_on_each_other(graph):
    first = tf.constant(1.0)
    graph.finalize()
    is_inside, is_added = threading.Event(), threading.Event()

    def add_after_first():
        with graph.as_default(), tf_private.unfinalized(graph):
            with tf1.control_dependencies([first]), tf1.device('/cpu:1'):
                is_inside.set()
                is_added.wait(300)
                theirs.append(tf.constant(3.0))

    theirs = []
    thread = threading.Thread(target=add_after_first)
    thread.start()
    is_inside.wait(300)
    with tf_private.unfinalized(graph):
        mine = tf.constant(2.0)
    is_added.set()
    thread.join()
    assert list(mine.op.control_inputs) == [] and mine.device == ''
    assert list(theirs[0].op.control_inputs) == [first.op]

"""Ops that slimguard builds: their dependencies and devices."""

import pytest
import tensorflow as tf

from slimguard.graph import ops
from slimguard.graph.ops import StagingArea

tf1 = tf.compat.v1


def test_an_area_keeps_what_is_put_there_and_forgets_it():
    area = StagingArea(tf1.get_default_graph(), [tf.int32, tf.string], 'area')
    other = StagingArea(tf1.get_default_graph(), [tf.int32, tf.string], 'area')
    number = tf1.placeholder(tf.int32, [])
    put = area.put([number, tf.constant('x')])
    take, size, clear, of_other = area.take(), area.size('size'), area.clear(), other.size()
    with tf1.Session() as session:
        for value in (1, 2, 3):
            session.run(put, {number: value})
        assert session.run([size, of_other]) == [3, 0]
        assert session.run(take) == [1, b'x']
        session.run(clear)
        assert session.run(size) == 0


def test_a_group_runs_all_and_leaves_them_as_they_were():
    with tf.device('/cpu:0'):
        there = tf1.get_variable('there', initializer=0.0).assign_add(1.0)
    here = tf1.get_variable('here', initializer=0.0).assign_add(1.0)
    before = [each.op.node_def for each in (here, there)]
    one = ops.group([here.op], 'one')
    both = ops.group([here.op, there.op], 'both')
    assert [each.op.node_def for each in (here, there)] == before
    assert one.control_inputs == [here.op]
    assert {each.control_inputs[0] for each in both.control_inputs} == {here.op, there.op}
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        session.run(both)
        assert session.run(tf1.global_variables()) == [1.0, 1.0]


@pytest.mark.parametrize('use_resource', [False, True])
def test_a_copy_is_where_its_variable_is_whatever_the_caller_says(use_resource):
    """The copy also keeps its value when the variable is written afterwards."""
    with tf.device('/cpu:1'):
        v = tf1.get_variable('v', initializer=[1.0, 2.0], use_resource=use_resource)
    with ops.our_scope(v.graph, 'here'), tf.device('/cpu:0'):
        copied = ops.copy_of(v.op)
        with tf.control_dependencies([copied]):
            written = ops.assign(v.op, copied * 3.0)
        with tf.control_dependencies([written]):
            after = tf.identity(copied)
    assert copied.device == '/device:CPU:1' and copied.name.startswith('slimguard/here/')
    with tf1.Session(config=tf1.ConfigProto(device_count={'CPU': 2})) as session:
        session.run(v.initializer)
        assert session.run(after).tolist() == [1.0, 2.0]
        assert session.run(v).tolist() == [3.0, 6.0]


def test_short_vectors_of_one_length_and_place_are_joined():
    with tf.device('/cpu:0'):
        shapes = [[2], [3], [2], None, [None], [0], [2], [2**13], [2, 2], [2], []]
        tensors = [tf1.placeholder(tf.float32, shape) for shape in shapes]
    with tf.device('/cpu:1'):
        tensors += [tf1.placeholder(tf.float32, [2]), tf1.placeholder(tf.float16, [2])]
    alone = [[number] for number in range(len(tensors)) if number not in (0, 2, 6, 9)]
    assert ops.short_together(tensors) == [[0, 2, 6, 9], *alone]

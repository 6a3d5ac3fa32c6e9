"""Plain ops are those that TensorFlow's own functions create."""

import numpy as np
import tensorflow as tf

from slimguard.graph import plain_ops
from slimguard.graph.staging_area import StagingArea

tf1 = tf.compat.v1

FLAGS = [True, False, True]
NUMBERS = [1.5, np.nan, -np.inf]


def flags():
    return tf.constant(FLAGS)


def numbers(dtype=tf.float32):
    return tf.constant(NUMBERS, dtype)


def unknown():
    """A vector of which the graph knows no length."""
    return tf1.placeholder_with_default(NUMBERS, [None])


def words():
    return tf.constant(['a', 'b', 'c', 'd'])


# What is created here, and what TensorFlow creates.
PAIRS = {
    'constant': lambda: (plain_ops.constant(2, tf.int32), tf.constant(2)),
    'constant vector': lambda: (
        plain_ops.constant((1, 2), tf.int32),
        tf.constant([1, 2]),
    ),
    'constant words': lambda: (plain_ops.constant(['', 'b'], tf.string), tf.constant(['', 'b'])),
    'no element': lambda: (plain_ops.constant([], tf.bool), tf.constant([], tf.bool)),
    'identity': lambda: (plain_ops.identity(numbers()), tf.identity(numbers())),
    'cast': lambda: (plain_ops.cast(flags(), tf.float64), tf.cast(flags(), tf.float64)),
    'multiply': lambda: (plain_ops.multiply(numbers(), 2.0), tf.multiply(numbers(), 2.0)),
    'minimum': lambda: (plain_ops.minimum(numbers(), 0.0), tf.minimum(numbers(), 0.0)),
    'less': lambda: (plain_ops.less(numbers(), 1.0), tf.less(numbers(), 1.0)),
    'greater': lambda: (
        plain_ops.greater(numbers(), [0.0, 1.0, -1.0]),
        tf.greater(numbers(), [0.0, 1.0, -1.0]),
    ),
    'is_finite': lambda: (plain_ops.is_finite(numbers()), tf.math.is_finite(numbers())),
    'logical_not': lambda: (plain_ops.logical_not(flags()), tf.logical_not(flags())),
    'logical_and': lambda: (
        plain_ops.logical_and(flags(), flags()),
        tf.logical_and(flags(), flags()),
    ),
    'none_of': lambda: (plain_ops.none_of(flags()), tf.logical_not(tf.reduce_any(flags()))),
    'all_of': lambda: (plain_ops.all_of(flags()), tf.reduce_all(flags())),
    'stack': lambda: (
        plain_ops.stack([tf.constant(1), tf.constant(2)]),
        tf.stack([tf.constant(1), tf.constant(2)]),
    ),
    'concat': lambda: (plain_ops.concat([flags(), flags()]), tf.concat([flags(), flags()], 0)),
    'gather': lambda: (plain_ops.gather(words(), [3, 0]), tf.gather(words(), [3, 0])),
    'gather one': lambda: (
        plain_ops.gather(words(), tf.constant(1)),
        tf.gather(words(), tf.constant(1)),
    ),
    'places_of': lambda: (plain_ops.places_of(flags()), tf.squeeze(tf1.where(flags()), [1])),
    'size': lambda: (plain_ops.size(unknown()), tf.size(unknown())),
    'as_string': lambda: (
        plain_ops.as_string(tf.constant(0.1, tf.float64)),
        tf.strings.as_string(tf.constant(0.1, tf.float64), shortest=True),
    ),
    'as_string of a whole': lambda: (
        plain_ops.as_string(tf.constant(7)),
        tf.strings.as_string(tf.constant(7)),
    ),
    'join_words': lambda: (
        plain_ops.join_words(words(), ', '),
        tf1.reduce_join(words(), 0, separator=', '),
    ),
    'join_strings': lambda: (
        plain_ops.join_strings(['a', tf.constant('b')]),
        tf.strings.join(['a', tf.constant('b')]),
    ),
    'feedable': lambda: (
        plain_ops.feedable(tf.constant(1.0), 'x'),
        tf1.placeholder_with_default(tf.constant(1.0), []),
    ),
}


def attributes_of(tensor):
    """The attributes of the op that makes a tensor, as text; without constants, which differ."""
    node = tensor.op.node_def
    return node.op, {name: str(node.attr[name]) for name in node.attr if name != '_output_shapes'}


def test_each_is_the_op_that_tensorflow_creates():
    made = {name: create() for name, create in PAIRS.items()}
    with tf1.Session() as session:
        values = session.run(made)
    for name, (ours, theirs) in made.items():
        assert attributes_of(ours) == attributes_of(theirs), name
        assert (ours.shape.as_list(), ours.dtype) == (theirs.shape.as_list(), theirs.dtype), name
        np.testing.assert_array_equal(*values[name], name)
    ours, theirs = plain_ops.placeholder(tf.float64, [2, 0]), tf1.placeholder(tf.float64, [2, 0])
    assert attributes_of(ours) == attributes_of(theirs)


def test_the_beginning_of_a_vector():
    with tf1.Session() as session:
        for most, expected in ((2, [b'a', b'b']), (9, [b'a', b'b', b'c', b'd'])):
            assert session.run(plain_ops.beginning(words(), most)).tolist() == expected


def test_only_one_side_of_a_switch_lives():
    pred = tf1.placeholder(tf.bool, [])
    if_false, if_true = plain_ops.switch(tf.constant(3), pred, 'switch')
    merged = plain_ops.merge([if_false + 10, if_true + 20], 'merged')
    with tf1.Session() as session:
        assert [session.run(merged, {pred: value}) for value in (False, True)] == [13, 23]
    assert merged.op.name == 'merged'


def test_it_is_where_the_caller_is():
    """In the scope, on the device, after what is waited for; and the device function is asked."""
    first, x = tf.constant(1), tf1.placeholder(tf.int32)
    with tf.name_scope('here'), tf.device('/cpu:1'), tf.control_dependencies([first]):
        made = [
            plain_ops.constant(2, tf.int32).op,
            plain_ops.identity(x, 'x').op,
        ]
    assert made[1].name == 'here/x'
    for op in made:
        assert op.name.startswith('here/')
        assert op.device == '/device:CPU:1'
        assert op.control_inputs == [first.op]


def test_constants_that_are_equal_in_python_are_not_taken_for_each_other():
    tensors = [
        plain_ops.constant(value, dtype)
        for value, dtype in [(1, tf.int32), (True, tf.bool), (1.0, tf.float32), (1, tf.float64)]
    ]
    with tf1.Session() as session:
        values = session.run(tensors)
    assert [value.dtype for value in values] == [np.int32, np.bool_, np.float32, np.float64]


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
    one = plain_ops.group([here.op], 'one')
    both = plain_ops.group([here.op, there.op], 'both')
    assert [each.op.node_def for each in (here, there)] == before
    assert one.control_inputs == [here.op]
    assert {each.control_inputs[0] for each in both.control_inputs} == {here.op, there.op}
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        session.run(both)
        assert session.run(tf1.global_variables()) == [1.0, 1.0]

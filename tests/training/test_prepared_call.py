"""What a prepared call returns belongs to whoever asked, as what a session returns."""

import numpy as np
import pytest
import tensorflow as tf

from slimguard.training.prepared_call import PreparedCall

tf1 = tf.compat.v1

# Ways to fetch a variable; most hand out its memory, on one version or another.
WAYS = {
    'itself': lambda v: v.op.outputs[0] if v.op.type == 'VariableV2' else v.value(),
    'identity': tf.identity,
    'value': lambda v: v.value(),
    'read_value': lambda v: v.read_value(),
    'reshape': lambda v: tf.reshape(v, [-1]),
    'expand_dims': lambda v: tf.expand_dims(v, 0),
    'rows': lambda v: tf.slice(v, [0, 0], [32, 16]),
    'one of two': lambda v: tf.split(v, 2)[1],
    'in a loop': lambda v: tf1.while_loop(
        lambda n, x: n < 2, lambda n, x: (n + 1, tf.identity(v)), [0, tf.zeros_like(v)]
    )[1],
    'in a branch': lambda v: tf1.cond(tf.constant(True), lambda: tf.identity(v), lambda: v - 1.0),
    'of unknown shape': lambda v: tf1.placeholder_with_default(tf.identity(v), None),
    'update': lambda v: v.assign_add(tf.ones_like(v)),
    'shape': tf.shape,
    'sum': tf.reduce_sum,
}


@pytest.mark.parametrize('use_resource', [False, True])
@pytest.mark.parametrize('way', WAYS)
def test_what_was_fetched_stays_as_it_was(way, use_resource):
    with tf1.variable_scope('m', use_resource=use_resource):
        variable = tf1.get_variable('v', [64, 16], initializer=tf1.ones_initializer())
    update = variable.assign_add(tf.ones_like(variable))
    with tf.control_dependencies([update]):
        fetch = WAYS[way](variable)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        call = PreparedCall.of(session, [], [], {'script': [fetch, update.op]}, {})
        got = [call([])[1]['script'][0] for _ in range(3)]
        then = [np.array(value) for value in got]
        call([])
        session.run(variable.initializer)
    np.testing.assert_array_equal(got, then)
    assert type(got[0]) is (np.float32 if way == 'sum' else np.ndarray)


# What a script may write to, and what reads it again.
SOURCES = {
    'a variable': lambda: tf1.get_variable('v', [64], initializer=tf1.zeros_initializer()),
    'a resource': lambda: tf1.get_variable(
        'v', [64], initializer=tf1.zeros_initializer(), use_resource=True
    ).value(),
    'a constant': lambda: tf.constant(np.zeros(64, np.float32)),
    'a batch': lambda: tf1.data.make_one_shot_iterator(
        tf.data.Dataset.from_tensors(np.zeros(64, np.float32)).cache().repeat()
    ).get_next(),
}


@pytest.mark.parametrize('source', SOURCES)
def test_what_the_script_writes_to_it_stays_there(source):
    fetch = tf.reshape(SOURCES[source](), [8, 8])
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        call = PreparedCall.of(session, [], [], {'script': fetch}, {})
        for _ in range(3):
            value = call([])[1]['script']
            assert not value.any()
            value += 7


def test_what_the_script_writes_to_a_fed_array_is_no_value_of_the_step_before():
    x = tf1.placeholder(tf.float32, [64])
    with tf1.Session() as session:
        call = PreparedCall.of(session, [], [], {'script': tf.identity(x)}, {x: None})
        for start in range(32):  # TensorFlow takes an array as it is where its address fits
            array = np.zeros(96, np.float32)[start : start + 64]
            value = call([array])[1]['script']
            array += 7
            assert not value.any()

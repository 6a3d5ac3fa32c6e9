"""Walks over a graph return ops in the order in which they were made."""

import pytest
import tensorflow as tf

import slimguard
from slimguard import graph as graphs
from slimguard.gate import gate_of

tf1 = tf.compat.v1
MANY = 100  # with few ops, TensorFlow's own order is right


def test_control_inputs_come_in_the_order_they_were_made():
    made = [tf.no_op(name='n%d' % number) for number in range(MANY)]
    group = tf.group(*made[::-1])
    assert graphs.controls_of(group) == made
    assert graphs.ancestors([group]) == [*made, group]


@pytest.mark.full
def test_the_labels_of_a_gate_come_in_the_order_of_the_network():
    variables = [tf1.get_variable('v%02d' % number, initializer=1.0) for number in range(MANY)]
    loss = tf.add_n([tf.square(variable) for variable in variables])
    train_op = slimguard.guard(tf1.train.MomentumOptimizer(0.1, 0.9).minimize(loss), loss=loss)
    names = [label.name for label in gate_of(train_op).labels]
    gradients = [name for name in names if name.startswith('gradient of ')]
    assert gradients == ['gradient of ' + variable.op.name for variable in variables]

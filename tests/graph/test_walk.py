"""Walks over a graph return ops in the order in which they were made."""

import functools

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


@pytest.mark.parametrize('use_resource', [True, False])
def test_the_variable_that_minimize_counts_in_is_the_global_step_if_there_is_no_other(use_resource):
    make = functools.partial(tf1.get_variable, trainable=False, use_resource=use_resource)
    counter, weight = make('n', initializer=0), tf1.get_variable('w', initializer=1.0)
    minimize = tf1.train.GradientDescentOptimizer(0.1).minimize
    slimguard.guard(minimize(tf.square(weight)), loss=tf.square(weight))
    assert graphs.global_step(weight.graph) is None
    slimguard.guard(minimize(tf.square(weight), global_step=counter), loss=tf.square(weight))
    assert graphs.global_step(weight.graph) is counter
    step = tf1.train.create_global_step()
    assert graphs.global_step(weight.graph).op is step.op

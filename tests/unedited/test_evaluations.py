"""Runs of a script that train nothing, but write moving averages."""

import math

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard import compat
from tests.helpers.models import records_in, state

tf1 = tf.compat.v1
slim = compat.import_slim()


class Discriminator:
    """A model with batch norm, built once to be trained and once more to be evaluated.

    Args:
      use_resource: the kind of the variables.
      in_place: whether the forward pass updates the moving averages; else update ops do.

    Attributes:
      x: the batch, to be fed.
      hidden: the output of its first layer; it needs one of the moving averages.
      loss: the loss that is trained.
      accuracy: an output of the second model, which shares the variables.
      train_op: an unguarded train op.
    """

    def __init__(self, use_resource=False, in_place=True):
        self._collection = None if in_place else tf1.GraphKeys.UPDATE_OPS
        self.x = tf1.placeholder(tf.float32, [None, 3], name='x')
        with tf1.variable_scope('', use_resource=use_resource):
            self.hidden, out = self._layers()
            self.loss = tf.reduce_mean(tf.square(out - 1.0))
        with tf1.variable_scope('', use_resource=use_resource, reuse=True):
            self.accuracy = tf.reduce_mean(self._layers()[1], name='accuracy')
        self.train_op = tf1.train.MomentumOptimizer(0.1, 0.9).minimize(self.loss)

    def _layers(self):
        hidden = self._layer(self.x, 'first')
        return hidden, self._layer(hidden, 'second')

    def _layer(self, x, scope):
        norm = {'updates_collections': self._collection, 'is_training': True, 'decay': 0.5}
        ones = tf1.ones_initializer()
        net = slim.fully_connected(x, 3, None, weights_initializer=ones, scope=scope)
        return slim.batch_norm(net, scope=scope + '_norm', **norm)


def batch(seed, is_bad=False):
    values = np.random.RandomState(seed).rand(4, 3).astype(np.float32)
    if is_bad:
        values[1, 2] = math.nan
    return values


EVALUATIONS = {
    'the loss that is trained': lambda model: model.loss,
    'a part of the model': lambda model: [model.hidden],
    'a model that is built again': lambda model: {'accuracy': model.accuracy},
    'several values': lambda model: [model.hidden, [model.loss]],
    # The update ops of the first model; those of the second write the same averages.
    'update ops': lambda model: tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)[:4],
}


def train(fetches_of, use_resource, bad=(), logdir=None):
    """Trains and evaluates in turns. Returns the values of the evaluations, and the states.

    Args:
      fetches_of: returns the tensors to evaluate, given the model.
      use_resource: the kind of the variables.
      bad: the numbers of the evaluations with a damaged batch.
      logdir: the logdir of a guarded training; None for an unguarded one, which leaves out the
        evaluations of damaged batches.
    """
    values, states = [], []
    with tf.Graph().as_default():
        tf1.set_random_seed(1)
        # For the case of update ops, the averages have update ops; else the forward pass writes.
        model = Discriminator(use_resource, in_place=fetches_of is not EVALUATIONS['update ops'])
        fetches = fetches_of(model)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            for number in range(4):
                session.run(model.train_op, {model.x: batch(number)})
                if logdir is not None or number not in bad:
                    fed = {model.x: batch(10 + number, number in bad)}
                    values.append(session.run(fetches, fed))
                states.append(state(session))
    return values, states


@pytest.mark.full
@pytest.mark.parametrize(
    'name, use_resource', [*zip(EVALUATIONS, [False, True, False, True, False])]
)
def test_good_evaluations_keep_their_bits_and_a_bad_one_writes_nothing(
    name, use_resource, tmp_path
):
    with slimguard.instrument(on_nan='skip', logdir=tmp_path):
        values, states = train(EVALUATIONS[name], use_resource, bad=(1, 2), logdir=tmp_path)
    expected_values, expected = train(EVALUATIONS[name], use_resource, bad=(1, 2))
    np.testing.assert_equal([values[0], values[3]], expected_values)
    assert states == expected
    reasons = [record['reason'] for record in records_in(tmp_path)]
    assert len(reasons) == 2
    assert all('update of first_norm/moving_mean' in reason for reason in reasons)


@pytest.mark.full
def test_an_evaluation_that_a_session_saw_before_the_train_op_leaves_the_training_guarded(tmp_path):
    """The writes of the evaluation cannot be guarded any more, but those of the training can."""
    with slimguard.instrument(on_nan='skip', logdir=tmp_path), tf.Graph().as_default():
        with tf1.variable_scope('', reuse=tf1.AUTO_REUSE):
            seen = Discriminator()
            with tf1.Session() as session:
                session.run(tf1.global_variables_initializer())
                session.run(seen.accuracy, {seen.x: batch(0)})
                later = Discriminator()
                session.run(tf1.variables_initializer(tf1.global_variables()))
                session.run(later.train_op, {later.x: batch(1)})
                before = state(session)
                session.run(later.train_op, {later.x: batch(1, is_bad=True)})
                session.run(later.loss, {later.x: batch(1, is_bad=True)})
                assert state(session) == before

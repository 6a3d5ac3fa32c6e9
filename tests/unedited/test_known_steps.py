"""A step with the same fetches is recognized, until anything has changed."""

import pytest
import tensorflow as tf

import slimguard
from slimguard.gate import gates_of
from tests.helpers.models import Linear, non_finite

tf1 = tf.compat.v1


@pytest.fixture
def training(tmp_path, monkeypatch):
    """A model whose batches 3, 5, ... are bad, its train op, and a session."""
    monkeypatch.chdir(tmp_path)
    with tf.Graph().as_default():
        model = Linear(bad=lambda draw: draw > 1 and draw % 2 == 0)
        train_op = model.minimize()
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            yield model, train_op, session


def test_what_was_built_since_is_guarded_before_the_session_sees_it(training):
    model, train_op, session = training
    with slimguard.instrument(on_nan='skip') as guards:
        session.run(train_op)
        later = tf1.train.GradientDescentOptimizer(0.1).minimize(model.loss, name='later')
        session.run(train_op)
        assert later.name in gates_of(later.graph)
        session.run(later)
        assert non_finite(session) == []
    assert guards.sessions.seen.train_ops == {'Momentum': 2, 'later': 1}
    assert guards.sessions.seen.actions == {'skip': 1}


@pytest.mark.full
def test_who_guards_next_has_a_policy_of_its_own(training):
    model, train_op, session = training
    with slimguard.instrument(on_nan='raise'):
        session.run(train_op)
        session.run(train_op)
    with slimguard.instrument(on_nan='skip') as guards:
        session.run(train_op)
    assert model.batches.drawn == 3
    assert guards.sessions.seen.actions == {'skip': 1}

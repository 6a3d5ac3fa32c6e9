"""A run with several updates has one batch: the policy decides once, for all of them."""

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard.incidents import record_file

tf1 = tf.compat.v1


def variable(name, trainable=True):
    return tf1.get_variable(name, initializer=1.0, trainable=trainable)


@pytest.fixture
def kind(request):
    tf1.get_variable_scope().set_use_resource(request.param == 'resource')


def two_losses():
    """Train ops of two models; the second does not use the bad part of the batch."""
    x = tf1.placeholder(tf.float32, [])
    seen = tf.where(tf.math.is_nan(x), tf.ones_like(x), x)
    weights = [variable('actor'), variable('critic')]
    losses = [tf.square(weight * each) for weight, each in zip(weights, (x, seen))]
    return x, weights, losses


def gradients_of():
    x, weights, losses = two_losses()
    return x, weights, tf1.gradients(tf.add_n(losses), weights)


def descent():
    x, weights, gradients = gradients_of()
    return x, [w.assign_sub(0.1 * g) for w, g in zip(weights, gradients)], weights


def sums():
    x, _, gradients = gradients_of()
    found = [variable('sum%d' % number, trainable=False) for number in range(2)]
    return x, [each.assign_add(g) for each, g in zip(found, gradients)], found


@pytest.mark.full
@pytest.mark.parametrize('build, kind', [(descent, 'ref'), (sums, 'resource')], indirect=['kind'])
def test_what_is_written_by_hand_in_several_writes_is_written_whole_or_not(kind, build, tmp_path):
    with slimguard.instrument('skip', logdir=tmp_path) as guards, tf1.Session() as session:
        x, fetched, written = build()
        session.run(tf1.global_variables_initializer())
        found = []
        for value in (2.0, np.nan, 3.0):
            session.run(fetched, {x: value})
            found.append(session.run(written))
    first, held, last = np.array(found)
    assert (first != 1.0).all()
    assert held.tobytes() == first.tobytes()
    assert (last != first).all()
    assert guards.sessions.seen.actions == {'skip': 1}


def two_train_ops():
    x = tf1.placeholder(tf.float32, [])
    weights = [variable('actor'), variable('critic')]
    return x, [
        tf1.train.GradientDescentOptimizer(0.1).minimize(tf.square(weight * x), var_list=[weight])
        for weight in weights
    ]


def train(values, on_nan, logdir):
    with slimguard.instrument(on_nan, logdir=logdir) as guards, tf1.Session() as session:
        x, fetched = two_train_ops()
        session.run(tf1.global_variables_initializer())
        for value in values:
            session.run(fetched, {x: value})
    return guards.sessions.seen.actions, record_file.read_incidents(logdir)


@pytest.mark.full
def test_two_train_ops_use_up_one_skip_for_a_batch(tmp_path):
    actions, incidents = train([1.0, np.nan, np.nan, 1.0], 'skip:2,raise', tmp_path)
    assert actions == {'skip': 4}
    assert [incident.action for incident in incidents] == ['skip'] * 4
    # The reason of each incident is that of its own train op.
    assert len({incident.reason for incident in incidents}) == 2
    assert all(incident.diagnosis for incident in incidents)


@pytest.mark.full
def test_two_train_ops_go_back_once_for_a_batch(tmp_path):
    actions, incidents = train([1.0] * 3 + [np.nan, 1.0], 'rollback:3x0.5', tmp_path)
    assert actions == {'rollback': 1, 'skip': 1}
    assert [incident.action for incident in incidents] == ['rollback', 'skip']
    assert incidents[0].learning_rate == 0.5


def test_good_steps_of_one_train_op_do_not_hide_that_the_other_is_always_bad(tmp_path):
    with slimguard.instrument('skip:2', logdir=tmp_path), tf1.Session() as session:
        x, (actor, critic) = two_train_ops()
        session.run(tf1.global_variables_initializer())
        said = '2 bad steps of %s in a row' % critic.name
        with pytest.raises(slimguard.NanLossError, match=said):
            for _ in range(4):
                session.run(actor, {x: 1.0})
                session.run(critic, {x: 1e30})
    incidents = record_file.read_incidents(tmp_path)
    assert [incident.action for incident in incidents] == ['skip', 'skip', 'raise']


@pytest.mark.full
def test_raise_leaves_a_record_of_both(tmp_path):
    with pytest.raises(slimguard.NanLossError):
        train([1.0, np.nan], 'raise', tmp_path)
    incidents = record_file.read_incidents(tmp_path)
    assert [incident.action for incident in incidents] == ['raise', 'raise']


@pytest.mark.full
def test_a_callable_is_asked_once_and_of_the_gravest(tmp_path):
    asked = []

    def on_nan(incident):
        asked.append(incident)
        return 'skip'

    with slimguard.instrument(on_nan, logdir=tmp_path), tf1.Session() as session:
        x, fetched = two_train_ops()
        session.run(tf1.global_variables_initializer())
        critic = next(v for v in tf1.global_variables() if v.op.name == 'critic')
        session.run(fetched, {x: 1.0})
        critic.load(np.nan, session)
        with pytest.raises(slimguard.NanLossError, match='critic'):
            session.run(fetched, {x: np.nan})
    assert len(asked) == 1

"""In a watched session, the gate keeps bad steps until their watcher takes them."""

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard import gate as gates
from slimguard.diagnosis.capture import Capture
from slimguard.incidents.history import UNTOLD
from tests.helpers.models import Linear

tf1 = tf.compat.v1


class Watched:
    """A guarded model whose batches are bad at given draws, and a session."""

    def __init__(self, bad=(), captures=False, check_numerics=False):
        self.model = Linear(bad)
        train_op = slimguard.create_train_op(
            self.model.loss, self.model.optimizer, check_numerics=check_numerics
        )
        self.gate = gates.gate_of(train_op)
        self.capture = Capture(self.gate) if captures else None
        self.fetches = [train_op, (self.capture or self.gate).row[UNTOLD]]
        self.session = tf1.Session()
        self.session.run(tf1.global_variables_initializer())

    def step(self):
        """Runs a step; returns how many bad steps the gate keeps."""
        return int(self.session.run(self.fetches)[1])


@pytest.mark.parametrize('captures', [False, True])
def test_a_bad_step_is_kept_until_it_is_taken(captures, capfd):
    watched = Watched(bad=(1, 2), captures=captures)
    watched.gate.untold.watch(watched.session)
    assert [watched.step() for _ in range(4)] == [0, 1, 2, 2]
    told = watched.gate.untold.take_reports(watched.session)
    assert [int(each.step) for each in told] == [1, 1]  # nothing was written
    assert all(np.isnan(each.loss) and any(each.bad) for each in told)
    assert watched.gate.labels_of(told[0].bad)[0].name == 'loss (Mean)'
    assert watched.step() == 0
    assert watched.gate.untold.take_reports(watched.session) == []
    assert 'slimguard' not in capfd.readouterr().err


def test_a_session_that_is_not_watched_or_no_longer_prints_and_keeps_nothing(capfd):
    watched = Watched(bad=range(5))
    watched.gate.untold.watch(watched.session)
    assert watched.step() == 1
    assert 'slimguard' not in capfd.readouterr().err
    with tf1.Session() as other:
        other.run(tf1.global_variables_initializer())
        assert other.run(watched.fetches)[1] == 0
        assert capfd.readouterr().err.count('this step wrote nothing') == 1
        assert other.run(watched.fetches, {watched.gate.watched: True})[1] == 0
        assert 'slimguard' not in capfd.readouterr().err
    watched.gate.untold.unwatch(watched.session)
    watched.step()
    assert capfd.readouterr().err.count('this step wrote nothing') == 1


def test_a_check_that_raises_does_not_where_it_is_watched():
    watched = Watched(bad=(0, 1), check_numerics=True)
    watched.gate.untold.watch(watched.session)
    assert watched.step() == 1
    watched.gate.untold.unwatch(watched.session)
    with pytest.raises(tf.errors.InvalidArgumentError, match='LossTensor is inf or nan'):
        watched.step()


@pytest.mark.full
@pytest.mark.parametrize('taken', [True, False])
def test_a_source_in_a_branch_does_not_keep_the_count_back(taken):
    """The count waits until the drawn values are kept. A branch that is not taken has none."""
    step = tf1.train.get_or_create_global_step()
    weight = tf1.get_variable('w', initializer=1.0)
    x = tf1.placeholder_with_default(1.0, [], name='x')
    drawn = tf1.cond(
        tf1.placeholder_with_default(taken, []),
        lambda: x * tf1.random_uniform([], 0.5, 1.0),
        lambda: x * 2.0,
    )
    loss = weight * drawn
    train_op = slimguard.create_train_op(
        loss, tf1.train.GradientDescentOptimizer(0.1), global_step=step, check_numerics=False
    )
    gate = gates.gate_of(train_op)
    count = Capture(gate).row[UNTOLD]
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        gate.untold.watch(session)
        counts = [session.run([train_op, count], {x: v})[1] for v in (1.0, np.nan, 1.0, np.nan)]
    assert counts == [0, 1, 1, 2]

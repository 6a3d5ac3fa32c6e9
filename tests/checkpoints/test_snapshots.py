"""Snapshots for rollbacks: when they are taken, how many are kept, and which of them is trusted."""

import numpy as np
import pytest
import tensorflow as tf

from slimguard.checkpoints.snapshots import (
    PROBATION,
    Losses,
    Snapshots,
    one_too_many,
    steps_to_next,
)
from slimguard.system import memory
from tests.helpers.models import LogLines

tf1 = tf.compat.v1


class Training:
    """A training of one variable and the global step, which are equal after each step.

    Args:
      most: how many snapshots are kept.
    """

    def __init__(self, most=3, **variable):
        self.w = tf1.get_variable('w', initializer=0.0, **variable)
        self.step = tf1.train.get_or_create_global_step()
        self.train_op = tf.group(self.w.assign_add(1.0), self.step.assign_add(1))
        self.session = tf1.Session()
        self.session.run(tf1.global_variables_initializer())
        self.snapshots = Snapshots(most)

    def train(self, steps, loss=1.0):
        for _ in range(steps):
            self.session.run(self.train_op)
            self.snapshots.step_was_good(self.session, loss)

    def go_back(self):
        """Restores the newest trusted snapshot; returns its step."""
        snapshot = self.snapshots.trusted()
        self.snapshots.restore(self.session, snapshot)
        assert snapshot.name == 'a snapshot of global step %d' % self.now()
        return self.now()

    def now(self):
        w, step = self.session.run([self.w, self.step])
        assert w == step
        return step

    def kept(self):
        """The steps of the kept snapshots, the oldest first."""
        return [int(each.values['w']) for each in reversed(self.snapshots.kept)]


@pytest.mark.parametrize('use_resource', [False, True])
def test_a_snapshot_is_a_copy(use_resource):
    training = Training(use_resource=use_resource)
    training.train(PROBATION + 1)
    assert training.go_back() == 1
    training.train(3)
    assert training.now() == 4


def test_a_variable_that_no_collection_lists_is_in_it():
    unlisted = tf1.get_variable('unlisted', initializer=[1.0, 2.0], collections=[])
    training = Training()
    training.session.run(unlisted.initializer)
    training.session.graph.finalize()
    training.train(PROBATION + 1)
    unlisted.load([5.0, 6.0], training.session)
    assert training.go_back() == 1
    assert training.session.run(unlisted).tolist() == [1.0, 2.0]


def steps_until(last, size=0):
    """The good steps up to `last` at which snapshots of `size` bytes are taken."""
    steps = [1]
    while steps[-1] <= last:
        steps.append(steps[-1] + steps_to_next(steps[-1], size))
    return steps


class TestWhen:
    def test_a_state_is_kept_every_ten_steps_then_every_eighth_of_the_steps_then_every_200(self):
        steps = steps_until(5000)
        assert steps[:9] == [1, 11, 21, 31, 41, 51, 61, 71, 81]
        gaps = [after - before for before, after in zip(steps, steps[1:])]
        assert gaps == sorted(gaps) and gaps[-1] == 200
        assert all(gap <= step / 8 or gap == 10 for step, gap in zip(steps, gaps))

    def test_so_in_a_long_training_it_takes_less_than_a_step_in_a_hundred(self):
        assert len(steps_until(100000)) < 550

    @pytest.mark.parametrize('size', [1 << 28, 1 << 34])
    def test_large_states_are_kept_more_seldom_and_still_at_each_doubling(self, size):
        steps = steps_until(10**6, size)
        assert len(steps) < len(steps_until(10**6)) * (32 << 20) / size + 50
        assert all(after <= max(2 * before, 11) for before, after in zip(steps, steps[1:]))

    @pytest.mark.parametrize('most', [2, 3, 5])
    def test_those_that_are_kept_are_spread_over_the_steps_so_far(self, most):
        kept, due = [], 0
        for good in range(1, 5000):
            if good >= due:
                kept, due = [good, *kept], good + steps_to_next(good, 0)
            if len(kept) > most:
                del kept[one_too_many(kept)]
            ages = [good - each for each in kept]
            interval = max(10, min(good / 8, 200))
            assert ages[0] <= interval and ages == sorted(ages)
            if good > 50:
                assert len(ages) == most and ages[1] <= 2 * interval
            if good > 100 and most > 2:  # the oldest is old, but not as old as the training
                assert 1.5 * interval <= ages[-1] <= good * (1 - 1 / most)

    def test_none_are_taken_where_none_are_wanted(self):
        training = Training(most=0)
        training.train(30)
        assert training.kept() == [] and training.snapshots.trusted() is None


class TestTrust:
    def test_ten_good_steps_must_have_followed(self):
        training = Training()
        training.train(PROBATION)
        assert training.snapshots.trusted() is None
        training.train(1)
        assert training.go_back() == 1

    def test_soon_after_a_return_an_older_one_is_taken(self):
        training = Training()
        training.train(64)
        assert training.kept() == [31, 51, 61]
        assert training.go_back() == 51
        training.train(2 * PROBATION - 1)
        assert training.snapshots.is_soon
        assert training.go_back() == 31
        training.train(2 * PROBATION - 1)
        assert training.snapshots.trusted() is None  # there is no older one
        training.train(1)
        assert not training.snapshots.is_soon
        assert training.go_back() == 31

    def test_soon_after_a_return_to_a_checkpoint_none_is_taken(self):
        training = Training()
        training.train(64)
        training.snapshots.note_rollback(None)
        assert training.kept() == []
        training.train(3 * PROBATION - 1)
        assert training.snapshots.trusted() is None
        training.train(1)
        assert training.go_back() == 64 + 2 * PROBATION

    def test_a_state_whose_loss_is_ten_times_that_of_all_before_takes_nobodys_place(self):
        training = Training()
        training.train(60, loss=2.0)
        training.train(500, loss=1e8)
        assert training.kept() == [31, 51, 61]
        assert training.go_back() == 61

    def test_a_loss_that_falls_is_no_reason(self):
        training = Training()
        training.train(64, loss=1e8)
        training.train(40, loss=-2.0)
        assert training.go_back() == 91

    def test_a_loss_that_was_so_high_in_the_beginning_may_be_so_again(self):
        training = Training()
        training.train(20, loss=50.0)
        training.train(600, loss=1.0)
        training.train(60, loss=20.0)
        assert training.go_back() > 620


class TestRuin:
    def test_is_three_spikes_in_a_row(self):
        training = Training()
        training.train(40)
        for _ in range(3):
            assert training.snapshots.ruin() == ''
            training.snapshots.step_was_spike()
        said = 'the last 3 steps were spikes, so the weights are taken for ruined'
        assert training.snapshots.ruin() == said

    def test_is_a_loss_that_is_a_hundred_times_all_before_it(self):
        training = Training()
        training.train(40, loss=2.0)
        training.train(1, loss=201.0)
        assert training.snapshots.ruin() == ''  # the median of the last three is low
        # At the end of a training one loss decides, since no next losses will show more.
        last = ': the loss of the last applied step is 201; the largest'
        losses = training.snapshots.losses
        assert losses.ruin(is_last=True).startswith(last)
        # The refused step had a usual loss with these weights, so a batch made the last one large.
        assert losses.ruin(is_last=True, refused=2.5) == ''
        assert ': the loss of the refused step is 250; ' in losses.ruin(is_last=True, refused=-250)
        training.train(1, loss=201.0)
        ruin = (
            'the weights are taken for ruined: the median loss of the last 3 applied steps is 201'
        )
        assert training.snapshots.ruin() == ruin + '; the largest median of 10 steps before was 2'
        training.train(40, loss=-201.0)  # more such losses do not become the usual ones
        assert training.snapshots.ruin().endswith('was 2')
        assert training.go_back() <= 41
        training.train(3, loss=2.0)
        assert training.snapshots.ruin() == ''

    def test_is_seen_as_well_where_the_first_update_was_an_explosion(self):
        training = Training()
        training.train(1, loss=16.0)
        training.train(20, loss=2e6)
        assert training.snapshots.ruin().endswith(
            'the median loss of the last 3 applied steps is 2e+06; the first loss was 16'
        )
        assert training.kept() == [1]
        assert training.go_back() == 1

    @pytest.mark.parametrize('first, then', [(1e-9, 1.0), (16.0, 1e4)])
    def test_is_not_a_small_first_loss_alone(self, first, then):
        training = Training()
        training.train(1, loss=first)
        training.train(20, loss=then)
        assert training.snapshots.ruin() == ''
        assert training.go_back() == 11

    @pytest.mark.parametrize('most, losses', [(0, [1.0] * 20 + [1e9] * 20), (3, [None] * 40)])
    def test_is_not_known_without_a_rollback_or_without_losses(self, most, losses):
        training = Training(most=most)
        for loss in losses:
            training.train(1, loss=loss)
        assert training.snapshots.ruin() == ''


def test_losses_that_rise_slowly_or_are_0_at_first_tell_of_no_ruin_and_a_leap_does():
    losses = Losses()
    for loss in [0.0] * 40 + [1.0] * 40 + [8.0] * 40 + [64.0] * 40 + [512.0] * 40 + [None]:
        losses.add(loss)
        assert losses.ruin(is_last=True) == ''
    losses.add(6e4)
    assert losses.ruin() == ''
    assert losses.ruin(is_last=True).endswith('before was 512')


def test_what_is_shared_at_the_start_is_restored_apart():
    start = tf.constant([1.0, 2.0])
    first, second = (tf1.get_variable(name, initializer=start) for name in 'ab')
    train_op = tf.group(first.assign_add([1.0, 1.0]), second.assign_add([5.0, 5.0]))
    snapshots = Snapshots(2)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        session.run(train_op)
        snapshots.step_was_good(session, None)
        kept = snapshots.kept[0]
        session.run(train_op)
        snapshots.restore(session, kept)
        np.testing.assert_array_equal(session.run([first, second]), [[2.0, 3.0], [6.0, 7.0]])


def test_a_variable_that_is_not_initialized_is_left_out():
    snapshots = Snapshots(2)
    there = tf1.get_variable('there', initializer=1.0)  # a hook may make one when it begins
    tf1.get_variable('missing', initializer=1.0)
    with tf1.Session() as session:
        session.run(there.initializer)
        snapshots.step_was_good(session, None)
    assert list(snapshots.kept[0].values) == ['there']
    assert snapshots.kept[0].name == 'a snapshot after 1 good step'


class TestRoom:
    @pytest.mark.parametrize(
        'free, is_kept', [(10**9, True), (None, True), (72, True), (71, False)]
    )
    def test_they_are_kept_if_they_fit_into_half_of_what_is_free(self, free, is_kept, monkeypatch):
        monkeypatch.setattr(memory, 'available', lambda: free)
        training = Training()  # 12 bytes, three times
        with LogLines() as lines:
            training.train(64)
        assert len(training.kept()) == 3 * is_kept
        told = [line for line in lines if 'no snapshots are kept' in line]
        assert len(told) == (not is_kept)
        assert all('rollback goes back to checkpoints' in line for line in told)

    def test_the_memory_that_is_free_is_told(self):
        assert memory.available() is None or 0 < memory.available() < 1 << 50

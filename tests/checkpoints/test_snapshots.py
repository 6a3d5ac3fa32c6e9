"""States in memory: when they are taken, how many are kept, and which of them is trusted."""

import numpy as np
import pytest
import tensorflow as tf

from slimguard.checkpoints.snapshots import PROBATION, Snapshots
from slimguard.system import memory
from tests.helpers.models import LogLines

tf1 = tf.compat.v1


class Clock:
    """A clock that goes on by itself while a session runs, and else when it is told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Training:
    """A training of one variable and the global step, which are equal after each step.

    Args:
      most: how many snapshots are kept.
      cost: the seconds that it takes to read the variables, by the clock.
      step: the seconds of a step.
    """

    def __init__(self, most=3, cost=0.0, step=1.0, **variable):
        self.w = tf1.get_variable('w', initializer=0.0, **variable)
        self.step = tf1.train.get_or_create_global_step()
        self.train_op = tf.group(self.w.assign_add(1.0), self.step.assign_add(1))
        self.session = tf1.Session()
        self.session.run(tf1.global_variables_initializer())
        self.clock, self.cost, self.seconds = Clock(), cost, step
        self.reads = 0
        self.snapshots = Snapshots(tf1.get_default_graph(), most, self.clock)

    def run(self, fetches, *feeds):
        if isinstance(fetches, dict):
            self.reads += 1
            self.clock.now += self.cost
        return self.session.run(fetches, *feeds)

    def train(self, steps, loss=1.0):
        for _ in range(steps):
            self.session.run(self.train_op)
            self.clock.now += self.seconds
            self.snapshots.step_was_good(self, loss)

    def go_back(self):
        """The step gone back to."""
        snapshot = self.snapshots.trusted()
        self.snapshots.restore(self, snapshot)
        assert snapshot.name == 'a snapshot of global step %d' % self.now()
        return self.now()

    def now(self):
        w, step = self.session.run([self.w, self.step])
        assert w == step
        return step

    def kept(self):
        return [int(each.values['w']) for each in reversed(self.snapshots._kept)]


@pytest.mark.parametrize('use_resource', [False, True])
def test_a_snapshot_is_a_copy(use_resource):
    training = Training(use_resource=use_resource)
    training.train(PROBATION + 1)
    assert training.go_back() == 1
    training.train(3)
    assert training.now() == 4


def test_they_take_a_hundredth_of_the_time():
    training = Training(cost=0.2, step=1.0)
    training.train(101)
    # The first, the next, which shows what it takes, and then 0.2 s every 20 s and 0.2 s.
    assert training.reads == 2 + 4


def test_one_is_on_probation_and_the_others_are_kept_eight_times_as_long():
    training = Training(most=4)
    training.train(31)
    assert training.kept() == [1, 11, 21, 31]
    ages = []
    for _ in range(64 * 10 * 3):
        training.train(1)
        ages.append([training.now() - each for each in training.kept()])
    spans = [(min(age), max(age)) for age in zip(*ages[800:])]
    assert spans[3] == (0, 9) and spans[2] == (10, 19)
    assert spans[1][0] >= 20 and 90 <= spans[1][1] <= 100
    assert spans[0][0] >= 90 and 640 <= spans[0][1] <= 740


def test_none_are_taken_where_none_are_wanted():
    training = Training(most=0)
    training.train(30)
    assert training.reads == 0 and training.snapshots.trusted() is None


class TestTrust:
    def test_ten_good_steps_must_have_followed(self):
        training = Training(step=0.0, cost=0.01)  # one is taken, and never another
        training.train(PROBATION)
        assert training.snapshots.trusted() is None
        training.train(1)
        assert training.go_back() == 1

    def test_soon_after_a_return_an_older_one_is_taken(self):
        training = Training()
        training.train(64)
        assert training.kept() == [1, 51, 61]
        assert training.go_back() == 51
        training.train(2 * PROBATION - 1)
        assert training.snapshots.is_soon
        assert training.go_back() == 1
        training.train(2 * PROBATION - 1)
        assert training.snapshots.trusted() is None  # there is none that is older

    def test_soon_after_a_return_to_a_checkpoint_none_is_taken(self):
        training = Training()
        training.train(64)
        training.snapshots.note_return(None)
        assert training.kept() == []
        training.train(2 * PROBATION - 1)
        assert training.snapshots.trusted() is None
        training.train(1)
        assert training.go_back() == 65

    def test_much_later_it_is_not(self):
        training = Training()
        training.train(64)
        assert training.go_back() == 51
        training.train(2 * PROBATION)
        assert not training.snapshots.is_soon
        assert training.go_back() == 52  # the first after the return

    def test_a_state_whose_loss_is_ten_times_that_of_all_before_is_ruined(self):
        training = Training()
        training.train(60, loss=2.0)
        training.train(17, loss=1e8)
        assert training.kept() == [1, 61, 71]
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
        assert training.go_back() == 661


class TestRuin:
    def test_is_a_loss_that_is_a_hundred_times_all_before_it(self):
        training = Training()
        training.train(40, loss=2.0)
        training.train(1, loss=201.0)
        assert training.snapshots.ruin() == ''  # the median of three
        training.train(1, loss=201.0)
        ruin = '; and the weights are ruined: the loss is 201, the median of the last 3 good steps'
        assert training.snapshots.ruin() == ruin + ', and was 2 at most'
        training.train(40, loss=-201.0)  # snapshots of this do not hide it
        assert training.snapshots.ruin().endswith('was 2 at most')
        assert training.go_back() <= 41
        training.train(3, loss=2.0)
        assert training.snapshots.ruin() == ''

    def test_is_not_what_rises_more_slowly(self):
        training = Training()
        for loss in [1.0, 8.0, 64.0, 512.0]:
            training.train(40, loss=loss)
            assert training.snapshots.ruin() == ''

    @pytest.mark.parametrize('most, losses', [(0, [1.0] * 20 + [1e9] * 20), (3, [None] * 40)])
    def test_is_not_known_without_a_rollback_or_without_losses(self, most, losses):
        training = Training(most=most)
        for loss in losses:
            training.train(1, loss=loss)
        assert training.snapshots.ruin() == ''


def test_what_is_shared_at_the_start_is_restored_apart():
    start = tf.constant([1.0, 2.0])
    first, second = (tf1.get_variable(name, initializer=start) for name in 'ab')
    train_op = tf.group(first.assign_add([1.0, 1.0]), second.assign_add([5.0, 5.0]))
    snapshots = Snapshots(tf1.get_default_graph(), 2)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        session.run(train_op)
        snapshots.step_was_good(session, None)
        kept = snapshots._kept[0]
        session.run(train_op)
        snapshots.restore(session, kept)
        np.testing.assert_array_equal(session.run([first, second]), [[2.0, 3.0], [6.0, 7.0]])


def test_a_variable_that_a_hook_adds_when_it_begins_is_kept():
    snapshots = Snapshots(tf1.get_default_graph(), 2)
    late = tf1.get_variable('late', initializer=1.0)
    with tf1.Session() as session:
        session.run(late.initializer)
        snapshots.step_was_good(session, None)
    assert list(snapshots._kept[0].values) == ['late']


def test_where_a_variable_could_not_be_restored_none_are_taken_and_a_line_says_so():
    grows = tf1.Variable([1.0], validate_shape=False, use_resource=False, name='grows')
    grow = tf1.assign(grows, [1.0, 2.0], validate_shape=False)
    snapshots = Snapshots(tf1.get_default_graph(), 3)
    with tf1.Session() as session, LogLines() as lines:
        session.run(grows.initializer)
        session.run(grow)
        snapshots.step_was_good(session, None)
    assert snapshots.most == 0 and snapshots.trusted() is None
    (line,) = [line for line in lines if 'no snapshots are taken' in line]
    assert "variable 'grows'" in line


def test_a_variable_that_is_not_initialized_is_left_out():
    training = Training()
    with tf.Graph().as_default() as graph:
        there = tf1.get_variable('there', initializer=1.0)
        tf1.get_variable('missing', initializer=1.0)
        snapshots = Snapshots(graph, 2)
        with tf1.Session() as session:
            session.run(there.initializer)
            snapshots.step_was_good(session, None)
            assert list(snapshots._kept[0].values) == ['there']
    assert training.now() == 0


@pytest.mark.parametrize('free, fitting', [(0, 0), (30, 0), (50, 2), (10**9, 3), (None, 3)])
def test_where_memory_is_short_fewer_are_kept_and_a_line_says_so(free, fitting, monkeypatch):
    monkeypatch.setattr(memory, 'available', lambda: free)
    training = Training()  # 12 bytes
    with LogLines() as lines:
        training.train(64)
    assert training.snapshots.most == len(training.kept()) == fitting
    assert bool([line for line in lines if 'not 3' in line]) == (fitting < 3)


def test_the_memory_that_is_free_is_told():
    assert memory.available() is None or 0 < memory.available() < 1 << 50

"""States to go back to: when they are taken, how many are kept, and which of them is trusted."""

import tempfile

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard.checkpoints import snapshots
from slimguard.checkpoints.snapshot_values import OnDisk, Room, assign, read_variables, size_of
from slimguard.checkpoints.snapshots import PROBATION, Snapshots
from slimguard.system import files, memory
from slimguard.system.memory import is_in_memory as in_memory
from tests.helpers.models import Linear, LogLines, checkpoint_at, records_in, train_quietly

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


@pytest.mark.parametrize('use_resource', [False, True])
@pytest.mark.parametrize('wants_it', [False, True])
def test_a_variable_that_no_collection_lists_is_in_it_where_that_is_wanted(use_resource, wants_it):
    with tf1.variable_scope('', use_resource=use_resource):
        unlisted = tf1.get_variable('unlisted', initializer=[1.0, 2.0], collections=[])
    training = Training()
    training.snapshots = Snapshots(
        tf1.get_default_graph(), 3, training.clock, has_unlisted=wants_it
    )
    training.session.run(unlisted.initializer)
    training.session.graph.finalize()
    training.train(PROBATION + 1)
    unlisted.load([5.0, 6.0], training.session)
    assert training.go_back() == 1
    expected = [1.0, 2.0] if wants_it else [5.0, 6.0]
    assert training.session.run(unlisted).tolist() == expected


def test_they_take_a_hundredth_of_the_time():
    training = Training(cost=0.2, step=1.0)
    training.train(101)
    # The first, the next, which shows what it takes, and then 0.2 s every 20 s and 0.2 s.
    assert training.reads == 2 + 4


def test_one_that_is_kept_waiting_does_not_put_off_the_next_for_long():
    training = Training(cost=0.2, step=1.0)
    training.train(40)
    training.cost = 30.0  # as where other processes have the processor
    while training.clock.now < 60:
        training.train(1)
    training.cost = 0.2
    reads = training.reads
    training.train(45)
    assert training.reads == reads + 2


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

    @pytest.mark.parametrize('loss, kept', [(1.4, 31), (1.6, 1)])
    def test_a_state_after_which_the_loss_rose_is_not_the_last_to_go_back_to(self, loss, kept):
        training = Training()
        training.train(31, loss=1.0)
        training.train(11, loss=loss)
        assert training.kept() == [1, 31, 41]
        assert training.snapshots.trusted().step == 31
        assert training.snapshots.trusted(is_last=True).step == kept

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


def test_where_there_is_no_global_step_it_is_named_for_the_good_steps():
    w = tf1.get_variable('w', initializer=0.0)
    with tf1.Session() as session:
        session.run(w.initializer)
        kept = Snapshots(tf1.get_default_graph(), 3, Clock())
        for _ in range(22):
            kept.step_was_good(session, 1.0)
    names = [each.name for each in reversed(kept._kept)]
    assert names[:2] == ['a snapshot after 1 good step', 'a snapshot after 11 good steps']


class TestRuin:
    def test_is_three_spikes_in_a_row(self):
        training = Training()
        training.train(40)
        for _ in range(3):
            assert training.snapshots.ruin() == ''
            training.snapshots.step_was_spike()
        said = '; and the last 3 steps were spikes, so the weights are taken for ruined'
        assert training.snapshots.ruin() == said

    def test_is_a_loss_that_is_a_hundred_times_all_before_it(self):
        training = Training()
        training.train(40, loss=2.0)
        training.train(1, loss=201.0)
        assert training.snapshots.ruin() == ''  # the median of three
        # Where the training ends, nobody will see whether the next losses are as large.
        last = '; and the weights are ruined: the loss is 201, that of the last good step'
        assert training.snapshots.ruin(is_last=True).startswith(last)
        training.train(1, loss=201.0)
        ruin = '; and the weights are ruined: the loss is 201, the median of the last 3 good steps'
        assert training.snapshots.ruin() == ruin + ', and was 2 at most'
        training.train(40, loss=-201.0)  # snapshots of this do not hide it
        assert training.snapshots.ruin().endswith('was 2 at most')
        assert training.go_back() <= 41
        training.train(3, loss=2.0)
        assert training.snapshots.ruin() == ''

    def test_is_seen_as_well_where_the_first_update_was_an_explosion(self):
        training = Training()
        training.train(1, loss=16.0)
        training.train(20, loss=2e6)
        assert training.snapshots.ruin().endswith(
            'is 2e+06, the median of the last 3 good steps, and was 16 at most'
        )
        assert training.kept() == [1, 11, 21]
        assert training.go_back() == 1

    @pytest.mark.parametrize('first, then', [(1e-9, 1.0), (16.0, 1e4)])
    def test_is_not_a_small_first_loss_alone(self, first, then):
        training = Training()
        training.train(1, loss=first)
        training.train(20, loss=then)
        assert training.snapshots.ruin() == ''
        assert training.go_back() == 11

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


class TestRoom:
    @pytest.fixture
    def machine(self, monkeypatch, tmp_path):
        """Says how many bytes of memory and of disk are free; the disk is the test's folder."""
        monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))

        def has(ram, disk):
            def free_on(folder):
                return disk if folder == str(tmp_path) else None

            monkeypatch.setattr(memory, 'available', lambda: ram)
            monkeypatch.setattr(files, 'free_bytes', free_on)

        return has

    @pytest.mark.parametrize(
        'ram, disk, fitting, is_on_disk',
        [
            (10**9, 10**9, 3, False),
            (None, 10**9, 3, False),
            (0, 10**9, 3, True),
            (50, 10**9, 3, True),
            (50, 60, 2, False),  # as many as in memory are slower there
            (30, 60, 2, True),
            (30, 30, 0, False),
            (0, None, 0, False),
        ],
    )
    def test_where_memory_is_short_it_is_on_disk_and_a_line_says_so(
        self, ram, disk, fitting, is_on_disk, machine, tmp_path
    ):
        machine(ram, disk)
        training = Training()  # 12 bytes
        with LogLines() as lines:
            training.train(64)
        assert training.snapshots.most == len(training.kept()) == fitting
        on_disk = [isinstance(each.values, OnDisk) for each in training.snapshots._kept]
        assert on_disk == [is_on_disk] * fitting
        (line,) = [line for line in lines if 'snapshot' in line]
        assert ('on disk, in %s, where' % tmp_path in line) == is_on_disk
        assert ('not 3, and else the checkpoints' in line) == (fitting < 3 and not is_on_disk)

    def test_on_disk_as_well_a_snapshot_is_a_copy_and_one_is_gone_back_to(self, machine):
        machine(0, 10**9)
        training = Training()
        training.train(64)
        assert training.kept() == [1, 51, 61]
        assert training.go_back() == 51
        training.train(2 * PROBATION - 1)
        assert training.go_back() == 1

    def test_on_disk_there_is_no_file_that_a_killed_process_would_leave(self, machine, tmp_path):
        machine(0, 10**9)
        training = Training()
        training.train(64)
        assert list(tmp_path.iterdir()) == []
        kept = [each.values for each in training.snapshots._kept]
        training.snapshots.drop()
        assert [each.close.alive for each in kept] == [False] * 3

    def test_what_is_no_longer_kept_is_closed(self, machine):
        machine(0, 10**9)
        training = Training(most=2)
        training.train(1)
        (first,) = training.snapshots._kept
        training.train(PROBATION)
        assert first.values.close.alive
        training.train(PROBATION)
        assert not first.values.close.alive

    def test_where_the_disk_fills_up_they_give_way(self, machine):
        machine(0, 10**9)
        training = Training()
        training.train(64)
        machine(0, 20)
        with LogLines() as lines:
            training.train(64)
        assert training.kept() == [] and training.snapshots.trusted() is None
        (line,) = [line for line in lines if 'no more snapshots are kept on disk' in line]
        assert '0 MB are free' in line

    def test_what_is_in_memory_is_no_disk(self, machine, monkeypatch):
        machine(0, 10**9)
        monkeypatch.setattr(memory, 'is_in_memory', lambda folder: True)
        training = Training()
        training.train(64)
        assert training.snapshots.most == 0


def test_the_memory_that_is_free_is_told():
    assert memory.available() is None or 0 < memory.available() < 1 << 50


def test_what_is_in_memory_is_told(monkeypatch):
    mounts = 'x / ext4 rw\nx /a tmpfs rw\nx /a/b ext4 rw\nx /c ramfs rw\nx /d ext4 0\nx /d tmpfs 0'
    monkeypatch.setattr(memory, '_read', lambda path: mounts)
    found = [
        name for name in ('/a', '/a/x', '/ab', '/a/b/x', '/c', '/d/x', '/e') if in_memory(name)
    ]
    assert found == ['/a', '/a/x', '/c', '/d/x']


@pytest.mark.parametrize('use_resource', [False, True])
def test_on_disk_all_types_keep_their_bits(use_resource, tmp_path):
    payload = np.array([0x7F800001, 0xFFC12345, 0x80000000, 1], np.uint32).view(np.float32)
    start = {
        'floats': payload,
        'half': np.array([[1.5], [np.nan]], np.float16),
        'brain': np.array([1.5, np.inf]).astype(tf.bfloat16.as_numpy_dtype),
        'double': np.array(1 / 3),
        'complex': np.array([1 + 2j], np.complex64),
        'flags': np.array([True, False, True]),
        'whole': np.array([-5], np.int64),
        'nothing': np.zeros([0, 3], np.float32),
        'words': np.array([b'some', b'\0 bytes'], object),
    }
    for name, value in start.items():
        tf1.get_variable(name, initializer=tf.constant(value), use_resource=use_resource)
    variables = {each.op.name: each for each in tf1.global_variables()}
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        before = read_variables(session, variables)
        room = Room(str(tmp_path), 2, size_of(session, variables), 10**9)
        kept = room.read(session, variables)
        assert isinstance(kept, OnDisk) and list(kept) == list(start)
        others = [(v, np.zeros_like(start[name])) for name, v in variables.items()]
        assign(session, others[:-1] + [(variables['words'], np.array([b'', b''], object))])
        assign(session, ((variables[name], value) for name, value in kept.items()))
        after = read_variables(session, variables)
    for name in start:
        assert after[name].dtype == before[name].dtype and after[name].shape == start[name].shape
        assert after[name].tolist() == start[name].tolist() or after[name].dtype.kind in 'fV'
        if name != 'words':
            assert after[name].tobytes() == before[name].tobytes() == start[name].tobytes(), name


def test_a_size_that_the_graph_does_not_tell_is_read():
    known = tf1.get_variable('known', [3, 2])
    grows = tf1.Variable([1.0], validate_shape=False, use_resource=False, name='grows')
    missing = tf1.get_variable('missing', initializer=tf.zeros([7]), validate_shape=False)
    with tf1.Session() as session:
        session.run(tf1.assign(grows, np.zeros(100), validate_shape=False))
        found = size_of(session, {'known': known, 'grows': grows, 'missing': missing})
    assert found in (24 + 400, 24 + 400 + 28)


def test_a_snapshot_that_cannot_be_read_gives_way_to_a_checkpoint(tmp_path, monkeypatch):
    def fail(values, name):
        raise OSError('the disk is gone')

    monkeypatch.setattr(snapshots, '_SHARE', 1e9)
    monkeypatch.setattr(memory, 'available', lambda: 0)
    monkeypatch.setattr(OnDisk, '__getitem__', fail)
    monkeypatch.setattr(snapshots, '_step_in', lambda values, graph: None)
    model = Linear(bad=(25,))
    train_op = slimguard.create_train_op(model.loss, model.optimizer)
    with LogLines() as lines:
        train_quietly(train_op, tmp_path, 30, on_nan='rollback')
    assert any('cannot be restored: the disk is gone' in line for line in lines)
    (record,) = records_in(tmp_path)
    assert record['restored'] == str(tmp_path / 'model.ckpt-0')
    assert checkpoint_at(tmp_path) == (30, [])

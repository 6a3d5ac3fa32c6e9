"""Which state a rollback goes back to, and what goes back with it."""

import time

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard.checkpoints.restorers import Restorer
from slimguard.checkpoints.snapshots import Snapshots
from slimguard.incidents.incident import Incident
from slimguard.incidents.policies import Rollback
from slimguard.training.open_incident import OpenIncident
from slimguard.training.rollback import Rollbacks
from tests.helpers.models import Linear, LogLines, checkpoint_at, records_in, train_quietly

tf1 = tf.compat.v1

LOGDIR = '/logs'


class Listed(Restorer):
    """A restorer whose checkpoints, at the given steps, are all good.

    Attributes:
      read: the steps of the checkpoints that were read.
    """

    def __init__(self, *steps):
        Restorer.__init__(self, tf1.train.Saver([tf1.get_variable('w', [])]), LOGDIR)
        self._steps = steps
        self.read = []

    def good(self):
        for step in self._steps:
            self.read.append(step)
            yield '%s/model.ckpt-%d' % (LOGDIR, step)

    def restore(self, session, checkpoint):
        pass


class ChiefsJob:
    """A chief's part in a job, with the methods that a rollback calls."""

    takes_part = is_chief = True

    def roll_back(self, incident):
        raise tf.errors.AbortedError(None, None, 'all go back')


def handled_at(step):
    incident = Incident.now(
        step=step, loss=None, reason='', tensors=(), strategy='hook', state_lost=False
    )
    return OpenIncident(incident)


def rollbacks_of(restorer):
    snapshots = Snapshots(0)
    return Rollbacks(restorer, snapshots), snapshots


def gone_back_to(rollbacks, step, job=None, session=None):
    handled = handled_at(step)
    rollbacks.roll_back(session, handled, Rollback(), job)
    return handled.incident.restored


def test_a_newer_one_that_is_not_trusted_is_named():
    rollbacks, _ = rollbacks_of(Listed(52, 51, 50))
    handled = handled_at(60)
    rollbacks.roll_back(None, handled, Rollback(), None)
    said = '; %s/model.ckpt-52 is not trusted yet: fewer than 10 good steps followed it' % LOGDIR
    assert handled.incident.reason == said


def test_the_newest_that_is_ten_steps_old_is_taken_and_no_older_one_is_read():
    restorer = Listed(52, 50, 40, 30)
    rollbacks, _ = rollbacks_of(restorer)
    assert gone_back_to(rollbacks, 60) == LOGDIR + '/model.ckpt-50'
    assert restorer.read == [52, 50]


def test_before_an_error_ruined_weights_give_way_to_it():
    """Also if the last rollback was long ago: a checkpoint from before the error is taken."""
    rollbacks, snapshots = rollbacks_of(Listed(52, 50, 40))
    snapshots.is_wanted = True
    handled = handled_at(60)
    rollbacks.leave_ruin(None, handled)
    with LogLines() as lines:
        handled.close()
    (line,) = lines
    assert line.endswith('are put back to %s/model.ckpt-50.' % LOGDIR)


def test_where_none_is_it_is_the_newest():
    rollbacks, _ = rollbacks_of(Listed(5, 3))
    assert gone_back_to(rollbacks, 9) == LOGDIR + '/model.ckpt-5'


def test_it_is_said_if_no_update_was_undone():
    rollbacks, _ = rollbacks_of(Listed(5))
    for step in (5, 9):
        handled = handled_at(step)
        rollbacks.roll_back(None, handled, Rollback(), None)
        assert handled.incident.reason.endswith('so no update was undone') == (step == 5)


def test_soon_after_that_it_is_an_older_one_as_far_as_there_are_any():
    restorer = Listed(50, 40, 30)
    rollbacks, snapshots = rollbacks_of(restorer)
    steps = []
    for _ in range(4):
        steps.append(gone_back_to(rollbacks, 60)[-2:])
        snapshots.step_was_good(None, None)
    assert steps == ['50', '40', '30', '30']
    for _ in range(20):
        snapshots.step_was_good(None, None)
    assert gone_back_to(rollbacks, 60)[-2:] == '50'


def test_a_snapshot_is_newer_than_the_state_before_the_first_step():
    class First(Restorer):
        first = 'the first state'

        def good(self):
            yield self.first

    saver = tf1.train.Saver([tf1.get_variable('w', [])])
    snapshots = Snapshots(2)
    rollbacks = Rollbacks(First(saver, LOGDIR), snapshots)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for _ in range(12):
            snapshots.step_was_good(session, None)
        assert gone_back_to(rollbacks, 60, session=session).startswith('a snapshot after ')


def regression(rate):
    true = np.random.RandomState(9).randn(8, 1).astype(np.float32)
    random = np.random.RandomState(1)

    def batch():
        x = random.randn(32, 8).astype(np.float32)
        return x, (x.dot(true) + 0.3 * random.randn(32, 1)).astype(np.float32)

    x, y = tf1.py_func(batch, [], [tf.float32, tf.float32], stateful=True)
    tf1.set_random_seed(1)
    first = tf1.get_variable('first', [8, 32])
    second = tf1.get_variable('second', [32, 1])
    hidden = tf.nn.relu(tf.matmul(tf.reshape(x, [32, 8]), first))
    loss = tf.reduce_mean(tf.square(tf.matmul(hidden, second) - tf.reshape(y, [32, 1])))
    step = tf1.train.get_or_create_global_step()
    rates = tf1.train.piecewise_constant(step, [200], [0.01, rate])
    return slimguard.create_train_op(loss, tf1.train.MomentumOptimizer(rates, 0.9))


def explode(logdir, snapshots):
    """Trains with a rate that is 300 times as large from step 200 on; returns the last loss."""
    on_nan = [slimguard.Skip(3), slimguard.Rollback(5, learning_rate=0.3, snapshots=snapshots)]
    with tf.Graph().as_default():
        return train_quietly(regression(3.0), logdir, 400, on_nan=on_nan, spike=True, capture=False)


@pytest.mark.full
def test_after_a_return_to_the_start_its_losses_are_no_spikes(tmp_path):
    assert explode(tmp_path, snapshots=0) < 1  # the only checkpoint is that of step 0
    records = records_in(tmp_path)
    assert any(record['action'] == 'rollback' for record in records)
    assert not any(record['step'] < 200 for record in records)
    assert checkpoint_at(tmp_path) == (400, [])


@pytest.mark.full
def test_a_machine_that_is_ten_times_as_slow_comes_to_the_same_decisions(tmp_path, monkeypatch):
    decided = []
    clocks = {name: getattr(time, name) for name in ('perf_counter', 'monotonic', 'time')}
    for name, clock in clocks.items():
        monkeypatch.setattr(time, name, lambda clock=clock: scale * clock())
    for scale in (1, 10):
        assert explode(tmp_path / str(scale), snapshots=3) < 1
        records = records_in(tmp_path / str(scale))
        names = [(each['restored'] or '').rpartition('/')[2] for each in records]
        decided.append([(r['step'], r['action'], name) for r, name in zip(records, names)])
    assert decided[0] == decided[1]
    assert any(name.startswith('a snapshot of global step') for _, _, name in decided[0])


@pytest.mark.full
@pytest.mark.parametrize('value, rolls_back', [(1e30, True), (np.nan, False)])
def test_overflows_that_keep_coming_from_finite_batches_are_an_explosion(
    value, rolls_back, tmp_path
):
    # No two bad batches in a row, and all rows bad: a single bad row would be bad data.
    model = Linear(bad=range(20, 80, 4), value=value, where=slice(None))
    train_op = slimguard.create_train_op(model.loss, model.optimizer)
    train_quietly(train_op, tmp_path, 60, on_nan='skip:3,rollback:2,raise')
    actions = [record['action'] for record in records_in(tmp_path)]
    assert actions[:6] == ['skip'] * 5 + ['rollback' if rolls_back else 'skip']
    assert ('rollback' in actions) == rolls_back
    if rolls_back:
        said = '5 of the 20 steps before it overflowed although their batches were finite'
        assert said in records_in(tmp_path)[5]['reason']


def test_without_a_good_one_the_incident_says_so():
    rollbacks, _ = rollbacks_of(Listed())
    handled = handled_at(60)
    assert not rollbacks.roll_back(None, handled, Rollback(), None)
    assert handled.incident.restored is None
    assert handled.incident.reason == '; and /logs holds no good checkpoint to go back to'


def test_a_job_says_the_newest_which_new_sessions_restore():
    restorer = Listed(52, 50, 40)
    rollbacks, _ = rollbacks_of(restorer)
    handled = handled_at(60)
    with pytest.raises(tf.errors.AbortedError):
        rollbacks.roll_back(None, handled, Rollback(), ChiefsJob())
    assert handled.incident.restored == LOGDIR + '/model.ckpt-52'
    assert restorer.read == [52]


def test_a_job_without_a_good_one_does_not_go_back_and_the_incident_says_so():
    rollbacks, _ = rollbacks_of(Listed())
    handled = handled_at(60)
    assert not rollbacks.roll_back(None, handled, Rollback(), ChiefsJob())
    assert handled.incident.reason == '; and /logs holds no good checkpoint to go back to'

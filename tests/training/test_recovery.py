"""Which checkpoint a rollback goes back to, and how many are read for that."""

import pytest
import tensorflow as tf

from slimguard.checkpoints.rollback import Restorer
from slimguard.checkpoints.snapshots import Snapshots
from slimguard.diagnosis.diagnosis import Diagnosis
from slimguard.diagnosis.evidence import Found
from slimguard.incidents.incident import Incident
from slimguard.incidents.policies import BATCH, Rollback
from slimguard.training.open_incident import OpenIncident
from slimguard.training.recovery import Recovery

tf1 = tf.compat.v1

LOGDIR = '/logs'


class Listed(Restorer):
    """A restorer of checkpoints that are all good, at these steps.

    Attributes:
      read: the steps of those that were read.
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
    """The part of a chief, as far as a rollback asks for it."""

    takes_part = is_chief = True

    def roll_back(self, incident):
        raise tf.errors.AbortedError(None, None, 'all go back')


def handled_at(step):
    incident = Incident.now(
        step=step, loss=None, reason='', tensors=(), strategy='hook', state_lost=False
    )
    return OpenIncident(incident, lambda old, new: None)


def recovery_of(restorer):
    snapshots = Snapshots(tf1.get_default_graph(), 0)
    return Recovery(restorer, snapshots), snapshots


def gone_back_to(recovery, step, job=None, blames_data=False, session=None):
    handled = handled_at(step)
    kind = BATCH if blames_data else ''
    handled.note_found(Found(Diagnosis('input', '', kind=kind)))
    recovery.go_back(session, handled, Rollback(), job)
    return handled.incident.restored


def test_the_newest_that_is_ten_steps_old_is_taken_and_no_older_one_is_read():
    restorer = Listed(52, 50, 40, 30)
    recovery, _ = recovery_of(restorer)
    assert gone_back_to(recovery, 60) == LOGDIR + '/model.ckpt-50'
    assert restorer.read == [52, 50]


def test_where_none_is_it_is_the_newest():
    recovery, _ = recovery_of(Listed(5, 3))
    assert gone_back_to(recovery, 9) == LOGDIR + '/model.ckpt-5'


def test_soon_after_that_it_is_an_older_one_as_far_as_there_are_any():
    restorer = Listed(50, 40, 30)
    recovery, snapshots = recovery_of(restorer)
    steps = []
    for _ in range(4):
        steps.append(gone_back_to(recovery, 60)[-2:])
        snapshots.step_was_good(None, None)
    assert steps == ['50', '40', '30', '30']
    for _ in range(20):
        snapshots.step_was_good(None, None)
    assert gone_back_to(recovery, 60)[-2:] == '50'


def test_soon_after_that_it_is_the_newest_where_data_are_at_fault():
    recovery, snapshots = recovery_of(Listed(55, 50, 40))
    assert gone_back_to(recovery, 60, blames_data=True)[-2:] == '50'
    for _ in range(3):
        snapshots.step_was_good(None, None)
        assert gone_back_to(recovery, 60, blames_data=True)[-2:] == '55'
    assert gone_back_to(recovery, 60)[-2:] == '50'


def test_a_snapshot_is_newer_than_the_state_before_the_first_step():
    class First(Restorer):
        first = 'the first state'

        def good(self):
            yield self.first

    saver = tf1.train.Saver([tf1.get_variable('w', [])])
    snapshots = Snapshots(tf1.get_default_graph(), 2)
    recovery = Recovery(First(saver, LOGDIR), snapshots)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for blames_data in (False, True):
            for _ in range(12):
                snapshots.step_was_good(session, None)
            restored = gone_back_to(recovery, 60, None, blames_data, session)
            assert restored.startswith('a snapshot after ')


def test_without_a_good_one_the_incident_says_so():
    recovery, _ = recovery_of(Listed())
    handled = handled_at(60)
    assert not recovery.go_back(None, handled, Rollback(), None)
    assert handled.incident.restored is None
    assert handled.incident.reason == '; and /logs holds no good checkpoint to go back to'


def test_a_job_says_the_newest_which_new_sessions_restore():
    restorer = Listed(52, 50, 40)
    recovery, _ = recovery_of(restorer)
    handled = handled_at(60)
    with pytest.raises(tf.errors.AbortedError):
        recovery.go_back(None, handled, Rollback(), ChiefsJob())
    assert handled.incident.restored == LOGDIR + '/model.ckpt-52'
    assert restorer.read == [52]

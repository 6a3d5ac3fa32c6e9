"""The chief's update of synchronous workers, with backup workers and asynchronous peers."""

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from tests.helpers.gate_models import Damage
from tests.helpers.jobs import Job
from tests.helpers.models import non_finite, records_in

tf1 = tf.compat.v1

STEPS = 30
BAD = 5  # the draws in which the gradient of a synchronous worker explodes
AFTER = 12


class Model:
    """Two weights on two parameter servers. Some draws of their gradients are large, and finite."""

    def __init__(self, role, resource, replicas):
        self.drawn = 0
        self._role, self._is_synchronous = role, replicas[0] > 0
        with role.device(), tf1.variable_scope('', use_resource=resource):
            self.step = tf1.train.get_or_create_global_step()
            place = tf1.py_func(self._draw, [], tf.float32, stateful=True)
            place.set_shape([])
            damage = Damage()
            damage.places['gradient'] = place
            weights = [tf1.get_variable('w%d' % n, initializer=[0.5, -0.5]) for n in range(2)]
            self.loss = sum(tf.reduce_sum(damage.gradient(w)) for w in weights) * 1e-8
            optimizer = tf1.train.MomentumOptimizer(1e5, 0.5)
            self.sync = None
            if replicas[0]:
                self.sync = tf1.train.SyncReplicasOptimizer(optimizer, *replicas)
            self.train_op = slimguard.create_train_op(
                self.loss, self.sync or optimizer, check_numerics=False
            )

    def _draw(self):
        self.drawn += 1
        if self.drawn == 1:  # nobody comes when all is over
            self._role.meet('first draw')
        is_bad = self._is_synchronous and self.drawn == BAD
        return np.float32(1e35 if is_bad else 0)


class Ends(tf1.train.SessionRunHook):
    """Ends the chief's training when all workers have met what is bad."""

    def __init__(self, role, model):
        self._role, self._model = role, model
        self.not_finite = None

    def after_create_session(self, session, coord):
        if self._role.is_chief:
            self._role.post('state')

    def before_run(self, run_context):
        return tf1.train.SessionRunArgs(self._model.step)

    def after_run(self, run_context, run_values):
        if self._model.drawn == AFTER:
            self._role.post('all bad %d' % self._role.task)
        if self._role.is_chief and self._role.all_have_posted('all bad'):
            if run_values.results >= STEPS:
                run_context.request_stop()

    def end(self, session):
        self.not_finite = non_finite(session)


def train(role, logdir, resource, on_nan, peers):
    """Trains; the last `peers` of the workers are asynchronous."""
    workers = len(role.cluster['worker'])
    is_peer = role.task >= workers - peers
    # Of the synchronous ones each update waits for all but one.
    replicas = (0, 0) if is_peer else (workers - peers - 1, workers - peers)
    model = Model(role, resource, replicas)
    ends = Ends(role, model)
    hook = slimguard.NanLossHook(model.loss, on_nan=on_nan)
    if not role.is_chief:
        role.wait_for('state')
    slimguard.train(
        model.train_op,
        logdir,
        master=role.server().target,
        is_chief=role.is_chief,
        log_every_n_steps=0,
        save_interval_secs=0.1,
        save_summaries_secs=0,
        session_config=role.config(),
        sync_optimizer=model.sync,
        hooks=[hook, ends],
        capture=False,
    )
    return hook.incidents, ends.not_finite


def job_of(logdir, resource, on_nan='skip', peers=0):
    return Job(train, str(logdir), resource, on_nan, peers, ps=2, workers=3)


def is_of_chief(reason):
    return reason.startswith("in the chief's update: not finite once updated: w")


@pytest.mark.parametrize(
    'resource, on_nan, peers',
    [(False, 'skip', 0), (True, 'skip', 1), (False, 'skip', 1), (True, 'rollback', 0)],
)
def test_what_explodes_in_the_chiefs_update_is_not_written(resource, on_nan, peers, tmp_path):
    """Two of three replicas make an update; or one of two, beside an asynchronous peer."""
    with job_of(tmp_path, resource, on_nan, peers) as job:
        ended = job.wait_for_workers()
    assert [end.error for end in ended] == [None] * 3, ended
    told = [incident for end in ended for incident in end.value[0]]
    assert {incident.action for incident in told} == {on_nan}
    of_chief = [incident for incident in told if is_of_chief(incident.reason)]
    assert {incident.worker for incident in of_chief} == {'/job:worker/task:0'}
    # Who computes meanwhile may read a weight that is yet to be put back, and writes nothing.
    others = {incident.reason for incident in told if incident not in of_chief}
    assert all(reason.startswith('not finite: loss mul') for reason in others)
    assert not any(incident.state_lost for incident in told)
    assert [end.value[1] for end in ended] == [[]] * 3
    assert any(is_of_chief(record['reason']) for record in records_in(tmp_path))
    newest = slimguard.latest_finite_checkpoint(str(tmp_path))
    assert newest == tf.train.latest_checkpoint(str(tmp_path))


def test_raise_ends_the_job(tmp_path):
    with job_of(tmp_path, True, 'raise') as job:
        ended = job.wait_for_workers()
    assert [end.error for end in ended] == ['NanLossError'] * 3, ended
    reasons = {end.incident['reason'] for end in ended}
    assert all(is_of_chief(reason) or reason == 'not finite: loss mul' for reason in reasons)

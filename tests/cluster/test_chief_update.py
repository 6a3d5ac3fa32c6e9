"""The chief's update of synchronous workers, with backup workers and asynchronous peers."""

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from tests.cluster.test_cluster import Ends
from tests.helpers.gate_models import Damage
from tests.helpers.jobs import Job
from tests.helpers.models import non_finite, records_in

tf1 = tf.compat.v1

# The draws in which the gradient of a synchronous worker explodes. The chief drops a gradient that
# comes late; of one draw of each worker it would at times drop all three.
BAD = (5, 6)
AFTER = 12
# A draw so late that all earlier tokens are used, so the updates with the bad draws are made.
LATE = 25


class Model:
    """Two weights on two parameter servers. Some draws of their gradients are large, and finite."""

    def __init__(self, role, resource, replicas, learning_rate):
        self.drawn = 0
        self.bad_draws, self.nan_draws = BAD if replicas[0] else (), ()
        self._role, self.awaited = role, {}
        with role.device(), tf1.variable_scope('', use_resource=resource):
            self.step = tf1.train.get_or_create_global_step()
            place, hurt = tf1.py_func(self._draw, [], (tf.float32,) * 2, stateful=True)
            place.set_shape([])
            damage = Damage()
            damage.places['gradient'] = place
            weights = [tf1.get_variable('w%d' % n, initializer=[0.5, -0.5]) for n in range(2)]
            losses = [tf.reduce_sum(damage.gradient(w)) for w in weights]
            self.loss = (sum(losses) + hurt) * 1e-8
            optimizer = tf1.train.MomentumOptimizer(learning_rate, 0.5)
            self.sync = None
            if replicas[0]:
                self.sync = tf1.train.SyncReplicasOptimizer(optimizer, *replicas)
            self.train_op = slimguard.create_train_op(
                self.loss, self.sync or optimizer, check_numerics=False
            )

    def _draw(self):
        self.drawn += 1
        if self.drawn == 1:  # no worker starts when the others have ended
            self._role.meet('first draw')
        if self.drawn == LATE:
            self._role.post('late draw of %d' % self._role.task)
        for name in self.awaited.get(self.drawn, ()):
            self._role.wait_for(name)
        gradient = 1e35 if self.drawn in self.bad_draws else 0
        return np.float32(gradient), np.float32(np.nan if self.drawn in self.nan_draws else 0)


class EndsOnceMet(Ends):
    """Also posts when this worker has had its bad draw; notes non-finite variables at the end."""

    def __init__(self, role, model):
        Ends.__init__(self, role, model.step)
        self._model, self.not_finite = model, None

    def after_run(self, run_context, run_values):
        # At any later draw, too: at the bad one, a hook before this one may raise.
        if self._model.drawn >= AFTER:
            self._role.post('all bad %d' % self._role.task)
        Ends.after_run(self, run_context, run_values)

    def end(self, session):
        self.not_finite = non_finite(session)


def train_model(model, role, logdir, on_nan, *hooks):
    """Trains; returns the incidents of this process, and the names of non-finite variables."""
    ends = EndsOnceMet(role, model)
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
        hooks=[hook, *hooks, ends],
        capture=False,
    )
    return hook.incidents, ends.not_finite


def train(role, logdir, resource, on_nan, peers):
    """Trains; the last `peers` of the workers are asynchronous."""
    workers = len(role.cluster['worker'])
    is_peer = role.task >= workers - peers
    # An update waits for all synchronous workers but one.
    replicas = (0, 0) if is_peer else (workers - peers - 1, workers - peers)
    # The larger rate keeps steps off the fast path, so each step of a peer copies the weights.
    model = Model(role, resource, replicas, learning_rate=1e9 if peers else 1e5)
    # More often than there are bad draws: none of them ends the job.
    policy = on_nan if on_nan == 'raise' else on_nan + ':20'
    return train_model(model, role, logdir, policy)


def job_of(logdir, resource, on_nan='skip', peers=0):
    return Job(train, str(logdir), resource, on_nan, peers, ps=2, workers=3)


OVERFLOWS, BEFORE = 'not finite once updated: w', 'already not finite before this step: w'
# A worker that reads a weight before it is put back has a bad step, and writes nothing.
READ_EARLY = 'not finite: loss (mul)'


def is_of_chief(reason):
    in_chief = "in the chief's update: "
    return reason.startswith((in_chief + OVERFLOWS, in_chief + BEFORE))


@pytest.mark.full
@pytest.mark.parametrize(
    'resource, on_nan, peers',
    [(False, 'skip', 0), (False, 'skip', 1), (True, 'rollback', 0)],
)
def test_what_explodes_in_the_chiefs_update_is_not_written(resource, on_nan, peers, tmp_path):
    """An update needs two of three replicas; or one of two, beside an asynchronous peer."""
    with job_of(tmp_path, resource, on_nan, peers) as job:
        ended = job.wait_for_workers()
    assert [end.error for end in ended] == [None] * 3, ended
    told = [incident for end in ended for incident in end.value[0]]
    assert {incident.action for incident in told} == {on_nan}
    of_chief = [incident for incident in told if is_of_chief(incident.reason)]
    assert {incident.worker for incident in of_chief} == {'/job:worker/task:0'}
    others = {incident.reason for incident in told if incident not in of_chief}
    known = (READ_EARLY, OVERFLOWS, BEFORE) if peers else (READ_EARLY,)
    assert all(reason.startswith(known) for reason in others)
    assert not any(incident.state_lost for incident in told)
    assert [end.value[1] for end in ended] == [[]] * 3
    assert any(is_of_chief(record['reason']) for record in records_in(tmp_path))
    newest = slimguard.latest_finite_checkpoint(str(tmp_path))
    assert newest == tf.train.latest_checkpoint(str(tmp_path))


class WaitsForTheEnd(tf1.train.SessionRunHook):
    """Keeps the chief in its first good step until the rollback; after it no draw is bad."""

    def __init__(self, role, model):
        self._role, self._model = role, model
        self._coordinator = None

    def after_create_session(self, session, coord):
        self._is_first, self._coordinator = self._coordinator is None, coord
        if not self._is_first:
            self._model.bad_draws = self._model.nan_draws = ()

    def after_run(self, run_context, run_values):
        if self._is_first:
            self._role.post('first step of %d' % self._role.task)
        if self._is_first and self._role.is_chief:
            self._coordinator.wait_for_stop(timeout=300)


# How bad updates of the chief, and the step that asks the job to go back, come together.


def before_the_request(model, role):
    """Bad updates come while the chief's own steps wait, and then a worker's loss is NaN."""
    model.awaited = {} if role.is_chief else {BAD[0]: ['first step of 0']}
    model.bad_draws = () if role.is_chief else range(BAD[0], 1000)
    model.nan_draws = () if role.is_chief else (LATE,)


def in_the_step_that_asks(model, role):
    """Bad updates come during a step of the chief, whose loss is NaN."""
    model.awaited = {1: ['late draw of 1']} if role.is_chief else {}
    model.bad_draws = () if role.is_chief else range(1, 1000)
    model.nan_draws = (1,) if role.is_chief else ()


def train_until_the_job_goes_back(role, logdir, bad_updates):
    model = Model(role, True, (2, 3), learning_rate=1e5)
    bad_updates(model, role)
    # A worker that reads a weight too early must not ask before the chief does.
    waits = bad_updates is in_the_step_that_asks and not role.is_chief
    on_nan = 'skip:1000' if waits else 'rollback'
    return train_model(model, role, logdir, on_nan, WaitsForTheEnd(role, model))


AFTER_THE_LAST = '; after the last step'


@pytest.mark.full
@pytest.mark.every_cell
@pytest.mark.parametrize(
    'bad_updates, ending',
    [
        (before_the_request, AFTER_THE_LAST),
        (in_the_step_that_asks, '; seen together with the incident before'),
    ],
)
def test_what_no_step_tells_of_is_recorded_before_the_job_goes_back(bad_updates, ending, tmp_path):
    job = Job(train_until_the_job_goes_back, str(tmp_path), bad_updates, ps=2, workers=3)
    with job:
        ended = job.wait_for_workers()
    assert [end.error for end in ended] == [None] * 3, ended
    chief, *others = ended
    told = [incident for incident in chief.value[0] if is_of_chief(incident.reason)]
    assert told and told[0].reason.endswith(ending), told
    # The chief's thread goes on for a moment after its last step.
    assert all(incident.reason.endswith((ending, AFTER_THE_LAST)) for incident in told), told
    assert {incident.action for incident in told} == {'rollback'}
    asked = [incident.reason for end in ended for incident in end.value[0]]
    assert any(READ_EARLY in reason for reason in asked)
    recorded = {record['reason'] for record in records_in(tmp_path)}
    assert {incident.reason for incident in told} <= recorded
    # However many incidents there were, and however many workers asked.
    assert 'the training went back to an earlier state 1 time.' in chief.log


@pytest.mark.full
def test_raise_ends_the_job(tmp_path):
    with job_of(tmp_path, True, 'raise') as job:
        ended = job.wait_for_workers()
    assert [end.error for end in ended] == ['NanLossError'] * 3, ended
    reasons = [end.incident['reason'] for end in ended]
    assert all(is_of_chief(reason) or reason.startswith(READ_EARLY) for reason in reasons), reasons

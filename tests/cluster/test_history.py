"""The last steps, and spikes, of workers on parameter servers: each process has its own."""

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard.diagnosis import bundle
from tests.cluster.test_cluster import Ends, start
from tests.helpers.jobs import Job
from tests.helpers.models import records_in

tf1 = tf.compat.v1

SPIKE = slimguard.Spike(loss=10.0, gradient_norm=100.0, window=10, warmup=2)
# By worker, the number of its batch that is far out.
FAR = (13, 11)


class Regression:
    """A linear regression; one batch of each worker is ten thousand times as large as others."""

    def __init__(self, role):
        self._role, self._drawn = role, 0
        with role.device():
            self.step = tf1.train.get_or_create_global_step()
            x = tf1.py_func(self._draw, [], tf.float32, stateful=True)
            x.set_shape([4, 6])
            with tf1.variable_scope('', partitioner=tf1.fixed_size_partitioner(2)):
                weights = tf1.get_variable('w', [6, 1], initializer=tf1.ones_initializer())
            self.loss = tf.reduce_mean(tf.square(tf.matmul(x, weights) - 1.0))
            rate = tf1.train.exponential_decay(1e-3, self.step, 5, 0.9)
            optimizer = tf1.train.MomentumOptimizer(rate, 0.5)
            self.train_op, _ = role.train_op(self.loss, optimizer, sync=False)

    def _draw(self):
        draw = self._drawn
        self._drawn += 1
        if draw <= max(FAR):
            self._role.meet('draw %d' % draw)
        if draw == max(FAR) + 1:
            self._role.post('all bad %d' % self._role.task)
        x = np.random.RandomState(100 * self._role.task + draw).rand(4, 6).astype(np.float32)
        return x * 1e4 if draw == FAR[self._role.task] else x


class Losses(tf1.train.SessionRunHook):
    """Notes the loss of each step of this process."""

    def __init__(self, loss):
        self._loss = loss
        self.seen = []

    def before_run(self, run_context):
        return tf1.train.SessionRunArgs(self._loss)

    def after_run(self, run_context, run_values):
        self.seen.append(float(run_values.results))


def train(role, logdir):
    model = Regression(role)
    losses, ends = Losses(model.loss), Ends(role, model.step)
    hook = slimguard.NanLossHook(model.loss, on_nan='skip', spike=SPIKE)
    slimguard.train(
        model.train_op,
        logdir,
        master=start(role),
        is_chief=role.is_chief,
        log_every_n_steps=0,
        save_summaries_secs=0,
        session_config=role.config(),
        hooks=[losses, hook, ends],
    )
    return [each.to_dict() for each in hook.incidents], losses.seen


@pytest.mark.full
def test_a_worker_holds_its_own_spike_and_knows_its_own_steps(tmp_path):
    with Job(train, str(tmp_path), ps=2, workers=2) as job:
        ended = job.wait_for_workers()
    assert [end.error for end in ended] == [None, None], ended
    for task, ((incident,), losses) in enumerate(end.value for end in ended):
        assert incident['worker'] == '/job:worker/task:%d' % task
        assert incident['action'] == 'skip'
        require_spike(incident, losses, FAR[task])
    records = {record['worker']: record for record in records_in(tmp_path)}
    assert len(records) == 2
    for (incident,), _ in (end.value for end in ended):
        assert records[incident['worker']]['reason'] == incident['reason']
    # The chief's bundles have the history of its own steps.
    (incident,), losses = ended[0].value
    history = require_history(incident, losses, FAR[0])
    assert set(map(type, history['learning_rate'])) == {float}
    assert ended[1].value[0][0]['bundle'] is None


def require_spike(incident, losses, far):
    """Requires the numbers of an incident to be those of this process's steps."""
    assert incident['reason'].startswith('loss ')
    assert '; gradient norm ' in incident['reason']
    assert incident['reason'].count('of the last 10 good steps') == 2
    said = '%.6g is %.4g times the median %.4g' % (
        losses[far],
        losses[far] / np.median(losses[far - 10 : far]),
        np.median(losses[far - 10 : far]),
    )
    assert said in incident['reason']


def require_history(incident, losses, far):
    history = bundle.read(incident['bundle']).history
    assert history['loss'] == losses[: far + 1]
    assert history['good'] == [True] * far + [False]
    assert history['gradient_norm'][-1] == incident['gradient_norm']
    names = [name for names in history['gradients'] for name in names]
    assert sorted(names) == ['w/part_0', 'w/part_1']
    return history

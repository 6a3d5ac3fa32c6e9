"""Summaries that a Supervisor's thread runs, on batches of its own, with batch norm in place."""

import pytest
import tensorflow as tf

import slimguard
from slimguard import compat
from tests.helpers.clusters import Cluster
from tests.helpers.models import Batches, checkpoint_at, records_in

tf1 = tf.compat.v1
slim = compat.import_slim()
MOST_STEPS = 10**5


class BadForSummaries(tf1.train.SessionRunHook):
    """Between two steps all batches are bad; ends the training once a summary had two of them."""

    def __init__(self):
        self.is_between = False
        self.bad = 0
        self.batches = Batches(bad=self._is_bad)

    def _is_bad(self, draw):
        self.bad += self.is_between
        return self.is_between

    def before_run(self, run_context):
        self.is_between = False

    def after_run(self, run_context, run_values):
        self.is_between = True
        if self.bad >= 2:
            run_context.request_stop()


def train(hook, logdir, summary_of=None, on_nan=None, **kwargs):
    norm = {'updates_collections': None, 'is_training': True}
    net = slim.fully_connected(hook.batches.x, 2, None, scope='dense')
    loss = tf.reduce_mean(tf.square(slim.batch_norm(net, scope='norm', **norm) - 1.0))
    tf1.summary.scalar('loss', loss)
    train_op = slimguard.create_train_op(loss, tf1.train.MomentumOptimizer(0.1, 0.9))
    summary = {} if summary_of is None else {'summary_op': summary_of(loss)}
    slimguard.train(
        train_op,
        str(logdir),
        number_of_steps=MOST_STEPS,
        log_every_n_steps=0,
        save_summaries_secs=0.05,
        hooks=[hook],
        on_nan=on_nan,
        **summary,
        **kwargs,
    )


@pytest.mark.parametrize(
    'summary_of', [None, lambda loss: tf1.summary.scalar('own', loss)], ids=['default', 'own']
)
def test_a_summary_of_a_bad_batch_writes_nothing(summary_of, tmp_path):
    train(BadForSummaries(), tmp_path, summary_of, on_nan='skip')
    assert checkpoint_at(tmp_path)[1] == []
    reasons = [record['reason'] for record in records_in(tmp_path)]
    assert reasons
    assert all(reason.startswith('in a run of the summaries: not finite') for reason in reasons)


def test_so_it_is_with_variables_on_parameter_servers(tmp_path):
    cluster = Cluster(ps=2)
    with cluster.device():
        train(BadForSummaries(), tmp_path, on_nan='skip', master=cluster.master())
    assert checkpoint_at(tmp_path)[1] == []
    reasons = [record['reason'] for record in records_in(tmp_path)]
    assert reasons and all('in a run of the summaries' in reason for reason in reasons)


def test_the_policy_decides_about_it(tmp_path):
    with pytest.raises(slimguard.NanLossError, match='in a run of the summaries: not finite'):
        train(BadForSummaries(), tmp_path)


def test_no_op_is_added_where_summaries_write_nothing(tmp_path, graph):
    """Batch norm leaves its updates to the train op here."""
    batches = Batches()
    net = slim.batch_norm(slim.fully_connected(batches.x, 2, None), is_training=True)
    tf1.summary.scalar('loss', tf.reduce_mean(net))
    train_op = slimguard.create_train_op(
        tf.reduce_mean(net), tf1.train.GradientDescentOptimizer(0.1)
    )
    slimguard.train(train_op, str(tmp_path), number_of_steps=1, log_every_n_steps=0)
    assert [op.name for op in graph.get_operations() if 'slimguard/summary' in op.name] == []


def test_under_instrument_it_is_one_gate_as_well(tmp_path, graph):
    with slimguard.instrument(on_nan='skip'):
        train(BadForSummaries(), tmp_path, on_nan='skip')
    assert checkpoint_at(tmp_path)[1] == []
    ours = [op.name for op in graph.get_operations() if op.name.startswith('slimguard/step/')]
    assert [name for name in ours if 'writes' in name] == ['slimguard/step/writes']

"""On a cluster: the decision is the worker's, the state stays on the parameter servers.

The tests count the messages and bytes that this adds on the network.
"""

import numpy as np
import pytest
import tensorflow as tf

from slimguard import compat, gate
from tests.helpers.clusters import Cluster, messages
from tests.helpers.gate_models import Damage, Snapshot, changed, initialize

tf1 = tf.compat.v1
slim = compat.import_slim()

PS = 2
# The messages between a gate and each parameter server, nearly all of them dead on the fast path:
# the decision; in three turns the signals to copy, check and put back, and their answers; the
# findings in the copies and after the update.
PER_PS = 13
# The same for the gradient of an embedding, which is summed up on its parameter server: whether it
# is small; a token for its check, in two dtypes, and the finding; whether Adam's rate for its rows
# is small enough.
PER_PS_OF_EMBEDDING = 5
# The powers and rates of Adam that are made on the parameter servers.
NUMBERS = 4
# To tell a watcher of a bad step, the gate reads the global step where it is; a good step sends
# signs that it need not.
ANNOUNCED = 4

OPTIMIZERS = {
    'Momentum': lambda: tf1.train.MomentumOptimizer(0.01, 0.9),
    'Adam': lambda: tf1.train.AdamOptimizer(0.01),
}
CASES = [
    # optimizer, use_resource, late_updates: whether batch norm's updates wait for the gradients
    ('Momentum', False, False),
    ('Adam', True, True),
]


class Training:
    """A net with partitioned variables on two parameter servers, guarded or not."""

    def __init__(self, cluster, optimizer, use_resource, late_updates, guarded):
        self.damage = Damage()
        self.has_embedding = optimizer == 'Adam'
        tf1.set_random_seed(1)
        with cluster.device():
            loss = self._loss(use_resource, late_updates)
            train_op = slim.learning.create_train_op(
                loss, OPTIMIZERS[optimizer](), check_numerics=False
            )
        self.variables = Snapshot()
        self.gate = None
        self.fetches = [train_op, tf1.train.get_global_step()]
        if guarded:
            self.gate = gate.gate_of(gate.guard(train_op))
            self.fetches = [self.gate.train_op, self.gate.step, self.gate.written, self.gate.bad]
        self.session = cluster.session()
        initialize(self.session)
        self.run()

    def _loss(self, use_resource, late_updates):
        scope = tf1.get_variable_scope()
        scope.set_use_resource(use_resource)
        scope.set_partitioner(tf1.fixed_size_partitioner(PS))
        tf1.train.get_or_create_global_step()
        x = tf.constant(np.random.RandomState(0).randn(8, 64), tf.float32)
        net = slim.fully_connected(x, 32)
        scope.set_partitioner(None)
        kwargs = {} if late_updates else {'updates_collections': None}
        net = slim.batch_norm(net, is_training=True, **kwargs)
        scope.set_partitioner(tf1.fixed_size_partitioner(PS))
        net = slim.fully_connected(self.damage.gradient(net), 64, activation_fn=None)
        if self.has_embedding:
            rows = tf1.get_variable('table', [20, 64])
            net += tf.nn.embedding_lookup(rows, [1, 1, 4, 5, 0, 2, 3, 19])
        bias = tf1.get_variable('bias', [PS, 1])
        net += 0.0 * tf.reduce_sum(self.damage.gradient(bias, 'bias'))
        loss = tf.reduce_mean(tf.square(net)) + self.damage('loss')
        tf1.losses.add_loss(loss)
        return loss

    def run(self, **feed):
        """The values of a step."""
        feed = {self.damage.places[place]: value for place, value in feed.items()}
        return self.session.run(self.fetches, feed)

    def messages(self, **feed):
        """The values of a step, and what crossed the network."""
        feed = {self.damage.places[place]: value for place, value in feed.items()}
        return messages(self.session, self.fetches, feed)


@pytest.fixture(scope='module')
def cluster():
    return Cluster(PS)


@pytest.fixture(scope='module', params=CASES, ids=lambda case: case[0])
def training(request, cluster):
    """A guarded training, which knows the messages of the same unguarded."""
    with tf.Graph().as_default():
        plain = Training(cluster, *request.param, guarded=False)
        _, sent = plain.messages()
        plain.session.close()
    with tf.Graph().as_default():
        guarded = Training(cluster, *request.param, guarded=True)
        guarded.unguarded = sent
        yield guarded
        guarded.session.close()


def size(sent):
    return sum(message.bytes for message in sent)


@pytest.mark.full
def test_in_a_good_step_few_numbers_cross_the_network_for_the_gate(training):
    values, sent = training.messages()
    assert values[2]
    # Two bools for an embedding: are its gradient and Adam's rate for its rows small?
    fast_path = 2 * PS if training.has_embedding else 0
    assert size(sent) <= size(training.unguarded) + fast_path + 4 * NUMBERS
    more = PER_PS * PS + ANNOUNCED
    if training.has_embedding:
        more += PER_PS_OF_EMBEDDING * PS + NUMBERS
    assert len(sent) <= len(training.unguarded) + more


@pytest.mark.full
def test_off_the_fast_path_only_numbers_and_flags_cross_the_network(training):
    flags = len(training.gate.labels)
    numbers = 4 * (PER_PS + PER_PS_OF_EMBEDDING) * PS + 4 * NUMBERS
    for place, value in [('bias', 1e16), ('gradient', np.nan), ('loss', np.nan)]:
        values, sent = training.messages(**{place: value})
        assert values[2] == (value == 1e16)
        assert size(sent) <= size(training.unguarded) + numbers + flags
        assert max(m.bytes for m in sent if m.tensor.startswith('slimguard/')) <= flags


def test_a_bad_step_changes_nothing_on_any_parameter_server(training):
    begin = int(training.run()[1])
    before = training.variables(training.session)
    for feed in ({'gradient': np.nan}, {'loss': np.inf}):
        assert training.run(**feed)[1:3] == [begin, False]
        assert not changed(before, training.variables(training.session))
    assert training.run(bias=1e16)[1:3] == [begin + 1, True]
    assert len(changed(before, training.variables(training.session))) > 8
    assert training.run()[1:3] == [begin + 2, True]


def test_an_update_that_overflows_or_finds_a_slot_lost_is_undone_everywhere(training):
    if training.has_embedding:
        pytest.skip('Adam squares such a gradient into an Inf, whatever the weights are')
    training.run(bias=3e38)
    before = training.variables(training.session)
    values = training.run(bias=3e38)
    assert not values[2]
    finding = training.gate.explain(values[3])
    assert finding.reason.startswith('not finite once updated')
    assert {name.split('/')[1] for name in finding.tensors} == {'part_0', 'part_1'}
    assert not changed(before, training.variables(training.session))

    with training.session.graph.as_default():
        slots = [v for v in tf1.global_variables() if 'Momentum' in v.op.name]
    slot = next(v for v in slots if 'part_1' in v.op.name)
    value = training.session.run(slot)
    slot.load(np.full_like(value, np.inf), training.session)
    before = training.variables(training.session)
    values = training.run(bias=1e16)
    assert not values[2]
    reason = 'already not finite before this step: ' + slot.op.name
    assert training.gate.explain(values[3]).reason == reason
    assert not changed(before, training.variables(training.session))
    slot.load(np.zeros_like(value), training.session)
    assert training.run(bias=1e16)[2]


@pytest.mark.full
def test_sync_replicas_gets_no_bad_gradient_and_the_same_few_messages(cluster):
    with tf.Graph().as_default():
        damage = Damage()
        scope = tf1.get_variable_scope()
        scope.set_use_resource(True)
        scope.set_partitioner(tf1.fixed_size_partitioner(PS))
        optimizer = tf1.train.SyncReplicasOptimizer(tf1.train.MomentumOptimizer(0.01, 0.9), 1)
        with cluster.device():
            step = tf1.train.get_or_create_global_step()
            w = tf1.get_variable('sync_w', [64, 8])
            loss = tf.reduce_sum(damage.gradient(tf.convert_to_tensor(w))) + damage('loss')
            plain = optimizer.minimize(loss, global_step=step)
            hook = optimizer.make_session_run_hook(is_chief=True, num_tokens=1)
        guarded = gate.gate_of(gate.guard(plain, loss))
        fetches = [guarded.train_op, guarded.written]
        with tf1.train.MonitoredTrainingSession(
            cluster.master(), hooks=[hook], stop_grace_period_secs=1
        ) as monitored:
            session = monitored._tf_sess()  # a run with hooks gives no trace
            session.run(fetches)
            _, sent = messages(session, fetches)
            _, unguarded = messages(session, [plain, step, loss])
            assert size(sent) <= size(unguarded) + 2 * 4 * PS
            assert len(sent) <= len(unguarded) + PER_PS * PS
            for place in damage.places.values():
                assert not session.run(fetches, {place: np.nan})[1]
            assert session.run(fetches)[1]
            assert all(np.isfinite(part).all() for part in session.run(list(w)))

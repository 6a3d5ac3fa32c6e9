"""What runs beside a training's steps: threads, queues, summaries, updates of a chief."""

import math
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard import compat
from slimguard.gate import Told
from slimguard.training.open_incident import look_again, of_gate
from tests.helpers import gate_models
from tests.helpers.clusters import Cluster
from tests.helpers.models import Batches, Linear, LogLines, checkpoint_at, records_in
from tests.helpers.synchronous import BAD, Synchronous, said_of_chief

tf1 = tf.compat.v1
slim = compat.import_slim()

THREADS, STEPS = 4, 60


@pytest.fixture
def hasty():
    """Python switches between threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.full
@pytest.mark.parametrize('spike', [None, True], ids=['', 'spike'])
def test_each_bad_step_of_any_thread_is_recorded_once(tmp_path, hasty, spike):
    x = tf1.placeholder(tf.float32, [])
    weight = tf1.get_variable('w', initializer=1.0)
    loss = tf.square(weight * x)
    update = tf1.train.GradientDescentOptimizer(0.01).minimize(loss)
    train_op = slimguard.guard(update, loss=loss)
    errors = []

    def train(number):
        try:
            for step in range(STEPS):
                session.run(train_op, {x: np.nan if step % 3 == number % 3 else 1.0})
        except Exception as error:
            errors.append(error)

    watched = slimguard.watch(tf1.Session(), on_nan='skip', logdir=tmp_path, spike=spike)
    with watched as session:
        session.run(tf1.global_variables_initializer())
        threads = [threading.Thread(target=train, args=(n,)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert np.isfinite(session.run(weight))
    assert len(slimguard.read_incidents(tmp_path)) == THREADS * STEPS // 3


class Asks(tf1.train.SessionRunHook):
    """A hook that takes from a queue as soon as there is a session."""

    def __init__(self, element):
        self.element = element

    def after_create_session(self, session, coord):
        session.run(self.element)


class TestQueues:
    @pytest.mark.full
    @pytest.mark.parametrize('asks', [False, True], ids=['nobody asks', 'a hook asks'])
    def test_are_filled_once_the_supervisor_has_begun_or_a_hook_asks(
        self, tmp_path, monkeypatch, asks
    ):
        model = Linear()
        train_op = slimguard.create_train_op(model.loss, model.optimizer)
        queue = tf1.FIFOQueue(8, tf.float32, [[]])
        tf1.train.add_queue_runner(tf1.train.QueueRunner(queue, [queue.enqueue(1.0)]))
        order = []
        for name in ('start_queue_runners', 'start_standard_services'):
            self.note_calls(monkeypatch, name, order)
        hooks = [Asks(queue.dequeue())] if asks else []
        slimguard.train(train_op, str(tmp_path), number_of_steps=2, hooks=hooks)
        first = ['start_queue_runners', 'start_standard_services']
        assert order == (first if asks else first[::-1])

    def note_calls(self, monkeypatch, name, order):
        original = getattr(tf1.train.Supervisor, name)

        def noting(*args, **kwargs):
            order.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(tf1.train.Supervisor, name, noting)


# Summaries that a Supervisor's thread runs, on batches of its own, with batch norm in place.


MOST_STEPS = 10**5


class BadForSummaries(tf1.train.SessionRunHook):
    """Makes all batches between two steps bad; ends the training once a summary had two of them."""

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


def train_with_summaries(hook, logdir, summary_of=None, on_nan=None, **kwargs):
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


@pytest.mark.full
@pytest.mark.parametrize(
    'summary_of', [None, lambda loss: tf1.summary.scalar('own', loss)], ids=['default', 'own']
)
def test_a_summary_of_a_bad_batch_writes_nothing(summary_of, tmp_path):
    train_with_summaries(BadForSummaries(), tmp_path, summary_of, on_nan='skip')
    assert checkpoint_at(tmp_path)[1] == []
    reasons = [record['reason'] for record in records_in(tmp_path)]
    assert reasons
    assert all(reason.startswith('in a run of the summaries: not finite') for reason in reasons)


@pytest.mark.full
def test_a_summary_of_a_bad_batch_with_variables_on_parameter_servers(tmp_path):
    cluster = Cluster(ps=2)
    with cluster.device():
        train_with_summaries(BadForSummaries(), tmp_path, on_nan='skip', master=cluster.master())
    assert checkpoint_at(tmp_path)[1] == []
    reasons = [record['reason'] for record in records_in(tmp_path)]
    assert reasons and all('in a run of the summaries' in reason for reason in reasons)


def test_the_policy_decides_about_a_summary(tmp_path):
    with pytest.raises(slimguard.NanLossError, match='in a run of the summaries: not finite'):
        train_with_summaries(BadForSummaries(), tmp_path)


def test_no_op_is_added_where_summaries_write_nothing(tmp_path, graph):
    """The summaries depend on no update of batch norm, so they need no gate."""
    batches = Batches()
    net = slim.batch_norm(slim.fully_connected(batches.x, 2, None), is_training=True)
    tf1.summary.scalar('loss', tf.reduce_mean(net))
    train_op = slimguard.create_train_op(
        tf.reduce_mean(net), tf1.train.GradientDescentOptimizer(0.1)
    )
    slimguard.train(train_op, str(tmp_path), number_of_steps=1, log_every_n_steps=0)
    assert [op.name for op in graph.get_operations() if 'slimguard/summary' in op.name] == []


@pytest.mark.full
def test_under_instrument_it_is_one_gate_as_well(tmp_path, graph):
    with slimguard.instrument(on_nan='skip'):
        train_with_summaries(BadForSummaries(), tmp_path, on_nan='skip')
    assert checkpoint_at(tmp_path)[1] == []
    ours = [op.name for op in graph.get_operations() if op.name.startswith('slimguard/step/')]
    assert [name for name in ours if 'writes' in name] == ['slimguard/step/writes']


# Updates of a chief, which a thread of a SyncReplicasOptimizer makes.


FEEDS = [{}, {BAD: 1e30}, {}, {}]


def train_synchronously(model, *hooks, feeds=FEEDS, train_op=None, **settings):
    """Runs steps; returns the global step after each of them."""
    steps = []

    def read_step(step_context):
        steps.append(int(step_context.session.run(model.step)))

    with model.session(*hooks, **settings) as session:
        for feed in feeds:
            if not session.should_stop():
                fed = {model.damage.places[place]: value for place, value in feed.items()}
                session.run(model.train_op if train_op is None else train_op, fed)
                session.run_step_fn(read_step)
    return steps


def exploding():
    return Synchronous(tf1.train.GradientDescentOptimizer(1e9))


def is_of_chief(record):
    return record['reason'].startswith("in the chief's update: not finite once updated: w")


@pytest.mark.full
@pytest.mark.parametrize('on_nan, steps', [('skip', [1, 1, 2, 3]), ('stop', [1, 1])])
def test_a_hook_acts_on_an_update_of_the_chief_in_the_same_step(on_nan, steps, tmp_path, capfd):
    model = exploding()
    train_op = slimguard.guard(model.train_op, model.loss)
    hook = slimguard.NanLossHook(model.loss, on_nan=on_nan, logdir=tmp_path, max_loss=100.0)
    assert train_synchronously(model, hook, train_op=train_op) == steps
    (record,) = records_in(tmp_path)
    assert record['action'] == on_nan and record['step'] == 1 and is_of_chief(record)
    assert record['tensors'][0] == 'w' and record['held']
    assert said_of_chief(capfd) == []  # the hook has reported it


@pytest.mark.full
def test_raise_at_an_update_of_the_chief_saves_the_last_good_state_first(tmp_path):
    model = exploding()
    train_op = slimguard.guard(model.train_op, model.loss)
    hook = slimguard.NanLossHook(model.loss)
    with pytest.raises(slimguard.NanLossError, match="in the chief's update"):
        train_synchronously(model, hook, train_op=train_op, checkpoint_dir=str(tmp_path))
    assert slimguard.latest_finite_checkpoint(str(tmp_path)).endswith('model.ckpt-1')


@pytest.mark.full
def test_an_update_of_the_chief_that_nobody_was_told_of_is_recorded_at_the_end(tmp_path):
    """The chief's thread may make an update after the chief's last step."""
    model = exploding()
    train_op = slimguard.guard(model.train_op, model.loss)
    hook = slimguard.NanLossHook(model.loss, on_nan='skip', logdir=tmp_path)
    with LogLines() as lines, model.session(hook) as session:
        session.run(train_op)
        # A run that bypasses the hooks.
        feed = {model.damage.places[BAD]: 1e30}
        session.run_step_fn(lambda step_context: step_context.session.run(train_op, feed))
    assert [line for line in lines if '1 of 2 batches was skipped' in line], lines
    (record,) = records_in(tmp_path)
    assert is_of_chief(record) and record['reason'].endswith('; after the last step')


@pytest.mark.full
def test_a_script_that_is_not_edited_is_told_of_an_update_of_the_chief(tmp_path, capfd):
    with slimguard.instrument(on_nan='skip', logdir=tmp_path):
        model = exploding()
        assert train_synchronously(model) == [1, 1, 2, 3]
    (record,) = records_in(tmp_path)
    assert record['action'] == 'skip' and is_of_chief(record)
    assert said_of_chief(capfd) == []


@pytest.mark.full
def test_what_another_process_puts_back_is_not_lost():
    """A variable that was not finite is checked again later."""
    damage = gate_models.Damage()
    model = gate_models.two_weights(damage, gate_models.OPTIMIZERS['Momentum'])
    guarded = gate_models.Guarded(model)
    slot = next(v for v in tf1.global_variables() if v.op.name == 'dense/Momentum')
    slot.load([0.0, math.inf, 0.0], guarded.sess)
    guarded.assert_held({damage.places['sparse gradient']: 1e30}, 'a slot that is lost')
    opened = of_gate(guarded.gate, Told(guarded.bad, 0, 1.0))
    assert opened.incident.state_lost
    look_again(guarded.sess, opened)
    assert opened.incident.state_lost  # the slot is not finite yet
    slot.load([0.0, 0.0, 0.0], guarded.sess)
    look_again(guarded.sess, opened)
    assert not opened.incident.state_lost
    assert opened.incident.reason == (
        'already not finite before this step: dense/Momentum; another process was putting that back'
    )
    assert opened.incident.tensors == ('dense/Momentum',)

"""The update that the chief of a `SyncReplicasOptimizer` makes, in a thread of its own."""

import pytest
import tensorflow as tf

import slimguard
from tests.helpers.models import LogLines
from tests.helpers.synchronous import BAD, Run, Synchronous, said_of_chief

tf1 = tf.compat.v1

AVERAGE = 'ExponentialMovingAverage'
# The optimizer, the feed of good steps, and the feed of a bad one. All feeds are finite, so the
# workers' gates let them through.
OVERFLOWS = {
    'a weight': (lambda: tf1.train.GradientDescentOptimizer(1e9), {}, {BAD: 1e30}),
    'rows of a weight': (
        lambda: tf1.train.GradientDescentOptimizer(1e9),
        {},
        {'gradient of table': -1e30},
    ),
    'a slot': (lambda: tf1.train.MomentumOptimizer(2e-38, 1.0), {BAD: 5e37}, {BAD: 3e38}),
    'the square of a gradient': (lambda: tf1.train.RMSPropOptimizer(0.1), {}, {BAD: 1e30}),
    'what is judged afterwards alone': (
        lambda: tf1.train.RMSPropOptimizer(3e38, centered=True, epsilon=1.0),
        {},
        {BAD: 1e15},
    ),
}


@pytest.mark.full
@pytest.mark.parametrize(
    'what, resource', [(what, number % 2 == 1) for number, what in enumerate(OVERFLOWS)]
)
def test_an_update_that_overflows_changes_nothing_and_training_goes_on(what, resource, capfd):
    optimizer, good, bad = OVERFLOWS[what]
    with tf.Graph().as_default():
        model = Synchronous(optimizer(), resource)
        train_op = slimguard.guard(model.train_op, model.loss)
        run = Run(train_op, model, [good, bad, bad, good])
    assert len(said_of_chief(capfd)) == 2
    assert run.steps == [1, 1, 1, 2]
    assert run.bits[0] == run.bits[1] == run.bits[2]
    moved = [name for name, bits in run.bits[3].items() if bits != run.bits[2][name]]
    assert any(AVERAGE in name for name in moved) == model.averages
    with tf.Graph().as_default():
        model = Synchronous(optimizer(), resource)
        unguarded = Run(model.train_op, model, [good, good])
    assert said_of_chief(capfd) == []
    for name, bits in run.bits[3].items():
        # Unguarded, the averages may be written after the step has ended, so they may differ.
        assert AVERAGE in name or bits == unguarded.bits[1][name], name


@pytest.mark.full
def test_a_mean_that_overflows_is_bad(capfd):
    """The mean of gradients that are all finite."""
    model = Synchronous(tf1.train.GradientDescentOptimizer(1e-30), replicas=2)
    train_op = slimguard.guard(model.train_op, model.loss)
    run = Run(train_op, model, [{}] * 4 + [{BAD: 3e38}] * 4 + [{}] * 4)
    assert said_of_chief(capfd)
    assert run.steps[-1] > run.steps[4]


def lines_of_guards(train_op, loss):
    """Guards a train op twice; returns the log lines about the chief's unguarded update."""
    with LogLines() as lines:
        for each in (None, loss):
            slimguard.guard(train_op, each)
    return [line for line in lines if 'makes of them is NOT' in line]


def test_a_guard_that_comes_too_late_or_finds_no_queue_runner_says_so_once():
    model = Synchronous(tf1.train.GradientDescentOptimizer(0.1))
    graph = tf1.get_default_graph()
    with tf.Graph().as_default() as imported:
        tf1.train.import_meta_graph(tf1.train.export_meta_graph(graph=graph))
        given = [imported.as_graph_element(each.name) for each in (model.train_op, model.loss)]
        (line,) = lines_of_guards(*given)
    assert 'there is no queue runner that makes it' in line
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        coordinator = tf1.train.Coordinator()
        runner = model.optimizer.get_chief_queue_runner()
        runner.create_threads(session, coordinator, daemon=True, start=True)
        (line,) = lines_of_guards(model.train_op, model.loss)
        coordinator.request_stop()
    assert 'a thread has begun to run' in line and model.train_op.name.split(':')[0] in line


def test_accumulators_of_the_users_own_have_no_chief():
    w = tf1.get_variable('w', initializer=1.0)
    sums = tf1.ConditionalAccumulator(tf.float32, shape=())
    update = w.assign_sub(sums.take_grad(1))
    with LogLines() as lines:
        slimguard.guard(sums.apply_grad(w * 2.0))
        slimguard.guard(update)
    assert not any('NOT' in line for line in lines)

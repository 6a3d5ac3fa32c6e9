"""A script may feed a tensor of its model: the ops that compute it do not run, guarded or not."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard.diagnosis import bundle
from tests.helpers.inner_feeds import BAD, GOOD, KINDS, Fed
from tests.helpers.models import folder_of_start, non_finite, records_in, state

tf1 = tf.compat.v1


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(kind, loop, guard=contextlib.ExitStack):
    """The losses of six steps, the next draw, and the state after them."""
    with guard(), tf.Graph().as_default():
        tf1.set_random_seed(1)
        model = Fed(kind)
        train_op = model.minimize()
        following = tf.constant(0) if model.drawn is None else model.drawn
        with loop() as session:
            losses = []
            for number in range(6):
                is_fed = number % 2 or not model.runs_unfed
                feed_dict = {model.inner: GOOD * number} if is_fed else None
                losses.append(session.run([train_op, model.loss], feed_dict)[1])
            return losses, session.run(following), state(session)


@contextlib.contextmanager
def plain_session():
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        yield session


def same(one, other):
    return all(map(np.array_equal, tf.nest.flatten(one), tf.nest.flatten(other)))


LOOPS = {'session': plain_session, 'monitored': tf1.train.MonitoredSession}


@pytest.mark.parametrize('kind, loop', [*zip(KINDS, [*LOOPS] * 4)])
def test_the_bits_and_what_is_drawn_next_are_those_of_a_plain_run(kind, loop):
    expected = train(kind, LOOPS[loop])
    assert same(train(kind, LOOPS[loop], slimguard.instrument), expected)


@pytest.mark.full
@pytest.mark.parametrize('kind', ['placeholder', 'queue', 'normalized'])
def test_a_bad_value_that_is_fed_changes_nothing_and_is_named(kind, folder):
    with slimguard.instrument(on_nan='skip') as guards, tf.Graph().as_default():
        model = Fed(kind)
        train_op = model.minimize()
        with plain_session() as session:
            session.run(train_op, {model.inner: GOOD})
            before = state(session)
            for _ in range(2):
                session.run(train_op, {model.inner: BAD})
                assert same(state(session), before)
            session.run(train_op, {model.inner: GOOD})
            assert session.run(model.step) == 2
    assert guards.sessions.seen.actions == {'skip': 2}
    first, _ = records_in(folder_of_start(folder))
    assert first['step'] == 1
    assert 'z:0' in first['diagnosis'] and 'bad data' in first['diagnosis']
    assert bundle.read(first['bundle']).values['z:0'].tobytes() == BAD.tobytes()


def gradients_fed(guard=contextlib.ExitStack):
    """The script fetches a gradient, and feeds it to the train op."""
    with guard(), tf.Graph().as_default():
        x = tf1.placeholder(tf.float32, [None, 3])
        weights = tf1.get_variable('w', [3, 1], initializer=tf1.ones_initializer())
        loss = tf.reduce_mean(tf.square(tf.matmul(x, weights) - 1.0))
        optimizer = tf1.train.GradientDescentOptimizer(0.05)
        pairs = optimizer.compute_gradients(loss)
        train_op = optimizer.apply_gradients(pairs)
        gradient = pairs[0][0]
        with plain_session() as session:
            for _ in range(3):
                value = session.run(gradient, {x: GOOD})
                session.run(train_op, {gradient: value})
            expected = state(session)
            session.run(train_op, {gradient: np.full([3, 1], np.nan)})
            return expected, state(session)


@pytest.mark.full
def test_a_gradient_may_be_fed_where_its_loss_cannot_be_computed():
    expected, _ = gradients_fed()
    good, after_a_bad_one = gradients_fed(lambda: slimguard.instrument(on_nan='skip'))
    assert same(good, expected)
    assert same(after_a_bad_one, expected)


@pytest.mark.full
def test_a_run_that_only_writes_leaves_out_what_is_behind_a_feed():
    with slimguard.instrument(on_nan='skip'), tf.Graph().as_default():
        x = tf1.placeholder(tf.float32, [None, 3])
        inner = tf.multiply(x, 2.0)
        mean = tf1.get_variable('mean', [3], trainable=False, initializer=tf1.zeros_initializer())
        with tf.control_dependencies([mean.assign(tf.reduce_mean(inner, axis=0))]):
            weights = tf1.get_variable('w', [3, 1], initializer=tf1.ones_initializer())
            loss = tf.reduce_mean(tf.square(tf.matmul(inner, weights) - 1.0))
        train_op = tf1.train.GradientDescentOptimizer(0.05).minimize(loss)
        with plain_session() as session:
            session.run(train_op, {x: GOOD})
            assert session.run(loss, {inner: GOOD}) > 0
            assert np.allclose(session.run(mean), GOOD.mean(0))
            session.run(loss, {inner: BAD})
            assert non_finite(session) == []


def test_a_rate_by_default_is_no_other_step():
    with slimguard.instrument() as guards, tf.Graph().as_default() as graph:
        rate = tf1.placeholder_with_default(0.1, [])
        weights = tf1.get_variable('w', [3], initializer=tf1.ones_initializer())
        loss = tf.reduce_sum(tf.square(weights))
        train_op = tf1.train.GradientDescentOptimizer(rate).minimize(loss)
        with plain_session() as session:
            session.run(train_op)
            built = len(graph.get_operations())
            session.run(train_op, {rate: 0.01})
            assert len(graph.get_operations()) == built
    assert list(guards.sessions.seen.train_ops.values()) == [2]


@pytest.mark.full
@pytest.mark.parametrize('use_resource, guards', [(False, True), (True, False)])
def test_writes_of_layers_on_both_sides_of_what_is_fed_are_put_back(use_resource, guards):
    """Grappler may drop the control edge to the second write, if it is implied by the first.

    But the first write does not run, because of the feed.
    """

    def normalized(x, name):
        with tf1.variable_scope(name, use_resource=use_resource):
            mean = tf1.get_variable(
                'mean', [3], initializer=tf1.zeros_initializer(), trainable=False
            )
            scale = tf1.get_variable('scale', [3])
            change = 0.1 * (mean - tf.reduce_mean(x, 0))
            with tf.control_dependencies([tf1.assign_sub(mean, change)]):
                return tf.identity(x * scale)

    with slimguard.instrument(on_nan='skip') if guards else contextlib.ExitStack():
        with tf.Graph().as_default():
            inner = normalized(tf.random.uniform([2, 3]), 'first')
            loss = tf.reduce_mean(tf.square(normalized(inner, 'second') - 1.0))
            train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
            train_op = train_op if guards else slimguard.guard(train_op)
            with plain_session() as session:
                session.run(train_op, {inner: GOOD})
                before = state(session)
                session.run(train_op, {inner: BAD})
                assert same(state(session), before)
                session.run(train_op)
                assert not same(state(session), before)


@pytest.mark.full
def test_what_is_fed_may_be_fetched_and_what_it_is_computed_from_is_neither_run_nor_guarded():
    with slimguard.instrument() as guards, tf.Graph().as_default():
        model = Fed('normalized')
        train_op = model.minimize()
        (mean,) = [v for v in tf1.global_variables() if v.op.name == 'mean']
        with plain_session() as session:
            fetched, _ = session.run([model.inner, train_op], {model.inner: GOOD})
            assert fetched.tolist() == GOOD.tolist()
            session.run([model.inner, model.loss], {model.inner: GOOD})
            assert session.run(mean).tolist() == [0, 0, 0]
    assert not guards.sessions.seen.refused
    assert guards.sessions.seen.writing_runs == 0


@pytest.mark.full
def test_a_sparse_tensor_may_be_fed_whole():
    with slimguard.instrument(on_nan='skip') as guards, tf.Graph().as_default():
        sparse = tf1.sparse_placeholder(tf.float32, [2, 3])
        weights = tf1.get_variable('w', [3, 1])
        loss = tf.reduce_mean(tf.square(tf.sparse.sparse_dense_matmul(sparse, weights) - 1.0))
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
        with plain_session() as session:
            for value in (1.0, np.nan, 1.0):
                session.run(train_op, {sparse: tf1.SparseTensorValue([[0, 1]], [value], [2, 3])})
            assert non_finite(session) == []
    assert guards.sessions.seen.actions == {'skip': 1}


def counts(guard=contextlib.ExitStack):
    """A counter and the losses, after steps that feed the result of its write, and others."""
    with guard(), tf.Graph().as_default():
        with tf1.variable_scope('', use_resource=False):
            zero = tf1.zeros_initializer()
            count = tf1.get_variable('count', [], trainable=False, initializer=zero)
            weights = tf1.get_variable('w', [3], initializer=tf1.ones_initializer())
        now = tf1.assign_add(count, 1.0)
        loss = tf.reduce_mean(tf.square(weights * now - 1.0))
        train_op = tf1.train.GradientDescentOptimizer(0.001).minimize(loss)
        with plain_session() as session:
            for feed_dict in ({now: 5.0}, None, {now: 5.0}, None):
                session.run(train_op, feed_dict)
            return session.run([count, weights])


@pytest.mark.full
def test_a_write_whose_value_is_fed_is_not_run():
    assert same(counts(slimguard.instrument), counts())

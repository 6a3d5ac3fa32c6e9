"""slimguard.watch: hooks and policies for a plain session."""

import re
import threading

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard.training.gate_watcher import GateWatcher
from tests.helpers.children import forked_python, python
from tests.helpers.models import Linear, LogLines, checkpoint_at, non_finite, records_in, state

tf1 = tf.compat.v1


class Counting(tf1.train.SessionRunHook):
    def __init__(self):
        self.calls = []

    def after_create_session(self, session, coord):
        self.calls.append('after_create_session')

    def after_run(self, run_context, run_values):
        self.calls.append('after_run')

    def end(self, session):
        self.calls.append('end')


def build(bad=(), **kwargs):
    model = Linear(bad)
    train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False)
    return model, train_op


@pytest.mark.full
def test_hooks_are_called_for_runs_of_the_train_op_only():
    model, train_op = build()
    counting = Counting()
    with slimguard.watch(tf1.Session(), hooks=[counting]) as session:
        session.run(tf1.global_variables_initializer())
        session.run(model.step)
        session.run({'train': [train_op], 'step': model.step})
        assert model.batches.drawn == 1
        assert session.run(model.weights.initializer) is None
    assert counting.calls == ['after_create_session', 'after_run', 'end']


def test_a_checkpoint_that_a_plain_saver_writes_is_looked_at(folder):
    model, train_op = build()
    saver = tf1.train.Saver()
    with slimguard.watch(tf1.Session()) as session, LogLines() as lines:
        session.run(tf1.global_variables_initializer())
        saver.save(session, 'logs/m', global_step=1)
        assert not lines
        model.weights.load(np.full(model.weights.shape, np.nan), session)
        saver.save(session, 'logs/m', global_step=2)
        slimguard.FiniteSaver().save(session, 'logs/f')
    (bad,) = [line for line in lines if 'm-2' in line]
    assert bad.endswith(
        'is not finite: %s. A slimguard.FiniteSaver refuses such a save.' % model.weights.op.name
    )
    assert len([line for line in lines if 'logs/f' in line]) == 1


def test_raise_is_the_default():
    _, train_op = build(bad=(1,))
    with pytest.raises(slimguard.NanLossError, match='global step 1'):
        with slimguard.watch(tf1.Session()) as session:
            session.run(tf1.global_variables_initializer())
            for _ in range(3):
                session.run(train_op)


@pytest.mark.full
def test_stop():
    model, train_op = build(bad=(3,))
    with slimguard.watch(tf1.Session(), on_nan='stop') as session:
        session.run(tf1.global_variables_initializer())
        while not session.should_stop():
            session.run(train_op)
        assert model.batches.drawn == 4
        assert session.run(model.step) == 3
        with pytest.raises(RuntimeError, match='asked the training to stop.*should_stop'):
            session.run(train_op)


def test_an_unguarded_train_op_is_watched_too():
    model = Linear(bad=(1,))
    train_op = model.minimize()
    hook = slimguard.NanLossHook(model.loss, fail_on_nan_loss=False)
    with slimguard.watch(tf1.Session(), hooks=[hook]) as session:
        session.run(tf1.global_variables_initializer())
        session.run(train_op)
        session.run(train_op)
    assert [incident.held for incident in hook.incidents] == [False]


def test_a_train_op_that_nobody_guarded_is_refused():
    def run(**kwargs):
        with tf.Graph().as_default():
            model = Linear(bad=(1,))
            train_op = model.minimize()
            with slimguard.watch(tf1.Session(), **kwargs) as session:
                session.run(tf1.global_variables_initializer())
                for _ in range(3):
                    session.run(train_op)

    for on_nan in (None, 'stop', 'skip:2,raise'):
        said = "%r.*train op 'Momentum' is not guarded.*slimguard.guard" % (on_nan or 'raise')
        with pytest.raises(ValueError, match=said):
            run(on_nan=on_nan)


def test_it_is_the_default_session_inside_and_a_session_for_savers(tmp_path):
    model, train_op = build(bad=(0,))
    saver = tf1.train.Saver()
    hook = slimguard.NanLossHook(model.loss, on_nan='skip')
    with slimguard.watch(tf1.Session(), hooks=[hook]) as session:
        assert tf1.get_default_session() is session
        tf1.global_variables_initializer().run()
        assert np.isnan(train_op.eval())
        assert hook.incidents
        path = saver.save(session, str(tmp_path / 'model'), global_step=model.step)
        saver.restore(session, path)
        assert session.graph is model.loss.graph
        assert session.make_callable(model.step)() == 0
        assert session.sess_str is not None


@pytest.mark.full
def test_a_session_in_use_with_a_thread_that_feeds_a_queue():
    """The loop that users write: a queue, fed by a thread that was started before the train op."""
    fed = tf1.placeholder(tf.float32, [3])
    queue = tf1.FIFOQueue(4, tf.float32, [[3]])
    enqueue, closing = queue.enqueue(fed), queue.close(cancel_pending_enqueues=True)
    session = tf1.Session()

    def feed():
        rng = np.random.RandomState(0)
        for number in range(1000):
            row = rng.randn(3).astype(np.float32)
            row[0] = np.nan if number == 5 else row[0]
            try:
                session.run(enqueue, {fed: row})
            except (tf.errors.CancelledError, RuntimeError):
                return

    thread = threading.Thread(target=feed)
    thread.start()
    session.run(queue.size())
    weights = tf1.get_variable('w', [3], initializer=tf1.ones_initializer())
    loss = tf.reduce_sum(weights * queue.dequeue())
    train_op = slimguard.create_train_op(loss, tf1.train.AdamOptimizer(0.1))
    hook = slimguard.NanLossHook(loss, on_nan='skip')
    with slimguard.watch(session, hooks=[hook]) as session:
        session.run(tf1.global_variables_initializer())
        for _ in range(10):
            session.run(train_op)
            assert not non_finite(session)
        session.run(closing)
        thread.join()
    assert [incident.step for incident in hook.incidents] == [5]


def test_an_error_of_the_users_leaves_end_alone():
    _, train_op = build()
    counting = Counting()
    with pytest.raises(KeyError):
        with slimguard.watch(tf1.Session(), hooks=[counting]):
            raise KeyError('mine')
    assert counting.calls == ['after_create_session']


def test_what_cannot_be_watched_is_refused(tmp_path):
    with pytest.raises(TypeError, match="must be a tf.compat.v1.Session, not 'session'"):
        slimguard.watch('session')
    closed = tf1.Session()
    closed.close()
    with pytest.raises(RuntimeError, match='session is closed; watch another'):
        slimguard.watch(closed)
    with pytest.raises(ValueError, match='no variables yet.*build the model'):
        slimguard.watch(tf1.Session(), on_nan='rollback', logdir=tmp_path / 'logs')
    assert not (tmp_path / 'logs').exists()
    build()
    watched = slimguard.watch(tf1.Session(), on_nan='skip')
    with pytest.raises(ValueError, match='watched already.*hooks='):
        slimguard.watch(watched, on_nan='raise')
    watched.close()


def test_a_plain_session_is_watched_once_at_a_time():
    session = tf1.Session()
    watched = slimguard.watch(session)
    with pytest.raises(ValueError, match='session is watched already'):
        slimguard.watch(session)
    del watched  # as when a notebook's cell runs again
    slimguard.watch(session).close()


def test_threads_of_the_hooks_are_joined():
    class Threaded(tf1.train.SessionRunHook):
        def after_create_session(self, session, coord):
            self.thread = threading.Thread(target=coord.wait_for_stop)
            coord.register_thread(self.thread)
            self.thread.start()

    _, train_op = build()
    hook = Threaded()
    with slimguard.watch(tf1.Session(), hooks=[hook]) as session:
        session.run(tf1.global_variables_initializer())
        session.run(train_op)
        assert hook.thread.is_alive()
    assert not hook.thread.is_alive()


@pytest.mark.parametrize('restores', [False, True])
def test_who_begins_anew_beside_the_checkpoints_of_another_training_is_told(restores, tmp_path):
    _, train_op = build()
    saver = tf1.train.Saver()
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        session.run(train_op)
        saved = saver.save(session, str(tmp_path / 'model.ckpt'), 1)
    watched = slimguard.watch(tf1.Session(), on_nan='rollback', logdir=tmp_path)
    with LogLines() as lines, watched as session:
        session.run(tf1.global_variables_initializer())
        if restores:
            saver.restore(session, saved)
        session.run(train_op)
    told = [line for line in lines if saved + ', is of step 1: a rollback may go back' in line]
    assert len(told) == (not restores)


def test_who_forgets_to_initialize_is_told_so_and_may_do_it_then(tmp_path):
    _, train_op = build()
    with slimguard.watch(tf1.Session(), on_nan='rollback', logdir=tmp_path) as session:
        for _ in range(2):
            with pytest.raises(tf.errors.FailedPreconditionError, match='global_variables_init'):
                session.run(train_op)
        session.run(tf1.global_variables_initializer())
        session.run(train_op)
    assert tf1.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / 'model.ckpt-0')


def test_a_hook_that_saves_at_once_needs_variables_that_are_initialized(tmp_path):
    build()
    hook = tf1.train.CheckpointSaverHook(str(tmp_path), save_steps=1)
    early = 'CheckpointSaverHook reads variables as soon as watch.. is called.*before'
    with pytest.raises(tf.errors.FailedPreconditionError, match=early):
        slimguard.watch(tf1.Session(), hooks=[hook])


def test_with_a_factor_the_error_of_such_a_hook_names_another_way_to_save(tmp_path):
    logdir, (_, train_op) = str(tmp_path), build()
    on_nan, global_step = 'rollback:3x0.5', tf1.train.get_global_step()
    hook = tf1.train.CheckpointSaverHook(logdir, save_steps=1)
    with pytest.raises(tf.errors.FailedPreconditionError) as caught:
        slimguard.watch(tf1.Session(), hooks=[hook], on_nan=on_nan, logdir=logdir)
    assert 'make saver = slimguard.FiniteSaver() before watch(), ' in str(caught.value)
    saver = slimguard.FiniteSaver()
    with slimguard.watch(tf1.Session(), on_nan=on_nan, logdir=logdir) as session:
        session.run(tf1.global_variables_initializer())
        session.run(train_op)
        saver.save(session, logdir + '/model.ckpt', global_step)
    assert checkpoint_at(logdir) == (1, [])


def test_the_end_of_the_input_ends_the_block_cleanly():
    for error in (StopIteration(), tf.errors.OutOfRangeError(None, None, 'the end')):
        counting = Counting()
        with tf1.Graph().as_default(), slimguard.watch(tf1.Session(), hooks=[counting]):
            raise error
        assert counting.calls == ['after_create_session', 'end']


NEVER_CLOSED = """
import tensorflow as tf
import slimguard

tf1 = tf.compat.v1
tf1.disable_eager_execution()
x = tf1.placeholder(tf.float32, [])
loss = tf.square(tf1.get_variable('w', initializer=2.0) * x)
train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
train_op = slimguard.guard(train_op, loss=loss)
session = slimguard.watch(tf1.Session(), on_nan='skip', logdir='logs')
session.run(tf1.global_variables_initializer())
for value in (1.0, float('nan'), 1.0, 1.0):
    session.run(train_op, {x: value})
"""


@pytest.mark.full
def test_a_session_that_is_never_closed_says_what_was_skipped_and_no_more(tmp_path):
    run = forked_python('-c', NEVER_CLOSED, cwd=tmp_path)
    assert run.returncode == 0
    assert 'slimguard:1 of 4 batches was skipped' in run.stderr
    assert 'Traceback' not in run.stderr


class TestMakeCallable:
    """A callable that a watched session makes runs steps as its `run` does."""

    def test_the_policy_acts(self, tmp_path):
        train_op, x = fed_train_op()
        with slimguard.watch(tf1.Session(), logdir=str(tmp_path), capture=False) as session:
            session.run(tf1.global_variables_initializer())
            step = session.make_callable(train_op, [x])
            step([1.0])
            with pytest.raises(slimguard.NanLossError):
                step([np.nan])
        assert [record['action'] for record in records_in(tmp_path)] == ['raise']

    def test_what_is_no_step_is_as_it_was(self):
        train_op, x = fed_train_op()
        with slimguard.watch(tf1.Session(), on_nan='skip') as session:
            session.run(tf1.global_variables_initializer())
            assert session.make_callable(x * 2, [x])([2.0]).tolist() == [4.0]
            with pytest.raises(TypeError, match='expected 1 values to feed, not 0'):
                session.make_callable(train_op, [x])()
            session.make_callable(train_op, [x])([2.0], 'too much')  # TensorFlow accepts this

    def test_a_session_whose_run_knows_no_options(self):
        class Short(tf1.Session):
            def run(self, fetches, feed_dict=None):
                return tf1.Session.run(self, fetches, feed_dict)

        train_op, x = fed_train_op()
        with slimguard.watch(Short(), on_nan='skip') as session:
            session.run(tf1.global_variables_initializer())
            assert session.make_callable(x * 2, [x])([2.0]).tolist() == [4.0]


def fed_train_op():
    x = tf1.placeholder(tf.float32, [1])
    w = tf1.get_variable('w', initializer=[1.0])
    loss = tf.reduce_sum(tf.square(w * x))
    optimizer = tf1.train.GradientDescentOptimizer(0.1)
    train_op = optimizer.minimize(loss, tf1.train.get_or_create_global_step())
    return slimguard.guard(train_op, loss=loss), x


def test_a_callable_of_what_nobody_guarded_is_refused_as_its_run_is():
    weight = tf1.get_variable('weight', initializer=1.0)
    train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(weight**2)
    with slimguard.watch(tf1.Session(), on_nan='skip') as session:
        session.run(tf1.global_variables_initializer())
        step = session.make_callable(train_op)
        with pytest.raises(ValueError, match='slimguard.guard'):
            step()
        assert session.run(weight) == 1.0


_AS_IN_THE_README = """
import sys
import tensorflow as tf
import slimguard

tf1 = tf.compat.v1
tf1.disable_eager_execution()
back = slimguard.Rollback(learning_rate=0.5)
for settings in dict(on_nan='skip'), dict(on_nan=back, logdir=sys.argv[1]):
    with tf1.Graph().as_default():
        inputs = tf1.placeholder(tf.float32, [2, 3])
        loss = tf.reduce_mean(tf.matmul(inputs, tf1.get_variable('weights', [3, 1])) ** 2)
        step = tf1.train.get_or_create_global_step()
        train_op = slimguard.guard(tf1.train.AdamOptimizer(0.1).minimize(loss, step))
        with slimguard.watch(tf1.Session(), **settings) as session:
            session.run(tf1.global_variables_initializer())
            for value in 1.0, float('nan'), 1.0:
                session.run(train_op, {inputs: [[1.0, value, 1.0]] * 2})
"""


@pytest.mark.full
def test_tensorflow_does_not_warn_of_what_a_new_session_is_asked(tmp_path):
    """It would warn of ops that were made after the first run, and of uninitialized variables."""
    run = python('-c', _AS_IN_THE_README, tmp_path, variables={'TF_CPP_MIN_LOG_LEVEL': '0'})
    assert run.returncode == 0, run.stderr
    assert run.stderr.count('slimguard:incident 1') == 2
    native = r'^W\d{4} |: W (?:external/org_)?tensorflow/'
    assert [line for line in run.stderr.splitlines() if re.search(native, line)] == []


def test_a_queue_that_training_fills_is_filled_in_its_thread():
    """A queue like that of a SyncReplicasOptimizer's tokens."""
    weight = tf1.get_variable('weight', initializer=1.0)
    train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(weight**2)
    queue = tf1.FIFOQueue(9, [tf.float32], [()])
    with tf.control_dependencies([train_op]):
        fill = queue.enqueue([1.0])
    runner = tf1.train.QueueRunner(queue, [fill])
    with slimguard.watch(tf1.Session(), on_nan='skip') as session:
        session.run(tf1.global_variables_initializer())
        coordinator = tf1.train.Coordinator()
        threads = runner.create_threads(session, coordinator, start=True)
        assert session.run(queue.dequeue()) == 1.0
        coordinator.request_stop()
        session.run(queue.close(cancel_pending_enqueues=True))
        coordinator.join(threads)


def test_an_interactive_session_is_left_as_any_other():
    default = tf1.get_default_session()
    model, train_op = build(bad=(1,))
    with slimguard.watch(tf1.InteractiveSession(), on_nan='skip') as session:
        session.run(tf1.global_variables_initializer())
        for _ in range(3):
            train_op.op.run()
        assert session.run(model.step) == 2
    assert tf1.get_default_session() is default


@pytest.mark.full
def test_a_rollback_goes_back_to_the_state_that_was_initialized_in_the_watched_session(tmp_path):
    model, train_op = build(bad=(2,))
    with slimguard.watch(tf1.Session(), on_nan='rollback', logdir=tmp_path) as session:
        session.run(tf1.global_variables_initializer())
        before = state(session)
        for _ in range(3):
            session.run(train_op)
        assert state(session) == before
        assert session.run(model.step) == 0


@pytest.mark.full
def test_a_rollback_does_not_go_to_what_was_trained_before_the_variables_were_made_anew(tmp_path):
    x = tf1.placeholder(tf.float32, [])
    loss = tf1.get_variable('weight', initializer=1.0) * x
    step = tf1.train.get_or_create_global_step()
    train_op = tf1.train.GradientDescentOptimizer(0.01).minimize(loss, step)
    train_op = slimguard.guard(train_op, loss=loss)
    hook = slimguard.NanLossHook(loss, on_nan='rollback', logdir=tmp_path)
    with slimguard.watch(tf1.Session(), hooks=[hook]) as session:
        for steps in 40, 3:
            session.run(tf1.global_variables_initializer())
            for _ in range(steps):
                session.run(train_op, {x: 1.0})
        session.run(train_op, {x: float('nan')})
        assert session.run(step) == 0
    (incident,) = hook.incidents
    assert incident.restored.endswith('model.ckpt-0')


# Writes beside a step, or on top of it.


def test_a_counter_beside_the_step_is_told_of_once(caplog):
    train_op, x = fed_train_op()
    count = tf1.get_variable('count', initializer=0, trainable=False)
    add = tf1.assign_add(count, 1)
    with slimguard.watch(tf1.Session(), on_nan='skip') as session:
        session.run(tf1.global_variables_initializer())
        for fetches in ([train_op, add], [train_op, add, x], train_op):
            session.run(fetches, {x: [1.0]})
        assert session.run(count) == 2
    (told,) = [each.getMessage() for each in caplog.records if 'NOT guarded' in each.getMessage()]
    assert "the update of 'count' is NOT guarded: it is fetched beside the train op" in told
    assert 'slimguard.guard(tf.group(train_op, update))' in told


def with_an_update():
    """A guarded train op, the further update that it makes, and the placeholder of both."""
    weight = tf1.get_variable('weight', initializer=1.0)
    mean = tf1.get_variable('mean', initializer=0.0, trainable=False)
    x = tf1.placeholder(tf.float32, [])
    update = tf1.assign(mean, 0.9 * mean + 0.1 * x)
    train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(weight * x)
    return slimguard.guard(tf.group(train_op, update)), update, x


def fetch_it_too(train_op, update):
    def step(session, _, global_step, train_step_kwargs):
        return session.run([train_op, update])[0], False

    return step


@pytest.mark.full
@pytest.mark.every_cell
@pytest.mark.parametrize('loop', ['watch', 'hook', 'train'])
def test_an_update_of_the_train_op_that_is_fetched_beside_it_is_refused_in_each_loop(
    loop, tmp_path
):
    with tf.Graph().as_default():
        model = Linear()
        update = tf1.assign(tf1.get_variable('mean', [], trainable=False), model.loss)
        with tf.control_dependencies([model.minimize(), update.op]):
            train_op = slimguard.guard(tf.identity(model.loss), loss=model.loss)
        with pytest.raises(ValueError, match='nothing of it has run.*mean'):
            if loop == 'watch':
                with slimguard.watch(tf1.Session(), on_nan='skip') as session:
                    session.run(tf1.global_variables_initializer())
                    session.run([train_op, update])
            elif loop == 'hook':
                hook = slimguard.NanLossHook(model.loss, on_nan='skip')
                with tf1.train.MonitoredTrainingSession(hooks=[hook]) as session:
                    session.run([train_op, update])
            else:
                step = fetch_it_too(train_op, update)
                slimguard.train(train_op, str(tmp_path), step, number_of_steps=2, on_nan='skip')
        assert model.batches.drawn == 0


@pytest.mark.parametrize('on_nan', ['skip', 'rollback'])
def test_what_was_written_past_the_gate_is_called_so(on_nan, tmp_path):
    train_op, update, x = with_an_update()
    with pytest.raises(slimguard.NanLossError) as caught:
        with slimguard.watch(tf1.Session(), on_nan=on_nan, logdir=tmp_path) as session:
            session.run(tf1.global_variables_initializer())
            session.run(update, {x: float('nan')})
            session.run(train_op, {x: 1.0})
    told = str(caught.value)
    assert 'already not finite before this step: mean' in told
    not_applied = "'skip' does not apply, since the next batch would fail in the same way"
    assert (not_applied in told) == (on_nan == 'skip')
    assert 'was not guarded' in told and 'explodes' not in told


def guarded(bad=()):
    model = Linear(bad)
    return model, slimguard.guard(model.minimize(), loss=model.loss)


def average_on_top(model, train_op):
    """A moving average that depends on the train op, as in TensorFlow's documentation."""
    with tf.control_dependencies([train_op]):
        return tf1.train.ExponentialMovingAverage(0.9).apply([model.weights])


def value_on_top(model, train_op):
    with tf.control_dependencies([train_op]):
        return tf.identity(model.loss, name='loss_of_step')


def group_on_top(model, train_op):
    return tf.group(train_op, name='everything')


def branch_on_top(model, train_op):
    return tf.cond(model.step < 100, lambda: tf.group(train_op), tf.no_op)


def steps(session, train_op, number):
    """Initializes the variables, and runs the op; returns the state before the last step."""
    session.run(tf1.global_variables_initializer())
    before = None
    for _ in range(number):
        before = state(session)
        session.run(train_op)
    return before


@pytest.mark.parametrize(
    ('on_top', 'on_nan', 'ends_at'),
    [
        (value_on_top, 'skip', 3),
        (average_on_top, 'raise', 2),
        (group_on_top, 'stop', 2),
        (branch_on_top, 'rollback', 0),
    ],
)
def test_a_run_of_what_waits_for_the_train_op_is_its_step(on_top, on_nan, ends_at, tmp_path):
    model, train_op = guarded(bad=(2,))
    outer = on_top(model, train_op)
    hook = slimguard.NanLossHook(model.loss, on_nan=on_nan, logdir=tmp_path)
    inner = tf1.Session()
    try:
        with slimguard.watch(inner, hooks=[hook]) as session:
            steps(session, outer, 3)
            if on_nan == 'skip':
                session.run(outer)
            assert session.should_stop() == (on_nan == 'stop')
            assert session.run(model.step) == ends_at
    except slimguard.NanLossError as error:
        assert on_nan == 'raise' and 'in row 1' in str(error)
    assert [(each.step, each.action, each.held) for each in hook.incidents] == [(2, on_nan, True)]


def test_two_trainings_in_one_group():
    models = []
    for scope in ('a', 'b'):
        with tf1.variable_scope(scope):
            models.append(guarded(bad=(1,) if scope == 'b' else ()))
    both = tf.group(*(train_op for _, train_op in models))
    losses = [model.loss for model, _ in models]
    hooks = [slimguard.NanLossHook(loss, on_nan='skip') for loss in losses]
    with LogLines() as lines, slimguard.watch(tf1.Session(), hooks=hooks) as session:
        steps(session, both, 3)
    assert [len(hook.incidents) for hook in hooks] == [0, 1]
    assert not any('NOT guarded' in line for line in lines)


@pytest.mark.full
def test_two_incidents_of_one_run_are_told_as_that():
    models = []
    for scope, bad in ('a', (1,)), ('b', (1, 2)):
        with tf1.variable_scope(scope):
            models.append(guarded(bad=bad))
    both = [train_op for _, train_op in models]
    hook = GateWatcher('skip')
    with slimguard.watch(tf1.Session(), hooks=[hook]) as session:
        steps(session, both, 3)
    told = ['in the same run as the incident before' in each.reason for each in hook.incidents]
    assert len(told) == 3 and sum(told) == 1
    last = hook.incidents[-1]  # the other train op has written its update
    assert last.reason.endswith('this is the update of train op b/Momentum, one of 2 in the run')


def test_what_is_written_on_top_is_named_once():
    model, train_op = guarded()
    outer = average_on_top(model, train_op)
    with LogLines() as lines, slimguard.watch(tf1.Session()) as session:
        steps(session, outer, 2)
        session.run([outer, model.loss])
    (said,) = [line for line in lines if 'NOT guarded' in line]
    assert "'w/ExponentialMovingAverage'" in said
    assert 'build slimguard.guard() of that as well' in said


@pytest.mark.full
def test_what_writes_nothing_of_its_own_is_not():
    for on_top in (value_on_top, group_on_top, branch_on_top):
        with tf.Graph().as_default():
            model, train_op = guarded()
            outer = on_top(model, train_op)
            with LogLines() as lines, slimguard.watch(tf1.Session()) as session:
                steps(session, outer, 2)
        assert not any('guarded' in line for line in lines)


def test_guarded_as_well_nothing_is_named_and_a_bad_step_leaves_all():
    model, train_op = guarded(bad=(2,))
    outer = slimguard.guard(average_on_top(model, train_op), loss=model.loss)
    with LogLines() as lines, slimguard.watch(tf1.Session(), on_nan='skip') as session:
        before = steps(session, outer, 3)
        assert state(session) == before
    assert not any('NOT guarded' in line for line in lines)


@pytest.mark.parametrize('max_loss, told', [(None, 'global step 2'), (1e-9, 'above max_loss')])
def test_a_train_op_that_is_guarded_in_a_branch_that_not_every_run_takes(max_loss, told):
    was_v2 = tf1.control_flow_v2_enabled()
    tf1.disable_control_flow_v2()
    try:
        model = Linear(bad=(2,))
        with tf.control_dependencies([model.loss]):
            taken = tf.equal(model.step % 2, 0)

        def train():
            train_op = model.optimizer.minimize(model.loss)
            with tf.control_dependencies([slimguard.guard(train_op, loss=model.loss)]):
                return tf.no_op()

        with tf.control_dependencies([tf.cond(taken, train, tf.no_op)]):
            outer = tf1.assign_add(model.step, 1)
        with pytest.raises(slimguard.NanLossError, match=told):
            with slimguard.watch(tf1.Session(), max_loss=max_loss) as session:
                steps(session, outer, 4)
        assert model.batches.drawn == (3 if max_loss is None else 1)
    finally:
        if was_v2:
            tf1.enable_control_flow_v2()

"""The last steps before an incident, and a spike that is held before it is written."""

import re

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard import compat
from slimguard.diagnosis import bundle, replay
from tests.helpers.loops import LOOPS, Given, cells
from tests.helpers.models import Linear, LogLines, checkpoint_at, records_in, train_quietly
from tests.helpers.summaries import events_in

tf1 = tf.compat.v1
slim = compat.import_slim()

every_loop = pytest.mark.parametrize('loop', cells(LOOPS))
# A loop of slimguard's own, and one of an unedited script.
TWO = {name: LOOPS[name] for name in ('slimguard.train', 'unedited: a plain session')}
two_loops = pytest.mark.parametrize('loop', cells(TWO))


@pytest.mark.full
@every_loop
def test_a_spike_is_held_and_said(loop, tmp_path):
    given = Given(str(tmp_path), on_nan='skip', bad=(30,), steps=35, spike=True, value=1e6)
    assert loop(given).drawn == 36
    (record,) = records_in(tmp_path)
    assert (record['step'], record['action'], record['held']) == (30, 'skip', True)
    assert record['reason'].startswith('loss ')
    assert '; gradient norm ' in record['reason']
    assert 'times the median' in record['reason']
    assert record['reason'].endswith('of the last 30 good steps')
    assert record['gradient_norm'] > 100 * record['gradient_norm'] / record['gradient_norm_ratio']
    said = r'in the forward pass: the loss \S+ is \S+ times the median [^ ,]+, and everything is'
    assert re.match(said, record['diagnosis'])
    assert checkpoint_at(tmp_path) == (35, [])
    history = bundle.read(record['bundle']).history
    assert history['step'] == list(range(31))
    assert history['good'] == [True] * 30 + [False]
    assert history['gradient_norm'][-1] == record['gradient_norm']


@pytest.mark.full
@two_loops
def test_without_spike_the_history_comes_all_the_same_and_nothing_is_held(loop, tmp_path):
    given = Given(str(tmp_path), on_nan='skip', bad=(4,), steps=6)
    loop(given)
    (record,) = records_in(tmp_path)
    history = bundle.read(record['bundle']).history
    assert history['step'] == [0, 1, 2, 3, 4]
    assert np.isnan(float(record['gradient_norm']))
    assert history['gradients'] == [['w']]


@pytest.mark.full
@two_loops
def test_a_step_far_beyond_all_before_is_told_at_once_and_at_the_end(loop, tmp_path):
    with LogLines() as lines:
        loop(Given(str(tmp_path), on_nan='skip', bad=(24,), steps=25, value=1e6))
    assert checkpoint_at(tmp_path) == (25, [])  # nothing was held
    told = [line for line in lines if 'update was written' in line]
    assert len(told) == 2 and told[0] == told[1]
    assert told[0].startswith('loss ') and ' at global step 24 is ' in told[0]
    assert 'times the largest of all 24 good steps before it' in told[0]
    assert 'spike=True' in told[0] and told[0].endswith('would have held it.')


@pytest.mark.full
@two_loops
def test_a_step_that_a_rollback_has_undone_is_not_told_at_the_end(loop, tmp_path):
    settings = dict(on_nan='rollback', max_loss=1e11)
    with LogLines() as lines:
        loop(Given(str(tmp_path), bad=(24, 25), steps=26, value=1e6, **settings))
    assert [each['action'] for each in records_in(tmp_path)] == ['rollback']
    assert len([line for line in lines if 'update was written' in line]) == 1


@pytest.mark.parametrize('value, spike', [(30.0, None), (1e6, slimguard.Spike(loss=1e30))])
def test_a_step_that_is_not_so_far_is_not_told_nor_one_where_spike_looks(value, spike, tmp_path):
    with LogLines() as lines:
        trained(tmp_path, (24,), value, steps=25, spike=spike)
    assert not any('before it, and its update was written' in line for line in lines)


def test_the_last_line_of_run_says_that_a_step_was_far_beyond_all_before(tmp_path):
    with slimguard.instrument(logdir=str(tmp_path)) as instrumentation:
        model = Linear((5,), 1e8)
        train_op = model.minimize()
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            for _ in range(6):
                session.run(train_op)
    said = str(instrumentation.sessions.seen)
    assert 'Momentum: 6 steps, no incident\nloss ' in said
    assert 'spike=True, or --spike=default of run, would have held it' in said


def test_a_loss_that_falls_far_below_zero_is_told_with_its_sign(tmp_path):
    with slimguard.instrument(logdir=str(tmp_path)) as instrumentation:
        x = tf1.placeholder(tf.float32, [])
        loss = -x * tf1.get_variable('w', [], initializer=tf1.ones_initializer())
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            for value in (1.0, 1e6):
                session.run(train_op, {x: value})
    said = str(instrumentation.sessions.seen)
    assert 'loss -1.1e+06 is, by absolute value, 1.1e+06 times that of the only step before' in said


class Drawn:
    """Draws batches of random numbers, some of them with a NaN."""

    def __init__(self, bad):
        self._bad = bad
        self._drawn = 0

    def __call__(self):
        numbers = np.random.RandomState(self._drawn).randn(4, 30)
        if self._drawn in self._bad:
            numbers[1, 2] = np.nan
        self._drawn += 1
        return numbers


def trained(logdir, bad, value, steps=30, **settings):
    model = Linear(bad, value)
    train_op = slimguard.create_train_op(model.loss, model.optimizer)
    hook = slimguard.NanLossHook(model.loss, on_nan='skip')
    train_quietly(train_op, logdir, steps, hooks=[hook], **settings)
    return hook.incidents


class TestWhatIsKept:
    @pytest.mark.full
    def test_only_so_many_steps(self, tmp_path):
        (incident,) = trained(tmp_path, (20,), np.nan, history=5)
        history = bundle.read(incident.bundle).history
        assert history['step'] == [16, 17, 18, 19, 20]

    @pytest.mark.full
    def test_none_where_none_is_asked_for(self, tmp_path):
        (incident,) = trained(tmp_path, (20,), np.nan, history=0)
        assert bundle.read(incident.bundle).history is None
        assert incident.gradient_norm is None

    @pytest.mark.full
    def test_none_is_kept_and_a_spike_is_held(self, tmp_path):
        (incident,) = trained(tmp_path, (20,), 1e6, history=0, spike=True)
        assert 'times the median' in incident.reason
        assert bundle.read(incident.bundle).history is None

    @pytest.mark.parametrize('history', [-1, 1.5, True, '200', None])
    def test_a_bad_history(self, history, tmp_path):
        with pytest.raises(ValueError, match='history must be an int'):
            trained(tmp_path, (), 0, history=history)


@pytest.mark.full
def test_how_far_a_norm_is_from_the_usual_is_known_without_a_spike_too(tmp_path):
    (incident,) = trained(tmp_path, (25,), 1e6, max_loss=1e8)
    norms = bundle.read(incident.bundle).history['gradient_norm']
    assert incident.gradient_norm == norms[-1]
    assert incident.gradient_norm_ratio == norms[-1] / np.median(norms[:-1])


class TestWhatIsASpike:
    @pytest.mark.full
    def test_max_loss_is_told_apart(self, tmp_path):
        (incident,) = trained(tmp_path, (25,), 1e6, spike=True, max_loss=1e8)
        assert incident.reason.startswith('above max_loss=1e+08: loss ')
        assert 'the loss %.4g is above max_loss=1e+08, and' % incident.loss in incident.diagnosis

    @pytest.mark.full
    def test_the_smaller_of_both_limits_holds(self, tmp_path):
        only_norm = slimguard.Spike(loss=None)
        (incident,) = trained(tmp_path, (25,), 300.0, spike=only_norm, max_loss=100.0)
        assert incident.reason.startswith('above max_loss=100: loss ')
        only_loss = slimguard.Spike(gradient_norm=None)
        with tf.Graph().as_default():
            (incident,) = trained(tmp_path / 'other', (25,), 300.0, spike=only_loss, max_loss=1e9)
        assert incident.reason.startswith('loss ')
        assert 'gradient norm' not in incident.reason

    @pytest.mark.full
    def test_of_a_gradient_alone(self, tmp_path):
        spike = slimguard.Spike(loss=1e30, gradient_norm=10)
        (incident,) = trained(tmp_path, (25,), 1e3, spike=spike)
        assert incident.reason.startswith('gradient norm ')
        assert incident.tensors == ('gradient norm',)
        assert re.search(r'the gradient norm \S+ is \S+ times the median', incident.diagnosis)

    @pytest.mark.full
    def test_what_is_not_finite_is_said_to_be(self, tmp_path):
        (incident,) = trained(tmp_path, (25,), np.nan, spike=True)
        assert incident.reason.startswith('not finite: loss')

    @pytest.mark.full
    def test_a_finite_loss_beside_gradients_that_are_not_is_said_to_be_one(self, tmp_path):
        drawn = tf1.py_func(Drawn(bad=()), [], tf.float64, stateful=True)[0, :3]
        x = tf.reshape(tf.cast(drawn, tf.float32), [3])
        weights = tf1.get_variable('w', [3], initializer=tf1.ones_initializer())
        step = tf1.train.get_or_create_global_step()
        # At step 15 the gradient of the square root is Inf, and the loss is finite.
        spoiled = tf.where(tf.equal(step, 15), tf.zeros([3]), 1 + tf.abs(x))
        far = tf.where(tf.equal(step, 15), 1e6, 1.0)
        loss = far * (1 + tf.reduce_sum(tf.sqrt(tf.abs(weights * 0 + weights) * spoiled)))
        train_op = slimguard.create_train_op(loss, tf1.train.GradientDescentOptimizer(1e-3))
        hook = slimguard.NanLossHook(loss, on_nan='stop', spike=True)
        train_quietly(train_op, tmp_path, 20, hooks=[hook])
        (incident,) = hook.incidents
        assert incident.reason.startswith('not finite: gradient of w; loss 1e+06 is ')
        assert 'max_loss' not in incident.reason and 'gradient norm' not in incident.reason

    def test_held_steps_do_not_count(self, tmp_path):
        incidents = trained(tmp_path, (25, 26, 27), 1e6, spike=True)
        assert len(incidents) == 3
        assert all(incident.reason.endswith('last 25 good steps') for incident in incidents)

    def test_a_hook_and_train_must_not_disagree(self, tmp_path):
        model = Linear()
        train_op = slimguard.create_train_op(model.loss, model.optimizer)
        hook = slimguard.NanLossHook(model.loss, spike=slimguard.Spike(loss=3))
        with pytest.raises(ValueError, match='spike=.* disagrees with the NanLossHook'):
            train_quietly(train_op, tmp_path, hooks=[hook], spike=slimguard.Spike(loss=4))

    def test_who_asks_for_more_than_there_is_is_told(self):
        weights = tf1.get_variable('w', [], initializer=tf1.ones_initializer())
        train_op = slimguard.guard(weights.assign_add(0.5).op)
        with LogLines() as lines, tf1.Session() as plain:
            with slimguard.watch(plain, spike=True) as session:
                session.run(tf1.global_variables_initializer())
                session.run(train_op)
        (said,) = [line for line in lines if 'spike' in line]
        assert 'looks at less than was asked for' in said
        assert 'no loss (pass it as' in said
        assert 'no gradient that an optimizer takes' in said


def test_where_no_step_takes_the_fast_path_a_spike_is_held_too(tmp_path):
    model = Linear((25,), 1e5)
    optimizer = tf1.train.RMSPropOptimizer(0.01, centered=True)
    train_op = slimguard.create_train_op(model.loss, optimizer)
    hook = slimguard.NanLossHook(model.loss, on_nan='skip', spike=True)
    train_quietly(train_op, tmp_path, 30, hooks=[hook])
    (incident,) = hook.incidents
    assert 'times the median' in incident.reason
    assert 'the loss %.6g is ' % incident.loss in incident.cause


@pytest.mark.full
def test_a_spike_can_be_run_again(tmp_path, capsys):
    (incident,) = trained(tmp_path, (25,), 1e6, spike=True)
    assert replay.main(incident.bundle) == 0
    said = capsys.readouterr().out
    assert 'the loss is above its limit' in said
    assert 'times the median' in incident.reason
    assert 'The failure came back: %s\n' % incident.reason in said


@pytest.mark.full
def test_a_step_above_max_loss_is_said_to_be_when_it_is_run_again(tmp_path, capsys):
    (incident,) = trained(tmp_path, (25,), 1e6, spike=True, max_loss=1e8)
    assert replay.main(incident.bundle) == 0
    assert 'The failure came back: above max_loss=1e+08: loss ' in capsys.readouterr().out


@pytest.mark.full
def test_without_a_row_only_what_the_bundle_knows_of_a_limit_is_said(tmp_path, capsys):
    x = tf1.py_func(lambda: next(batches), [], tf.float32, stateful=True)
    x.set_shape([2, 1])
    batches = iter([np.ones([2, 1], np.float32)] * 5 + [np.full([2, 1], 1e3, np.float32)])
    weights = tf1.get_variable('w', [1, 1], initializer=tf1.ones_initializer())
    loss = tf.reduce_mean(tf.square(tf.matmul(x, weights)))
    train_op = slimguard.create_train_op(loss, tf1.train.GradientDescentOptimizer(0.001))
    hook = slimguard.NanLossHook(loss, on_nan='stop', spike=True)
    train_quietly(train_op, tmp_path, 10, hooks=[hook])
    (incident,) = hook.incidents
    assert replay.main(incident.bundle, without=1) == 0
    whole, fewer = capsys.readouterr().out.split('\nWithout row 1 ')
    assert whole.split('\n')[1] == 'The failure came back: ' + incident.reason
    assert 'the step is still bad: above its limit: loss ' in fewer
    assert 'max_loss' not in fewer and 'median' not in fewer


@pytest.mark.full
@pytest.mark.parametrize('size', [1, 7])
def test_short_gradients_are_known_together(size, tmp_path):
    drawn = tf1.py_func(Drawn(bad=(3,)), [], tf.float64, stateful=True)[1, 2:]
    x = tf.reshape(tf.cast(drawn, tf.float32), [-1])[:size]
    weights = [
        tf1.get_variable('w%d' % n, [size], initializer=tf1.ones_initializer()) for n in range(5)
    ]
    loss = tf.add_n([tf.reduce_sum(tf.square(w * x)) for w in weights])
    train_op = slimguard.create_train_op(loss, tf1.train.GradientDescentOptimizer(0.01))
    hook = slimguard.NanLossHook(loss, on_nan='skip')
    train_quietly(train_op, tmp_path, 5, hooks=[hook])
    history = bundle.read(hook.incidents[0].bundle).history
    assert history['gradients'] == [['w%d' % n for n in range(5)]]


def scalars_in(logdir):
    """By tag, the steps of slimguard's scalars in the event files of a folder."""
    found = events_in(logdir)
    return {tag: found[tag] for tag in found if tag.startswith('slimguard/')}


class TestSummaries:
    def test_train_writes_them_as_often_as_its_own(self, tmp_path):
        model = Linear()
        train_op = slimguard.create_train_op(model.loss, model.optimizer)
        slimguard.train(train_op, str(tmp_path), number_of_steps=50, save_summaries_secs=1000)
        found = scalars_in(tmp_path)
        names = 'loss', 'gradient_norm', 'learning_rate'
        assert set(found) == {'slimguard/' + name for name in names}
        assert [step for step, _ in found['slimguard/loss']] == [1]

    def test_where_train_writes_none_there_are_none(self, tmp_path):
        trained(tmp_path, (), 0)
        assert scalars_in(tmp_path) == {}

    @pytest.mark.full
    def test_beside_a_hook_they_are_of_the_steps_of_that(self, tmp_path):
        model = Linear()
        tf1.summary.scalar('theirs', model.loss)
        rate = tf1.train.exponential_decay(0.1, model.step, 10, 0.9)
        train_op = slimguard.create_train_op(model.loss, tf1.train.AdamOptimizer(rate))
        with tf1.train.MonitoredTrainingSession(
            checkpoint_dir=str(tmp_path),
            hooks=[slimguard.NanLossHook(model.loss)],
            save_summaries_steps=10,
            log_step_count_steps=None,
        ) as session:
            losses = [session.run([train_op, model.loss])[1] for _ in range(35)]
        tf1.summary.FileWriterCache.clear()
        found = scalars_in(tmp_path)
        tags = ['gradient_norm', 'learning_rate', 'loss']
        assert sorted(found) == ['slimguard/' + tag for tag in tags]
        steps = [step for step, _ in found['slimguard/loss']]
        assert len(steps) == 4 and np.ptp(np.diff(steps)) <= 1
        for step, loss in found['slimguard/loss']:
            assert loss == losses[step - 1]

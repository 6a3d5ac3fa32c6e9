"""slimguard adds the history's numbers to a script's own summaries, at the same pace."""

import contextlib
import os

import pytest
import tensorflow as tf

import slimguard
from tests.helpers.loops import has_estimators
from tests.helpers.models import Linear
from tests.helpers.summaries import events_in

tf1 = tf.compat.v1
TAGS = ['slimguard/gradient_norm', 'slimguard/learning_rate', 'slimguard/loss']


def ours_in(logdir):
    return {tag: found for tag, found in events_in(logdir).items() if tag.startswith('slimguard/')}


def theirs_in(logdir):
    found = events_in(logdir)
    return {tag: found[tag] for tag in found if not tag.startswith(('slimguard/', 'global_step/'))}


def minimize(model):
    """A train op whose learning rate is a tensor."""
    tf1.summary.scalar('theirs', model.loss)
    rate = tf1.train.exponential_decay(0.01, model.step, 10, 0.9)
    return tf1.train.MomentumOptimizer(rate, 0.9).minimize(model.loss, model.step)


def plain(logdir, bad=()):
    """Writes summaries in every third step; another writer writes some at other step numbers."""
    model = Linear(bad)
    train_op = minimize(model)
    merged = tf1.summary.merge_all()
    testing = tf1.summary.FileWriter(os.path.join(logdir, 'test'))
    training = tf1.summary.FileWriter(os.path.join(logdir, 'train'), tf1.get_default_graph())
    losses = {}
    with tf1.Session() as session, training, testing:
        session.run(tf1.global_variables_initializer())
        for number in range(12):
            if number % 4 == 0:
                testing.add_summary(session.run(merged), 100 * number)
            loss, _ = session.run([model.loss, train_op])
            if number % 3 == 0:
                training.add_summary(session.run(merged), 100 * number)
                losses[100 * number] = loss
    return losses


def monitored(logdir):
    model = Linear(())
    train_op = minimize(model)
    losses = {}
    with tf1.train.MonitoredTrainingSession(
        # In every step: at another pace the steps depend on when the hook reads the global step.
        checkpoint_dir=logdir,
        save_summaries_steps=1,
        log_step_count_steps=3,
    ) as session:
        for number in range(12):
            losses[number + 1] = session.run([train_op, model.loss])[1]
    tf1.summary.FileWriterCache.clear()
    return losses


LOOPS = {'plain': (plain, 'train'), 'monitored': (monitored, '')}


@pytest.mark.parametrize('loop', LOOPS)
def test_they_come_with_the_scripts_own_and_no_other_of_those_changes(loop, tmp_path):
    train, folder = LOOPS[loop]
    guarded, alone = str(tmp_path / 'guarded'), str(tmp_path / 'alone')
    with slimguard.instrument():
        losses = train(guarded)
    with tf.Graph().as_default():
        train(alone)
    ours = ours_in(os.path.join(guarded, folder))
    assert sorted(ours) == TAGS
    assert dict(ours['slimguard/loss']) == losses
    assert all([step for step, _ in found] == list(losses) for found in ours.values())
    assert theirs_in(os.path.join(guarded, folder)) == theirs_in(os.path.join(alone, folder))
    assert not ours_in(os.path.join(alone, folder))
    assert loop != 'plain' or set(events_in(os.path.join(guarded, 'test'))) == {'theirs'}


@pytest.mark.full
def test_after_a_bad_step_they_are_of_the_last_good_one(tmp_path):
    with slimguard.instrument(on_nan='skip'):
        losses = plain(str(tmp_path), bad=(5,))  # summaries draw, too, so it is the fourth step
    assert [step for step, loss in losses.items() if loss != loss] == [300]
    ours = dict(ours_in(tmp_path / 'train')['slimguard/loss'])
    assert list(ours) == [0, 300, 600, 900]
    assert all(loss == loss for loss in ours.values())


@pytest.mark.full
def test_a_script_that_writes_no_summary_gets_none_with_its_steps_per_second(tmp_path):
    with slimguard.instrument():
        model = Linear(())
        train_op = model.minimize()
        with tf1.train.MonitoredTrainingSession(
            checkpoint_dir=str(tmp_path), save_summaries_steps=None, save_summaries_secs=None
        ) as session:
            for _ in range(210):
                session.run(train_op)
    tf1.summary.FileWriterCache.clear()
    assert set(events_in(tmp_path)) == {'global_step/sec'}


@pytest.mark.full
def test_two_trainings_have_names_of_their_own(tmp_path):
    with slimguard.instrument():
        first = tf1.get_variable('first', [], initializer=tf1.ones_initializer())
        second = tf1.get_variable('second', [], initializer=tf1.ones_initializer())
        optimizer = tf1.train.GradientDescentOptimizer(0.1)
        one = optimizer.minimize(tf.square(first), var_list=[first], name='one')
        two = optimizer.minimize(tf.square(second + 2), var_list=[second], name='two')
        with tf1.Session() as session, tf1.summary.FileWriter(str(tmp_path)) as writer:
            session.run(tf1.global_variables_initializer())
            for number in range(3):
                session.run(one)
                session.run(two)
                writer.add_summary(tf1.Summary(), number)
    found = ours_in(tmp_path)
    assert [step for step, _ in found['slimguard/loss']] == [0, 1, 2]
    assert [step for step, _ in found['slimguard/two/loss']] == [0, 1, 2]
    assert found['slimguard/two/loss'][0] == (0, 9)


@pytest.mark.skipif(not has_estimators(), reason='TensorFlow 2.16 dropped Estimators')
def test_they_do_not_go_where_an_estimator_writes_its_evaluation(tmp_path):
    def model_fn(features, labels, mode):
        model = Linear(())
        return tf1.estimator.EstimatorSpec(mode, loss=model.loss, train_op=model.minimize())

    def input_fn():
        return tf1.data.Dataset.from_tensors(({'x': [0.0]}, [0.0])).repeat()

    with slimguard.instrument(), contextlib.ExitStack() as ended:
        ended.callback(tf1.summary.FileWriterCache.clear)
        config = tf1.estimator.RunConfig(save_summary_steps=5, save_checkpoints_steps=4)
        estimator = tf1.estimator.Estimator(model_fn, str(tmp_path), config)
        tf1.estimator.train_and_evaluate(
            estimator,
            tf1.estimator.TrainSpec(input_fn, max_steps=12),
            tf1.estimator.EvalSpec(input_fn, steps=2, start_delay_secs=0, throttle_secs=0),
        )
    theirs = [step for step, _ in events_in(tmp_path)['loss']]
    assert len(theirs) == 3
    assert [step for step, _ in ours_in(tmp_path)['slimguard/loss']] == theirs
    assert 'loss' in events_in(tmp_path / 'eval')
    assert not ours_in(tmp_path / 'eval')

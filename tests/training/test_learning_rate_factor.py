"""Smaller updates after a rollback: in every loop, after a restart, and in the log."""

import json
import os

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard import Rollback
from slimguard.diagnosis import bundle
from tests.helpers import loops
from tests.helpers.loops import LOOPS, cells
from tests.helpers.models import Batches, Linear, LogLines, checkpoint_at, records_in
from tests.helpers.models import train_quietly as train

tf1 = tf.compat.v1

every_loop = pytest.mark.parametrize('loop', cells(LOOPS))
# A loop of slimguard's own, and one of an unedited script.
TWO = {name: LOOPS[name] for name in ('slimguard.train', 'unedited: a plain session')}
two_loops = pytest.mark.parametrize('loop', cells(TWO))
pytestmark = pytest.mark.usefixtures('ctrl_c_is_pythons')


def given(logdir, **kwargs):
    # No saves beside the steps: they may hold another step than their names say.
    kwargs.setdefault('capture', False)
    return loops.Given(logdir, save_interval_secs=0, **kwargs)


def weights_in(logdir):
    reader = tf1.train.load_checkpoint(tf1.train.latest_checkpoint(str(logdir)))
    return {name: reader.get_tensor(name).tolist() for name in ('w', 'w/Momentum', 'global_step')}


def trained_plainly(rates, first):
    """The weights after the updates of `Linear` with given learning rates.

    Args:
      rates: for each step the learning rate.
      first: the number of the draw that is the first batch.
    """
    with tf.Graph().as_default(), tf1.Session() as session:
        model = Linear()
        rate = tf1.placeholder(tf.float32, [])
        train_op = tf1.train.MomentumOptimizer(rate, 0.9).minimize(model.loss, model.step)
        session.run(tf1.global_variables_initializer())
        model.batches.drawn = first
        for each in rates:
            session.run(train_op, {rate: each})
        momentum = next(v for v in tf1.global_variables() if v.op.name == 'w/Momentum')
        values = session.run([model.weights, momentum, model.step])
    return dict(zip(('w', 'w/Momentum', 'global_step'), (value.tolist() for value in values)))


def rates_in(record):
    """The learning rates of the steps before an incident."""
    return np.round(bundle.read(record['bundle']).history['learning_rate'], 6).tolist()


def kept_in(logdir):
    with open(os.path.join(str(logdir), 'slimguard', 'learning_rate.json')) as file:
        return json.load(file)


@pytest.mark.full
@every_loop
def test_after_a_rollback_updates_are_those_of_the_smaller_rate(loop, tmp_path):
    on_nan = Rollback(3, learning_rate=0.5)
    loop(given(str(tmp_path), on_nan=on_nan, bad=(3, 6), capture=True))  # each goes back to step 0
    assert weights_in(tmp_path) == trained_plainly([0.0125] * 6, first=7)
    records = records_in(tmp_path)
    assert [(each['action'], each['learning_rate']) for each in records] == [
        ('rollback', 0.5),
        ('rollback', 0.25),
    ]
    assert rates_in(records[1]) == [0.05] * 4 + [0.025] * 3
    assert kept_in(tmp_path) == {'factor': 0.25}
    names = [name for name, _ in tf1.train.list_variables(tf1.train.latest_checkpoint(tmp_path))]
    assert sorted(names) == ['global_step', 'w', 'w/Momentum']


@pytest.mark.full
@two_loops
def test_a_restart_goes_on_with_it_and_says_so(loop, tmp_path):
    on_nan = Rollback(3, learning_rate=0.5)
    loop(given(str(tmp_path), on_nan=on_nan, bad=(0,)))
    with tf.Graph().as_default(), LogLines() as lines:
        loop(given(str(tmp_path), on_nan=on_nan, steps=9))
    # Nine good steps in all; the last three are on the batches of the second training.
    (said,) = [line for line in lines if 'learning rate is x0.5, as rollbacks' in line]
    kept = os.path.join(str(tmp_path), 'slimguard', 'learning_rate.json')
    assert said.endswith(
        '%s keeps that. For the full rate, end this run, remove the file, and start again.' % kept
    )
    assert kept_in(tmp_path) == {'factor': 0.5}
    with tf.Graph().as_default(), tf1.Session() as session:
        model = Linear()
        rate = tf1.placeholder(tf.float32, [])
        train_op = tf1.train.MomentumOptimizer(rate, 0.9).minimize(model.loss, model.step)
        session.run(tf1.global_variables_initializer())
        for draw in [1, 2, 3, 4, 5, 6, 0, 1, 2]:
            model.batches.drawn = draw
            session.run(train_op, {rate: 0.025})
        assert weights_in(tmp_path)['w'] == session.run(model.weights).tolist()


@pytest.mark.full
def test_the_log_and_tensorboard_say_it(tmp_path):
    model = Linear(bad=(2,))
    train_op = slimguard.create_train_op(model.loss, model.optimizer)
    with LogLines() as lines:
        train(train_op, tmp_path, on_nan=Rollback(learning_rate=0.3))
    (line,) = [line for line in lines if 'incident 1' in line]
    assert 'model.ckpt-0, learning rate x0.3 from now on (1 of 3 times).' in line
    told = 'the training went back to an earlier state 1 time; its learning rate ends at x0.3.'
    assert any(line.startswith(told) for line in lines)
    events = [path for path in tmp_path.iterdir() if 'tfevents' in path.name]
    found = [
        value.simple_value
        for path in events
        for event in tf1.train.summary_iterator(str(path))
        for value in event.summary.value
        if value.tag == 'slimguard/learning_rate_factor'
    ]
    assert found == [np.float32(0.3)]


@pytest.mark.full
@two_loops
def test_without_such_a_policy_the_full_rate_is_back_and_that_is_said(loop, tmp_path):
    for steps, bad, on_nan in [(3, (0,), Rollback(learning_rate=0.5)), (6, (), 'rollback')]:
        with tf.Graph().as_default(), LogLines() as lines:
            loop(given(str(tmp_path), steps=steps, bad=bad, on_nan=on_nan))
    (said,) = [line for line in lines if 'learning rate' in line]
    assert 'was x0.5 when' in said and 'It is the full rate again' in said


@pytest.mark.full
@pytest.mark.parametrize('content', [b'{"factor": 2}', b'\xff'])
def test_a_file_that_says_nothing_is_told(content, tmp_path):
    (tmp_path / 'slimguard').mkdir()
    (tmp_path / 'slimguard' / 'learning_rate.json').write_bytes(content)
    model = Linear(bad=(1,))
    train_op = slimguard.create_train_op(model.loss, model.optimizer)
    with LogLines() as lines:
        train(train_op, tmp_path, on_nan=Rollback(learning_rate=0.5))
    assert any('learning_rate.json cannot be read' in line for line in lines)
    assert kept_in(tmp_path) == {'factor': 0.5}


@pytest.mark.full
def test_a_callable_may_return_it_if_on_nan_has_it(tmp_path):
    policy = Rollback(learning_rate=0.5)
    model = Linear(bad=(1,))
    train_op = slimguard.create_train_op(model.loss, model.optimizer)
    with pytest.raises(ValueError, match='has to be in on_nan itself'):
        train(train_op, tmp_path / 'alone', on_nan=lambda incident: policy)
    with tf.Graph().as_default():
        model = Linear(bad=(1,))
        train_op = slimguard.create_train_op(model.loss, model.optimizer)
        train(train_op, tmp_path / 'listed', on_nan=[lambda incident: policy, policy])
    assert kept_in(tmp_path / 'listed') == {'factor': 0.5}


def test_what_takes_no_learning_rate_is_refused_before_the_first_step(tmp_path):
    model = Linear()
    gradient = tf.gradients(model.loss, model.weights)[0]
    update = tf1.assign(model.weights, model.weights - 0.1 * gradient)
    train_op = slimguard.guard(tf.group(update), loss=model.loss)
    with pytest.raises(ValueError, match='takes none that slimguard could multiply'):
        train(train_op, tmp_path, on_nan=Rollback(learning_rate=0.5))
    assert model.batches.drawn == 0


def test_an_unedited_script_whose_updates_take_none_ends_before_its_first_step():
    with slimguard.instrument(on_nan=Rollback(learning_rate=0.5), capture=False):
        batches = Batches()
        weights = tf1.get_variable('w', [3, 1], initializer=tf1.ones_initializer())
        loss = tf.reduce_mean(tf.matmul(batches.x, weights))
        update = tf1.assign(weights, weights - 0.1 * tf.gradients(loss, weights)[0])
        with tf1.Session() as session:
            with pytest.raises(ValueError, match='takes none that slimguard could multiply'):
                session.run(tf1.global_variables_initializer())
                session.run(update)
    assert batches.drawn == 0


def test_a_script_that_saves_nothing_is_told_that_it_is_kept_nowhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with slimguard.instrument(on_nan=Rollback(learning_rate=0.5), capture=False):
        model = Linear(bad=(2,))
        train_op = model.minimize()
        with tf1.Session() as session, LogLines() as lines:
            session.run(tf1.global_variables_initializer())
            for _ in range(4):
                session.run(train_op)
            (told,) = [n for n, line in enumerate(lines) if 'is kept nowhere' in line]
            assert lines[told - 1].startswith('incident 1 at ')  # first the cause
            tf1.train.Saver().save(session, str(tmp_path / 'later' / 'model.ckpt'))
            session.run(train_op)
    assert kept_in(tmp_path / 'later') == {'factor': 0.5}
    assert checkpoint_at(tmp_path / 'later') == (1, [])

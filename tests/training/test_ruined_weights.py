"""Finite weights that an explosion has ruined: which steps are skipped, what is saved, restored."""

import contextlib
import os

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from tests.helpers.checkpoints import newest
from tests.helpers.models import LogLines, checkpoint_at, records_in, train_quietly

tf1 = tf.compat.v1


def linear(rates, decay=0.0, bad=None):
    """The train op of a regression on 8 numbers, with a learning rate for each step.

    Args:
      rates: the learning rates by step; the last one is used for all further steps.
      decay: the factor of the sum of squares of the weights.
      bad: the draw, from 0 on, whose batch has a row that is far too large.
    """
    random, drawn = np.random.RandomState(3), []

    def draw():
        x = random.randn(16, 8).astype(np.float32)
        if len(drawn) == bad:
            x[5] *= 1e6
        drawn.append(len(drawn))
        return x

    x = tf1.py_func(draw, [], tf.float32, stateful=True)
    x.set_shape([16, 8])
    w = tf1.get_variable('w', [8, 1], initializer=tf1.ones_initializer())
    loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - 1.0))
    if decay:
        loss += decay * tf.nn.l2_loss(w)
    step = tf1.train.get_or_create_global_step()
    rate = tf.gather(tf.constant(rates, tf.float32), tf.minimum(step, len(rates) - 1))
    return slimguard.create_train_op(loss, tf1.train.GradientDescentOptimizer(rate), step)


def train(logdir, train_op, on_nan, steps=30, saves=100, **options):
    save = tf1.train.CheckpointSaverHook(str(logdir), save_steps=saves)
    return train_quietly(train_op, logdir, steps, hooks=[save], on_nan=on_nan, **options)


@pytest.mark.parametrize('capture', [True, False])
def test_those_of_the_first_update_are_kept_apart_and_a_restart_begins_before_it(capture, tmp_path):
    options = dict(spike=True, capture=capture)
    with LogLines() as lines, pytest.raises(slimguard.NanLossError) as caught:
        train(tmp_path, linear([1e4]), 'raise', **options)
    assert 'taken for ruined, though they are finite' in caught.value.incident.reason
    assert checkpoint_at(tmp_path) == (0, [])
    apart = str(tmp_path / 'slimguard' / 'ruined.ckpt')
    begins = ', as %s; a restart begins at %s.' % (apart, tmp_path / 'model.ckpt-0')
    assert sum(line.endswith(begins) for line in lines) == 1
    reader = tf1.train.load_checkpoint(apart)  # so that no weights are lost if they are good
    assert reader.get_tensor('global_step') == 1
    assert 1e3 < abs(reader.get_tensor('w')).max() < np.inf
    with tf.Graph().as_default():
        assert train(tmp_path, linear([0.01]), 'raise', **options) < 12.0


def test_a_batch_with_a_row_that_is_too_large_has_ruined_nothing(tmp_path):
    with pytest.raises(slimguard.NanLossError) as caught:
        train(tmp_path, linear([0.01], bad=25), 'raise', spike=True)
    assert 'ruined' not in caught.value.incident.reason
    assert checkpoint_at(tmp_path) == (25, [])
    assert not (tmp_path / 'slimguard' / 'ruined.ckpt.index').exists()


@pytest.mark.parametrize('on_nan', ['rollback:1,raise', 'rollback:1,stop', 'stop'])
def test_at_the_end_of_a_chain_they_give_way_to_what_was_restored(on_nan, tmp_path):
    raises = 'raise' in on_nan
    ends = pytest.raises(slimguard.NanLossError) if raises else contextlib.nullcontext()
    with LogLines() as lines, ends:
        train(tmp_path, linear([1e4]), on_nan, max_loss=1e3, capture=False)
    done = 'raising NanLossError' if raises else 'stopping the training'
    (number,) = [n for n, line in enumerate(lines) if 'update not applied, ' + done in line]
    line = lines[number + 1]
    assert line.startswith('the weights are taken for ruined')
    apart = str(tmp_path / 'slimguard' / 'ruined.ckpt')
    assert ' (they are saved apart, as %s), so the variables are put back to ' % apart in line
    assert checkpoint_at(tmp_path) == (0, [])
    said = 'the state that was put back is saved: ' + newest(tmp_path)
    assert (said in lines) == raises
    assert not any('the last finite state' in line for line in lines)


def test_two_hooks_keep_them_apart_once(tmp_path):
    train_op = linear([0.01] * 20 + [1e4])
    options = dict(on_nan='stop', max_loss=1e3, capture=False)
    hooks = [slimguard.NanLossHook(train_op, **options) for _ in range(2)]
    with tf1.train.MonitoredTrainingSession(
        checkpoint_dir=str(tmp_path), hooks=hooks, save_checkpoint_steps=10
    ) as session:
        while not session.should_stop():
            session.run(train_op)
    assert checkpoint_at(tmp_path) == (20, [])
    apart = tf1.train.load_checkpoint(str(tmp_path / 'slimguard' / 'ruined.ckpt'))
    assert abs(apart.get_tensor('w')).max() > 1e3


@pytest.mark.parametrize('decay', [1e-3, 0.0])
def test_after_two_good_steps_no_further_one_is_skipped(decay, tmp_path):
    """With the decay, the weights alone make the loss overflow, whatever the batch."""
    rates = [0.01, 1e22, 1e-3]
    train(tmp_path, linear(rates, decay), 'skip:5,rollback:1x1e-20,raise')
    (record,) = records_in(tmp_path)
    assert (record['step'], record['action']) == (2, 'rollback')
    assert "; 'skip:5' does not apply, since the weights are taken for ruined" in record['reason']
    assert os.path.basename(record['restored']) == 'model.ckpt-0'


def test_a_checkpoint_of_them_is_not_gone_back_to_after_a_restart(tmp_path):
    train(tmp_path, linear([0.01, 1e22]), 'raise', steps=2, saves=1)
    assert checkpoint_at(tmp_path) == (2, [])
    with tf.Graph().as_default():
        train(tmp_path, linear([0.01]), 'skip:5,rollback:1,raise')
    (record,) = records_in(tmp_path)
    assert (record['step'], os.path.basename(record['restored'])) == (2, 'model.ckpt-0')


def test_a_rollback_never_goes_to_what_an_earlier_one_has_abandoned(tmp_path):
    train_op = linear([0.01] * 3 + [1e22])
    with pytest.raises(slimguard.NanLossError):
        train(tmp_path, train_op, 'rollback:5,raise', saves=2, capture=False)
    *back, last = records_in(tmp_path)
    restored = [os.path.basename(each['restored']) for each in back]
    assert restored == ['model.ckpt-%d' % step for step in (4, 2, 0, 0, 0)]
    assert last['action'] == 'raise'


def test_a_nan_in_a_variable_that_is_not_trained_is_no_explosion(tmp_path):
    x = tf1.placeholder(tf.float32, [8, 4])
    w = tf1.get_variable('w', [4, 1], initializer=tf1.zeros_initializer())
    scale = tf1.get_variable('scale', [], initializer=tf1.ones_initializer(), trainable=False)
    loss = scale * tf.reduce_mean(tf.square(tf.matmul(x, w) - 1.0))
    train_op = slimguard.create_train_op(loss, tf1.train.GradientDescentOptimizer(0.01))
    start = tf1.global_variables_initializer()
    on_nan = 'skip:5,rollback:1,raise'
    with slimguard.watch(tf1.Session(), on_nan=on_nan, logdir=tmp_path) as session:
        session.run(start)
        for step in range(25):
            if step == 15:
                scale.load(np.nan, session)
            session.run(train_op, {x: np.ones([8, 4])})
        assert session.run(scale) == 1.0
    *skipped, last = records_in(tmp_path)
    assert [each['action'] for each in skipped] == ['skip'] * 5
    assert 'since 5 bad steps in a row came before this one, and it allows 5' in last['reason']

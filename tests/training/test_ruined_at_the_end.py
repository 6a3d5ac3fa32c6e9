"""'raise' without 'rollback': weights that are finite and ruined follow no good checkpoint."""

import pytest
import tensorflow as tf

import slimguard
from tests.helpers.models import Linear, LogLines, checkpoint_at

tf1 = tf.compat.v1

# An input so large, from some step on, that the weights are ruined by an update of finite numbers.
FAR = 1e15


def in_train(model, logdir, on_nan):
    train_op = slimguard.create_train_op(model.loss, model.optimizer)
    saves = tf1.train.CheckpointSaverHook(logdir, save_steps=10)
    slimguard.train(
        train_op, logdir, number_of_steps=40, log_every_n_steps=0, on_nan=on_nan, hooks=[saves]
    )


def in_monitored_session(model, logdir, on_nan):
    train_op = slimguard.guard(model.minimize(), loss=model.loss)
    hooks = [slimguard.NanLossHook(model.loss, on_nan=on_nan)]
    with tf1.train.MonitoredTrainingSession(
        checkpoint_dir=logdir, save_checkpoint_steps=10, hooks=hooks
    ) as session:
        while not session.should_stop():
            session.run(train_op)


def unedited(model, logdir, on_nan):
    with slimguard.instrument(on_nan=on_nan):
        train_op = model.minimize()
        saver = tf1.train.Saver()
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            for step in range(40):
                if step % 10 == 0:
                    saver.save(session, logdir + '/model.ckpt', global_step=step)
                session.run(train_op)


LOOPS = pytest.mark.parametrize(
    'loop', [in_train, in_monitored_session, unedited], ids=lambda loop: loop.__name__
)


@pytest.mark.parametrize('on_nan', ['raise', 'skip:1,raise'])
@LOOPS
def test_it_is_not_saved(loop, on_nan, tmp_path):
    model = Linear(bad=lambda draw: draw >= 25, value=FAR)
    with LogLines() as lines, pytest.raises(slimguard.NanLossError) as caught:
        loop(model, str(tmp_path), on_nan)
    assert 'the weights were ruined before' in caught.value.incident.reason
    assert 'a smaller learning rate' in str(caught.value)  # the advice
    assert checkpoint_at(tmp_path) == (20, [])
    assert sum('is not saved, as its weights are ruined' in line for line in lines) == 1


@LOOPS
def test_a_state_that_is_good_is_saved(loop, tmp_path):
    model = Linear(bad=(25,))
    with pytest.raises(slimguard.NanLossError) as caught:
        loop(model, str(tmp_path), 'raise')
    assert 'ruined' not in caught.value.incident.reason
    assert checkpoint_at(tmp_path) == (25, [])


def test_a_training_that_explodes_at_once_keeps_what_it_began_with(tmp_path):
    model = Linear(bad=lambda draw: draw >= 3, value=FAR)
    with pytest.raises(slimguard.NanLossError, match='the weights were ruined before'):
        in_train(model, str(tmp_path), 'raise')
    assert checkpoint_at(tmp_path) == (0, [])

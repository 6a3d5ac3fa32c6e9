"""Rollback: back to the newest finite checkpoint, in the live session."""

import os
import pickle

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from slimguard import Rollback, Skip
from slimguard.checkpoints import checkpoint_reader
from slimguard.checkpoints.restorers import those_in_line
from tests.helpers.models import Linear, LogLines, checkpoint_at, non_finite, records_in, state
from tests.helpers.models import train_quietly as train

tf1 = tf.compat.v1


def bad(draws):
    return lambda draw: draw in draws


class Watching(slimguard.NanLossHook):
    """Writes down the state of the session after each incident."""

    def __init__(self, *args, **kwargs):
        slimguard.NanLossHook.__init__(self, *args, **kwargs)
        self.states = []

    def on_nan_loss(self, run_context, incident):
        slimguard.NanLossHook.on_nan_loss(self, run_context, incident)
        self.states.append(state(run_context.session))


def build(**kwargs):
    model = Linear(**kwargs)
    train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False)
    return model, train_op


def in_checkpoint(path):
    reader = tf.train.load_checkpoint(path)
    return {
        name + ':0': np.asarray(reader.get_tensor(name)).tobytes()
        for name in reader.get_variable_to_shape_map()
    }


@pytest.mark.full
def test_the_state_is_the_checkpoints_bit_for_bit_and_the_next_batch_comes(folder):
    _, train_op = build()
    train(train_op, folder, number_of_steps=3)  # leaves model.ckpt-3
    with tf.Graph().as_default():
        model, train_op = build(bad=(2,))
        hook = Watching(model.loss, on_nan='rollback')
        train(train_op, folder, hooks=[hook])
    (incident,) = hook.incidents
    assert (incident.step, incident.action) == (5, 'rollback')
    assert incident.restored == os.path.abspath(str(folder / 'model.ckpt-3'))
    assert hook.states == [in_checkpoint(incident.restored)]
    assert set(hook.states[0]) == {'w:0', 'w/Momentum:0', 'global_step:0'}
    assert model.batches.drawn == 2 + 1 + 3
    assert checkpoint_at(folder) == (6, [])
    (record,) = records_in(str(folder))
    assert record['restored'] == incident.restored


def test_a_ladder_skips_then_rolls_back_then_raises(folder):
    model, train_op = build(bad=lambda draw: draw >= 2)
    # Without the capture the cause is not known; a known bad batch would not be rolled back.
    hook = slimguard.NanLossHook(model.loss, on_nan=[Skip(2), Rollback(2)])
    with pytest.raises(slimguard.NanLossError):
        train(train_op, folder, hooks=[hook], capture=False)
    actions = [incident.action for incident in hook.incidents]
    assert actions == ['skip', 'skip', 'rollback'] * 2 + ['skip', 'skip', 'raise']


@pytest.mark.full
def test_weights_that_are_lost_come_back(folder):
    """A write without a gate made them NaN. Skipping batches would not help, so no policy skips."""
    model, train_op = build()
    poison = model.weights.assign(model.weights * np.nan).op
    steps = []

    def train_step_fn(session, op, global_step, kwargs):
        steps.append(len(steps))
        if len(steps) == 3:
            session.run(poison)
        loss = session.run(op)
        return loss, len(steps) == 8

    hook = slimguard.NanLossHook(model.loss, on_nan=['skip', 'rollback'])
    train(train_op, folder, train_step_fn=train_step_fn, hooks=[hook])
    (incident,) = hook.incidents
    assert incident.state_lost and incident.action == 'rollback'
    assert 'already not finite before this step: w' in incident.reason
    assert checkpoint_at(folder) == (5, [])


def test_weights_that_are_lost_are_not_skipped_for_ever(folder):
    model, train_op = build()
    poison = model.weights.assign(model.weights * np.nan).op

    def train_step_fn(session, op, global_step, kwargs):
        session.run(poison)
        return session.run(op), False

    with pytest.raises(slimguard.NanLossError) as caught:
        train(train_op, folder, train_step_fn=train_step_fn, on_nan=Skip(10))
    assert caught.value.incident.state_lost
    assert slimguard.latest_finite_checkpoint(str(folder)) is None  # bad weights are not saved


@pytest.mark.full
def test_in_a_monitored_session_without_a_gate(folder):
    model = Linear(bad=(4,))
    train_op = model.minimize()
    hook = slimguard.NanLossHook(model.loss, on_nan='rollback', logdir=str(folder))
    stop = tf1.train.StopAtStepHook(last_step=6)
    with tf1.train.MonitoredTrainingSession(
        checkpoint_dir=str(folder),
        save_checkpoint_steps=3,
        save_checkpoint_secs=None,
        hooks=[hook, stop],
    ) as session:
        raw = session._tf_sess()
        while not session.should_stop():
            session.run([train_op, model.loss])
            if hook.incidents:
                assert not non_finite(raw)
    (incident,) = hook.incidents
    assert not incident.held
    assert os.path.basename(incident.restored) == 'model.ckpt-3'
    assert model.batches.drawn == 5 + 3
    assert checkpoint_at(folder) == (6, [])


@pytest.mark.full
def test_without_a_checkpoint_left_it_raises_and_says_why(folder):
    model, train_op = build(bad=(2,))

    class Delete(tf1.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            for path in folder.glob('model.ckpt*'):
                path.unlink()

    hook = slimguard.NanLossHook(model.loss, on_nan='rollback')
    with pytest.raises(slimguard.NanLossError, match='holds no good checkpoint to go back to'):
        train(train_op, folder, hooks=[Delete(), hook])
    assert hook.incidents[0].action == 'raise'


def test_without_a_logdir_it_is_an_error_before_the_first_step():
    model, train_op = build()
    with pytest.raises(ValueError, match="on_nan='rollback' restores a checkpoint, and no logdir"):
        slimguard.train(train_op, None, on_nan='rollback')
    hook = slimguard.NanLossHook(model.loss, on_nan=['skip', 'rollback'])
    with pytest.raises(ValueError, match=r'or NanLossHook\(\.\.\., logdir=\.\.\.\)'):
        tf1.train.MonitoredTrainingSession(hooks=[hook])
    with pytest.raises(
        ValueError, match=r'logdir=\.\.\. to slimguard.train\(\) or slimguard.watch'
    ):
        slimguard.watch(tf1.Session(), on_nan='rollback')
    assert model.batches.drawn == 0


def test_a_logdir_that_disagrees_is_an_error(folder):
    model, train_op = build()
    hook = slimguard.NanLossHook(model.loss, logdir='elsewhere')
    with pytest.raises(
        ValueError, match="disagrees with the NanLossHook .* which says '.*/elsewhere'"
    ):
        train(train_op, folder, hooks=[hook])


@pytest.mark.full
def test_with_none_that_is_good_it_says_so_and_begins_anew(folder):
    with tf.Graph().as_default(), tf1.Session() as session:
        model, _ = build()
        session.run(tf1.global_variables_initializer())
        session.run(model.weights.assign(model.weights * np.nan))
        tf1.train.Saver().save(session, str(folder / 'model.ckpt'), model.step)
    model, train_op = build()
    with LogLines() as lines:
        train(train_op, folder)
    assert model.batches.drawn == 6
    said = 'no checkpoint in %s can be resumed from' % os.path.abspath(str(folder))
    (line,) = [line for line in lines if said in line]
    assert 'the state file that names it is now checkpoint.bad; the training begins' in line


def error_of(folder, **kwargs):
    with pytest.raises(slimguard.NanLossError) as caught:
        train(logdir=folder, **kwargs)
    assert pickle.loads(pickle.dumps(caught.value)).incident.advice == caught.value.incident.advice
    return caught.value


def test_after_rollbacks_of_an_unknown_cause_the_error_says_what_helps_in_an_explosion(folder):
    model, train_op = build(bad=lambda draw: draw > 1)
    # Without a diagnosis, the advice cannot blame the data.
    said = str(error_of(folder, train_op=train_op, on_nan=Rollback(1), capture=False))
    assert "(on_nan='rollback:3x0.1', or --on_nan=rollback:3x0.1)" in said
    assert 'clip the gradients' in said and 'smaller factor' not in said


@pytest.mark.full
def test_where_the_data_are_bad_skip_is_named_and_no_learning_rate(folder):
    model, train_op = build(bad=lambda draw: draw > 1)
    error = error_of(folder, train_op=train_op, on_nan='rollback:1x0.5')
    assert 'bad data: 1 NaN among' in error.incident.diagnosis and 'in row 1' in str(error)
    assert "on_nan='skip', or --on_nan=skip" in error.incident.advice
    assert 'learning rate' not in error.incident.advice


@pytest.mark.parametrize(
    'steps, in_order',
    [
        ([1, 5, 9], [9, 5, 1]),
        ([1, 5, 9, 7], [7, 5, 1]),
        ([1, 5, 9, 3, 6, 2, 4], [4, 2, 1]),
        ([1, None, 9, 5], [5, None, 1]),
    ],
)
def test_what_a_rollback_has_abandoned_is_told_by_the_order_and_left_out(steps, in_order):
    def path(step):
        return '/logs/model' if step is None else '/logs/model.ckpt-%d' % step

    newest_first = map(path, reversed(steps))
    assert list(those_in_line(newest_first)) == list(map(path, in_order))


class TestWhatARollbackLeaves:
    """Checkpoints at 8, 16 and 24, and snapshots at 1, 11 and 21; the 26th batch is bad."""

    def policy(self, logdir, found):
        def note(session, incident):
            found.append((incident.restored, tf1.train.latest_checkpoint(str(logdir))))
            self.listed = [each.path for each in checkpoint_reader.checkpoints_in(logdir)]
            assert in_checkpoint(self.listed[-1]).items() <= state(session).items()

        return Rollback(on_rollback=note)

    def expect_saved(self, logdir, found):
        """The restored state is the newest checkpoint, in place of one of a later step."""
        saved = str(logdir / 'model.ckpt-11')
        assert found == [('a snapshot of global step 11', saved)]
        assert self.listed[-2:] == [str(logdir / 'model.ckpt-24'), saved]

    @pytest.mark.full
    @pytest.mark.parametrize('loop', ['train', 'monitored'])
    def test_is_not_resumed_from(self, loop, tmp_path):
        model, train_op = build(bad=(25,))
        found = []
        on_nan = self.policy(tmp_path, found)
        saver = tf1.train.Saver(max_to_keep=20)
        if loop == 'train':
            save = tf1.train.CheckpointSaverHook(str(tmp_path), save_steps=8, saver=saver)
            train(train_op, tmp_path, 26, saver=saver, hooks=[save], on_nan=on_nan)
        else:
            hook = slimguard.NanLossHook(model.loss, on_nan=on_nan)
            with tf1.train.MonitoredTrainingSession(
                checkpoint_dir=str(tmp_path),
                scaffold=tf1.train.Scaffold(saver=saver),
                save_checkpoint_steps=8,
                save_checkpoint_secs=None,
                hooks=[hook, tf1.train.StopAtStepHook(last_step=26)],
            ) as session:
                while not session.should_stop():
                    session.run(train_op)
        self.expect_saved(tmp_path, found)

    def train_unedited(self, logdir, on_nan, bad, until):
        with tf.Graph().as_default(), slimguard.instrument(
            on_nan, logdir=str(logdir), capture=False
        ):
            model = Linear(bad=bad)
            train_op = model.minimize()
            saver = tf1.train.Saver(max_to_keep=20)
            with tf1.Session() as session:
                session.run(tf1.global_variables_initializer())
                newest = tf1.train.latest_checkpoint(str(logdir))
                if newest is not None:
                    saver.restore(session, newest)
                while session.run(model.step) < until:
                    session.run(train_op)
                    if session.run(model.step) % 8 == 0:
                        saver.save(session, str(logdir / 'model.ckpt'), model.step)

    @pytest.mark.full
    def test_is_not_resumed_from_by_a_script_whose_log_names_it_after_the_incident(self, tmp_path):
        found = []
        with LogLines() as lines:
            self.train_unedited(tmp_path, self.policy(tmp_path, found), (25,), 26)
        self.expect_saved(tmp_path, found)
        told = [line for line in lines if 'rolled back to' in line or 'a restart begins' in line]
        saved = tmp_path / 'model.ckpt-11'
        assert len(told) == 2 and 'rolled back to a snapshot of global step 11' in told[0]
        assert told[1] == (
            'the restored state is saved as the newest checkpoint, %s; a restart begins there.'
            % saved
        )

    @pytest.mark.full
    def test_an_earlier_run_of_a_script_saved_is_gone_back_to(self, tmp_path):
        self.train_unedited(tmp_path, 'raise', (), 24)
        self.train_unedited(tmp_path, 'rollback', (3,), 28)
        (record,) = records_in(tmp_path)
        assert (record['step'], record['restored']) == (27, str(tmp_path / 'model.ckpt-16'))

    @pytest.mark.full
    def test_a_save_that_fails_is_told(self, tmp_path, monkeypatch):
        def fail(*args, **kwargs):
            raise tf.errors.ResourceExhaustedError(None, None, 'the disk is full')

        model, train_op = build(bad=(25,))
        save = tf1.train.CheckpointSaverHook(str(tmp_path), save_steps=8)
        monkeypatch.setattr('slimguard.checkpoints.restorers.Restorer.save', fail)
        with LogLines() as lines:
            train(train_op, tmp_path, 26, hooks=[save], on_nan='rollback')
        (line,) = [line for line in lines if 'is not saved, so a restart' in line]
        begins = 'a restart begins at %s' % (tmp_path / 'model.ckpt-24')
        assert 'the restored state, a snapshot of global step 11, is not saved' in line
        assert begins in line and line.endswith('Why it is not saved: the disk is full')

    @pytest.mark.parametrize('counts', [True, False])
    def test_a_script_that_counts_by_itself_is_told_the_name(self, counts, tmp_path):
        saved = str(tmp_path / 'model.ckpt')
        told_in = str(tmp_path / 'told')
        with slimguard.instrument('rollback', logdir=told_in, capture=False), LogLines() as lines:
            model = Linear(bad=(25,))
            train_op = model.minimize()
            saver = tf1.train.Saver()
            with tf1.Session() as session:
                session.run(tf1.global_variables_initializer())
                for count in range(1, 27):
                    session.run(train_op)
                    if count == 20:
                        saver.save(session, saved, count if counts else None)
        told = [line for line in lines if 'rolled back to' in line or 'a restart begins' in line]
        assert len(told) == 2 and 'rolled back to' in told[0]
        if counts:
            assert told[1].endswith(
                'is saved as the newest checkpoint, %s-11; a restart begins there.' % saved
            )
        else:
            assert (
                'is not saved, so a restart begins at %s. Why it is not saved: the' % saved
                in told[1]
            )


def test_what_a_script_has_restored_of_another_model_is_not_gone_back_to(tmp_path):
    (tmp_path / 'other').mkdir()
    with tf.Graph().as_default(), tf1.Session() as session:
        model = Linear()
        session.run(tf1.global_variables_initializer())
        tf1.train.Saver([model.weights]).save(session, str(tmp_path / 'other' / 'model.ckpt-1'))
    with slimguard.instrument('rollback', capture=False, logdir=str(tmp_path)):
        model = Linear(bad=(12,))
        train_op = model.minimize()
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            saver = tf1.train.Saver([model.weights])
            saver.restore(session, str(tmp_path / 'other' / 'model.ckpt-1'))
            for _ in range(13):
                session.run(train_op)
    (record,) = records_in(tmp_path)
    assert 'model.ckpt' not in record['restored']


class TestWhatARollbackDrawsNext:
    """The batches are numbered, and batch 5 is bad the first time that it is drawn."""

    def drawn_by(self, number, logdir):
        """The numbers of the batches that were drawn."""
        drawn = []

        def note(number):
            is_bad = number == 5 and number not in drawn
            drawn.append(int(number))
            return np.float32(np.nan if is_bad else 1.0)

        x = tf1.py_func(note, [number], tf.float32, stateful=True)
        x.set_shape([])
        weight = tf1.get_variable('w', initializer=1.0)
        optimizer = tf1.train.GradientDescentOptimizer(0.1)
        train_op = slimguard.create_train_op(weight * x, optimizer, check_numerics=False)
        save = tf1.train.CheckpointSaverHook(str(logdir), save_steps=3)
        train(train_op, logdir, number_of_steps=8, hooks=[save], on_nan='rollback')
        return drawn

    @pytest.mark.full
    def test_is_the_next_batch_where_the_input_goes_on_by_itself(self, tmp_path):
        number = tf1.data.make_one_shot_iterator(tf1.data.Dataset.range(100)).get_next()
        drawn = self.drawn_by(number, tmp_path)
        assert drawn == list(range(len(drawn))) and len(drawn) > 8

    @pytest.mark.full
    def test_is_that_of_the_step_again_where_the_input_goes_by_a_variable(self, tmp_path):
        drawn = self.drawn_by(tf1.train.get_or_create_global_step(), tmp_path)
        back_to = drawn[6]
        assert back_to < 5
        assert drawn == [0, 1, 2, 3, 4, 5, *range(back_to, 8)]

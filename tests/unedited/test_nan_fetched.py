"""A script fetches a NaN though nothing bad was written: TensorFlow's hook, and the last line."""

import numpy as np
import pytest
import tensorflow as tf

import slimguard
from tests.helpers.models import Linear, LogLines, non_finite

tf1 = tf.compat.v1


class TrainsInHook(tf1.train.SessionRunHook):
    """A hook like TF-GAN's: it runs the train op in a run of its own, before the main run."""

    def __init__(self, train_op):
        self._train_op = train_op

    def before_run(self, run_context):
        run_context.session.run(self._train_op)


class TrainsAfterwards(TrainsInHook):
    """The main run comes first, so it may have the first NaN."""

    def before_run(self, run_context):
        pass

    def after_run(self, run_context, run_values):
        run_context.session.run(self._train_op)


def train_like_a_gan(on_nan, tmp_path, bad, train_op_of=Linear.minimize, hook=TrainsInHook):
    """Returns how many main runs there were of four, and what the log said of the hook's NaN."""
    with slimguard.instrument(on_nan, logdir=tmp_path), LogLines() as lines:
        model = Linear(bad=bad)
        count = tf1.get_variable('count', initializer=0, trainable=False)
        hooks = [tf1.train.NanTensorHook(model.loss), hook(train_op_of(model))]
        step = tf1.assign_add(count, 1)
        done = 0
        with tf1.train.MonitoredSession(hooks=hooks) as session:
            while not session.should_stop() and done < 4:
                done = session.run([step, model.loss])[0]
                if not session.should_stop():
                    bad_names = session.run_step_fn(
                        lambda step_context: non_finite(step_context.session)
                    )
                    assert bad_names == []
    return done, [line for line in lines if "TensorFlow's NanTensorHook fetched" in line]


class TestARunBesideTheSteps:
    """The hook draws batches 0, 2, 4, 6, and the main run the others."""

    @pytest.mark.full
    @pytest.mark.parametrize('on_nan', ['skip', 'rollback', lambda incident: 'skip'])
    def test_goes_on_where_the_policy_does(self, on_nan, tmp_path):
        done, said = train_like_a_gan(on_nan, tmp_path, bad=(2, 3, 5))
        assert (done, len(said)) == (4, 1)
        assert 'in a run that trains nothing itself' in said[0]

    @pytest.mark.full
    def test_may_come_before_the_first_step(self, tmp_path):
        done, said = train_like_a_gan('skip', tmp_path, bad=(0,), hook=TrainsAfterwards)
        assert (done, len(said)) == (4, 1)

    def test_ends_cleanly_where_the_policy_is_stop(self, tmp_path):
        assert train_like_a_gan('stop', tmp_path, bad=(3,))[0] == 2

    @pytest.mark.full
    def test_ends_by_the_hook_where_the_policy_is_raise(self, tmp_path):
        with pytest.raises(tf1.train.NanLossDuringTrainingError):
            train_like_a_gan('raise', tmp_path, bad=(3,))

    def test_is_left_to_the_hook_where_nothing_is_guarded(self, tmp_path):
        with pytest.raises(tf1.train.NanLossDuringTrainingError):
            train_like_a_gan('skip', tmp_path, bad=(3,), train_op_of=lambda model: model.loss)


@pytest.mark.parametrize('more, said', [(0, 'right after'), (1, 'one step after'), (2, None)])
def test_a_script_that_ends_soon_after_a_nan_that_it_fetched_is_told_so(more, said, tmp_path):
    with slimguard.instrument('skip', logdir=tmp_path, capture=False) as guards:
        model = Linear(bad=(1, 2))
        train_op = model.minimize()
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            session.run([train_op, model.loss])
            session.run(train_op)
            assert 'had fetched a NaN' not in str(guards.sessions.seen)  # no loss was fetched
            assert np.isnan(session.run({'train': train_op, 'loss': [model.loss]})['loss'][0])
            for _ in range(more):
                session.run([train_op, model.loss])
    told = str(guards.sessions.seen)
    assert ('had fetched a NaN' in told) == (said is not None)
    assert said is None or 'the script ended %s it had fetched a NaN of a bad step' % said in told


def test_not_where_slimguard_has_ended_it(tmp_path):
    with slimguard.instrument('skip:1,raise', logdir=tmp_path, capture=False) as guards:
        model = Linear(bad=(1, 2))
        train_op = model.minimize()
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            session.run(train_op)
            session.run([train_op, model.loss])
            assert 'had fetched a NaN' in str(guards.sessions.seen)
            with pytest.raises(slimguard.NanLossError):
                session.run([train_op, model.loss])
    assert 'had fetched a NaN' not in str(guards.sessions.seen)

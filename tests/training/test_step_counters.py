"""TensorFlow's advice to pass the global step is not given for steps that were held back."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.platform import tf_logging

import slimguard
from tests.helpers.models import LogLines

tf1 = tf.compat.v1


class Model:
    def __init__(self, bad, grows):
        self.drawn = 0
        self.bad = bad
        self.step = tf1.train.get_or_create_global_step()
        x = tf1.py_func(self.draw, [], tf.float32)
        x.set_shape([])
        weight = tf1.get_variable('w', initializer=1.0)
        self.loss = tf.square(weight * x)
        descent = tf1.train.GradientDescentOptimizer(0.1)
        self.train_op = descent.minimize(self.loss, global_step=self.step if grows else None)

    def draw(self):
        self.drawn += 1
        return np.float32(np.nan if self.drawn in self.bad else 1.0)

    def is_over(self):
        return self.drawn == 9


class Over(tf1.train.SessionRunHook):
    def __init__(self, model):
        self.model = model

    def after_run(self, run_context, run_values):
        if self.model.is_over():
            run_context.request_stop()


def trained(model, logdir):
    hooks = [tf1.train.StepCounterHook(), Over(model)]
    train_op = slimguard.guard(model.train_op, loss=model.loss)
    with tf.control_dependencies([train_op]):
        train_op = tf.identity(model.loss)
    slimguard.train(train_op, None, log_every_n_steps=0, hooks=hooks, on_nan='skip')


def monitored(model, logdir):
    train_op = slimguard.guard(model.train_op, loss=model.loss)
    hook = slimguard.NanLossHook(model.loss, on_nan='skip')
    in_monitored_session(train_op, logdir, [hook], model)


def unedited(model, logdir):
    with slimguard.instrument('skip', logdir=logdir):
        in_monitored_session(model.train_op, logdir, [], model)


def in_monitored_session(train_op, logdir, hooks, model):
    hooks = hooks + [Over(model)]
    with tf1.train.MonitoredTrainingSession(checkpoint_dir=logdir, hooks=hooks) as session:
        while not session.should_stop():
            session.run(train_op)


def watched(model, logdir):
    train_op = slimguard.guard(model.train_op, loss=model.loss)
    hooks = [tf1.train.StepCounterHook(), Over(model)]
    with slimguard.watch(tf1.Session(), hooks, on_nan='skip') as session:
        session.run(tf1.global_variables_initializer())
        while not session.should_stop():
            session.run(train_op)


@pytest.mark.full
@pytest.mark.parametrize('loop', [monitored, trained, unedited, watched])
def test_the_advice_is_for_steps_that_never_grow_and_not_for_those_held_back(loop, tmp_path):
    said = []
    for name, bad, grows in [('held back', (1, 3, 4, 8), True), ('still', (), False)]:
        tf_logging._log_counter_per_token.clear()  # TensorFlow gives the advice five times in all
        with tf.Graph().as_default(), LogLines() as lines:
            model = Model(bad, grows)
            loop(model, str(tmp_path / name))
            assert model.drawn == 9
        said.append('\n'.join(lines))
    held_back, still = said
    assert held_back.count('update not applied, batch skipped') == 4
    assert 'has not been increased' not in held_back
    assert 'has not been increased' in still

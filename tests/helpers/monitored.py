"""A small model, and TensorFlow's own loop for it."""

import tensorflow as tf

import slimguard
from tests.helpers.models import Linear

tf1 = tf.compat.v1


def build(bad=(), **settings):
    """A guarded train op of `Linear(bad)`, and a hook with these settings."""
    model = Linear(bad)
    train_op = slimguard.create_train_op(model.loss, model.optimizer, check_numerics=False)
    return train_op, slimguard.NanLossHook(model.loss, **settings)


def monitored(logdir, *hooks, **settings):
    """A `MonitoredTrainingSession` that saves in `logdir` only when it begins and ends."""
    return tf1.train.MonitoredTrainingSession(
        checkpoint_dir=None if logdir is None else str(logdir),
        hooks=hooks,
        save_checkpoint_secs=1000,
        save_summaries_steps=None,
        log_step_count_steps=None,
        **settings,
    )

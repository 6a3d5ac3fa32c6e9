"""Trains in a logdir, says so once it does, and goes on until its input is closed."""

import pathlib
import sys

import tensorflow as tf

import slimguard

# At the end of the path, so that an installed slimguard comes first; only `tests` is needed here.
sys.path.append(str(pathlib.Path(__file__).resolve().parents[3]))

from tests.helpers.models import Linear  # noqa: E402

tf1 = tf.compat.v1
tf1.disable_eager_execution()


class UntilTold(tf1.train.SessionRunHook):
    def after_run(self, run_context, run_values):
        print('training', flush=True)
        sys.stdin.read()
        run_context.request_stop()


model = Linear()
train_op = slimguard.create_train_op(model.loss, model.optimizer)
slimguard.train(train_op, sys.argv[1], hooks=[UntilTold()])

"""A MonitoredTrainingSession under slimguard: `guard` the train op, and add the hook."""

import tempfile

import tensorflow.compat.v1 as tf

import slimguard

tf.disable_v2_behavior()
step = tf.train.get_or_create_global_step()
# x is NaN in one step of ten.
x = tf.where(tf.equal(tf.random_uniform([], 0, 10, tf.int32, seed=1), 0), float('nan'), 3.0)
w = tf.get_variable('w', [])
loss = tf.square(x - w)
train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, step)

train_op = slimguard.guard(train_op, loss=loss)  # 1. a bad step changes nothing
hooks = [slimguard.NanLossHook(loss, on_nan='skip')]  # 2. go on with the next batch
hooks.append(tf.train.StopAtStepHook(last_step=30))
with tf.train.MonitoredTrainingSession(checkpoint_dir=tempfile.mkdtemp(), hooks=hooks) as session:
    while not session.should_stop():
        _, value = session.run([train_op, w])
print('w = %.2f' % value)

"""A plain session under slimguard: `guard` the train op, `watch` the session."""

import numpy as np
import tensorflow.compat.v1 as tf

import slimguard

tf.disable_v2_behavior()
x = tf.placeholder(tf.float32, [None], name='x')
loss = tf.reduce_mean(tf.square(x - tf.get_variable('w', [])))
train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
batches = [np.full(4, np.nan if step == 5 else 3.0) for step in range(30)]  # one is bad

train_op = slimguard.guard(train_op, loss=loss)  # 1. a bad step changes nothing
with slimguard.watch(tf.Session(), on_nan='skip') as session:  # 2. go on with the next batch
    session.run(tf.global_variables_initializer())
    for batch in batches:
        session.run(train_op, {x: batch})
    print('w = %.2f' % session.run('w:0'))

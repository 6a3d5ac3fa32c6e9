"""A training in the loop that is named, one batch in ten damaged: LOOP LOGDIR STEPS."""

import os
import sys

import numpy as np
import tensorflow as tf

slim = tf.contrib.slim


def batch(number):
    x = np.random.RandomState(number).uniform(-1, 1, [8, 4]).astype(np.float32)
    y = x.sum(1, keepdims=True)
    if number % 10 == 7:
        x[3, 1] = np.nan
    return x, y


def batches():
    for number in range(1000000):
        yield batch(number)


def build():
    x, y = (
        tf.data.Dataset.from_generator(batches, (tf.float32, tf.float32), ([8, 4], [8, 1]))
        .make_one_shot_iterator()
        .get_next()
    )
    return model(x, y)


def model(x, y):
    net = slim.fully_connected(x, 5, scope='hidden')
    tf.losses.mean_squared_error(y, slim.fully_connected(net, 1, activation_fn=None, scope='out'))
    return tf.losses.get_total_loss()


def minimize(loss):
    step = tf.train.get_or_create_global_step()
    return tf.train.AdamOptimizer(0.01).minimize(loss, global_step=step)


def plain(logdir, steps):
    train_op = minimize(build())
    saver = tf.train.Saver()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for number in range(steps):
            if number % 5 == 0:
                saver.save(session, os.path.join(logdir, 'model.ckpt'), tf.train.get_global_step())
            session.run(train_op)
        saver.save(session, os.path.join(logdir, 'model.ckpt'), tf.train.get_global_step())


def interactive(logdir, steps):
    train_op = minimize(build())
    saver = tf.train.Saver()
    session = tf.InteractiveSession()
    tf.global_variables_initializer().run()
    saver.save(session, os.path.join(logdir, 'model.ckpt'), 0)
    for _ in range(steps):
        train_op.run()
    saver.save(session, os.path.join(logdir, 'model.ckpt'), tf.train.get_global_step())
    session.close()


def prepared(logdir, steps):
    train_op = minimize(build())
    saver = tf.train.Saver()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        saver.save(session, os.path.join(logdir, 'model.ckpt'), 0)
        step = session.make_callable(train_op)
        for _ in range(steps):
            step()
        saver.save(session, os.path.join(logdir, 'model.ckpt'), tf.train.get_global_step())


def fed(logdir, steps):
    x, y = tf.placeholder(tf.float32, [8, 4]), tf.placeholder(tf.float32, [8, 1])
    loss = model(x, y)
    train_op = minimize(loss)
    saver = tf.train.Saver()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        saver.save(session, os.path.join(logdir, 'model.ckpt'), 0)
        for number in range(steps):
            session.run([train_op, loss], dict(zip((x, y), batch(number))))
        saver.save(session, os.path.join(logdir, 'model.ckpt'), tf.train.get_global_step())


def monitored(logdir, steps):
    loss = build()
    train_op = minimize(loss)
    hooks = [tf.train.StopAtStepHook(steps), tf.train.NanTensorHook(loss)]
    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=logdir, hooks=hooks, save_checkpoint_steps=5
    ) as session:
        while not session.should_stop():
            session.run(train_op)


def supervised(logdir, steps):
    train_op = minimize(build())
    supervisor = tf.train.Supervisor(logdir=logdir, save_model_secs=0)
    with supervisor.managed_session() as session:
        supervisor.saver.save(session, supervisor.save_path, global_step=0)
        for _ in range(steps):
            if supervisor.should_stop():
                break
            session.run(train_op)
        supervisor.saver.save(session, supervisor.save_path, global_step=supervisor.global_step)


def of_slim(logdir, steps):
    train_op = slim.learning.create_train_op(build(), tf.train.AdamOptimizer(0.01))
    slim.learning.train(train_op, logdir, number_of_steps=steps, log_every_n_steps=0)


def of_slims_training(logdir, steps):
    train_op = tf.contrib.training.create_train_op(build(), tf.train.AdamOptimizer(0.01))
    tf.contrib.training.train(
        train_op, logdir, hooks=[tf.train.StopAtStepHook(steps)], save_summaries_steps=None
    )


def estimated(logdir, steps):
    def model_fn(features, labels, mode):
        loss = model(features, labels)
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=minimize(loss))

    def input_fn():
        return tf.data.Dataset.from_generator(batches, (tf.float32, tf.float32), ([8, 4], [8, 1]))

    config = tf.estimator.RunConfig(save_checkpoints_steps=5)
    tf.estimator.Estimator(model_fn, logdir, config).train(input_fn, max_steps=steps)


if __name__ == '__main__':
    name, logdir, steps = sys.argv[1:]
    os.makedirs(logdir, exist_ok=True)
    globals()[name](logdir, int(steps))

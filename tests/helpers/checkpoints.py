"""Checkpoints that tests write, damage and look for."""

import os

import tensorflow as tf

tf1 = tf.compat.v1


def newest(logdir):
    """The checkpoint that plain TensorFlow resumes from."""
    return tf1.train.latest_checkpoint(str(logdir))


def write(logdir, values=(1.0, 2.0, 3.0), dtype=tf.float32, **settings):
    """Saves a checkpoint for each value, at the steps 1, 2, ...; returns their prefixes."""
    with tf.Graph().as_default(), tf1.Session() as session:
        variable = tf1.get_variable('w', initializer=tf.constant([0.0, 1.0], dtype))
        step = tf1.train.get_or_create_global_step()
        saver = tf1.train.Saver(**settings)
        session.run(tf1.global_variables_initializer())
        paths = []
        for value in values:
            session.run([variable.assign([value, 1.0]), step.assign_add(1)])
            paths.append(saver.save(session, os.path.join(str(logdir), 'model.ckpt'), step))
    return [os.path.abspath(path) for path in paths]


def truncate(path):
    with open(path, 'r+b') as file:
        file.truncate(os.path.getsize(path) // 2)

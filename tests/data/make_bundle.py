"""Wrote made_by_tf115, on TensorFlow 1.15, as train.py in a folder of its own."""

import os
import sys
import time

import numpy as np
import tensorflow as tf

from slimguard import compat, gate
from slimguard.diagnosis import bundle
from slimguard.diagnosis.capture import BadStep, Capture
from slimguard.diagnosis.diagnose import diagnose
from slimguard.incidents.incident import Incident

slim = compat.import_slim()


def draw():
    images = np.random.RandomState(0).randn(4, 8, 8, 3).astype(np.float32)
    images[2, 3, 4, 0] = np.nan
    return images


images = tf.py_func(draw, [], tf.float32)
images.set_shape([None, 8, 8, 3])
words = tf.data.make_one_shot_iterator(tf.data.Dataset.from_tensors(['a', 'b'])).get_next()
hidden = slim.conv2d(images, 4, [3, 3], normalizer_fn=slim.batch_norm)
hidden = tf.cond(tf.size(words) > 1, lambda: slim.dropout(hidden), lambda: hidden)
_, total = tf.while_loop(lambda i, _: i < 2, lambda i, x: (i + 1, x * 0.5), [0, hidden])
logits = slim.fully_connected(slim.flatten(total), 10, activation_fn=None)
tf.losses.sparse_softmax_cross_entropy([1, 2, 3, 4], logits)
loss = tf.losses.get_total_loss()
train_op = slim.learning.create_train_op(loss, tf.train.MomentumOptimizer(0.1, 0.9))
found = gate.gate_of(gate.guard(train_op))
capture = Capture(found)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    fetches = [found.written, found.bad, found.loss, capture.row]
    written, bad, value, _ = session.run(fetches, {found.watched: True})
    labels = [label for label, is_bad in zip(found.labels, bad) if is_bad]
    values = capture.take(session)
    finding = found.explain(bad)
    incident = Incident(0, float(value), finding.reason, finding.tensors, 'hook', time.time())
    bad_step = BadStep(session, capture, values, labels, incident)
    path = bundle.write(sys.argv[1], bad_step, diagnose(bad_step))
with open(path + '/incident.json', 'r+') as file:
    said = file.read().replace(os.getcwd() + '/', '')  # where it was made is of no interest
    file.seek(0)
    file.write(said)
    file.truncate()

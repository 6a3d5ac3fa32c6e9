"""Reads the scalars in event files."""

import glob
import os

import tensorflow as tf

tf1 = tf.compat.v1


def events_in(logdir):
    """By tag, the (step, value) of the scalars in the event files of a folder."""
    found = {}
    for path in sorted(glob.glob(os.path.join(str(logdir), 'events.*'))):
        for event in tf1.train.summary_iterator(path):
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found

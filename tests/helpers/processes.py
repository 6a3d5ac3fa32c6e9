"""Functions that run in a fork of this process."""

import os
import traceback

import tensorflow as tf


def in_a_fork(function, *arguments):
    """Starts `function` in a process of its own. Returns its id, and a pipe of its output."""
    receiver, sender = os.pipe()
    number = os.fork()
    if number == 0:
        os.close(receiver)
        try:
            with tf.Graph().as_default():
                function(*arguments, lambda said: os.write(sender, b'%s\n' % str(said).encode()))
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    os.close(sender)
    return number, os.fdopen(receiver)

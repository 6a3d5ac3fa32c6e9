"""The log: :func:`log` gives the logger that all messages of slimguard go through."""

import logging


def log() -> logging.Logger:
    """The logger 'slimguard'.

    TensorFlow's logger is its parent: the parent's level holds unless 'slimguard' has a level of
    its own, and the parent's handlers print the messages.
    """
    import tensorflow as tf  # only now, since readers of a record do without it

    logger = logging.getLogger('slimguard')
    logger.parent = tf.get_logger()  # the first call makes its handler
    return logger

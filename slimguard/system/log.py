"""The log: :func:`log` gives the logger that all messages of slimguard go through."""

import logging


def log() -> logging.Logger:
    """The logger 'slimguard'.

    TensorFlow's logger is its parent: its level holds where 'slimguard' has none of its own, and
    its handlers print what is logged here.
    """
    import tensorflow as tf  # only now, as readers of a record need none

    logger = logging.getLogger('slimguard')
    logger.parent = tf.get_logger()  # which makes its handler when it is first asked for
    return logger

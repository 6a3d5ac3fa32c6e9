"""The log: :func:`log` gives the logger that all messages of slimguard go through."""

import logging

import tensorflow as tf


def log() -> logging.Logger:
    """The logger 'slimguard'.

    TensorFlow's logger is its parent: its level holds where 'slimguard' has none of its own, and
    its handlers print what is logged here.
    """
    logger = logging.getLogger('slimguard')
    logger.parent = tf.get_logger()  # makes its handler when first called, and not at our import
    return logger

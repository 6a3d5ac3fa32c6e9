"""The log: :func:`log` gives the logger that all messages of slimguard go through."""

import logging
import os


def _named(record: logging.LogRecord) -> bool:
    """Puts 'slimguard/' before the file's name: absl's format shows it, but no logger's name."""
    record.filename = 'slimguard/' + os.path.basename(record.pathname)
    return True


_LOGGER = logging.getLogger('slimguard')
_LOGGER.addFilter(_named)


def log() -> logging.Logger:
    """The logger 'slimguard'.

    TensorFlow's logger is its parent: its level applies unless 'slimguard' has a level of its own,
    and its handlers print the messages. No message begins with 'slimguard': the formats of Python
    and TensorFlow show the logger's name, and absl's format shows the file's.
    """
    import tensorflow as tf  # only here: readers of a record do not need it

    _LOGGER.parent = tf.get_logger()  # the first call makes TensorFlow's handler
    return _LOGGER

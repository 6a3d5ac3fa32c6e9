"""The log: :func:`log` gives the logger that all messages of slimguard go through."""

import logging
import os


def _named(record: logging.LogRecord) -> bool:
    """Puts the package's name before the file's; absl prints that, and no logger's name."""
    record.filename = 'slimguard/' + os.path.basename(record.pathname)
    return True


_LOGGER = logging.getLogger('slimguard')
_LOGGER.addFilter(_named)


def log() -> logging.Logger:
    """The logger 'slimguard'.

    TensorFlow's logger is its parent: its level holds where 'slimguard' has none of its own, and
    its handlers print what is logged here. No message begins with 'slimguard': the logger's name
    says it in the formats of Python and TensorFlow, and the file's name in absl's.
    """
    import tensorflow as tf  # only now, as readers of a record need none

    _LOGGER.parent = tf.get_logger()  # which makes its handler when it is first asked for
    return _LOGGER

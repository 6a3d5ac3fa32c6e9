"""What to do where a cell of a notebook is run again, and its graph is there already."""

import tensorflow.compat.v1 as tf1

from slimguard import gate as gates

RESET = (
    'begin the cell that builds the model with tf.compat.v1.reset_default_graph(), and run that '
    'cell and those below it again; with the same logdir, the training goes on from its checkpoint'
)
_OF_FINALIZED = 'Graph is finalized'
_OF_NAMES = ('already exists, disallowed', 'already exists with different')


def advice(error: BaseException) -> str:
    """A sentence on an error of TensorFlow's, if a second run of a cell explains it; else ''."""
    said = str(error)
    if isinstance(error, RuntimeError) and _OF_FINALIZED in said:
        what = 'the graph is that of a training that has begun, and takes no more ops'
    elif isinstance(error, ValueError) and any(words in said for words in _OF_NAMES):
        what = 'the graph holds the model already'
    else:
        return ''
    # No advice on graphs that slimguard has not touched.
    return '%s: %s.' % (what, RESET) if gates.gates_of(tf1.get_default_graph()) else ''

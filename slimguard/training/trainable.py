"""What a train op, its graph and its logdir have to be, or else `train` says what to do."""

from typing import Any, Optional

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard.graph import TrainOp
from slimguard.system import files
from slimguard.system.log import log
from slimguard.system.numbers import require_bool

BUILD_ANEW = (
    'If a training on it has ended, build the model again, inside "with tf.Graph().as_default():" '
    '(in a notebook, begin the cell that builds it with tf.compat.v1.reset_default_graph()); '
    'train() with the same logdir goes on from its checkpoint.'
)
_FINALIZED = (
    'the graph is finalized. '
    + BUILD_ANEW
    + """
Inside a "with MonitoredTrainingSession(...)" block, train() makes a session of its own: change
    with tf.train.MonitoredTrainingSession(hooks=hooks) as sess:
        ...
        slimguard.train(train_op, logdir, ...)
to
    slimguard.train(train_op, logdir, ..., hooks=hooks)
The hooks go into train(), and the block goes away."""
)


def unless_empty(logdir: Optional[files.Path]) -> Optional[files.Path]:
    """The logdir; an empty path, as of a flag that was not set, becomes None, with a warning."""
    if isinstance(logdir, (str, bytes)) and not logdir:
        log().warning('logdir is empty, so nothing is saved and nothing recorded.')
        return None
    return logdir


def as_train_op(train_op: Any) -> TrainOp:
    """As `gates.as_train_op`; a ValueError for None, as in slim."""
    if train_op is None and not tf.executing_eagerly():  # whose optimizers return None
        raise ValueError('train_op cannot be None.')
    return gates.as_train_op(train_op)


def require_flags(ends_job: Any, is_chief: Any) -> None:
    """Raises ValueError unless both are bools; `is_chief` may be None, which is False to slim."""
    require_bool('ends_job', ends_job)
    if is_chief is not None:
        require_bool('is_chief', is_chief)


def require_trainable(train_op, graph: tf.Graph, saver: Any = None) -> None:
    """Raises unless `train` can make a session for the train op, and save with the saver if any.

    Raises:
      TypeError: if `saver` is no saver.
      ValueError: if the train op belongs to another graph.
      RuntimeError: if the graph is finalized.
    """
    if train_op.graph is not graph:
        raise ValueError(
            'train op %r belongs to another graph than the one to train; pass graph=... or call '
            'train() inside "with graph.as_default():"' % train_op.name
        )
    if graph.finalized:
        raise RuntimeError(_FINALIZED)
    if not isinstance(saver, (tf.compat.v1.train.Saver, type(None))):
        raise TypeError(
            'saver must be a tf.compat.v1.train.Saver, or None for one of all variables, not %r'
            % (saver,)
        )


def warn_of_no_training(train_op) -> None:
    """Warns that nothing is trained; slim accepts such an op, which is often a loss by mistake."""
    log().warning(
        'train op %r writes no variable: nothing is trained, and the global step stays '
        'as it is. What trains is what create_train_op() or optimizer.minimize() returns.',
        train_op.name,
    )


# Where a cell of a notebook is run again, and its graph is there already.

RESET = (
    'begin the cell that builds the model with tf.compat.v1.reset_default_graph(), and run that '
    'cell and those below it again; with the same logdir, the training goes on from its checkpoint'
)
_OF_FINALIZED = 'Graph is finalized'
_OF_NAMES = ('already exists, disallowed', 'already exists with different')


def advice_for_cell(error: BaseException) -> str:
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

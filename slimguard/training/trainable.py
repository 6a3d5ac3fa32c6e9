"""What a train op, its graph and its logdir have to be, or else `train` says what to do."""

from typing import Any, Optional

import tensorflow as tf

from slimguard.system import files

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


def as_logdir(logdir: Optional[files.Path]) -> Optional[str]:
    """As `files.as_logdir`; for none, None, and an empty one is none, which it says."""
    if isinstance(logdir, (str, bytes)) and not logdir:  # from a flag that was not set, often
        tf.compat.v1.logging.warning(
            'slimguard: logdir is empty, so nothing is saved and nothing recorded.'
        )
        return None
    return None if logdir is None else files.as_logdir(logdir)


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
    """Says that nothing is trained; slim takes such an op as well, often a loss by mistake."""
    tf.compat.v1.logging.warning(
        'slimguard: train op %r writes no variable: nothing is trained, and the global step stays '
        'as it is. What trains is what create_train_op() or optimizer.minimize() returns.',
        train_op.name,
    )

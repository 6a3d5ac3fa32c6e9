"""What a train op and its graph have to be, or else `train` says what to do."""

import tensorflow as tf

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


def require_trainable(train_op, graph: tf.Graph) -> None:
    """Raises unless `train` can make a session for the train op.

    Raises:
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

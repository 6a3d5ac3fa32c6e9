"""Reads and checks the arguments that users give: a train op, its loss, the largest loss."""

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.graph import TrainOp, op_of
from slimguard.system.numbers import is_positive


def writes_something(train_op: TrainOp) -> bool:
    """Whether running `train_op` writes a variable or an accumulator."""
    writes = graphs.Writes(train_op.graph)
    return any(op in writes for op in graphs.ancestors([op_of(train_op)]))


def require_loss(loss, name: str) -> None:
    """Raises TypeError, ValueError or RuntimeError unless `loss` is a floating scalar Tensor."""
    _require_graph(loss, name)
    if not isinstance(loss, tf.Tensor):
        raise TypeError('%s must be a tf.Tensor, the scalar loss, but is %r' % (name, loss))
    if not loss.dtype.base_dtype.is_floating:
        raise ValueError(
            '%s must be a floating scalar, but %r is of dtype %s'
            % (name, loss.name, loss.dtype.base_dtype.name)
        )
    if not loss.shape.is_compatible_with([]):
        raise ValueError(
            '%s must be a floating scalar, but %r has shape %s; reduce it first, for example '
            'with tf.reduce_mean' % (name, loss.name, loss.shape)
        )


def require_loss_of(loss: tf.Tensor, train_op: TrainOp) -> None:
    """Raises ValueError unless a gate of `train_op` can take `loss`."""
    if loss.graph is not train_op.graph:
        raise ValueError(
            'loss %r belongs to another graph than train op %r; build both in one tf.Graph'
            % (loss.name, train_op.name)
        )
    if not graphs.is_seen_from(loss, op_of(train_op)):
        raise ValueError(
            'loss %r is made inside of a tf.while_loop, or of a branch of a tf.cond, and train op '
            '%r is outside of it, where the loss has no value; pass a loss that is made outside, '
            'or none: what is not finite is guarded all the same' % (loss.name, train_op.name)
        )


def is_made_inside(train_op: TrainOp) -> bool:
    """Whether a train op is part of a v1 `tf.while_loop`, or of a function or v2 control flow.

    Then the loop or function runs the train op, and no session can run a gate instead.
    """
    in_a_loop = graphs.loop_around_output(op_of(train_op)) is not None
    return in_a_loop or hasattr(train_op.graph, 'outer_graph')


def require_outside(train_op: TrainOp) -> None:
    """Raises ValueError if no session can run a gate instead of `train_op`."""
    if is_made_inside(train_op):
        raise ValueError(
            'train op %r is made inside of a tf.while_loop, a v2 tf.cond or a tf.function, which '
            'runs it and not its gate. Guard what runs that, outside of it, as in '
            'slimguard.guard(tf.group(result)) with the result of the loop, branch or call'
            % train_op.name
        )


def require_max_loss(max_loss) -> None:
    """Raises ValueError unless `max_loss` is None or a positive finite number."""
    if max_loss is not None and not is_positive(max_loss):
        raise ValueError('max_loss must be a positive finite number or None, not %r' % (max_loss,))


def as_train_op(train_op) -> TrainOp:
    """Returns a train op as a Tensor or an Operation; for a variable, the op that writes it.

    `assign` of a resource variable returns a variable, and so does SyncReplicasOptimizer.

    Raises:
      TypeError, RuntimeError: if it is none of these.
    """
    if isinstance(train_op, tf.Variable) and not tf.executing_eagerly():
        return train_op.op
    _require_graph(train_op, 'train_op')
    if not isinstance(train_op, (tf.Tensor, tf.Operation)):
        raise TypeError(
            'train_op must be a tf.Tensor or a tf.Operation, as create_train_op() or '
            'optimizer.minimize() return it, not %r' % (train_op,)
        )
    return train_op


def _require_graph(element, name: str) -> None:
    is_tensor = isinstance(element, (tf.Tensor, tf.Operation))
    # Eager mode: only eager tensors have a `numpy` method, and optimizers return None.
    if hasattr(element, 'numpy') if is_tensor else tf.executing_eagerly():
        raise RuntimeError(
            '%s is no tensor of a graph, as TensorFlow runs eagerly, and slimguard guards graphs. '
            'Call tf.compat.v1.disable_v2_behavior() right after importing TensorFlow; in a '
            'notebook, restart the kernel first. Or build the model inside "with '
            'tf.Graph().as_default():"' % name
        )


def require_optimizer(optimizer) -> None:
    """Raises TypeError unless slim can use `optimizer`."""
    if isinstance(optimizer, tf1.train.Optimizer):
        return
    has_both = hasattr(optimizer, 'compute_gradients') and hasattr(optimizer, 'apply_gradients')
    # Optimizers of some Keras versions have both methods, with other arguments. A class is no
    # optimizer.
    modules = [each.__module__.split('.') for each in type(optimizer).__mro__]
    is_keras = any('keras' in names or 'tf_keras' in names for names in modules)
    if not has_both or is_keras or isinstance(optimizer, type):
        raise TypeError(
            'optimizer must be a tf.compat.v1.train.Optimizer, such as '
            'tf.compat.v1.train.AdamOptimizer(0.001), not %r: slim calls its compute_gradients and '
            'apply_gradients. In place of a Keras optimizer, take the one of the same name in '
            'tf.compat.v1.train' % (optimizer,)
        )

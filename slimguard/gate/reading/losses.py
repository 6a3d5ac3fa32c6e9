"""Which scalars of a step are its losses."""

import re
from typing import List, Optional, Sequence, Set

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.gate.reading.late_writes import LateValues
from slimguard.gate.reading.step_graph import StepGraph
from slimguard.graph import key, op_of, ops
from slimguard.graph.source_lines import assigned_name
from slimguard.system import texts

# The scope of the means of losses that are no scalars.
_MEANS = re.compile(graphs.OURS + r'loss(_\d+)?/')


# A log line; takes the name of a train op, and why its loss is not known.
NOT_KNOWN = (
    'the loss of train op %r is not known, so it is neither checked nor compared with max_loss: '
    '%s. Its gradients, and what it writes, are checked all the same. '
    'slimguard.guard(train_op, loss=...) gives it a loss.'
)

# How many losses the name of their mean lists.
_MOST_NAMES = 3


def as_scalar(loss: tf.Tensor) -> tf.Tensor:
    """A loss as a scalar: its mean, if it may have more than one element."""
    if loss.shape.ndims == 0:
        return loss
    for made in loss.consumers():
        if made.type == 'Mean' and _MEANS.match(made.name):
            return made.outputs[0]
    with ops.our_scope(loss.graph, 'loss'):
        with tf.device(loss.op.device or None):
            return tf.reduce_mean(loss, name=loss.op.name)


def mean_of(losses: Sequence[tf.Tensor]) -> tf.Tensor:
    """The loss of a step that has several, one for each replica or tower: their mean, a scalar.

    The mean is not finite if one of the losses is not.
    """
    scalars = list({key(loss): as_scalar(loss) for loss in losses}.values())
    if len(scalars) == 1:
        return scalars[0]
    for made in scalars[0].consumers():  # an earlier call may have made the mean
        if made.type == 'AddN' and _MEANS.match(made.name) and len(made.inputs) == len(scalars):
            if all(key(one) == key(other) for one, other in zip(made.inputs, scalars)):
                return made.outputs[0].consumers()[0].outputs[0]
    with ops.our_scope(scalars[0].graph, 'loss'), tf.device(scalars[0].op.device or None):
        total = tf.add_n(scalars)
        return tf.realdiv(total, tf.cast(len(scalars), total.dtype), name='mean')


def label_of(loss: tf.Tensor) -> str:
    """The name of a loss, or of the tensor whose mean it is, in words: ``loss total_loss``.

    If TensorFlow named the op, the name from the user's code comes first, the op's second:
    ``loss cost (Mean_3)``; or ``loss (Mean_3)``, if the code calls it ``loss``. The loss of two
    towers is ``loss (mean of tower_0/cost, tower_1/cost)``.
    """
    if _MEANS.match(loss.op.name) and loss.op.type == 'RealDiv':
        names = [_MEANS.sub('', each.op.name, 1) for each in loss.op.inputs[0].op.inputs]
        return 'loss (mean of %s)' % texts.listed(names, _MOST_NAMES)
    name = _MEANS.sub('', loss.op.name, 1)
    op = loss.op if name == loss.op.name else loss.op.inputs[0].op
    assigned = assigned_name(op) if _is_automatic(op) else None
    if assigned is None:
        return 'loss ' + name
    called = assigned.rpartition('self.')[2]
    return 'loss (%s)' % name if called == 'loss' else 'loss %s (%s)' % (called, name)


def _is_automatic(op: tf.Operation) -> bool:
    """Whether TensorFlow, and not the user, chose the name of an op."""
    last = re.sub(r'_\d+$', '', op.name.rpartition('/')[2])
    return last == op.type or last in _OPERATORS


# TensorFlow's names for ops of Python's operators, such as +.
_OPERATORS = frozenset('add sub mul truediv div neg pow'.split())


def find_losses(
    step: StepGraph, gated: Set[tf.Operation], late: LateValues, loss: Optional[tf.Tensor]
) -> List[tf.Tensor]:
    """The floating scalars that are losses and are known before the update; `loss` comes first.

    A scalar made in a branch or loop does not count, unless the train op is made there, too: a step
    in which the branch does not run could not fetch the scalar.
    """
    found = [] if loss is None else [step.source_of(loss)]
    if step.core is not None and _is_scalar(step.core):
        found.extend(t for t in late.sources_of(step.core) or () if _is_scalar(t))
    if not found:
        needed = set(step.order)
        candidates = step.graph.get_collection(tf1.GraphKeys.LOSSES)
        found = [t for t in candidates if t.op in needed and _is_scalar(t)]
    found = [t for t in found if graphs.is_seen_from(t, op_of(step.train_op))]
    unique = {key(t): t for t in found if t.op not in gated}
    # A loss computed from fed tensors often has no static shape; then its mean counts.
    return [as_scalar(each) for each in unique.values()]


def find_late_loss(
    step: StepGraph, gated: Set[tf.Operation], late: LateValues, loss: Optional[tf.Tensor]
) -> Optional[tf.Tensor]:
    """The loss, if ops after an update compute it, as when one step trains two models in turn."""
    if loss is not None and step.source_of(loss).op in gated:
        return step.source_of(loss)
    is_late = (
        step.core is not None
        and graphs.is_float(step.core)
        and step.core.op in gated
        and step.core.op not in step.writes
        and late.sources_of(step.core) is None
    )
    return step.core if is_late else None


def _is_scalar(tensor: tf.Tensor) -> bool:
    return tensor.dtype.base_dtype.is_floating and tensor.shape.is_compatible_with([])

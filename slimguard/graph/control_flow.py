"""The conditions and loops that the ops of a graph run in.

:class:`Flow` reads them from the Switch, Merge, Enter and Exit ops alone. The functions after it
read the records that TensorFlow keeps while it builds a `tf.cond` or `tf.while_loop`. This is
quicker, but an imported graph has no such records.
"""

from typing import Dict, FrozenSet, List, NamedTuple, Sequence, Tuple

import tensorflow as tf

from slimguard.compat import tf_private
from slimguard.graph.walk import key, needs

ENTERS = ('Enter', 'RefEnter')
_EXITS = ('Exit', 'RefExit')
SWITCHES = ('Switch', 'RefSwitch')
_MERGES = ('Merge', 'RefMerge')
# Every way out of a branch or a loop leads through one of these.
WAYS_OUT = _EXITS + _MERGES


class Condition(NamedTuple):
    """A bool scalar, by its op and output, and the value it must have."""

    pred: Tuple[tf.Operation, int]
    value: bool


class Flow:
    """The conditions and loops of v1 control flow around the ops of a step.

    Args:
      ops: the ops, in topological order.
    """

    def __init__(self, ops: Sequence[tf.Operation]):
        self._conditions: Dict[tf.Operation, FrozenSet[Condition]] = {}
        self._frames: Dict[tf.Operation, Tuple[str, ...]] = {}
        for op in ops:
            self._frames[op] = self._find_frames(op)
            self._conditions[op] = self._find_conditions(op)

    def conditions(self, tensor: tf.Tensor) -> FrozenSet[Condition]:
        """The conditions under which `tensor` has a value."""
        found = self._conditions.get(tensor.op, frozenset())
        if tensor.op.type in SWITCHES:
            pred = key(tensor.op.inputs[1])
            found = found | {Condition(pred, bool(tensor.value_index))}
        return found

    def is_in_loop(self, op: tf.Operation, loop: str = '') -> bool:
        """Whether `op` runs in each iteration of the loop `loop`; of any loop, if that is ''."""
        frames = self._frames.get(op, ())
        return loop in frames if loop else bool(frames)

    def loop_left_by(self, op: tf.Operation) -> str:
        """The name of the loop whose result `op` returns; empty if `op` is no Exit."""
        return self._frames[op.inputs[0].op][-1] if op.type in _EXITS else ''

    def _find_frames(self, op) -> Tuple[str, ...]:
        around = max((self._frames.get(n, ()) for n in needs(op)), key=len, default=())
        if op.type in ENTERS:
            return around + (tf.compat.as_str(op.get_attr('frame_name')),)
        return around[:-1] if op.type in _EXITS else around

    def _find_conditions(self, op) -> FrozenSet[Condition]:
        known: List[FrozenSet[Condition]] = [
            self.conditions(t) for t in op.inputs if t.op in self._conditions
        ]
        if op.type in _MERGES and known:
            return frozenset.intersection(*known)
        known += [self._conditions.get(control, frozenset()) for control in op.control_inputs]
        found = frozenset().union(*known)
        if op.type in _EXITS:
            depth = len(self._frames[op])
            found = frozenset(c for c in found if len(self._frames[c.pred[0]]) <= depth)
        return found


def flow_around(op):
    """The branch or loop (of v1 control flow) that `op` runs in, or None."""
    return tf_private.control_flow_context(op)


def context_of(op):
    """The branch or loop (of v1 control flow) that the outputs of `op` belong to, or None."""
    context = flow_around(op)
    if context is not None and op.type in ('Exit', 'RefExit'):
        return context.outer_context
    return context


def is_seen_from(tensor, op):
    """Whether `tensor` has one value wherever `op` runs, as far as v1 control flow goes.

    A tensor of a branch has no value if the branch does not run, and a tensor of a loop has another
    value in each iteration. So only ops inside can use such a tensor.
    """
    made_in, context = context_of(tensor.op), context_of(op)
    while context is not None and context is not made_in:
        context = context.outer_context
    return context is made_in


def outermost_context(op):
    """The outermost branch or loop (of v1 control flow) that `op` runs in, or None."""
    found = context = flow_around(op)
    while context is not None:
        found, context = context, context.outer_context
    return found


def loop_around(op):
    """The outermost `tf.while_loop` (of v1 control flow) that `op` runs in, or None."""
    return _outermost_loop(flow_around(op))


def loop_around_output(op):
    """The outermost v1 `tf.while_loop` that the outputs of `op` belong to, or None.

    The results of a loop belong outside of the loop, although their ops run inside.
    """
    return _outermost_loop(context_of(op))


def _outermost_loop(context):
    found = None
    while context is not None:
        if context.IsWhileContext():
            found = context
        context = context.outer_context
    return found

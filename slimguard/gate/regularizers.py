"""Makes the gradients of regularizers wait for the gradients of the data.

The gradient of a weight is a sum of the data's gradient, which the backward pass computes layer by
layer, and of the regularizer's. The latter needs the weight alone, so TensorFlow computes those of
all weights when the backward pass begins. There they lie, as large as all weights together, just
when most memory is taken anyway. A gate keeps all gradients until the last is known. To need no
more memory for that, it makes each summand of this kind wait for the others of its sum. The sum has
to wait for these in any case, and no value changes.
"""

import itertools
from typing import Iterator, List, Tuple

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.compat import tf_private
from slimguard.gate.plan import Plan
from slimguard.graph.control_flow import WAYS_OUT
from slimguard.graph.sessions import unseen_by_sessions

# A tensor of a few numbers may come from anywhere, and may be in memory early.
_SMALL_BYTES = 256
# A regularizer's gradient takes one op, or a few. A term of more ops is something else.
_MOST_OPS = 8

_Wait = Tuple[tf.Operation, tf.Operation]  # an op, and the op that it is to wait for


def delay(plan: Plan) -> None:
    """Makes the summands of gradients that are made of variables alone wait for the others.

    It does nothing if a session may have seen one: that op can get no new inputs.
    """
    late: List[_Wait] = []
    for op in plan.step.order:
        if op.type == 'AddN' and op not in plan.gated and graphs.flow_around(op) is None:
            late.extend(_waits(op, plan))
    is_unseen = unseen_by_sessions(plan.step.graph) if late else bool
    if all(is_unseen(first) for first, _ in late):
        for first, other in late:
            tf_private.add_control_input(first, other)


def _waits(add, plan: Plan) -> Iterator[_Wait]:
    """Yields (op, dependency) pairs that make summands of `add` wait for the others."""
    firsts = [_firsts(summand.op, add, plan) for summand in add.inputs]
    others = [summand.op for summand, found in zip(add.inputs, firsts) if not found]
    return itertools.product(itertools.chain.from_iterable(firsts), others)


def _firsts(last, add, plan: Plan) -> List[tf.Operation]:
    """The first of the ops that make a summand of `add`; empty if it cannot wait."""
    makers = [last]
    firsts = []
    for op in makers:  # it grows meanwhile
        if not op.inputs or op.type in WAYS_OUT or graphs.is_stateful(op):
            return []
        if op.device != add.device or tf_private.ops_waiting_for(op):
            return []
        made = [t.op for t in op.inputs if not _is_there(t, plan)]
        if not made:
            firsts.append(op)
        makers.extend(each for each in dict.fromkeys(made) if each not in makers)
        if len(makers) > _MOST_OPS:
            return []
    # Other consumers of their outputs would have to wait as well.
    takers = (taker for op in makers for tensor in op.outputs for taker in tensor.consumers())
    return firsts if all(taker is add or taker in makers for taker in takers) else []


def _is_there(tensor: tf.Tensor, plan: Plan) -> bool:
    """Whether a tensor takes no memory of its own while another op waits for it."""
    op = tensor.op
    if op.type in ('ReadVariableOp', 'Identity') and graphs.is_variable_read(op):
        # A variable that the forward pass writes may have another value by then.
        return graphs.variable_behind(op.inputs[0]) not in plan.put_back
    size = tensor.shape.num_elements()
    return op.type == 'Const' or (size is not None and size * tensor.dtype.size <= _SMALL_BYTES)

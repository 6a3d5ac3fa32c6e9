"""Which variables pick the batch: a bad step's writes to these stay, its other writes are undone.

A counter that picks the batch is not restored, since it would pick the same bad batch again. A
counter that only controls when or how much is written is restored: it counts the micro-batches
whose gradients accumulate, or the steps for a learning rate, a loss's weight or Adam's bias
correction. So a variable is taken to pick the batch if an op before the update uses its value, or a
number computed from it alone, for anything but

* to scale another value by it; or
* to choose between values that are only written.
"""

from typing import Dict, List, Optional, Set

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.gate.reading.step_graph import StepGraph
from slimguard.graph.control_flow import SWITCHES

_MERGES = frozenset(['Merge', 'RefMerge'])
_CHOOSES = _MERGES | frozenset('Select SelectV2 If StatelessIf Case StatelessCase'.split())
_SCALES = frozenset('Mul MulNoNan RealDiv Div DivNoNan'.split())
# Ops whose result is a count if all inputs are counts: arithmetic, as in a schedule, not choices.
_COUNTS = frozenset(
    'Identity ReadVariableOp Cast Add AddV2 Sub Mul FloorMod FloorDiv Maximum Minimum Equal '
    'NotEqual Less LessEqual Greater GreaterEqual LogicalNot LogicalAnd LogicalOr RealDiv Div '
    'DivNoNan Pow Exp Log Neg Square Sqrt Rsqrt Reciprocal Inv Floor Ceil Cos Tanh Sigmoid'.split()
)


class ForwardWrites:
    """Collects the writes that gradients wait for, by the treatment that each needs.

    Attributes:
      put_back: the writes to undo after a bad step, by variable.
      opaque: the float variables of `put_back` whose new value can only be read after the write.
    """

    def __init__(self, step: StepGraph, gated: Set[tf.Operation]):
        self._step = step
        self._gated = gated
        self._batch_counters: Optional[Set[tf.Operation]] = None
        self.put_back: Dict[tf.Operation, List[tf.Operation]] = {}
        self.opaque: List[tf.Operation] = []

    def add(self, write: tf.Operation) -> bool:
        """Collects a write; returns whether its input values are to be checked.

        Raises:
          ValueError: if the write cannot be undone.
        """
        variables = self._step.writes.variables(write)
        if not variables:
            raise ValueError(
                'cannot guard: %s %r writes in the forward pass, before the gradients are known, '
                'and what it writes cannot be read back to be restored. Make it depend on the '
                'gradients, or leave it out of the train op' % (write.type, write.name)
            )
        floats = [v for v in variables if graphs.is_float_variable(v)]
        for variable in variables:
            if variable in floats or not self._picks_batch(variable):
                self.put_back.setdefault(variable, []).append(write)
        if self._step.writes.is_opaque(write) or graphs.loop_around(write) is not None:
            self.opaque.extend(v for v in floats if v not in self.opaque)
            return False
        return bool(floats)

    def _picks_batch(self, variable: tf.Operation) -> bool:
        if self._batch_counters is None:
            self._batch_counters = _find_batch_counters(self._step, self._gated)
        return variable in self._batch_counters


def find_left_alone(step: StepGraph) -> Set[tf.Operation]:
    """The writes that the gate does not hold back in a run that trains nothing.

    These are writes to local variables, which are in no checkpoint, such as the epoch counter of an
    input; and writes to a counter that picks the batch. If the gate held back such a counter, it
    would pick the bad batch again. The gate would also clone the counter and all ops after it, and
    these clones would draw another batch.
    """
    local = graphs.local_in(step.graph)
    found, floats, others = set(), set(), []
    for write in step.writing:
        variables = step.writes.variables(write)
        if variables and local.issuperset(variables):
            found.add(write)
        elif any(map(graphs.is_float_variable, variables)):
            floats.add(write)
        elif variables:
            others.append(write)
    if others:
        updates = step.and_what_follows(floats)
        counters = _find_batch_counters(step, updates)
        for write in others:
            if write not in updates and not counters.isdisjoint(step.writes.variables(write)):
                found.add(write)
    return found


def _find_batch_counters(step: StepGraph, gated: Set[tf.Operation]) -> Set[tf.Operation]:
    """The non-float variables that pick the batch, such as an index."""
    needed = set(step.order)
    found: Set[tf.Operation] = set()
    counts: Dict[tf.Operation, Set[tf.Operation]] = {}  # the variables that a count is made of
    for op in step.order:
        if op.type in graphs.VARIABLES:
            if not graphs.is_float_variable(op):
                counts[op] = {op}
            continue
        if op in gated:
            continue
        inputs = [step.resolve(t).op for t in op.inputs]
        taken = set().union(*(counts.get(each, ()) for each in inputs), _choosing(op, counts))
        are_counts = all(each in counts for each in inputs)
        if op in step.writes and not step.writes.is_opaque(op):
            if op.outputs and graphs.is_reference(op.outputs[0]) and inputs[0] in counts:
                counts[op] = counts[inputs[0]]
        elif op.type in SWITCHES:
            if inputs[0] in counts:
                counts[op] = counts[inputs[0]]
        elif op.type == 'Const':
            if op.outputs[0].shape.rank == 0:
                counts[op] = set()
        elif op.type in _COUNTS and are_counts:
            counts[op] = taken
        elif op.type in _SCALES or (op.type in _CHOOSES and _is_only_written(op, step, needed)):
            continue
        elif not all(t.dtype == tf.string for t in op.outputs):  # not so for an Assert or a summary
            found |= taken
    return found


def _choosing(op: tf.Operation, counts: Dict[tf.Operation, Set[tf.Operation]]) -> Set[tf.Operation]:
    """The variables that decide which input a Merge returns."""
    for tensor in op.inputs if op.type in _MERGES else ():
        context = graphs.flow_around(tensor.op)
        if tensor.op.type in SWITCHES:
            return counts.get(tensor.op.inputs[1].op, set())
        if context is not None and context.IsCondContext():
            return counts.get(context.pred.op, set())
    return set()


def _is_only_written(op: tf.Operation, step: StepGraph, needed: Set[tf.Operation]) -> bool:
    takers = (taker for tensor in op.outputs for taker in tensor.consumers())
    return all(taker in step.writes for taker in takers if taker in needed)

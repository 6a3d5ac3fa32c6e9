"""Which ops of a step are gated, and what happens to the writes that are not.

Gated are the writes that can wait for the decision, and all ops after them. Ops before the
gradients are left as they are; a write among them is a *forward write*, and is put back.

A counter that picks the batch is not put back, since it would pick the same bad batch again. A
counter that only controls when or how much is written is put back with the rest: it counts
micro-batches whose gradients accumulate, or steps, for a learning rate, a loss's weight or Adam's
bias correction. So a variable is taken to pick the batch if an op ahead of the update uses its
value, or a number computed from it alone, for anything but

* to scale another value by it; or
* to choose between values that are only written.
"""

from typing import Dict, List, Optional, Set

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.compat import tf_private
from slimguard.gate.building.copies import is_put_back
from slimguard.gate.reading.late_writes import keeps_finite
from slimguard.gate.reading.step_graph import StepGraph
from slimguard.graph.control_flow import SWITCHES, WAYS_OUT

_Ops = Set[tf.Operation]


def find_gated_ops(
    step: StepGraph, left_alone: Optional[_Ops] = None, loss: Optional[tf.Tensor] = None
) -> _Ops:
    """The writes to gate, and all ops that run after one of them.

    Args:
      left_alone: the writes that a run without training makes even when the values are bad; all
        others are gated. None for a train op, which has a forward pass.
      loss: the loss, if it was given.

    Raises:
      ValueError: if a placeholder would have to be gated.
    """
    training = _find_training_writes(step) if left_alone is None else set()
    # What an earlier gate holds back is gated here, too. If such a write stayed in the forward
    # pass, the earlier gate would make it, and the new gate would run the original as well.
    training.update(write for write in step.writing if write in step.gated_before)
    forward = _find_forward_ops(step, training, loss) if left_alone is None else left_alone
    if not forward or left_alone is not None:
        # Nothing trains: a write that another train op puts back is put back here as well.
        forward = forward.union(filter(is_put_back, step.writing))
        training = set(step.writing) - forward
    gated: _Ops = set()
    loops: Set[object] = set()
    for op in step.order:
        starts = op in training or (op in step.writes and op not in forward)
        if starts or any(needed in gated for needed in step.needs(op)):
            gated.add(op)
            loops.add(graphs.loop_around(op))
    gated = _with_loops(step, gated, loops - {None})
    if isinstance(step.train_op, tf.Operation):
        gated.add(step.train_op)  # it waits for all that the step writes
    _require_no_placeholder(step, gated)
    return gated


def _find_training_writes(step: StepGraph) -> _Ops:
    """The writes that train: optimizer kernels, and writes of gradients to trainable variables.

    Any other write to a trainable variable updates a statistic whose variable was left trainable.
    If there is no other training write, as with gradients of a `tf.GradientTape`, these count.
    """
    trainable = {variable.name for variable in graphs.trainable_in(step.graph)}
    kernels = {write for write in step.writing if graphs.is_apply(write)}
    others = {
        write
        for write in step.writing
        if any(variable.name in trainable for variable in step.writes.variables(write))
    } - kernels
    if not others:
        return kernels
    gradients = [op for op in step.order if tf_private.op_that_was_differentiated(op) is not None]
    return kernels | (others & step.and_what_follows(gradients)) or others


def _find_forward_ops(step: StepGraph, training: _Ops, loss: Optional[tf.Tensor]) -> _Ops:
    """The ops that the loss and the gradients are computed from."""
    computed: _Ops = set()
    for value in (step.core, loss):
        if value is not None and graphs.is_float(value):
            made_of = graphs.ancestors([value.op], step.needs)
            if training.isdisjoint(made_of):  # else the value is a loss of the next update
                computed.update(made_of)
    before_training = [needed for write in training for needed in step.needs(write)]
    forward = computed.union(graphs.ancestors(before_training, step.needs))
    return forward - _find_slot_writes(step, training, computed)


def _find_slot_writes(step: StepGraph, training: _Ops, computed: _Ops) -> _Ops:
    """Writes that a training write needs, but no gradient needs: they can be gated as well.

    Adam's sparse update has such writes: it decays its moments, scatters into them, reads them, and
    subtracts from the weights. This function follows such arithmetic from the training writes back
    to the gradients that enter it.
    """
    slot_writes: _Ops = set()
    seen: _Ops = set()
    gradients: List[tf.Operation] = []
    waiting = _makers_of_written_values(step, training)
    while waiting:
        op = waiting.pop()
        if op in seen:
            continue
        seen.add(op)
        if op in step.writes and not step.writes.is_opaque(op):
            slot_writes.add(op)
            waiting.extend(step.needs(op))
        elif graphs.is_variable_read(op):
            waiting.extend(step.needs(op))
        elif keeps_finite(op):
            waiting.extend(step.resolve(t).op for t in op.inputs)
        elif op.type not in graphs.VARIABLES:
            gradients.append(op)
    return slot_writes - training - computed - set(graphs.ancestors(gradients, step.needs))


def _makers_of_written_values(step: StepGraph, training: _Ops) -> List[tf.Operation]:
    """The ops whose results are written to trainable variables, other than by a kernel."""
    return [
        step.resolve(value.tensor).op
        for write in training
        if not graphs.is_apply(write) and not step.writes.is_opaque(write)
        for value in graphs.values_of(write)
    ]


def _with_loops(step: StepGraph, gated: _Ops, loops: Set[object]) -> _Ops:
    """A loop runs as one: if one op in it is gated, all are, and all ops after it."""
    if not loops:
        return gated
    for op in step.order:
        if graphs.loop_around(op) in loops or any(n in gated for n in step.needs(op)):
            gated.add(op)
    return gated


def _require_no_placeholder(step: StepGraph, gated: _Ops) -> None:
    for op in step.order:
        is_ours = op.name.startswith(graphs.OURS)  # users do not feed our placeholders
        if op in gated and op.type.startswith('Placeholder') and not is_ours:
            raise ValueError(
                'cannot guard: placeholder %r waits for a write (it was made under '
                'tf.control_dependencies), so it would have to be fed twice. Make it ahead of '
                'the train ops' % op.name
            )


_MERGES = frozenset(['Merge', 'RefMerge'])
_CHOOSES = _MERGES | frozenset('Select SelectV2 If StatelessIf Case StatelessCase'.split())
_SCALES = frozenset('Mul MulNoNan RealDiv Div DivNoNan'.split())
# Ops whose result is a count if all inputs are counts: arithmetic, as in a schedule, but no choice.
_COUNTS = frozenset(
    'Identity ReadVariableOp Cast Add AddV2 Sub Mul FloorMod FloorDiv Maximum Minimum Equal '
    'NotEqual Less LessEqual Greater GreaterEqual LogicalNot LogicalAnd LogicalOr RealDiv Div '
    'DivNoNan Pow Exp Log Neg Square Sqrt Rsqrt Reciprocal Inv Floor Ceil Cos Tanh Sigmoid'.split()
)


class ForwardWrites:
    """Collects the writes that gradients wait for, by how each has to be treated.

    Attributes:
      put_back: the writes to undo after a bad step, by variable.
      opaque: the float variables of `put_back` whose new value can only be read after the write.
    """

    def __init__(self, step: StepGraph, gated: Set[tf.Operation]):
        self._step = step
        self._gated = gated
        self._pickers: Optional[Set[tf.Operation]] = None
        self.put_back: Dict[tf.Operation, List[tf.Operation]] = {}
        self.opaque: List[tf.Operation] = []

    def add(self, write: tf.Operation) -> bool:
        """Collects a write; returns whether the values that it takes are to be checked.

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
        if self._pickers is None:
            self._pickers = _find_pickers(self._step, self._gated)
        return variable in self._pickers


def find_left_alone(step: StepGraph) -> Set[tf.Operation]:
    """The writes that are not held back in a run that trains nothing.

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
        pickers = _find_pickers(step, updates)
        for write in others:
            if write not in updates and not pickers.isdisjoint(step.writes.variables(write)):
                found.add(write)
    return found


def find_barrier(
    step: StepGraph, gated: Set[tf.Operation], put_back: Dict[tf.Operation, List[tf.Operation]]
) -> List[tf.Operation]:
    """The ops that must have run before anything is written: asserts, forward writes, and so on."""
    barrier = list(step.waits)
    for op in step.order:
        if op in gated:
            barrier.extend(step.controls(op))
    for writes in put_back.values():
        barrier.extend(writes)
        barrier.extend(_ways_out(step, writes))
    # An op inside a branch or a loop may never run, and nothing could wait for it.
    return [
        op for op in dict.fromkeys(barrier) if op not in gated and graphs.context_of(op) is None
    ]


def _ways_out(step: StepGraph, writes: List[tf.Operation]) -> List[tf.Operation]:
    """The ops that lead out of the branches and loops that `writes` are in.

    An op that waits for these has waited for the writes: every path from a write to the train op
    leads through one of them.
    """
    around = {graphs.outermost_context(write) for write in writes} - {None}
    if not around:
        return []
    return [
        op
        for op in step.order
        if op.type in WAYS_OUT
        and any(graphs.outermost_context(needed) in around for needed in step.needs(op))
    ]


def _find_pickers(step: StepGraph, gated: Set[tf.Operation]) -> Set[tf.Operation]:
    """The non-float variables that pick the batch, such as an index."""
    needed = set(step.order)
    pickers: Set[tf.Operation] = set()
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
        elif not all(t.dtype == tf.string for t in op.outputs):  # an Assert or a summary picks none
            pickers |= taken
    return pickers


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

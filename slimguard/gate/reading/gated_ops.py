"""Which ops of a step are gated, and which ops have to run before any of them writes.

Gated are the writes that can wait for the decision, and all ops after them. Ops before the
gradients are left as they are. A write among them is a *forward write*; the gate undoes it after a
bad step (batch_counters.py).
"""

from typing import Dict, List, Optional, Set

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.compat import tf_private
from slimguard.gate.building.copies import is_put_back
from slimguard.gate.reading.late_writes import keeps_finite
from slimguard.gate.reading.step_graph import StepGraph
from slimguard.graph.control_flow import WAYS_OUT

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
    # Gate all that an earlier gate holds back. If such a write stayed in the forward pass, the
    # earlier gate would make it, and the new gate would run the original as well.
    training.update(write for write in step.writing if write in step.gated_before)
    forward = _find_forward_ops(step, training, loss) if left_alone is None else left_alone
    if not forward or left_alone is not None:
        # Nothing trains: a write that another train op's gate undoes is undone here as well.
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
        gated.add(step.train_op)  # the train op waits for all writes of the step
    _require_no_placeholder(step, gated)
    return gated


def _find_training_writes(step: StepGraph) -> _Ops:
    """The writes that train: optimizer kernels, and writes of gradients to trainable variables.

    Any other write to a trainable variable updates a statistic that the script left trainable. It
    counts only if there is no other training write, as with a `tf.GradientTape`.
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
            if training.isdisjoint(made_of):  # else the value belongs to the next update
                computed.update(made_of)
    before_training = [needed for write in training for needed in step.needs(write)]
    forward = computed.union(graphs.ancestors(before_training, step.needs))
    return forward - _find_slot_writes(step, training, computed)


def _find_slot_writes(step: StepGraph, training: _Ops, computed: _Ops) -> _Ops:
    """Writes that a training write needs but no gradient needs: these can be gated as well.

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
    """Gates whole loops: if one op of a loop is gated, so are its others, and all ops after it."""
    if not loops:
        return gated
    for op in step.order:
        if graphs.loop_around(op) in loops or any(n in gated for n in step.needs(op)):
            gated.add(op)
    return gated


def _require_no_placeholder(step: StepGraph, gated: _Ops) -> None:
    for op in step.order:
        is_ours = op.name.startswith(graphs.OURS)  # our placeholders have defaults
        if op in gated and op.type.startswith('Placeholder') and not is_ours:
            raise ValueError(
                'cannot guard: placeholder %r waits for a write (it was made under '
                'tf.control_dependencies), so it would have to be fed twice. Make it ahead of '
                'the train ops' % op.name
            )


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

    An op that waits for these ops also waits for the writes: every path from a write to the train
    op leads through one of them.
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

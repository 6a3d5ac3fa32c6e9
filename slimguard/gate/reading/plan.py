"""The plan of a gate: what a train op consists of, and what has to happen to each part.

:func:`make_plan` only reads the graph. :mod:`slimguard.gate` explains the words *forward*, *gated*,
*forward write* and *trial*.
"""

from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Set

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.gate.reading.batch_counters import ForwardWrites, find_left_alone
from slimguard.gate.reading.checked_values import Check, CheckedValues
from slimguard.gate.reading.gated_ops import find_barrier, find_gated_ops
from slimguard.gate.reading.kernels import Kernels, Range
from slimguard.gate.reading.late_writes import LateValues, find_ranges
from slimguard.gate.reading.losses import find_late_loss, find_losses
from slimguard.gate.reading.step_graph import GuardedBefore, StepGraph
from slimguard.graph import TrainOp, key, op_of


class Plan(NamedTuple):
    """What a train op consists of.

    Attributes:
      step: the ops of the step.
      gated: the ops among them to run behind the switch.
      losses: floating scalars that have to be finite; the first is *the* loss.
      late_loss: the loss, if ops after the update compute it, so that it cannot be checked before.
      checks: the other values to check before the update, each once.
      variables: the variables that gated ops write.
      changed: the float variables among `variables` whose new value is computed from the old one,
        so that a NaN in them stays.
      put_back: the forward writes to undo after a bad step, by variable.
      opaque_forward: the variables of `put_back` whose new value can only be read after the write.
      trial: whether only the written values show if the gated writes are good.
      ranges: the ranges of kernel arguments and of factors of late writes. If one of these is out
        of its range, the step has to check the values that it wrote.
      barrier: ops that must run before anything is written, such as asserts.
      values: tensors of the step that are fetched beside the train op.
      trains: whether it may train; False for a run that only writes.
      chief_at: for a chief's update with accumulated gradients, the device of the chief, which
        decides since there is no loss. Else None.
    """

    step: StepGraph
    gated: Set[tf.Operation]
    losses: Sequence[tf.Tensor]
    late_loss: Optional[tf.Tensor]
    checks: Sequence[Check]
    variables: Sequence[tf.Operation]
    changed: Set[tf.Operation]
    put_back: Dict[tf.Operation, List[tf.Operation]]
    opaque_forward: Sequence[tf.Operation]
    trial: bool
    ranges: Sequence[Range]
    barrier: Sequence[tf.Operation]
    values: Sequence[tf.Tensor]
    trains: bool
    chief_at: Optional[str]

    @property
    def is_chiefs(self) -> bool:
        """Whether this is the plan of a chief's update with accumulated gradients."""
        return self.chief_at is not None


def make_plan(
    train_op: TrainOp,
    loss: Optional[tf.Tensor],
    guarded: Dict[tf.Operation, GuardedBefore],
    values: Sequence[tf.Tensor] = (),
    chief_at: Optional[str] = None,
    fed: Sequence[tf.Tensor] = (),
    trains: bool = True,
) -> Plan:
    """Plans the gate of a train op.

    Args:
      loss: the loss, if it was given.
      guarded: the train ops that are guarded already.
      values: tensors that the train op needs, to be fetched beside it.
      chief_at: as in `Plan`.
      fed: as for `StepGraph`.
      trains: whether the forward pass may write; if False, the gate holds back each write.

    Raises:
      ValueError: if the train op writes nothing, or something that cannot be undone.
    """
    step = StepGraph(train_op, loss, guarded, fed)
    left_alone = None if trains else find_left_alone(step)
    gated = find_gated_ops(step, left_alone, loss)
    _require_end(step, gated)
    late = LateValues(step, gated)
    losses = find_losses(step, gated, late, loss)
    late_loss = find_late_loss(step, gated, late, loss)
    gated_writes = [write for write in step.writing if write in gated]
    variables = [v for write in gated_writes for v in step.writes.variables(write)]
    judged_before: List[tf.Operation] = []
    ranges: List[Range] = []
    checked = CheckedValues(step, gated, losses)
    kernels = Kernels(step)
    forward = ForwardWrites(step, gated)
    for write in step.writing:
        if write in gated:
            found = checked.add_gated(write, late, kernels)
            if found is not None:
                judged_before.append(write)
                ranges += found
        elif write not in (left_alone or ()) and forward.add(write):
            checked.add_forward(write)
    factors = find_ranges(judged_before, step, late)
    trial = late_loss is not None or len(judged_before) < len(gated_writes)
    plan = Plan(
        step=step,
        gated=gated,
        losses=losses,
        late_loss=late_loss,
        checks=checked.checks,
        variables=list(dict.fromkeys(variables)),
        changed=_find_changed(step, gated_writes),
        put_back=forward.put_back,
        opaque_forward=forward.opaque,
        trial=trial or factors is None,
        ranges=_each_once(ranges + (factors or [])),
        barrier=find_barrier(step, gated, forward.put_back),
        values=values,
        trains=trains,
        chief_at=chief_at,
    )
    if plan.trial:
        _require_undo(plan)
    return plan


def _each_once(ranges: Iterable[Range]) -> List[Range]:
    return list({(key(each.tensor), each.low, each.high): each for each in ranges}.values())


def _find_changed(step: StepGraph, gated_writes: Sequence[tf.Operation]) -> Set[tf.Operation]:
    """The float variables whose new value is computed from the old one.

    Of variables that a function or a loop writes, only the trainable ones count. Variables that are
    only assigned do not count: some begin as Inf, such as a smallest loss so far.
    """
    trainable = graphs.trainable_in(step.graph)
    found: Set[tf.Operation] = set()
    for write in gated_writes:
        is_opaque = step.writes.is_opaque(write)
        if is_opaque or graphs.changes_value(write):
            written = filter(graphs.is_float_variable, step.writes.variables(write))
            found.update(v for v in written if not is_opaque or v in trainable)
    return found


def _require_end(step: StepGraph, gated: Set[tf.Operation]) -> None:
    """Raises ValueError if the train op is a value of the forward pass: no gate can delay it."""
    if op_of(step.train_op) not in gated:
        writes = step.writing[0]
        raise ValueError(
            'cannot guard: %r trains nothing. It is a value of the forward pass, which writes %s '
            '(by %r). Pass the train op; or, for a run that only computes this value and writes '
            'that, slimguard.guard(tf.group(value))'
            % (
                step.train_op.name,
                ', '.join(repr(v.name) for v in step.writes.variables(writes)) or 'something',
                writes.name,
            )
        )


def _require_undo(plan: Plan) -> None:
    step = plan.step
    for write in step.writing:
        if write in plan.gated and not step.writes.variables(write):
            raise ValueError(
                'cannot guard: %s %r cannot be undone, and this train op has writes that can '
                'only be judged afterwards (inside a loop or a function, or computed from '
                'updated variables). Guard the two parts as train ops of their own'
                % (write.type, write.name)
            )

"""Finds where in a step non-finite numbers began.

The search walks back from bad tensors, along non-finite ones, to an op with a non-finite output and
finite inputs; or to a source, a variable or a constant, which have no inputs.

A constant was the same in all good steps. So if the walk ends at a constant, the cause is
elsewhere: the condition that selected the constant, if it was computed from a bad tensor; or the op
that made a NaN from the constant's Inf, such as a softmax of nothing but a mask.
"""

from typing import Any, List, Sequence, Tuple

import tensorflow as tf

from slimguard.diagnosis.causes import COPE_WITH_MINUS_INF
from slimguard.diagnosis.draws import is_written_value
from slimguard.diagnosis.measured_step import MeasuredStep
from slimguard.graph import key

_PHASES = ('forward', 'backward', 'update')


def where_it_began(measured: MeasuredStep, bad: Sequence[tf.Tensor]) -> List[tf.Tensor]:
    """The tensors where the non-finite numbers in `bad` began; the first of the step first."""
    beginnings = _walk_back(measured, bad, stops=False)
    if any(_may_be_meant(measured, tensor) for tensor in beginnings):
        beginnings = _walk_back(measured, bad, stops=True)
    return sorted(beginnings, key=lambda tensor: _rank(measured, tensor))


def _walk_back(measured: MeasuredStep, bad: Sequence[tf.Tensor], stops: bool) -> List[tf.Tensor]:
    """Where the walks back end. With `stops` they also end at an op that makes a NaN of a mask."""
    beginnings = []
    seen = set()
    waiting = list(bad)
    while waiting:
        tensor = waiting.pop()
        if key(tensor) in seen:
            continue
        seen.add(key(tensor))
        before = [t for t in measured.inputs_of(tensor) if measured.is_bad(t)]
        if before and all(t.op in measured.fixed for t in before):
            before = measured.chosen_by(tensor) or before
        if stops and before and _makes_nan_of_mask(measured, tensor, before):
            before = []
        waiting.extend(before)
        if not before:
            beginnings.append(tensor)
    return beginnings


def _makes_nan_of_mask(
    measured: MeasuredStep, tensor: tf.Tensor, before: Sequence[tf.Tensor]
) -> bool:
    """Whether an op made a NaN of an intended Inf."""
    ranges = [measured.range_of(t) for t in before]
    made = measured.range_of(tensor)
    if made is None or not made.nan or any(r is None or r.nan for r in ranges):
        return False
    copes = tensor.op.type in COPE_WITH_MINUS_INF
    behind = _walk_back(measured, before, stops=False)
    return all(t.op in measured.fixed or copes and t.op.type == 'Log' for t in behind)


def _may_be_meant(measured: MeasuredStep, tensor: tf.Tensor) -> bool:
    return tensor.op in measured.fixed or tensor.op.type == 'Log'


def _rank(measured: MeasuredStep, tensor: tf.Tensor) -> Tuple[Any, ...]:
    if measured.step.is_fed(tensor):
        # By the sources' own names: a copy of the step has a placeholder for each.
        name, _, index = measured.step.name_of(tensor).rpartition(':')
        # Values from outside come first.
        is_written = is_written_value(measured.step.type_of(tensor.op))
        shares = measured.shares_of(tensor)
        return (False, -1, int(is_written), *shares, name, int(index))
    op, index = tensor.op, tensor.value_index
    phase = _PHASES.index(measured.phase_of(op))
    return op in measured.fixed, phase, measured.number_of(op), 0.0, 0.0, '', index

"""Finds where in a step non-finite numbers began.

The search walks back from bad tensors, along what is not finite, to an op whose output is not
finite and whose inputs are; or to a source, a variable or a constant, which have no inputs.
"""

from typing import List, Sequence, Tuple

import tensorflow as tf

from slimguard.diagnosis.draws import is_written_value
from slimguard.diagnosis.measured_step import MeasuredStep
from slimguard.graph import key

_PHASES = ('forward', 'backward', 'update')


def where_it_began(measured: MeasuredStep, bad: Sequence[tf.Tensor]) -> List[tf.Tensor]:
    """The tensors that made `bad` non-finite, each for itself; the first of the step first."""
    beginnings = []
    seen = set()
    waiting = list(bad)
    while waiting:
        tensor = waiting.pop()
        if key(tensor) in seen:
            continue
        seen.add(key(tensor))
        before = [t for t in measured.inputs_of(tensor) if measured.is_bad(t)]
        waiting.extend(before)
        if not before:
            beginnings.append(tensor)
    return sorted(beginnings, key=lambda tensor: _rank(measured, tensor))


def _rank(measured: MeasuredStep, tensor: tf.Tensor) -> Tuple[bool, int, int, str, int]:
    if measured.step.is_fed(tensor):
        # By the names that they had: a copy of the step has a placeholder for each.
        name, _, index = measured.step.name_of(tensor).rpartition(':')
        # What came from outside is the first.
        is_written = is_written_value(measured.step.type_of(tensor.op))
        return False, -1, int(is_written), name, int(index)
    op, index = tensor.op, tensor.value_index
    # A constant was the same in all the good steps.
    phase = _PHASES.index(measured.phase_of(op))
    return op in measured.fixed, phase, measured.number_of(op), '', index

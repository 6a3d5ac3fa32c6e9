"""Explains a bad step, one function for each way in which it can be bad.

A tensor is not finite; a norm overflows when it is squared; the loss is above its limit; or a
variable overflows when it is updated.
"""

import math
from typing import List, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

from slimguard import graph as graphs
from slimguard.diagnosis import causes
from slimguard.diagnosis.diagnosis import Diagnosis, Input
from slimguard.diagnosis.draws import is_written_value
from slimguard.diagnosis.hidden_ops import explain_inside
from slimguard.diagnosis.measured_step import SAME_NUMBERS, MeasuredStep
from slimguard.diagnosis.ranges import NonFinite, Range, find_non_finite, measure
from slimguard.diagnosis.rerun import Step
from slimguard.graph import key
from slimguard.graph.source_lines import Origins
from slimguard.system import texts

_LARGE_WEIGHT = 1e6
_NO_VALUE = np.array(np.nan, np.float32)  # stands for a tensor in a branch that did not run


def explain_non_finite(measured: MeasuredStep, tensors: Sequence[tf.Tensor]) -> Diagnosis:
    """Why the first of `tensors` is not finite, though none of what it was computed from is.

    Args:
      measured: the step.
      tensors: that one, and others like it.
    """
    tensor, *others = tensors
    step, op = measured.step, tensor.op
    given = measured.inputs_of(tensor)
    values = step.fetch([tensor] + [t for t in given if measured.range_of(t) is not None])
    output, *inputs = [_NO_VALUE if value is None else value for value in values]
    told = _describe(measured, tensor)._replace(non_finite=find_non_finite(output))
    if step.is_fed(tensor):
        outside = [t for t in others if step.is_fed(t) and not is_written_value(step.type_of(t.op))]
        return _explain_source(told, list(map(step.name_of, outside)))
    if graphs.is_variable_read(op) or op.type in graphs.VARIABLES:
        return _explain_variable(told, tensor)
    if op.type == 'Const':
        return told._replace(phase='constant', trouble='the graph itself holds it')
    told = told._replace(inputs=tuple(Input(step.name_of(t), measured.range_of(t)) for t in given))
    trouble = explain_inside(step, op)
    if not trouble:
        forward, dtype = _type_of(step, told.forward_op), tensor.dtype.base_dtype.name
        culprit = causes.Culprit(step.type_of(op), forward, inputs, output, dtype)
        trouble = causes.explain(culprit)
        if trouble.startswith('overflow'):
            trouble += _large_weights(measured)
    return told._replace(trouble=trouble)


def explain_sources(tensors: Sequence[tf.Tensor], value: np.ndarray) -> Diagnosis:
    """What a step drew is not finite: `tensors`, of which the first has the given value."""
    tensor, *others = tensors
    told = Diagnosis(
        phase='input',
        trouble='',
        op=tensor.op.name,
        op_type=tensor.op.type,
        tensor=tensor.name,
        line=Origins(tensor.graph)(tensor.op.name).line,
        output=measure(value, tensor.dtype.base_dtype.name),
        non_finite=find_non_finite(value),
    )
    outside = [other.name for other in others if not is_written_value(other.op.type)]
    return _explain_source(told, outside)


def explain_square(measured: MeasuredStep, name: str) -> Diagnosis:
    """Explains a bad step in which gradients are finite, and their squares are not.

    Args:
      measured: the step.
      name: what one of them is called. The one that explains the step may be another.
    """

    def squared(tensor) -> float:
        found = measured.range_of(tensor)
        # In the dtype's own terms: 1e20 is much for float32, and 1e3 for float16.
        return 0.0 if found is None else found.largest / _root_of_largest(found.dtype)

    floats = [t for t in measured.step.checked if squared(t) > 1]
    trouble = 'the %s is finite, but its square is not, and the optimizer squares it'
    if not floats:
        return Diagnosis('update', trouble % name)
    first = min(floats, key=lambda t: measured.number_of(t.op))
    trouble %= _gradient_name(measured.step, first) or name
    while first.op.type in SAME_NUMBERS and not measured.step.is_fed(first):
        first = first.op.inputs[0]
    return _describe(measured, first)._replace(trouble=trouble + _large_weights(measured))


def explain_limit(measured: MeasuredStep, name: str) -> Diagnosis:
    """The loss is above its limit; `name` is not needed."""
    gate = measured.step.gate
    assert gate.loss is not None and gate.limit is not None  # where there is that label
    fed = _fed(measured, gate.limit)
    limit = '' if fed is None else ' (%.6g)' % fed
    trouble = 'the loss is above its limit%s, and everything is finite' % limit
    told = _describe(measured, gate.loss)
    return told._replace(trouble=trouble + _large_weights(measured))


def explain_norm(measured: MeasuredStep, name: str) -> Diagnosis:
    """The gradients together are above the limit of their norm, which is called `name`."""
    gate = measured.step.gate
    assert gate.norm_limit is not None  # where there is that label
    fed = _fed(measured, gate.norm_limit)
    limit = '' if fed is None else ' (%.6g)' % math.sqrt(2 * fed)
    trouble = 'the %s is above its limit%s, and everything is finite' % (name, limit)

    def largest(tensor: tf.Tensor) -> float:
        found = measured.range_of(tensor)
        return 0.0 if found is None else found.largest

    floats = [t for t in measured.step.checked if gate.loss is None or key(t) != key(gate.loss)]
    if not floats:
        return Diagnosis('update', trouble)
    told = _describe(measured, max(floats, key=largest))
    return told._replace(trouble=trouble + _large_weights(measured))


def explain_update(measured: MeasuredStep, name: str) -> Diagnosis:
    """Everything that went into the update of the variable `name` was finite; the result is not."""
    trouble = '%s overflows when it is updated: the learning rate is too large' % name
    kernel = _kernel_of(measured.step, name)
    if kernel is None:
        return Diagnosis('update', trouble)
    inputs = []
    for value in graphs.values_of(kernel):
        found = measured.range_of(value.tensor)
        inputs.append(Input('%s (%s)' % (value.tensor.name, value.role), found))
    original = _original_name(kernel.name)
    return Diagnosis(
        phase='update',
        trouble=trouble,
        op=original,
        op_type=kernel.type,
        line=measured.step.origins(original).line,
        inputs=tuple(inputs),
    )


def _fed(measured: MeasuredStep, limit: tf.Tensor) -> Optional[float]:
    """The value of a limit of the gate; None if it was not kept."""
    values = [v for t, v in measured.step.feed.items() if key(t) == key(limit)]
    return float(values[0]) if values else None


def _describe(measured: MeasuredStep, tensor: tf.Tensor) -> Diagnosis:
    """All but the trouble: which op it is, who made it, and the range of its output."""
    step, op = measured.step, tensor.op
    origin = step.origins(op.name)
    name = step.name_of(tensor)
    return Diagnosis(
        phase=measured.phase_of(op),
        trouble='',
        op=name.rpartition(':')[0],
        op_type=step.type_of(op),
        tensor=name,
        line=origin.line,
        forward_op=origin.forward,
        output=measured.range_of(tensor),
    )


def _explain_source(told: Diagnosis, others: Sequence[str]) -> Diagnosis:
    assert told.output is not None and told.non_finite is not None
    if is_written_value(told.op_type or ''):
        return told._replace(phase='variable', trouble=_WRITTEN)
    trouble = _bad_data(told.output, told.non_finite)
    if told.op_type in graphs.CALLS:
        trouble += '; it comes out of a function, which cannot be looked into'
    if others:
        trouble += '; not finite as well: %s' % texts.listed(others, 3)
    return told._replace(phase='input', trouble=trouble)


_WRITTEN = (
    'the step wrote it, and reads it again, and what it was given is finite: the variable was bad '
    'before, or overflowed'
)


def _bad_data(output: Range, found: NonFinite) -> str:
    counts = ((output.nan, 'NaN'), (output.inf, 'Inf'))
    what = ' and '.join('%d %s' % (n, word) for n, word in counts if n)
    size = int(np.prod(output.shape, dtype=np.int64))
    rows = ''
    if found.rows:
        rows = ', in row%s %s' % ('s' if len(found.rows) > 1 else '', texts.listed(found.rows, 10))
    return 'bad data: %s among %d values%s' % (what, size, rows)


def _explain_variable(told: Diagnosis, tensor: tf.Tensor) -> Diagnosis:
    variable = graphs.variable_read(tensor)
    name = variable.name if variable is not None else tensor.op.name
    return told._replace(
        phase='variable', trouble='%s was not finite already before this step' % name
    )


def _type_of(step: Step, name: Optional[str]) -> str:
    """The type of the op of that name; empty if there is none."""
    if name is None:
        return ''
    try:
        return step.type_of(step.graph.get_operation_by_name(name))
    except KeyError:
        return ''


def _large_weights(measured: MeasuredStep) -> str:
    largest, name = _largest_weight(measured)
    if largest < _LARGE_WEIGHT:
        return ''
    return (
        '. The weights have grown to %.3g (%s): the learning rate is so large that the '
        'training runs away' % (largest, name)
    )


def _largest_weight(measured: MeasuredStep) -> Tuple[float, str]:
    found = (0.0, '')
    for op in measured.step.ops:
        weights = measured.range_of(op.outputs[0]) if graphs.is_variable_read(op) else None
        if weights is not None:
            variable = graphs.variable_read(op.outputs[0])
            if variable is not None:
                found = max(found, (weights.largest, variable.name))
    return found


def _gradient_name(step: Step, tensor: tf.Tensor) -> str:
    """What a gate calls a gradient; empty if no optimizer takes it as it is."""
    writes = graphs.Writes(step.graph)
    for op in filter(graphs.is_apply, step.ours):
        if any(key(value.tensor) == key(tensor) for value in graphs.values_of(op)):
            variables = writes.variables(op)
            return 'gradient of %s' % variables[0].name if variables else ''
    return ''


def is_unseen(step: Step, name: str) -> bool:
    """Whether the variable `name` is updated in a loop or a function, where no value is seen."""
    kernel = _kernel_of(step, name)
    original = None if kernel is None else _original_of(step, kernel)
    return original is None or graphs.loop_around(original) is not None


def _kernel_of(step: Step, name: str) -> Optional[tf.Operation]:
    """The gate's clone of the op that updates the variable `name`; None of one in a function."""
    writes = graphs.Writes(step.graph)
    kernels: List[tf.Operation] = [
        op
        for op in step.ours
        if any(v.name == name for v in writes.variables(op))
        and (graphs.values_of(op) or graphs.is_apply(op))
        # An op that undoes an update writes the variable too, and is no clone.
        and _original_name(op.name) != op.name
    ]
    known = [op for op in kernels if _original_of(step, op) is not None]
    kernels = known or kernels  # a bundle that is replayed has no originals
    return next((op for op in kernels if graphs.is_apply(op)), kernels[0] if kernels else None)


def _original_of(step: Step, clone: tf.Operation) -> Optional[tf.Operation]:
    try:
        return step.graph.get_operation_by_name(_original_name(clone.name))
    except KeyError:
        return None


def _original_name(name: str) -> str:
    """The name of the op that a gate's clone was made of: slimguard/gate/NAME."""
    parts = name.split('/', 2)
    return parts[2] if len(parts) == 3 else name


def _root_of_largest(dtype: str) -> float:
    return {'float16': 255.9, 'float64': 1.34e154, 'complex128': 1.34e154}.get(dtype, 1.84e19)

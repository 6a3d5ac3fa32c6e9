"""Explains an update that is not finite although all its inputs are."""

from typing import List, Optional

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.diagnosis.diagnosis import Diagnosis, Input
from slimguard.diagnosis.measured_step import MeasuredStep
from slimguard.diagnosis.step import Step
from slimguard.incidents import policies

# Arguments of optimizers, and the number that a dtype may round each of them to. With it an update
# divides by 0.
_ROUNDED = {'epsilon': 0.0, 'beta1': 1.0}


def explain_update(measured: MeasuredStep, name: str) -> Diagnosis:
    """Explains an update of the variable `name` that is not finite, although all its inputs are."""
    kernel = _kernel_of(measured.step, name)
    if kernel is None:
        trouble = '%s overflows when it is updated' % name
        return Diagnosis('update', trouble, kind=policies.EXPLOSION)
    inputs, rounded = [], []
    for value in graphs.values_of(kernel):
        tensor = _without_factor(value.tensor)
        found = measured.range_of(tensor)
        inputs.append(Input('%s (%s)' % (tensor.name, value.role), found))
        number = _ROUNDED.get(value.role)
        if found is not None and number is not None and found.min == found.max == number:
            rounded.append('%s is %g in %s' % (value.role, number, found.dtype))
    original = _original_name(kernel.name)
    taken = 'the gradient and all other inputs' if graphs.is_apply(kernel) else 'all inputs'
    trouble = '%s would not be finite after the update, though %s of the update are' % (name, taken)
    return Diagnosis(
        phase='update',
        trouble=': '.join([trouble, *rounded]),
        op=original,
        op_type=kernel.type,
        line=measured.step.origins(original).line,
        inputs=tuple(inputs),
        kind=policies.COMES_AGAIN if rounded else policies.EXPLOSION,
    )


def _without_factor(tensor: tf.Tensor) -> tf.Tensor:
    """The learning rate before it was multiplied by a factor of ours."""
    is_scaled = tensor.op.name.startswith(graphs.OURS) and tensor.op.type == 'Mul'
    return tensor.op.inputs[0] if is_scaled else tensor


def is_unseen(step: Step, name: str) -> bool:
    """Whether the variable `name` is updated in a loop or a function, where nothing is fetched."""
    kernel = _kernel_of(step, name)
    return kernel is None or not _is_clone(step, kernel) or step.flow.is_in_loop(kernel)


def is_squared(step: Step, name: str) -> bool:
    """Whether an optimizer that squares the gradient updates the variable `name`."""
    kernel = _kernel_of(step, name)
    return kernel is not None and graphs.squares_gradient(kernel)


def _kernel_of(step: Step, name: str) -> Optional[tf.Operation]:
    """The gate's clone of the op that updates the variable `name`; None if a function holds it."""
    writes = graphs.Writes(step.graph)
    kernels: List[tf.Operation] = [
        op
        for op in step.ours
        if any(v.name == name for v in writes.variables(op))
        and (graphs.values_of(op) or graphs.is_apply(op))
        # An op that undoes an update writes the variable too, and is no clone.
        and _original_name(op.name) != op.name
    ]
    kernels = [op for op in kernels if _is_clone(step, op)] or kernels
    return next((op for op in kernels if graphs.is_apply(op)), kernels[0] if kernels else None)


def _is_clone(step: Step, op: tf.Operation) -> bool:
    """Whether an op of the gate is the clone of an op of the user's graph."""
    return _original_name(op.name) in step.origins


def _original_name(name: str) -> str:
    """The name of the op that a gate cloned: the clone is called slimguard/gate/NAME."""
    parts = name.split('/', 2)
    return parts[2] if len(parts) == 3 else name

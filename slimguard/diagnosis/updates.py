"""Explains an update that is not finite although all its inputs are.

The update is run again in a graph of its own, with other arguments, to find out what would have
helped: a smaller learning rate, or an argument that its dtype does not round to 0 or 1.
"""

from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.diagnosis.diagnosis import Diagnosis, Input
from slimguard.diagnosis.measured_step import MeasuredStep
from slimguard.diagnosis.ranges import numbers
from slimguard.diagnosis.rerun import Step
from slimguard.graph import single_runs
from slimguard.graph.walk import arguments_of
from slimguard.incidents import policies

_RATES = ('lr', 'alpha')
_SMALLER = 1e-6  # times the rate


class _Rounded(NamedTuple):
    """An optimizer's argument that a dtype may round to a number with which no update is finite.

    Attributes:
      names: its name in kernels, and those of inputs that are computed from it and rounded too.
      to: the rounded number.
      tried: numbers that may work, in this order.
    """

    names: Tuple[str, ...]
    to: float
    tried: Tuple[float, ...]


_EPSILON = _Rounded(('epsilon',), 0.0, (1e-4, 1e-3, 1e-2))
_ROUNDED = (_EPSILON, _Rounded(('beta1', 'beta1_power'), 1.0, (0.9,)))


class WouldHelp(NamedTuple):
    """What would have made an update finite.

    Attributes:
      smaller_rate: whether a smaller learning rate would.
      argument: the sentence about an argument that is the cause; '' if none is.
    """

    smaller_rate: bool = False
    argument: str = ''


def _what_would_help(step: Step, kernel: tf.Operation) -> WouldHelp:
    """Finds out what would have made an update finite; nothing if it cannot be run again.

    Args:
      step: the step, whose variables are as they were before it.
      kernel: the op that updates the variable.
    """
    given = _inputs_of(step, kernel)
    if given is None or _is_finite(kernel, given):
        return WouldHelp()
    names = [argument.name for argument in arguments_of(kernel)]

    def helps(indices: Sequence[int], value) -> bool:
        other = np.asarray(value).astype(given[indices[0]].dtype)
        changed = {index: other for index in indices}
        return bool(other != 0) and _is_finite(kernel, {**given, **changed})

    rates = [names.index(name) for name in _RATES if name in names]
    if rates and helps(rates[:1], given[rates[0]].astype(np.float64) * _SMALLER):
        return WouldHelp(smaller_rate=True)
    for argument in _ROUNDED:
        indices = [names.index(name) for name in argument.names if name in names]
        if not indices or np.any(numbers(given[indices[0]]) != argument.to):
            continue
        for value in argument.tried:
            if helps(indices, value):
                dtype = kernel.inputs[indices[0]].dtype.base_dtype.name
                return WouldHelp(argument=_rounded_in_words(argument, dtype, value))
    return WouldHelp()


def _rounded_in_words(argument: _Rounded, dtype: str, value: float) -> str:
    name = argument.names[0]
    return '%s is %g in %s; it works with %s=%g' % (name, argument.to, dtype, name, value)


def _inputs_of(step: Step, kernel: tf.Operation) -> Optional[Dict[int, np.ndarray]]:
    """The values of a kernel's inputs, and of its variables, by index. None if one is unknown."""
    reads: List[Optional[tf.Tensor]] = []
    for tensor in kernel.inputs:
        if graphs.is_reference(tensor) or tensor.dtype == tf.resource:
            reads.append(_read(graphs.variable_behind(tensor)))
        else:  # any other op of ours waits for the gate
            tensor = _without_factor(tensor)
            reads.append(None if tensor.op.name.startswith(graphs.OURS) else tensor)
    known = [t for t in reads if t is not None]
    if len(known) < len(reads):
        return None
    values = step.fetch(known)
    if any(value is None for value in values):
        return None
    return {index: np.asarray(value) for index, value in enumerate(values)}


def _without_factor(tensor: tf.Tensor) -> tf.Tensor:
    """The learning rate before it was multiplied by a factor of ours."""
    is_scaled = tensor.op.name.startswith(graphs.OURS) and tensor.op.type == 'Mul'
    return tensor.op.inputs[0] if is_scaled else tensor


def _read(variable: Optional[tf.Operation]) -> Optional[tf.Tensor]:
    """A tensor that reads a variable and waits for nothing; None if the graph has none."""
    if variable is None:
        return None
    if not graphs.is_resource(variable):
        return variable.outputs[0]
    for op in variable.outputs[0].consumers():
        if op.type == 'ReadVariableOp' and not op.control_inputs and graphs.flow_around(op) is None:
            return op.outputs[0]
    return None


def _is_finite(kernel: tf.Operation, given: Dict[int, np.ndarray]) -> bool:
    """Whether the kernel leaves its variables finite if it is given these inputs."""
    with tf.Graph().as_default() as graph:
        inputs, variables = [], []
        for index, tensor in enumerate(kernel.inputs):
            if not (tensor.dtype == tf.resource or graphs.is_reference(tensor)):
                inputs.append(tf.constant(given[index]))
                continue
            variables.append(
                tf1.get_variable(
                    'v%d' % index,
                    initializer=tf.constant(given[index]),
                    use_resource=tensor.dtype == tf.resource,
                )
            )
            inputs.append(variables[-1].op.outputs[0])
        attributes = {n: v for n, v in kernel.node_def.attr.items() if not n.startswith('_')}
        dtypes = [tensor.dtype for tensor in kernel.outputs]
        update = graph.create_op(kernel.type, inputs, dtypes, attrs=attributes)
        with tf1.Session(graph=graph) as session:
            single_runs.run_once(session, [variable.initializer for variable in variables])
            single_runs.run_once(session, update)
            values = single_runs.run_once(session, variables)
    return all(np.isfinite(numbers(value)).all() for value in values)


def explain_update(measured: MeasuredStep, name: str) -> Diagnosis:
    """Explains an update of the variable `name` that is not finite, although all its inputs are."""
    kernel = _kernel_of(measured.step, name)
    if kernel is None:
        trouble = '%s overflows when it is updated' % name
        return Diagnosis('update', trouble, kind=policies.EXPLOSION)
    inputs = []
    for value in graphs.values_of(kernel):
        tensor = _without_factor(value.tensor)
        found = measured.range_of(tensor)
        inputs.append(Input('%s (%s)' % (tensor.name, value.role), found))
    original = _original_name(kernel.name)
    would = _what_would_help(measured.step, kernel)
    taken = 'the gradient and all other inputs' if graphs.is_apply(kernel) else 'all inputs'
    trouble = '%s would not be finite after the update, though %s of the update are' % (name, taken)
    kind = ''
    if would.smaller_rate:
        trouble = '%s overflows when it is updated: the learning rate is too large' % name
        kind = policies.EXPLOSION
    elif would.argument:
        trouble += ': ' + would.argument
        kind = policies.COMES_AGAIN
    return Diagnosis(
        phase='update',
        trouble=trouble,
        op=original,
        op_type=kernel.type,
        line=measured.step.origins(original).line,
        inputs=tuple(inputs),
        kind=kind,
    )


def rounded_in_quotient(measured: MeasuredStep, tensor: tf.Tensor) -> str:
    """The sentence about an epsilon of 0, where an update made of small ops divides by 0 + 0.

    '' if `tensor` is no such quotient, or would not be finite with another epsilon either.
    """
    op = tensor.op
    is_quotient = op.type in ('RealDiv', 'Div') and measured.made_of(tensor).slots
    if not is_quotient or op.inputs[1].op.type not in ('Add', 'AddV2'):
        return ''
    above, below = (None if x is None else np.asarray(x) for x in measured.step.fetch(op.inputs))
    if above is None or below is None:
        return ''
    for epsilon in op.inputs[1].op.inputs:
        found, behind = measured.range_of(epsilon), measured.made_of(epsilon)
        if found is None or found.shape or found.largest or behind.draws or behind.floats:
            continue
        for value in _EPSILON.tried:
            with np.errstate(all='ignore'):
                quotient = above / (below + np.asarray(value).astype(below.dtype))
            if np.isfinite(numbers(quotient)).all():
                return _rounded_in_words(_EPSILON, tensor.dtype.base_dtype.name, value)
    return ''


def is_unseen(step: Step, name: str) -> bool:
    """Whether the variable `name` is updated in a loop or a function, where nothing is fetched."""
    kernel = _kernel_of(step, name)
    original = None if kernel is None else _original_of(step, kernel)
    return original is None or graphs.loop_around(original) is not None


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
    known = [op for op in kernels if _original_of(step, op) is not None]
    kernels = known or kernels  # a bundle that is replayed has no originals
    return next((op for op in kernels if graphs.is_apply(op)), kernels[0] if kernels else None)


def _original_of(step: Step, clone: tf.Operation) -> Optional[tf.Operation]:
    try:
        return step.graph.get_operation_by_name(_original_name(clone.name))
    except KeyError:
        return None


def _original_name(name: str) -> str:
    """The name of the op that a gate cloned: the clone is called slimguard/gate/NAME."""
    parts = name.split('/', 2)
    return parts[2] if len(parts) == 3 else name

"""Runs the update of a variable again, in a graph of its own, with other arguments.

So it is found out what would have been finite: a smaller learning rate, or a larger epsilon.
"""

from typing import Dict, List, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.diagnosis.ranges import numbers
from slimguard.diagnosis.rerun import Step
from slimguard.graph import single_runs
from slimguard.graph.walk import arguments_of

_RATES = ('lr', 'alpha')
_SMALLER = 1e-6  # times the rate
_EPSILONS = (1e-4, 1e-3, 1e-2)  # tried in this order


class WouldHelp(NamedTuple):
    """What would have made an update finite.

    Attributes:
      smaller_rate: whether a smaller learning rate would.
      epsilon: an `epsilon` that would, where it is 0 in the dtype as it is; else None.
    """

    smaller_rate: bool = False
    epsilon: Optional[float] = None


def what_would_help(step: Step, kernel: tf.Operation) -> WouldHelp:
    """Tries what would have made an update finite; nothing if it cannot be run again.

    Args:
      step: the step, whose variables are as they were before it.
      kernel: the op that updates the variable.
    """
    given = _inputs_of(step, kernel)
    if given is None or _is_finite(kernel, given):
        return WouldHelp()
    names = [argument.name for argument in arguments_of(kernel)]

    def helps(name: str, value) -> bool:
        index = names.index(name)
        other = np.asarray(value).astype(given[index].dtype)
        return bool(other != 0) and _is_finite(kernel, {**given, index: other})

    rates = [name for name in _RATES if name in names]
    if rates and helps(rates[0], given[names.index(rates[0])].astype(np.float64) * _SMALLER):
        return WouldHelp(smaller_rate=True)
    if 'epsilon' in names and not numbers(given[names.index('epsilon')]).any():
        for epsilon in _EPSILONS:
            if helps('epsilon', epsilon):
                return WouldHelp(epsilon=epsilon)
    return WouldHelp()


def _inputs_of(step: Step, kernel: tf.Operation) -> Optional[Dict[int, np.ndarray]]:
    """What a kernel took, by input: for a variable, its value."""
    reads: List[Optional[tf.Tensor]] = []
    for tensor in kernel.inputs:
        if graphs.is_reference(tensor) or tensor.dtype == tf.resource:
            reads.append(_read(graphs.variable_behind(tensor)))
        else:  # one of ours, such as a rate times a factor, waits for the gate
            reads.append(None if tensor.op.name.startswith(graphs.OURS) else tensor)
    known = [t for t in reads if t is not None]
    if len(known) < len(reads):
        return None
    values = step.fetch(known)
    if any(value is None for value in values):
        return None
    return {index: np.asarray(value) for index, value in enumerate(values)}


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
    """Whether the kernel leaves finite variables, given what it takes."""
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

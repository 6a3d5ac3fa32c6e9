"""The values that a guarded step returns: its train op's, and others that wait for the step."""

import math
from typing import Dict, Optional

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.gate.decision_at_tasks import Decision
from slimguard.gate.gated_clones import GatedClones
from slimguard.gate.plan import Plan
from slimguard.graph import op_of, ops, plain_ops


def value_of_step(plan: Plan, clones: GatedClones, decision: Decision) -> Optional[tf.Tensor]:
    """The value of the train op; None if it is an Operation."""
    core = plan.step.core
    return None if core is None else value_after_step(core, plan, clones, decision)


def value_after_step(
    tensor: tf.Tensor, plan: Plan, clones: GatedClones, decision: Decision
) -> tf.Tensor:
    """The value of a tensor of the step, once all of the step has run.

    If the update computes the value and was refused, it is computed without the update.
    """
    if tensor.op not in plan.gated:
        return tensor
    ran = ops.after([clones.of_op(op_of(plan.step.train_op))], decision.go, 'ran')
    value = ops.after([ran], clones.of(tensor), 'value')
    with tf.control_dependencies([decision.refused]):
        instead = tf.identity(_without_update(tensor, plan, {}))
    return plain_ops.merge([value, instead], 'value_of_step')


def _without_update(
    tensor: tf.Tensor, plan: Plan, made: Dict[tf.Operation, tf.Operation]
) -> Optional[tf.Tensor]:
    """`tensor`, computed from the variables as they are; None if nothing can stand in for it."""
    op = tensor.op
    if op not in plan.gated:
        return tensor
    variable = graphs.variable_behind(tensor)
    if variable is not None and tensor.dtype != tf.resource:
        return _read(variable)
    steers = op.type in ('Switch', 'Merge', 'Exit')
    if op in plan.step.writes or steers or graphs.loop_around(op) is not None:
        return _no_value(tensor)  # only the writes could compute it
    if op not in made:
        stand_ins = [_without_update(plan.step.resolve(t), plan, made) for t in op.inputs]
        inputs = [each for each in stand_ins if each is not None]
        if len(inputs) < len(stand_ins):
            return _no_value(tensor)
        controls = [c for c in plan.step.controls(op) if c not in plan.gated]
        made[op] = ops.create_like(op, inputs, controls)
    return made[op].outputs[tensor.value_index]


def _read(variable: tf.Operation) -> tf.Tensor:
    """The value of a variable; for a ref variable its buffer, which later writes change."""
    output = variable.outputs[0]
    if not graphs.is_resource(variable):
        with variable.graph.colocate_with(variable):
            return tf.identity(output)
    dtype = graphs.dtype_of(variable)
    value = tf.raw_ops.ReadVariableOp(resource=output, dtype=dtype)
    value.set_shape(variable.get_attr('shape'))
    return value


def _no_value(tensor: tf.Tensor) -> Optional[tf.Tensor]:
    """Stands in for a missing value: NaN, or zeros if the type has no NaN.

    None for a list of tensors, in which a loop of v2 control flow returns its results.
    """
    if tensor.dtype in (tf.variant, tf.resource):
        return None
    shape = [size or 0 for size in tensor.shape.as_list()] if tensor.shape.rank else []
    if graphs.is_float(tensor):
        return tf.cast(tf.fill(shape, math.nan), tensor.dtype.base_dtype)
    return tf.zeros(shape, tensor.dtype.base_dtype)

"""The tensors to fetch of a step, which arrive once it is done, and the values that it returns."""

import math
from typing import Dict, NamedTuple, Optional

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.compat import tf_private
from slimguard.gate.building.gated_clones import GatedClones
from slimguard.gate.building.tasks import Decision, Task, Tasks
from slimguard.gate.reading.plan import Plan
from slimguard.graph import TrainOp, op_of, ops

# The attribute of a guarded train op that names the given one. It goes with the op into files.
_GUARDS = '_slimguard_guards'


class Outcome(NamedTuple):
    """The tensors to fetch of a step.

    Attributes:
      train_op: the guarded train op.
      written: bool scalar, whether the step was written.
      bad: bool vector, a flag for each label of the gate.
      step: the global step after the step, or None if the graph has none.
    """

    train_op: TrainOp
    written: tf.Tensor
    bad: tf.Tensor
    step: Optional[tf.Tensor]


class GlobalStep:
    """Reads the global step.

    Args:
      graph: the graph.
      tasks: the tasks of the gate.
      settled: by task other than home, a token that arrives once all writes there are done.
    """

    def __init__(self, graph: tf.Graph, tasks: Tasks, settled: Dict[Task, tf.Tensor]):
        self._graph = graph
        self._tasks = tasks
        self._settled = settled

    def read(self, token: tf.Tensor) -> Optional[tf.Tensor]:
        """The global step once `token` is there; if it is on another task, once that is settled."""
        step = graphs.global_step(self._graph)
        if step is None:
            return None
        settled = self._settled.get(self._tasks.at(step.device), token)
        with tf.control_dependencies([settled]):
            if step.op.type in graphs.VARIABLES:
                # A copy where the variable is: a reference is sent to another device at once, and
                # not when the reader there runs.
                return ops.copy_of(graphs.on_each_device([step])[0].op)
            return tf.identity(step)


def outcome_of(
    bad: tf.Tensor, value: Optional[tf.Tensor], step: GlobalStep, original: Optional[TrainOp] = None
) -> Outcome:
    """The outcome of a step, read once `bad` is there.

    Args:
      bad: bool vector, a flag for each label of the gate.
      value: the tensor that the train op returns, or None.
      step: reads the global step.
      original: the given train op, if the guarded one has to name it.
    """
    with tf.control_dependencies([bad]):
        written = ops.none_of(bad, name='written')
        said = {}
        if original is not None:
            said[_GUARDS] = tf1.AttrValue(s=tf.compat.as_bytes(original.name))
        inputs = [] if value is None else [value]
        made = tf_private.create_op(
            bad.graph,
            'NoOp' if value is None else 'Identity',
            inputs,
            [each.dtype.base_dtype for each in inputs],
            name='train_op',
            attrs=said,
        )
        train_op: TrainOp = made if value is None else made.outputs[0]
    return Outcome(train_op, written, bad, step.read(bad))


def guarded_by(train_op: TrainOp) -> Optional[TrainOp]:
    """The train op that a guarded one was made of, also after an import; None for any other."""
    op = op_of(train_op)
    try:
        name = tf.compat.as_str(op.get_attr(_GUARDS))
        return op.graph.as_graph_element(op.name.partition(graphs.OURS)[0] + name)
    except (ValueError, KeyError):  # it is not guarded, or the file left the original out
        return None


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
    return ops.merge([value, instead], 'value_of_step')


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

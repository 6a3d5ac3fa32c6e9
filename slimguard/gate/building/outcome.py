"""The tensors of a step to fetch: its outcome, the values that it returns, and its measures.

The outcome arrives once the step is done. The measures are the loss, the learning rate and the
gradients' sums of squares, in one small vector.
"""

import math
from typing import Dict, NamedTuple, Optional, Sequence, Tuple, Union

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.compat import tf_private
from slimguard.gate.building.fast_path import SquareSums
from slimguard.gate.building.gated_clones import GatedClones
from slimguard.gate.reading.kernels import RATES
from slimguard.gate.reading.plan import Plan
from slimguard.graph import TrainOp, op_of, ops
from slimguard.graph.control_flow import SWITCHES
from slimguard.graph.devices import Home

# The attribute of a guarded train op that names the original. A saved graph keeps it.
_GUARDS = '_slimguard_guards'


class Outcome(NamedTuple):
    """The tensors of a step to fetch.

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


def global_step_after(token: tf.Tensor) -> Optional[tf.Tensor]:
    """The global step when `token` arrives; None if the graph has none."""
    step = graphs.global_step(token.graph)
    if step is None:
        return None
    with tf.control_dependencies([token]):
        if step.op.type in graphs.VARIABLES:
            # Copy it on the variable's device: TensorFlow sends a reference to another device at
            # once, not when the op that reads it runs.
            return ops.copy_of(graphs.on_each_device([step])[0].op)
        return tf.identity(step)


def outcome_of(bad: tf.Tensor, value: Optional[tf.Tensor], original: TrainOp) -> Outcome:
    """The outcome of a step, read when `bad` arrives.

    Args:
      bad: bool vector, a flag for each label of the gate.
      value: the tensor that the train op returns, or None.
      original: the given train op; an attribute of the guarded one names it.
    """
    with tf.control_dependencies([bad]):
        written = ops.none_of(bad, name='written')
        said = {_GUARDS: tf1.AttrValue(s=tf.compat.as_bytes(original.name))}
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
    return Outcome(train_op, written, bad, global_step_after(bad))


def guarded_by(train_op: TrainOp) -> Optional[TrainOp]:
    """The original of a guarded train op, also in an imported graph; None if it is not guarded."""
    op = op_of(train_op)
    try:
        name = tf.compat.as_str(op.get_attr(_GUARDS))
        return op.graph.as_graph_element(op.name.partition(graphs.OURS)[0] + name)
    except (ValueError, KeyError):  # it is not guarded, or the file left the original out
        return None


def value_after_step(
    tensor: tf.Tensor, plan: Plan, clones: GatedClones, go: tf.Tensor, refused: tf.Tensor
) -> tf.Tensor:
    """The value of a tensor of the step, once all of the step has run.

    If the update computes the value but was refused, the value is computed without the update.
    """
    if tensor.op not in plan.gated:
        return tensor
    ran = ops.after([clones.of_op(op_of(plan.step.train_op))], go, 'ran')
    value = ops.after([ran], clones.of(tensor), 'value')
    with tf.control_dependencies([refused]):
        instead = tf.identity(_without_update(tensor, plan, {}))
    return ops.merge([value, instead], 'value_of_step')


def _without_update(
    tensor: tf.Tensor, plan: Plan, made: Dict[tf.Operation, tf.Operation]
) -> Optional[tf.Tensor]:
    """`tensor`, computed without the gated writes; None if that is not possible."""
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
    """What is returned for a missing value: NaN, or zeros if the type has no NaN.

    None for a variant or resource, such as the tensor lists that v2 loops return.
    """
    if tensor.dtype in (tf.variant, tf.resource):
        return None
    shape = [size or 0 for size in tensor.shape.as_list()] if tensor.shape.rank else []
    if graphs.is_float(tensor):
        return tf.cast(tf.fill(shape, math.nan), tensor.dtype.base_dtype)
    return tf.zeros(shape, tensor.dtype.base_dtype)


class Measures(NamedTuple):
    """The loss, the learning rate and the gradients of a step, as tensors to fetch.

    Attributes:
      gradients: the names of variables, in the order of the gradients in `vector`. An element of
        `vector` that sums the gradients of several short vectors has the names of all of them.
      vector: float32 or float64, [2 + len(gradients)]: the loss, the learning rate, and for each
        gradient, as the optimizer takes it, half the sum of its squares. NaN where there is no
        loss, or no learning rate that is a scalar.
      rate: an op, and the index of its input that is the learning rate in `vector`. A factor of the
        learning rates also multiplies this input.
      step: float64 scalar, the global step after the step; NaN if there is none.
      written: float64 scalar, 1.0 if the step was written, else 0.0.
    """

    gradients: Tuple[Tuple[str, ...], ...]
    vector: tf.Tensor
    rate: Tuple[tf.Operation, int]
    step: tf.Tensor
    written: tf.Tensor

    def row(self, count: tf.Tensor) -> tf.Tensor:
        """One vector with all that a watcher needs of a step; it arrives when the step is done.

        Fetching a second tensor takes longer than joining the two in the graph.

        Args:
          count: how many bad steps no watcher has read yet, after the step.

        Returns:
          float64: `count`, `step`, `written`, and then `vector`: the columns of
          incidents/history.py.
        """
        head = tf.stack([tf.cast(count, tf.float64), self.step, self.written])
        return tf.concat([head, tf.cast(self.vector, tf.float64)], 0, name='row')


def measure(plan: Plan, sums: SquareSums, home: Home, announced: Outcome) -> Measures:
    """Adds the ops that compute the measures; a run that fetches no measure runs none of them.

    On a small model even one op costs time. So numbers on one device and of one dtype, the usual
    case, are stacked by one op and not converted.

    Args:
      sums: the sums of squares, of which only the gradients' are used.
      home: where the vector is made.
      announced: the outcome that is fetched beside the row.
    """
    kinds = [kind for kind in sums.kinds if kind.is_gradient]
    names = [each.names for kind in kinds for each in sums.kinds[kind]]
    of_kinds = [[each.size for each in sums.kinds[kind]] for kind in kinds]
    loss: _Scalar = plan.losses[0] if plan.losses else math.nan
    rate = _rate_of(plan)
    pair = None
    if len(kinds) <= 1:
        pair = _stacked(loss, rate, [size for sizes in of_kinds for size in sizes], home)
    if pair is not None:
        vector = pair
    else:
        pair = tf.stack([_as_float(loss), _as_float(rate)])
        parts = [pair]
        for sizes in of_kinds:
            with sizes[0].graph.colocate_with(sizes[0].op):
                joined = tf.stack(sizes)
            with tf.device(home.device):
                parts.append(tf.cast(joined, tf.float64))
        vector = tf.concat(parts, 0, name='measures')
    with tf.control_dependencies([announced.written]):
        step = _as_float(math.nan if announced.step is None else announced.step)
    written = tf.cast(announced.written, tf.float64)
    return Measures(tuple(names), vector, (pair.op, 1), step, written)


# A scalar, or its value where that is constant; NaN where it is unknown.
_Scalar = Union[tf.Tensor, float]


def _rate_of(plan: Plan) -> _Scalar:
    """The learning rate of a step. Of several rates the first, since most weights have it."""
    kernels = [op for op in plan.step.writing if op in plan.gated and graphs.is_apply(op)]
    for kernel in kernels:
        taken = {value.role: value.tensor for value in graphs.values_of(kernel)}
        rate = next((taken[role] for role in RATES if role in taken), None)
        rate = None if rate is None else _outside(plan.step.resolve(rate))
        if rate is not None and rate.shape.rank == 0 and rate.op not in plan.gated:
            constant = graphs.constant_scalar(rate)
            return rate if constant is None else constant
    return math.nan


def _outside(tensor: tf.Tensor) -> Optional[tf.Tensor]:
    """The tensor outside that enters a branch as `tensor`; None if the branch computes `tensor`.

    A tensor in a branch that is not taken has no value, and would leave the vector without one.
    """
    while graphs.flow_around(tensor.op) is not None:
        if tensor.op.type not in ('Identity', *SWITCHES):
            return None
        tensor = tensor.op.inputs[0]
    return tensor


def _stacked(
    loss: _Scalar,
    rate: _Scalar,
    sizes: Sequence[tf.Tensor],
    home: Home,
) -> Optional[tf.Tensor]:
    """Loss, rate and sizes in one vector; None unless they have one dtype and one device."""
    known = [each for each in (loss, rate, *sizes) if isinstance(each, tf.Tensor)]
    dtypes = {scalar.dtype.base_dtype for scalar in known}
    if len(dtypes) != 1 or len({home.joins_at(scalar) for scalar in known}) != 1:
        return None
    (dtype,) = dtypes
    if dtype not in (tf.float32, tf.float64):
        return None
    with known[-1].graph.colocate_with(known[-1].op):
        pair = [tf.constant(it, dtype) if isinstance(it, float) else it for it in (loss, rate)]
        return tf.stack(pair + list(sizes), name='measures')


def _as_float(scalar: _Scalar) -> tf.Tensor:
    return tf.cast(scalar, tf.float64)

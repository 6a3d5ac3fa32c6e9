"""Creates ops: in a scope of ours, on the device of another op, or as a copy of one."""

import contextlib
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.compat import tf_private
from slimguard.graph.control_flow import flow_around
from slimguard.graph.variables import dtype_of, is_resource
from slimguard.graph.walk import OURS, TrainOp, op_def_of, op_of

# Vectors up to this size are joined: copying them costs less than one op for each vector.
_SMALL_BYTES = 2**14
# Fewer vectors than this are not joined: joining would cost as much as it saves.
_FEWEST_SMALL, _MOST_SMALL = 4, 64
# Float16 is left out: the sum of many squares soon overflows there.
_JOINED = (tf.float64, tf.float32, tf.bfloat16)


@contextlib.contextmanager
def our_scope(graph: tf.Graph, name: str) -> Iterator[None]:
    """The scope ``slimguard/<name>``, outside of the caller's scopes, devices and dependencies.

    XLA compiles no op that is made in it. With fast math (TensorFlow 1.15, on the CPU) XLA may
    assume that no number is NaN, and answer comparisons accordingly. XLA may also compute a value
    twice, but the gate must check bit by bit the gradient that the update takes. XLA computes a
    value once if an op that it does not compile takes the value.
    """
    with graph.as_default(), graph.name_scope(None), graph.name_scope(OURS), tf.device(None):
        with tf.control_dependencies(None), graph.name_scope(name), tf_private.uncompiled(graph):
            yield


def at(op: tf.Operation):
    """A context in which new ops are on the device of `op`, and colocated with it."""
    return op.graph.colocate_with(op, ignore_existing=True)


def create_at(
    near: tf.Operation,
    kind: str,
    inputs: Sequence[tf.Tensor],
    dtypes: Sequence[tf.DType],
    **attributes: Any,
) -> tf.Operation:
    """Creates an op as under `at(near)`, but in half the time: each variable needs many ops.

    Args:
      near: the op to be colocated with.
      kind: the type of op. Attributes that are the dtypes of its inputs follow from `inputs`.
      inputs: its inputs.
      dtypes: the dtypes of its outputs.
      **attributes: an `AttrValue` for each other attribute without a default.
    """
    groups = tf1.AttrValue.ListValue(s=[b'loc:@' + near.name.encode()])
    attributes['_class'] = tf1.AttrValue(list=groups)
    made = tf_private.create_op(
        near.graph, kind, inputs, dtypes, attrs=attributes, compute_device=False
    )
    if near.device:
        tf_private.set_device(made, near.device)
    return made


def copy_of(variable: tf.Operation) -> tf.Tensor:
    """A copy of a variable's value; later writes do not change it."""
    dtype, handle = dtype_of(variable), variable.outputs[0]
    if not is_resource(variable):
        return create_at(variable, 'DeepCopy', [handle], [dtype]).outputs[0]
    # The read shares the variable's buffer; a later write takes a new buffer.
    of = tf1.AttrValue(type=dtype.as_datatype_enum)
    return create_at(variable, 'ReadVariableOp', [handle], [dtype], dtype=of).outputs[0]


def assign(variable: tf.Operation, value: tf.Tensor) -> tf.Operation:
    """Writes a value to a variable."""
    inputs = [variable.outputs[0], value]
    if is_resource(variable):
        return create_at(variable, 'AssignVariableOp', inputs, [])
    no = tf1.AttrValue(b=False)
    return create_at(variable, 'Assign', inputs, [inputs[0].dtype], validate_shape=no)


def is_initialized(variable: tf.Operation) -> tf.Tensor:
    """Whether a variable has a value: a bool scalar on the variable's device."""
    with at(variable):
        if is_resource(variable):
            return tf.raw_ops.VarIsInitializedOp(resource=variable.outputs[0])
        return tf.raw_ops.IsVariableInitialized(ref=variable.outputs[0])


def short_together(tensors: Sequence[tf.Tensor]) -> List[List[int]]:
    """Groups short vectors of one length, to be joined; all other tensors stay alone.

    The vectors of a group have one dtype and one device, and ops of one type made them, since
    TensorFlow places an op without a device by its type. So no vector has to move to another
    device.

    Returns:
      The groups, each a list of indices.
    """
    groups: List[List[int]] = []
    open_groups: Dict[object, List[int]] = {}
    for number, tensor in enumerate(tensors):
        op, dtype = tensor.op, tensor.dtype.base_dtype
        length = tensor.shape.num_elements() if tensor.shape.rank == 1 else None
        is_short = bool(length) and length * dtype.size <= _SMALL_BYTES and dtype in _JOINED
        is_joined = is_short and flow_around(op) is None
        kind = (length, dtype, op.type, op.device) if is_joined else number
        group = open_groups.get(kind)
        if group is None or len(group) >= _MOST_SMALL:
            group = open_groups[kind] = []
            groups.append(group)
        group.append(number)
    return [
        each
        for group in groups
        for each in ([group] if len(group) >= _FEWEST_SMALL else [[number] for number in group])
    ]


def none_of(flags: tf.Tensor, name: Optional[str] = None) -> tf.Tensor:
    """Whether all flags of a bool vector are False."""
    return tf.logical_not(tf.reduce_any(flags), name)


def merge(tensors: Sequence[tf.Tensor], name: Optional[str] = None) -> tf.Tensor:
    """The one of `tensors` that is not dead."""
    return tf.raw_ops.Merge(inputs=list(tensors), name=name).output


def branch(value: tf.Tensor, pred: tf.Tensor, name: str) -> Tuple[tf.Tensor, tf.Tensor]:
    """`value` twice: the first tensor is alive if `pred` is true, the second if it is false."""
    switch = tf.raw_ops.Switch(data=value, pred=pred, name=name)
    return (
        tf.identity(switch.output_true, name + '_true'),
        tf.identity(switch.output_false, name + '_false'),
    )


def after(first: Iterable[TrainOp], tensor: tf.Tensor, name: str) -> tf.Tensor:
    """`tensor`, once all of `first` have run.

    Newer versions of TensorFlow mark the ops that are passed to `tf.control_dependencies`, and warn
    if a session has seen one. So it gets only our own ops.
    """
    needed = list(dict.fromkeys(map(op_of, first)))
    if len({op.device for op in needed}) > 1:  # each device sends one signal
        needed = _on_each_device(needed, name + '_there')
    own = [op for op in needed if op.name.startswith(OURS)]
    with tf.control_dependencies(own):
        copied = tf.identity(tensor, name)
    for op in needed:
        if op not in own:
            tf_private.add_control_input(copied.op, op)
    return copied


def group(operations: Iterable[tf.Operation], name: str) -> tf.Operation:
    """As `tf.group`, but for ops that a session may have run: see `after`."""
    parts = _on_each_device(operations, name)
    return parts[0] if len(parts) == 1 else _waiting_for(parts, '', name)


def _on_each_device(operations: Iterable[tf.Operation], name: str) -> List[tf.Operation]:
    """One op on each device of `operations`; it waits for the operations on that device."""
    by_device: Dict[str, List[tf.Operation]] = {}
    for operation in operations:
        by_device.setdefault(operation.device, []).append(operation)
    return [_waiting_for(there, device, name) for device, there in by_device.items()]


def _waiting_for(operations: Iterable[tf.Operation], device: str, name: str) -> tf.Operation:
    with tf.device(device or None):
        waiting = tf.no_op(name)
    for operation in operations:
        tf_private.add_control_input(waiting, operation)
    return waiting


def lift(value: tf.Tensor, op: tf.Operation, default) -> tf.Tensor:
    """Brings a value out of the `tf.cond` branches around `op`; `default` if one is not taken.

    This is for v1 control flow. The branches of v2 are functions: their tensors cannot leave them.
    """
    context = flow_around(op)
    while context is not None:
        if context.IsCondContext():
            switch = tf.raw_ops.Switch(data=tf.constant(default, value.dtype), pred=context.pred)
            not_taken = switch.output_false if context.branch == 1 else switch.output_true
            value = merge([value, not_taken], 'lifted')
        context = context.outer_context
    return value


def for_arithmetic(tensor: tf.Tensor) -> tf.Tensor:
    """A tensor in a real dtype that all kernels support; complex numbers become absolute values."""
    dtype = tensor.dtype.base_dtype
    if dtype.is_complex:
        return tf.abs(tensor)
    return tf.cast(tensor, tf.float32) if dtype == tf.bfloat16 else tensor


def create_like(
    op: tf.Operation,
    inputs: Sequence[tf.Tensor],
    controls: Sequence[tf.Operation],
    frame_suffix: str = '',
) -> tf.Operation:
    """A new op of the type of `op`, with its attributes, on its device.

    XLA compiles it if it compiles `op`.
    """
    attributes = dict(op.node_def.attr.items())
    if 'frame_name' in attributes:  # all clones of a loop's Enter ops enter the same new loop
        attributes['frame_name'].s += tf.compat.as_bytes(frame_suffix)
    as_asked = tf_private.compiled_as_asked(op.graph)
    with tf.control_dependencies(list(dict.fromkeys(controls))), as_asked:
        made = tf_private.create_op(
            op.graph,
            op.type,
            inputs,
            [t.dtype for t in op.outputs],
            name=op.name,
            attrs=attributes,
            op_def=op_def_of(op),
            compute_device=False,  # the caller's device functions must not change it
        )
    if op.device:
        tf_private.set_device(made, op.device)
    return made


class StagingArea:
    """Makes the ops of a staging area on the current device, which holds the area.

    `tf.contrib.staging.StagingArea` did the same; TensorFlow 2 has only its ops.

    Args:
      graph: the graph.
      dtypes: the dtypes of the tensors of an entry.
      name: the name of the area; it gets a number if the graph has the name already.
    """

    def __init__(self, graph: tf.Graph, dtypes: Sequence[tf.DType], name: str):
        dtypes = [dtype.base_dtype for dtype in dtypes]
        self._of = {'dtypes': dtypes, 'shared_name': graph.unique_name(name)}

    def put(self, values: Sequence[tf.Tensor]) -> tf.Operation:
        return tf.raw_ops.Stage(values=values, shared_name=self._of['shared_name'])

    def size(self, name: Optional[str] = None) -> tf.Tensor:
        """An int32 scalar: how many entries there are."""
        return tf.raw_ops.StageSize(name=name, **self._of)

    def take(self) -> Sequence[tf.Tensor]:
        """Removes and returns the oldest entry; waits for one if there is none."""
        return tf.raw_ops.Unstage(**self._of)

    def clear(self) -> tf.Operation:
        return tf.raw_ops.StageClear(**self._of)

"""Creating ops, many and quickly.

A gate has several ops for each variable, and a network has hundreds of variables. TensorFlow's own
functions spend most of their time finding out what is known here: the attributes of an op, and its
place. plain_ops.py does the same for ops that take the current scope and device.
"""

import contextlib
import functools
import math
from typing import (
    Callable,
    Dict,
    FrozenSet,
    Iterable,
    Iterator,
    List,
    Optional,
    Sequence,
    Set,
    Tuple,
)

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.compat import tf_private
from slimguard.graph import plain_ops
from slimguard.graph.control_flow import flow_around
from slimguard.graph.plain_ops import type_attribute
from slimguard.graph.variables import dtype_of, is_resource
from slimguard.graph.walk import OURS, TrainOp, is_reference, op_def_of, op_of

_NO = tf1.AttrValue(b=False)
_NO_SHAPE = tf1.AttrValue(shape={'unknown_rank': True})

# We know the device of each op, so the caller's device functions must not change it.
_create_op = functools.partial(tf_private.create_op, compute_device=False)

# Tensors that can be joined, and up to which size: joining makes a copy, which takes memory.
_JOINED = (tf.float64, tf.float32, tf.bfloat16, tf.float16)
_MOST_BYTES = 2**24
# Vectors up to this size are joined whatever their lengths: a copy costs less than an op for each.
_SMALL_BYTES = 2**14
# Fewer tensors than this are not joined: joining would cost as much as it saves.
_FEWEST_SMALL, _MOST_SMALL = 4, 64
# Ops that take a variable by reference or by handle: TensorFlow places them with the variable.
_TAKE_VARIABLES = frozenset(['Assign', 'AssignVariableOp', 'ReadVariableOp'])


@contextlib.contextmanager
def our_scope(graph: tf.Graph, name: str) -> Iterator[None]:
    """The scope ``slimguard/<name>``, outside of the caller's scopes, devices and dependencies.

    XLA compiles no op that is made there. With fast math (TensorFlow 1.15, on the CPU) XLA may
    assume that no number is a NaN, and answer a comparison accordingly. XLA may also compute a
    value twice, but the gradient that is checked has to be, bit by bit, the one that the update
    takes. A value that leaves the compiled part exists once.
    """
    with graph.as_default(), graph.name_scope(None), graph.name_scope(OURS), tf.device(None):
        with tf.control_dependencies(None), graph.name_scope(name), tf_private.uncompiled(graph):
            yield


class Maker:
    """Makes ops in one graph, each at the place of another op: on its device, colocated with it.

    Attributes that TensorFlow infers, such as the dtypes of inputs, are not set: each takes time.
    """

    def __init__(self, graph: tf.Graph):
        self._graph = graph
        self._groups = {}
        self._constants: Dict[Tuple, tf.Tensor] = {}
        self._bound: Dict[tf.Operation, FrozenSet[str]] = {}

    def sum_of_squares(self, x: tf.Tensor, near: tf.Operation) -> tf.Tensor:
        """Half the sum of squares, as `tf.nn.l2_loss`."""
        return self._unary('L2Loss', x, near)

    def sum_of(self, x: tf.Tensor, axes: tf.Tensor, near: tf.Operation) -> tf.Tensor:
        return self._reduce('Sum', x, axes, near)

    def square(self, x: tf.Tensor, near: tf.Operation) -> tf.Tensor:
        return self._unary('Square', x, near)

    def multiply(self, x: tf.Tensor, y: tf.Tensor, near: tf.Operation) -> tf.Tensor:
        return self._create('Mul', [x, y], [y.dtype], {}, near).outputs[0]

    def largest(self, x: tf.Tensor, axes: tf.Tensor, near: tf.Operation) -> tf.Tensor:
        return self._reduce('Max', x, axes, near)

    def cast(self, x: tf.Tensor, dtype: tf.DType, near: tf.Operation) -> tf.Tensor:
        attributes = {'DstT': type_attribute(dtype)}
        return self._create('Cast', [x], [dtype], attributes, near).outputs[0]

    def finite_values(self, x: tf.Tensor, near: tf.Operation) -> tf.Tensor:
        """The finite numbers of a tensor, as a vector; its shape is unknown unless `x` is one."""
        dtype = x.dtype.base_dtype
        which = self._finite_or_not(x, near)
        three = {'num_partitions': tf1.AttrValue(i=3)}
        finite = self._create('DynamicPartition', [x, which], [dtype] * 3, three, near).outputs[1]
        if x.shape.rank == 1:
            return finite
        hidden = {'shape': _NO_SHAPE}
        return self._create('PlaceholderWithDefault', [finite], [dtype], hidden, near).outputs[0]

    def _finite_or_not(self, x: tf.Tensor, near: tf.Operation) -> tf.Tensor:
        """An int32 tensor: 1 where a number is finite, else 0 or 2."""
        dtype = x.dtype.base_dtype
        if dtype == tf.float32:
            # One op: 0 for -Inf, and 2 for Inf and for NaN, which is less than no limit.
            limits = tf1.AttrValue(list=tf1.AttrValue.ListValue(f=[tf.float32.min, math.inf]))
            return self._create('Bucketize', [x], [tf.int32], {'boundaries': limits}, near).outputs[
                0
            ]
        # TensorFlow 1.15 has no kernel of IsFinite for bfloat16.
        asked = self.cast(x, tf.float32, near) if dtype == tf.bfloat16 else x
        is_finite = self._create('IsFinite', [asked], [tf.bool], {}, near).outputs[0]
        return self.cast(is_finite, tf.int32, near)

    def alike(self, tensors: Sequence[tf.Tensor]) -> List[List[int]]:
        """Groups tensors that can be joined along their first axis; a group lists their indices.

        The tensors of a group have one dtype and shape, and are made in one place, so that none
        has to cross to another device first. The requested device tells the place, and so do the
        types of ops that have to be there, by which TensorFlow chooses if none is requested.
        """

        def fit(tensor: tf.Tensor) -> Tuple[object, int]:
            size = _bytes_of(tensor)
            shape = tuple(tensor.shape.as_list())
            return shape, _MOST_BYTES // size

        return self._groups_of(tensors, fit)

    def small(self, tensors: Sequence[tf.Tensor]) -> List[List[int]]:
        """Groups short vectors, of any length; all other tensors stay alone.

        Vectors of float16 stay alone as well: the sum of their squares soon overflows.
        """

        def fit(tensor: tf.Tensor) -> Tuple[object, int]:
            is_small = tensor.shape.rank == 1 and _bytes_of(tensor) <= _SMALL_BYTES
            is_small = is_small and tensor.dtype.base_dtype != tf.float16
            return is_small, _MOST_SMALL if is_small else 1

        groups: List[List[int]] = []
        for group in self._groups_of(tensors, fit):
            groups.extend([group] if len(group) >= _FEWEST_SMALL else [[n] for n in group])
        return groups

    def _groups_of(
        self, tensors: Sequence[tf.Tensor], fit: Callable[[tf.Tensor], Tuple[object, int]]
    ) -> List[List[int]]:
        """Groups of one place; `fit` tells what must be equal in a group, and how many fit in."""
        self._bind([tensor for tensor in tensors if is_reference(tensor)])
        groups: List[List[int]] = []
        open_groups: Dict[object, List[int]] = {}
        for number, tensor in enumerate(tensors):
            op, dtype = tensor.op, tensor.dtype.base_dtype
            kind: object = number
            most = 1
            if dtype in _JOINED and _bytes_of(tensor) and flow_around(op) is None:
                same, most = fit(tensor)
                kind = (dtype, same, op.type, op.device, self._bound.get(op))
            group = open_groups.get(kind)
            if group is None or len(group) >= most:
                group = open_groups[kind] = []
                groups.append(group)
            group.append(number)
        return groups

    def _bind(self, references: Sequence[tf.Tensor]) -> None:
        """Finds the kinds of ops that take a variable by reference, or are colocated with it.

        They have to be on its device, so they decide on which devices it can be.
        """
        kinds: Dict[Tuple[bytes, ...], Set[str]] = {}
        unknown = [reference for reference in references if reference.op not in self._bound]
        for reference in unknown:
            place = tuple(self._group(reference.op).list.s)
            kinds.setdefault(place, set()).update(op.type for op in reference.consumers())
        for reference in unknown:
            place = tuple(self._group(reference.op).list.s)
            self._bound[reference.op] = frozenset(kinds[place])

    def join(self, tensors: Sequence[tf.Tensor], axis: tf.Tensor, near: tf.Operation) -> tf.Tensor:
        """Joins tensors along `axis`."""
        dtype = tensors[0].dtype.base_dtype
        attributes = {'N': tf1.AttrValue(i=len(tensors))}
        return self._create('ConcatV2', [*tensors, axis], [dtype], attributes, near).outputs[0]

    def split(self, x: tf.Tensor, number: int, near: tf.Operation) -> List[tf.Tensor]:
        """Splits a tensor along its first axis, into `number` parts of the same size."""
        attributes = {'num_split': tf1.AttrValue(i=number)}
        first = self.constant(0, near)
        return self._create('Split', [first, x], [x.dtype] * number, attributes, near).outputs

    def rows(
        self, x: tf.Tensor, number: int, near: tf.Operation, after: Optional[tf.Operation] = None
    ) -> tf.Tensor:
        """Reshapes a tensor to a matrix of `number` rows; `after` as for `constant`."""
        inputs = [x, self.constant((number, -1), near, after)]
        return self._create('Reshape', inputs, [x.dtype], {}, near).outputs[0]

    def constant(
        self, value, near: tf.Operation, after: Optional[tf.Operation] = None
    ) -> tf.Tensor:
        """An int32 constant on the device of `near`; calls with the same arguments share it.

        Args:
          value: an int, or a tuple of ints.
          near: tells the device.
          after: the op that the constant waits for. Where this is dead, as the exact check is in a
            good step, so is the constant. None for no wait.
        """
        key = (value, near.device, after)
        if key not in self._constants:
            with tf.control_dependencies(None), tf.device(near.device or None):
                with tf.control_dependencies([] if after is None else [after]):
                    self._constants[key] = plain_ops.constant(value, tf.int32)
        return self._constants[key]

    def copy(self, variable: tf.Operation) -> tf.Tensor:
        """A copy of a variable's value; later writes do not change it."""
        if not is_resource(variable):
            return self._unary('DeepCopy', variable.outputs[0], variable)
        # The read shares the variable's buffer; a later write makes its own.
        dtype = dtype_of(variable)
        attributes = {'dtype': type_attribute(dtype)}
        op = self._create('ReadVariableOp', variable.outputs[:1], [dtype], attributes, variable)
        return op.outputs[0]

    def assign(self, variable: tf.Operation, value: tf.Tensor) -> tf.Operation:
        inputs = [variable.outputs[0], value]
        if is_resource(variable):
            return self._create('AssignVariableOp', inputs, [], {}, variable)
        attributes = {'validate_shape': _NO}
        return self._create('Assign', inputs, [inputs[0].dtype], attributes, variable)

    def _reduce(self, kind, x: tf.Tensor, axes: tf.Tensor, near: tf.Operation) -> tf.Tensor:
        return self._create(kind, [x, axes], [x.dtype], {}, near).outputs[0]

    def _unary(self, kind: str, x: tf.Tensor, near: tf.Operation) -> tf.Tensor:
        dtype = x.dtype.base_dtype
        return self._create(kind, [x], [dtype], {}, near).outputs[0]

    def _create(self, kind, inputs, dtypes, attributes, near) -> tf.Operation:
        if kind not in _TAKE_VARIABLES:
            attributes['_class'] = self._group(near)
        op = _create_op(self._graph, kind, inputs, dtypes, attrs=attributes)
        if near.device:
            tf_private.set_device(op, near.device)
        return op

    def _group(self, near: tf.Operation) -> tf1.AttrValue:
        """The colocation group of `near`, as `tf.compat.v1.colocate_with` would give it."""
        if near not in self._groups:
            names = sorted(near.colocation_groups())
            self._groups[near] = tf1.AttrValue(list=tf1.AttrValue.ListValue(s=names))
        return self._groups[near]


def is_initialized(variable: tf.Operation) -> tf.Tensor:
    """Whether a variable has a value: a bool scalar, where the variable is."""
    kind, attributes = 'VarIsInitializedOp', {}
    if not is_resource(variable):
        kind, attributes = 'IsVariableInitialized', {'dtype': type_attribute(dtype_of(variable))}
    op = _create_op(variable.graph, kind, variable.outputs[:1], [tf.bool], attrs=attributes)
    if variable.device:
        tf_private.set_device(op, variable.device)
    return op.outputs[0]


def _bytes_of(tensor: tf.Tensor) -> int:
    """The size of a tensor in bytes; 0 for a scalar, or if the shape is unknown."""
    size = tensor.shape.num_elements() if tensor.shape.rank else None
    return (size or 0) * tensor.dtype.base_dtype.size


def branch(value: tf.Tensor, pred: tf.Tensor, name: str) -> Tuple[tf.Tensor, tf.Tensor]:
    """`value` twice: the first is alive if `pred` is true, the second if it is false."""
    if_false, if_true = plain_ops.switch(value, pred, name)
    return (
        plain_ops.identity(if_true, name=name + '_true'),
        plain_ops.identity(if_false, name=name + '_false'),
    )


def after(first: Iterable[TrainOp], tensor: tf.Tensor, name: str) -> tf.Tensor:
    """`tensor`, once all of `first` have run.

    Newer versions of TensorFlow mark the ops that `tf.control_dependencies` is given, and warn if a
    session has seen one. So only ops of ours go through it.
    """
    needed = dict.fromkeys(map(op_of, first))
    own = [op for op in needed if op.name.startswith(OURS)]
    with tf.control_dependencies(own):
        copied = plain_ops.identity(tensor, name=name)
    for op in needed:
        if op not in own:
            tf_private.add_control_input(copied.op, op)
    return copied


def lift(value: tf.Tensor, op: tf.Operation, default) -> tf.Tensor:
    """Brings a value out of the `tf.cond` branches of `op`: `default` if one is not taken.

    This is for v1 control flow; the branches of v2 are functions, and no inner tensor leaves them.
    """
    context = flow_around(op)
    while context is not None:
        if context.IsCondContext():
            otherwise = plain_ops.constant(default, value.dtype)
            if_false, if_true = plain_ops.switch(otherwise, context.pred)
            not_taken = if_false if context.branch == 1 else if_true
            value = plain_ops.merge([value, not_taken], 'lifted')
        context = context.outer_context
    return value


def for_arithmetic(tensor: tf.Tensor) -> tf.Tensor:
    """A tensor in a real dtype that every kernel takes; absolute values of complex numbers."""
    dtype = tensor.dtype.base_dtype
    if dtype.is_complex:
        return tf.abs(tensor)
    return plain_ops.cast(tensor, tf.float32) if dtype == tf.bfloat16 else tensor


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
    if 'frame_name' in attributes:  # its own loop, the same for all its Enter ops
        attributes['frame_name'].s += tf.compat.as_bytes(frame_suffix)
    as_asked = tf_private.compiled_as_asked(op.graph)
    with tf.control_dependencies(list(dict.fromkeys(controls))), as_asked:
        made = _create_op(
            op.graph,
            op.type,
            inputs,
            [t.dtype for t in op.outputs],
            name=op.name,
            attrs=attributes,
            op_def=op_def_of(op),
        )
    if op.device:
        tf_private.set_device(made, op.device)
    return made

"""Creating ops, many and quickly.

A gate has several ops for each variable, and a network has hundreds of variables. TensorFlow's own
functions spend most of their time on what is known here beforehand: which attributes an op has, and
where it belongs. plain_ops.py has the same for ops that serve no other, and stand for themselves.
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

# What can be joined, and to what size: what is joined is a copy, and takes memory.
_JOINED = (tf.float64, tf.float32, tf.bfloat16, tf.float16)
_MOST_BYTES = 2**24
# So much is joined wherever it can be: the copy costs less than an op of its own.
_SMALL_BYTES = 2**14
# Fewer tensors than this are not joined: joining would cost as much as it saves.
_FEWEST_SMALL, _MOST_SMALL = 4, 64
# Take a variable by reference or by handle: TensorFlow places those where it is.
_TAKE_VARIABLES = frozenset(['Assign', 'AssignVariableOp', 'ReadVariableOp'])


@contextlib.contextmanager
def our_scope(graph: tf.Graph, name: str) -> Iterator[None]:
    """The scope ``slimguard/<name>``, and nothing of what the caller's code is in the middle of.

    XLA compiles nothing of what is made there. Where it compiles with fast math (TensorFlow 1.15,
    on the CPU), it may take it that no number is a NaN, and answer a comparison accordingly. And
    what it compiles it may compute twice: a gradient that is checked has to be the one, bit by
    bit, that the update takes. At the border of what is compiled there is only one.
    """
    with graph.as_default(), graph.name_scope(None), graph.name_scope(OURS), tf.device(None):
        with tf.control_dependencies(None), graph.name_scope(name), tf_private.uncompiled(graph):
            yield


class Maker:
    """Makes ops in one graph, each at the place of another op: on its device, in its group.

    Attributes that TensorFlow sets to the same, such as the dtypes of inputs, are not set: each
    takes its time.
    """

    def __init__(self, graph: tf.Graph):
        self._graph = graph
        self._groups = {}
        self._constants: Dict[Tuple, tf.Tensor] = {}
        self._bound: Dict[tf.Operation, FrozenSet[str]] = {}

    def sum_of_squares(self, x: tf.Tensor, near: tf.Operation) -> tf.Tensor:
        """Half of it, as `tf.nn.l2_loss`."""
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
        """The finite numbers of a tensor, as a vector; of no known shape, unless it is one."""
        dtype = x.dtype.base_dtype
        which = self._finite_or_not(x, near)
        three = {'num_partitions': tf1.AttrValue(i=3)}
        finite = self._create('DynamicPartition', [x, which], [dtype] * 3, three, near).outputs[1]
        if x.shape.rank == 1:
            return finite
        hidden = {'shape': _NO_SHAPE}
        return self._create('PlaceholderWithDefault', [finite], [dtype], hidden, near).outputs[0]

    def _finite_or_not(self, x: tf.Tensor, near: tf.Operation) -> tf.Tensor:
        """1 where a number is finite, else something else."""
        dtype = x.dtype.base_dtype
        if dtype == tf.float32:
            # One op: 0 for -Inf, and 2 for Inf and for NaN, which is less than nothing.
            limits = tf1.AttrValue(list=tf1.AttrValue.ListValue(f=[tf.float32.min, math.inf]))
            return self._create('Bucketize', [x], [tf.int32], {'boundaries': limits}, near).outputs[
                0
            ]
        # TensorFlow 1.15 has no kernel for that dtype.
        asked = self.cast(x, tf.float32, near) if dtype == tf.bfloat16 else x
        is_finite = self._create('IsFinite', [asked], [tf.bool], {}, near).outputs[0]
        return self.cast(is_finite, tf.int32, near)

    def alike(self, tensors: Sequence[tf.Tensor]) -> List[List[int]]:
        """Puts the numbers of tensors together that can be joined along their first axis.

        Those are of one dtype and shape, and made in one place: what is joined must not have to
        cross to another device first. That goes by the devices that were asked for, and, where
        TensorFlow is to choose, by what it chooses from: the kinds of ops that have to be there.
        """

        def fit(tensor: tf.Tensor) -> Tuple[object, int]:
            size = _bytes_of(tensor)
            shape = tuple(tensor.shape.as_list())
            return shape, _MOST_BYTES // size

        return self._groups_of(tensors, fit)

    def small(self, tensors: Sequence[tf.Tensor]) -> List[List[int]]:
        """Puts the numbers of short vectors together, of any length; all others stay alone.

        So do those of float16: the sum of their squares is soon too large for it.
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
        """Groups of one place; `fit` says of a tensor what has to be the same, and how many fit."""
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
        """One tensor, of one after the other along `axis`."""
        dtype = tensors[0].dtype.base_dtype
        attributes = {'N': tf1.AttrValue(i=len(tensors))}
        return self._create('ConcatV2', [*tensors, axis], [dtype], attributes, near).outputs[0]

    def split(self, x: tf.Tensor, number: int, near: tf.Operation) -> List[tf.Tensor]:
        """What was joined along the first axis, in `number` parts of the same size."""
        attributes = {'num_split': tf1.AttrValue(i=number)}
        first = self.constant(0, near)
        return self._create('Split', [first, x], [x.dtype] * number, attributes, near).outputs

    def rows(
        self, x: tf.Tensor, number: int, near: tf.Operation, after: Optional[tf.Operation] = None
    ) -> tf.Tensor:
        """A matrix of `number` rows; `after` as for `constant`."""
        inputs = [x, self.constant((number, -1), near, after)]
        return self._create('Reshape', inputs, [x.dtype], {}, near).outputs[0]

    def constant(
        self, value, near: tf.Operation, after: Optional[tf.Operation] = None
    ) -> tf.Tensor:
        """An int32 constant on the device of `near`: one for all that ask for it there.

        Args:
          value: an int, or a tuple of ints.
          near: tells the device.
          after: what it waits for: where that is dead, as the exact check is in a good step, a step
            does without it. None for nothing.
        """
        key = (value, near.device, after)
        if key not in self._constants:
            with tf.control_dependencies(None), tf.device(near.device or None):
                with tf.control_dependencies([] if after is None else [after]):
                    self._constants[key] = plain_ops.constant(value, tf.int32)
        return self._constants[key]

    def copy(self, variable: tf.Operation) -> tf.Tensor:
        """A copy of a variable, which later writes leave alone."""
        if not is_resource(variable):
            return self._unary('DeepCopy', variable.outputs[0], variable)
        # Shares the buffer until somebody writes; then the writer makes its own.
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
    """The size of a tensor's first axis; 0 if it has none, or if the size is unknown."""
    size = tensor.shape.num_elements() if tensor.shape.rank else None
    return (size or 0) * tensor.dtype.base_dtype.size


def branch(value: tf.Tensor, pred: tf.Tensor, name: str) -> Tuple[tf.Tensor, tf.Tensor]:
    """`value` twice: alive if `pred` is true, and alive if it is false."""
    if_false, if_true = plain_ops.switch(value, pred, name)
    return (
        plain_ops.identity(if_true, name=name + '_true'),
        plain_ops.identity(if_false, name=name + '_false'),
    )


def after(first: Iterable[TrainOp], tensor: tf.Tensor, name: str) -> tf.Tensor:
    """`tensor`, once all of `first` have run.

    Newer versions mark what `tf.control_dependencies` is given, and warn if a session has seen it.
    So that is left to ops of ours.
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
    """Brings a value out of the `tf.cond` branches that `op` is in: `default` if not taken.

    This is for v1 control flow; the branches of v2 are functions, and nothing comes out of them.
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
    """The same numbers in a dtype that every kernel takes and no sum of squares overflows."""
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
    """A new op of the same kind, with the same attributes on the same device.

    It is compiled if the other is.
    """
    attributes = dict(op.node_def.attr.items())
    if 'frame_name' in attributes:  # a loop of its own, the same for all that enter it
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

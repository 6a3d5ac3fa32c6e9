"""Creating ops, many and quickly.

A gate has a dozen ops for each variable, and a network has hundreds of variables. TensorFlow's own
functions spend most of their time on what is known here beforehand: which attributes an op has, and
where it belongs. What is made once per gate is made with those functions all the same.
"""

import contextlib
from typing import Iterator, Sequence

import tensorflow as tf

from slimguard import graphs

tf1 = tf.compat.v1

_YES, _NO = tf1.AttrValue(b=True), tf1.AttrValue(b=False)
_types = {}


def _type(dtype: tf.DType) -> tf1.AttrValue:
    dtype = dtype.base_dtype
    if dtype not in _types:
        _types[dtype] = tf1.AttrValue(type=dtype.as_datatype_enum)
    return _types[dtype]


@contextlib.contextmanager
def our_scope(graph: tf.Graph, name: str) -> Iterator[None]:
    """The scope ``slimguard/<name>``, and nothing of what the caller's code is in the middle of."""
    with graph.as_default(), graph.name_scope(None), graph.name_scope(graphs.OURS), tf.device(None):
        with tf.control_dependencies(None), graph.name_scope(name):
            yield


class Maker:
    """Makes ops in one graph, each at the place of another op: on its device, in its group."""

    def __init__(self, graph: tf.Graph):
        self._graph = graph
        self._groups = {}

    def sum_of_squares(self, x: tf.Tensor, near: tf.Operation) -> tf.Tensor:
        """Half of it, as `tf.nn.l2_loss`."""
        return self._unary('L2Loss', x, near)

    def square(self, x: tf.Tensor, near: tf.Operation) -> tf.Tensor:
        return self._unary('Square', x, near)

    def multiply(self, x: tf.Tensor, y: tf.Tensor, near: tf.Operation) -> tf.Tensor:
        return self._create('Mul', [x, y], [y.dtype], {'T': _type(y.dtype)}, near).outputs[0]

    def largest(self, x: tf.Tensor, axes: tf.Tensor, near: tf.Operation) -> tf.Tensor:
        attributes = {'T': _type(x.dtype), 'Tidx': _type(tf.int32), 'keep_dims': _NO}
        return self._create('Max', [x, axes], [x.dtype], attributes, near).outputs[0]

    def copy(self, variable: tf.Operation) -> tf.Tensor:
        """A copy of a variable, which later writes leave alone."""
        if not graphs.is_resource(variable):
            return self._unary('DeepCopy', variable.outputs[0], variable)
        # Shares the buffer until somebody writes; then the writer makes its own.
        dtype = graphs.dtype_of(variable)
        attributes = {'dtype': _type(dtype)}
        op = self._create('ReadVariableOp', variable.outputs[:1], [dtype], attributes, variable)
        return op.outputs[0]

    def assign(self, variable: tf.Operation, value: tf.Tensor) -> tf.Operation:
        inputs = [variable.outputs[0], value]
        if graphs.is_resource(variable):
            attributes = {'dtype': _type(value.dtype)}
            return self._create('AssignVariableOp', inputs, [], attributes, variable)
        attributes = {'T': _type(value.dtype), 'use_locking': _YES, 'validate_shape': _NO}
        return self._create('Assign', inputs, [inputs[0].dtype], attributes, variable)

    def _unary(self, kind: str, x: tf.Tensor, near: tf.Operation) -> tf.Tensor:
        dtype = x.dtype.base_dtype
        return self._create(kind, [x], [dtype], {'T': _type(dtype)}, near).outputs[0]

    def _create(self, kind, inputs, dtypes, attributes, near) -> tf.Operation:
        attributes['_class'] = self._group(near)
        # `create_op`, the public name, spends its time on arguments that are no longer used.
        op = self._graph._create_op_internal(
            kind, inputs, dtypes, attrs=attributes, compute_device=False
        )
        if near.device:
            op._set_device(near.device)
        return op

    def _group(self, near: tf.Operation) -> tf1.AttrValue:
        """The colocation group of `near`, as `tf.compat.v1.colocate_with` would give it."""
        if near not in self._groups:
            names = sorted(near.colocation_groups())
            self._groups[near] = tf1.AttrValue(list=tf1.AttrValue.ListValue(s=names))
        return self._groups[near]


def create_like(
    op: tf.Operation,
    inputs: Sequence[tf.Tensor],
    controls: Sequence[tf.Operation],
    frame_suffix: str = '',
) -> tf.Operation:
    """A new op of the same kind, with the same attributes on the same device."""
    attributes = dict(op.node_def.attr.items())
    if 'frame_name' in attributes:  # a loop of its own, the same for all that enter it
        attributes['frame_name'].s += tf.compat.as_bytes(frame_suffix)
    with tf.control_dependencies(list(dict.fromkeys(controls))):
        made = op.graph._create_op_internal(
            op.type,
            inputs,
            [t.dtype for t in op.outputs],
            name=op.name,
            attrs=attributes,
            op_def=graphs.op_def_of(op),
            compute_device=False,
        )
    if op.device:
        made._set_device(op.device)
    return made

"""Ops of the plainest kinds, for vectors and scalars, created quickly: a gate has two hundred.

Each function creates the op that TensorFlow's function of that name creates, in the current scope,
on the current device, under the current control dependencies. TensorFlow's functions take three to
four times as long, since they convert their arguments and look up what is known here.
"""

import functools
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple, Union

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.compat import tf_private

_Scalar = Union[bool, int, float, str]
Value = Union[_Scalar, Sequence[_Scalar]]
_SCALAR = tf1.AttrValue(shape={})


def create(
    kind: str,
    inputs: Sequence[tf.Tensor],
    dtypes: Sequence[tf.DType],
    attributes: Optional[Dict[str, Any]] = None,
    name: Optional[str] = None,
) -> tf.Operation:
    """Creates an op of any kind.

    Args:
      kind: the type of op, such as ``LogicalNot``.
      inputs: its inputs; attributes that are their dtypes follow from them.
      dtypes: the dtypes of its outputs.
      attributes: an `AttrValue` for each that has no default and does not follow from `inputs`.
      name: its name; None for `kind`.
    """
    graph = tf1.get_default_graph()
    return tf_private.create_op(graph, kind, inputs, dtypes, attrs=attributes, name=name)


def group(operations: Iterable[tf.Operation], name: str) -> tf.Operation:
    """As `tf.group`, for ops that a session may have run.

    In newer versions of TensorFlow `tf.group` marks the ops it is given, and warns if one has run.
    """
    by_device: Dict[str, List[tf.Operation]] = {}
    for operation in operations:
        by_device.setdefault(operation.device, []).append(operation)
    parts = [_group_on(device, together, name) for device, together in by_device.items()]
    return parts[0] if len(parts) == 1 else _group_on('', parts, name)


def _group_on(device: str, operations: Iterable[tf.Operation], name: str) -> tf.Operation:
    with tf.device(device or None):
        waiting = create('NoOp', [], [], name=name)
    for operation in operations:
        tf_private.add_control_input(waiting, operation)
    return waiting


def constant(value: Value, dtype: tf.DType) -> tf.Tensor:
    """A scalar or a vector. The proto of a scalar or a tuple is kept for equal ones to come."""
    of = _constant_of if isinstance(value, list) else _known_constant_of
    return create('Const', [], [dtype], dict(of(value, dtype))).outputs[0]


def _constant_of(value: Value, dtype: tf.DType) -> Tuple[Tuple[str, Any], ...]:
    proto = tf1.make_tensor_proto(value, dtype)
    return ('value', tf1.AttrValue(tensor=proto)), ('dtype', type_attribute(dtype))


_known_constant_of = functools.lru_cache(maxsize=256)(_constant_of)


@functools.lru_cache(maxsize=None)
def type_attribute(dtype: tf.DType) -> Any:
    """The `AttrValue` of a dtype."""
    return tf1.AttrValue(type=dtype.base_dtype.as_datatype_enum)


def identity(
    x: tf.Tensor, name: Optional[str] = None, attributes: Optional[Dict[str, Any]] = None
) -> tf.Tensor:
    if x.dtype in (tf.resource, tf.variant) and not attributes:
        return tf.identity(x, name=name)  # keeps their handle data
    return create('Identity', [x], [x.dtype.base_dtype], attributes, name).outputs[0]


def feedable(default: tf.Tensor, name: str) -> tf.Tensor:
    """A scalar that is `default` unless it is fed."""
    dtypes, attributes = [default.dtype.base_dtype], {'shape': _SCALAR}
    return create('PlaceholderWithDefault', [default], dtypes, attributes, name).outputs[0]


def placeholder(dtype: tf.DType, shape: Union[Sequence[int], tf.TensorShape]) -> tf.Tensor:
    """A tensor that has to be fed."""
    attributes = {
        'dtype': type_attribute(dtype),
        'shape': tf1.AttrValue(shape=tf.TensorShape(shape).as_proto()),
    }
    return create('Placeholder', [], [dtype], attributes).outputs[0]


def cast(x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    if x.dtype.base_dtype == dtype:
        return x
    return create('Cast', [x], [dtype], {'DstT': type_attribute(dtype)}).outputs[0]


def multiply(x: tf.Tensor, y: Union[tf.Tensor, float]) -> tf.Tensor:
    return create('Mul', [x, _tensor(y, x)], [x.dtype.base_dtype]).outputs[0]


def minimum(x: tf.Tensor, y: Union[tf.Tensor, float]) -> tf.Tensor:
    return create('Minimum', [x, _tensor(y, x)], [x.dtype.base_dtype]).outputs[0]


def less(x: tf.Tensor, y: Union[tf.Tensor, Value]) -> tf.Tensor:
    return create('Less', [x, _tensor(y, x)], [tf.bool]).outputs[0]


def greater(x: tf.Tensor, y: Union[tf.Tensor, Value]) -> tf.Tensor:
    return create('Greater', [x, _tensor(y, x)], [tf.bool]).outputs[0]


def is_finite(x: tf.Tensor) -> tf.Tensor:
    return create('IsFinite', [x], [tf.bool]).outputs[0]


def logical_not(x: tf.Tensor, name: Optional[str] = None) -> tf.Tensor:
    return create('LogicalNot', [x], [tf.bool], name=name).outputs[0]


def logical_and(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return create('LogicalAnd', [x, y], [tf.bool]).outputs[0]


def none_of(flags: tf.Tensor, name: Optional[str] = None) -> tf.Tensor:
    """Whether all flags of a bool vector are False."""
    return logical_not(create('Any', [flags, _first_axes()], [tf.bool]).outputs[0], name)


def all_of(flags: tf.Tensor) -> tf.Tensor:
    """Whether all flags of a bool vector are True."""
    return create('All', [flags, _first_axes()], [tf.bool]).outputs[0]


def stack(scalars: Sequence[tf.Tensor], name: Optional[str] = None) -> tf.Tensor:
    """A vector of scalars of one dtype."""
    attributes = {'N': tf1.AttrValue(i=len(scalars))}
    return create('Pack', scalars, [scalars[0].dtype.base_dtype], attributes, name).outputs[0]


def concat(vectors: Sequence[tf.Tensor], name: Optional[str] = None) -> tf.Tensor:
    """Joins vectors; a single vector is returned as it is, whatever `name` is."""
    if len(vectors) == 1:
        return vectors[0]
    inputs = [*vectors, constant(0, tf.int32)]
    attributes = {'N': tf1.AttrValue(i=len(vectors))}
    return create('ConcatV2', inputs, [vectors[0].dtype.base_dtype], attributes, name).outputs[0]


def gather(vector: tf.Tensor, places: Union[tf.Tensor, Sequence[int]]) -> tf.Tensor:
    """The elements of a vector at `places`: a scalar, or a vector, of int32 or int64."""
    if not isinstance(places, tf.Tensor):
        places = constant(list(places), tf.int32)
    inputs = [vector, places, constant(0, tf.int32)]
    return create('GatherV2', inputs, [vector.dtype.base_dtype]).outputs[0]


def places_of(flags: tf.Tensor) -> tf.Tensor:
    """An int64 vector: where a bool vector is True (`tf.where` returns a matrix)."""
    where = create('Where', [flags], [tf.int64]).outputs[0]
    second = tf1.AttrValue(list=tf1.AttrValue.ListValue(i=[1]))
    return create('Squeeze', [where], [tf.int64], {'squeeze_dims': second}).outputs[0]


def beginning(vector: tf.Tensor, most: int) -> tf.Tensor:
    """The first `most` elements of a vector; all, if it has fewer."""
    limits = [constant((number,), tf.int32) for number in (0, most, 1)]
    return create('StridedSlice', [vector, *limits], [vector.dtype.base_dtype]).outputs[0]


def size(x: tf.Tensor) -> tf.Tensor:
    return create('Size', [x], [tf.int32]).outputs[0]


def as_string(x: tf.Tensor) -> tf.Tensor:
    """A number as a string, in as few digits as tell it from all others of its dtype."""
    shortest = {'shortest': tf1.AttrValue(b=x.dtype.is_floating)}
    return create('AsString', [x], [tf.string], shortest).outputs[0]


def join_words(words: tf.Tensor, separator: str) -> tf.Tensor:
    """Joins a vector of strings into one."""
    attributes = {'separator': tf1.AttrValue(s=separator.encode())}
    return create('ReduceJoin', [words, _first_axes()], [tf.string], attributes).outputs[0]


def join_strings(parts: Sequence[Union[str, tf.Tensor]]) -> tf.Tensor:
    """Joins several strings into one."""
    tensors = [part if isinstance(part, tf.Tensor) else constant(part, tf.string) for part in parts]
    number = {'N': tf1.AttrValue(i=len(tensors))}
    return create('StringJoin', tensors, [tf.string], number).outputs[0]


def switch(x: tf.Tensor, pred: tf.Tensor, name: Optional[str] = None) -> Sequence[tf.Tensor]:
    """Two outputs: `x` if `pred` is false, and `x` if it is true. One of them is dead."""
    return create('Switch', [x, pred], [x.dtype.base_dtype] * 2, name=name).outputs


def merge(tensors: Sequence[tf.Tensor], name: Optional[str] = None) -> tf.Tensor:
    """Whichever of `tensors` is not dead."""
    attributes = {'N': tf1.AttrValue(i=len(tensors))}
    dtypes = [tensors[0].dtype.base_dtype, tf.int32]
    return create('Merge', tensors, dtypes, attributes, name).outputs[0]


def _first_axes() -> tf.Tensor:
    return constant((0,), tf.int32)


def _tensor(value: Union[tf.Tensor, Value], other: tf.Tensor) -> tf.Tensor:
    """A value as a tensor; a number gets the dtype of `other`."""
    return value if isinstance(value, tf.Tensor) else constant(value, other.dtype.base_dtype)

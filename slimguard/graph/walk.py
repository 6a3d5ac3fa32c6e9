"""Walking a graph: an op's declaration, the ops that must run before it, and keys for tensors."""

import re
from typing import (
    Any,
    Container,
    Dict,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Set,
    Tuple,
    Union,
)

import numpy as np
import tensorflow as tf

from slimguard.compat import tf_private

TrainOp = Union[tf.Tensor, tf.Operation]

# The scope of all that we add to a graph.
OURS = 'slimguard/'

# The enum of a reference dtype is the enum of its base dtype plus 100 (types.proto).
REFERENCES = 100

# Caches, by type of op. They leave out functions, since a name may mean another function in each
# graph.
_op_defs: Dict[str, Any] = {}
_arguments_of_type: Dict[str, List['_Argument']] = {}
_floats: Dict[int, bool] = {}
_ENQUEUES = re.compile('Queue.*Enqueue')
_RANDOM = re.compile(r'.*(Random|Multinomial|TruncatedNormal|Uniform|Gamma|Poisson|Binomial)')


def op_def_of(op):
    """The OpDef of `op`; cached by type, since TensorFlow parses it at each access."""
    return op_def_of_type(op.graph, op.type)


def op_def_of_type(graph: tf.Graph, op_type: str) -> Any:
    """The OpDef of a type of op, even if only function bodies use it; None if unknown."""
    if op_type in _op_defs:
        return _op_defs[op_type]
    try:
        op_def = tf_private.op_def_for_type(graph, op_type)
    except (tf.errors.NotFoundError, KeyError):
        return None
    if not tf_private.is_function(graph, op_type):
        _op_defs[op_type] = op_def
    return op_def


def is_stateful(op) -> bool:
    """Whether two runs of `op` with the same inputs may differ: it reads, draws or writes."""
    return op_def_of(op).is_stateful


def is_random(op) -> bool:
    """Whether `op` only draws random numbers; a second draw takes nothing from the input."""
    return bool(_RANDOM.match(op.type))


def is_enqueue(op) -> bool:
    """Whether an op fills a queue, as the ops of queue runners do."""
    return bool(_ENQUEUES.match(op.type))


def controls_of(op) -> List[tf.Operation]:
    """The control inputs of `op`, in the order they were made.

    If an op has many, as the op that groups all updates, TensorFlow returns them in the order of
    their addresses. The order of creation is the same in each process, so the tensors of an
    incident, for example, are in the order of the network.
    """
    controls = op.control_inputs
    return controls if len(controls) < 2 else sorted(controls, key=tf_private.number_of)


def needs(op, fed: Container[Any] = ()) -> Iterator[tf.Operation]:
    """The ops that must run before `op`; leaves out makers of inputs whose keys are in `fed`."""
    for tensor in op.inputs:
        if not fed or key(tensor) not in fed:
            yield tensor.op
    yield from controls_of(op)


def ancestors(roots: Iterable[tf.Operation], needs=needs) -> List[tf.Operation]:
    """Every op that `roots` need, and `roots` themselves, in topological order.

    A `tf.while_loop` is a cycle, in which its Merge comes first.
    """
    order: List[tf.Operation] = []
    seen: Set[tf.Operation] = set()
    waiting = list(roots)
    while waiting:
        root = waiting.pop()
        if root in seen:
            continue
        seen.add(root)
        stack = [(root, iter(needs(root)), _is_merge(root))]
        while stack:
            op, rest, is_merge = stack[-1]
            for needed in rest:
                if needed in seen:
                    continue
                if is_merge and needed.type in ('NextIteration', 'RefNextIteration'):
                    waiting.append(needed)
                    continue
                seen.add(needed)
                stack.append((needed, iter(needs(needed)), _is_merge(needed)))
                break
            else:
                order.append(op)
                stack.pop()
    return order


def ancestors_beyond(fed: Iterable[tf.Tensor], roots: Iterable[tf.Operation]) -> List[tf.Operation]:
    """As `ancestors`, for a run that feeds the tensors `fed`."""
    keys = {key(tensor) for tensor in fed}
    return ancestors(roots, lambda op: needs(op, keys))


def makers_of(op: tf.Operation) -> List[tf.Operation]:
    """The ops that made the inputs of `op`. With it, `ancestors` leaves out control inputs."""
    return [tensor.op for tensor in op.inputs]


def _is_merge(op) -> bool:
    # Counting outputs is quicker than reading the type, and this runs for every op.
    return len(op.outputs) == 2 and op.type in ('Merge', 'RefMerge')


def is_reference(tensor) -> bool:
    return tensor.dtype.as_datatype_enum > REFERENCES


def is_float(tensor) -> bool:
    number = tensor.dtype.as_datatype_enum
    if number not in _floats:
        dtype = tensor.dtype.base_dtype
        _floats[number] = dtype.is_floating or dtype.is_complex
    return _floats[number]


class _Argument(NamedTuple):
    name: str
    is_ref: bool  # whether it is declared as a reference


def arguments_of(op) -> List[_Argument]:
    """For each input of `op`, the argument in its OpDef that the input belongs to."""
    found = _arguments_of_type.get(op.type)
    if found is not None:
        return found
    found = []
    arguments = op_def_of(op).input_arg
    lists = [a for a in arguments if a.number_attr or a.type_list_attr]
    for argument in arguments:
        count = 1
        if argument in lists:
            # A single list takes all inputs that other arguments leave; for several, ask the op.
            count = (
                len(op.inputs) - len(arguments) + 1 if len(lists) == 1 else _length(op, argument)
            )
        found.extend([_Argument(argument.name, argument.is_ref)] * count)
    if not lists and not tf_private.is_function(op.graph, op.type):
        _arguments_of_type[op.type] = found
    return found


def _length(op, argument) -> int:
    if argument.number_attr:
        return op.get_attr(argument.number_attr)
    return len(op.get_attr(argument.type_list_attr))


def takes_reference(op, index: int) -> bool:
    """Whether the OpDef declares input `index` as a reference; any input may be given one."""
    return arguments_of(op)[index].is_ref


def constant_scalar(tensor) -> Optional[float]:
    """The value of a scalar constant, also through Identity and Cast; None for other tensors."""
    op = tensor.op
    while op.type in ('Identity', 'Cast') and not is_reference(op.inputs[0]):
        op = op.inputs[0].op
    value = tf.get_static_value(op.outputs[0]) if op.type == 'Const' else None
    if value is None or value.size != 1 or tensor.dtype.is_complex:
        return None
    return float(value.astype(tensor.dtype.base_dtype.as_numpy_dtype))  # rounded as by a Cast


def lowest_constant(tensor, products: int = 3) -> Optional[float]:
    """The smallest element of a constant of any size; None for other tensors.

    A product of constants that are not negative counts as a constant: TensorFlow builds constants
    of a variable's size in this way. A chain of more than `products` products is not followed,
    since a chain in a user's script may be long.
    """
    op = tensor.op
    while op.type == 'Identity' and not is_reference(op.inputs[0]):
        op = op.inputs[0].op
    if op.type == 'Fill':
        return constant_scalar(op.inputs[1])
    if op.type == 'Mul':
        factors = [lowest_constant(each, products - 1) for each in op.inputs if products]
        lowest = [factor for factor in factors if factor is not None and factor >= 0]
        return lowest[0] * lowest[1] if len(lowest) == 2 else None
    if op.type == 'ZerosLike':
        return 0.0
    elements = _elements_of(op)
    return None if elements is None else float(elements.min())


def largest_constant(tensor) -> Optional[float]:
    """The largest absolute value in a constant; None if the op is no constant."""
    elements = _elements_of(tensor.op)
    return None if elements is None else float(np.abs(elements).max())


def _elements_of(op) -> Optional[np.ndarray]:
    """The elements of a constant, perhaps without repeats of the last one; None if it is empty."""
    if op.type != 'Const':
        return None
    value = op.get_attr('value')
    if not value.tensor_content:  # the last number stands for all that follow
        numbers = [value.half_val, value.float_val, value.double_val, value.int_val]
        numbers += [value.int64_val, value.scomplex_val[::2], value.dcomplex_val[::2]]
        del value.tensor_shape.dim[:]
        value.tensor_shape.dim.add(size=max(map(len, numbers)))
    elements = tf.make_ndarray(value)
    if op.outputs[0].dtype.base_dtype == tf.bfloat16:  # numpy has no minimum for this dtype
        elements = elements.astype(np.float32)
    return elements if elements.size else None


def op_of(element: TrainOp) -> tf.Operation:
    return element if isinstance(element, tf.Operation) else element.op


def key(tensor: tf.Tensor) -> Tuple[tf.Operation, int]:
    """A key for dictionaries: a Tensor may be unhashable under TensorFlow 2's equality."""
    return tensor.op, tensor.value_index

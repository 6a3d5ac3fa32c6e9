"""Variables of a graph, by reference and by resource handle alike."""

from typing import Any, Iterable, List, Optional, Set

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.graph.kept import kept_already, kept_on
from slimguard.graph.walk import constant_scalar, is_reference

# These ops hand a variable on, unchanged, to the consumers of their output.
PASS_ON = frozenset(
    'Identity RefIdentity Switch RefSwitch Merge RefMerge Enter RefEnter Exit RefExit '
    'NextIteration RefNextIteration RefSelect LoopCond'.split()
)
# These ops take a variable and do not change it. A wrong entry would let a write bypass every gate.
READS = frozenset(
    'ReadVariableOp _ReadVariablesOp VarIsInitializedOp IsVariableInitialized VariableShape '
    'ResourceGather ResourceGatherNd DisableCopyOnRead DeepCopy'.split()
)
VARIABLES = frozenset('VariableV2 Variable VarHandleOp'.split())


def variable_behind(tensor) -> Optional[tf.Operation]:
    """The variable op that a reference or a resource handle leads back to, or None."""
    seen = set()
    op = tensor.op
    while op not in seen:
        seen.add(op)
        if op.type in VARIABLES:
            return op
        hands_on = op.type in PASS_ON or any(is_reference(t) for t in op.outputs)
        if not hands_on or not op.inputs:
            return None
        op = op.inputs[0].op
    return None


def variable_read(tensor) -> Optional[tf.Operation]:
    """The op of the variable that a tensor is the value of, or a reference to; or None."""
    variable = variable_behind(tensor)
    if variable is None and is_variable_read(tensor.op):
        variable = variable_behind(tensor.op.inputs[0])
    return variable


def dtype_of(variable: tf.Operation) -> tf.DType:
    if is_resource(variable):
        return tf.as_dtype(variable.get_attr('dtype')).base_dtype
    return variable.outputs[0].dtype.base_dtype  # reading attributes is slow


def global_step(graph: tf.Graph) -> Any:
    """The global step of a graph, a variable or a reference to one; None if there is none.

    This is TensorFlow's global step, or else the counter that `note_counter` noted.
    A tensor of that name that is no integer variable does not count: scripts give the name to
    floats and placeholders.
    """
    try:
        step = tf1.train.get_global_step(graph)
    except TypeError:
        step = None
    if isinstance(step, tf.Tensor) and variable_behind(step) is None:
        step = None
    return kept_already(graph, _COUNTER) if step is None else step


def note_counter(train_op: tf.Operation) -> None:
    """Notes the integer variable to which `train_op`, as `minimize` returns it, adds one.

    `minimize(loss, global_step=step)` takes a variable of any name, which is the global step of
    the graph if TensorFlow knows none.
    """
    if train_op.type not in ('AssignAdd', 'AssignAddVariableOp'):
        return
    counter = variable_behind(train_op.inputs[0])
    if constant_scalar(train_op.inputs[1]) != 1 or counter is None:
        return
    with train_op.graph.as_default():
        known = {variable.op: variable for variable in on_each_device(tf1.global_variables())}
    if counter in known and known[counter].dtype.is_integer and known[counter].shape.rank == 0:
        kept_on(train_op.graph, _COUNTER, lambda: known[counter])


_COUNTER = 'counter'


def device_of(op) -> str:
    """The device of `op`; if it names none and takes a variable, the variable's device."""
    if not op.device:
        for tensor in op.inputs:
            if tensor.dtype == tf.resource or is_reference(tensor):
                variable = variable_behind(tensor)
                return '' if variable is None else variable.device
    return op.device


def on_each_device(variables: Iterable[Any]) -> List[Any]:
    """Variables; a strategy's mirrored variable is replaced by its copies on the devices.

    The strategy's own object has no op in the graph; reading or restoring it adds ops.
    """
    return [copy for variable in variables for copy in getattr(variable, 'values', [variable])]


def trainable_in(graph: tf.Graph) -> Set[tf.Operation]:
    """The ops of the trainable variables of a graph."""
    with graph.as_default():
        return {variable.op for variable in on_each_device(tf1.trainable_variables())}


def local_in(graph: tf.Graph) -> Set[tf.Operation]:
    """The ops of the local variables of a graph, which are in no checkpoint."""
    local = graph.get_collection(tf1.GraphKeys.LOCAL_VARIABLES)
    return {variable.op for variable in on_each_device(local)}


def is_float_variable(variable: tf.Operation) -> bool:
    dtype = dtype_of(variable)
    return dtype.is_floating or dtype.is_complex


def is_resource(variable: tf.Operation) -> bool:
    return variable.type == 'VarHandleOp'


def is_variable_read(op) -> bool:
    """Whether the output of `op` is the value of a variable (or the variable, by reference)."""
    if op.type in ('ReadVariableOp', 'VariableV2', 'Variable', 'ResourceGather'):
        return True
    return op.type == 'Identity' and is_reference(op.inputs[0])

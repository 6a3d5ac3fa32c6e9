"""The private names of TensorFlow that reading and editing a graph needs, one function for each.

Each was seen in TensorFlow 1.15.5 and in 2.21.0, under the same name and with the same meaning;
where the two differ, the function says so. When a new TensorFlow breaks one, this is the place.
"""

from typing import Any, Callable, ContextManager, Dict, List, Sequence

import tensorflow as tf
import tensorflow.compat.v1 as tf1

# What TensorFlow's Saver and Supervisor accept as a session. It is exported under no public name.
SessionInterface = next(c for c in tf1.Session.__mro__ if c.__name__ == 'SessionInterface')


# Reading.


def control_flow_context(op: tf.Operation) -> Any:
    """The branch or loop (of v1 control flow) that `op` was created in, or None.

    `Operation._get_control_flow_context`. The public `tf.Graph` tells only the context that the
    next op is created in.
    """
    return op._get_control_flow_context()


def ops_waiting_for(op: tf.Operation) -> List[tf.Operation]:
    """The ops that have `op` among their control inputs.

    `Operation._control_outputs`. The public `control_inputs` is the other direction: without this
    name, every op of the graph would have to be asked.
    """
    return op._control_outputs


def op_def_for_type(graph: tf.Graph, op_type: str) -> Any:
    """The OpDef of a type of op; raises NotFoundError or KeyError for an unknown one.

    The public `Graph.op_def_for_type` of 2.21 is `Graph._get_op_def` on 1.15.
    """
    find: Callable = getattr(graph, 'op_def_for_type', None) or graph._get_op_def
    return find(op_type)


def is_function(graph: tf.Graph, op_type: str) -> bool:
    """Whether a type of op is a function of the graph's library, as those of a `Defun` are.

    `Graph._is_function`. The public `as_graph_def().library` copies the whole graph to tell.
    """
    return graph._is_function(op_type)


def function_library(graph: tf.Graph) -> Dict[str, Any]:
    """The FunctionDefs of a graph, by name.

    `Graph._copy_functions_to_graph_def`. The public `as_graph_def` copies every constant of the
    model as well.
    """
    graph_def = tf1.GraphDef()
    graph._copy_functions_to_graph_def(graph_def, 0)
    return {function.signature.name: function for function in graph_def.library.function}


def is_closed(session: tf1.Session) -> bool:
    """Whether a session is closed: `BaseSession._closed`. The public way is to run something."""
    return session._closed


def slice_info(variable: Any) -> Any:
    """Of which partitioned variable this is which slice (`full_name`, `spec`), or None.

    `Variable._save_slice_info`, by which TensorFlow's Saver names a slice in a checkpoint. There is
    no public name.
    """
    return getattr(variable, '_save_slice_info', None)


# Editing.


def lock_against_sessions(graph: tf.Graph) -> ContextManager:
    """While it is open, no session of another thread sees ops that are added meanwhile.

    `Graph._mutation_lock`: sessions take the other side of it (`_session_run_lock`) to run. What
    a session has seen cannot be wired any more, so half a gate must not be seen.
    """
    return graph._mutation_lock()


def replace_input(op: tf.Operation, index: int, tensor: tf.Tensor) -> None:
    """Feeds an existing op with another tensor.

    `Operation._update_input`. The public ways (`import_graph_def` with an `input_map`) make a copy
    of the op.
    """
    op._update_input(index, tensor)


def add_control_input(op: tf.Operation, control: tf.Operation) -> None:
    """Makes an existing op wait for another one.

    `Operation._add_control_input`. The public `tf.control_dependencies` is for ops yet to be
    created.
    """
    op._add_control_input(control)


def create_op(
    graph: tf.Graph, op_type: str, inputs: Sequence[tf.Tensor], dtypes: Sequence, **options
) -> tf.Operation:
    """Creates an op of any type, without asking the device functions of the caller's code.

    `Graph._create_op_internal`. The public `Graph.create_op` spends its time on arguments that are
    no longer used.
    """
    return graph._create_op_internal(op_type, inputs, dtypes, compute_device=False, **options)


def set_device(op: tf.Operation, device: str) -> None:
    """Puts an existing op on a device: `Operation._set_device`.

    The public `tf.device` is for ops yet to be created, and takes longer.
    """
    op._set_device(device)

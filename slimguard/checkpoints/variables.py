"""The variables of a graph: which there are, their values, and how these are put back.

A graph that `tf.import_graph_def` made has no collections, and some scripts keep variables out of
collections. To read and to assign such a variable, this module adds ops to the graph.
"""

from typing import Any, Dict, Iterable, Iterator, NamedTuple, Tuple

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.compat import tf_private
from slimguard.graph import ops

_KEPT_AS = '_slimguard_unlisted'


class Unlisted(NamedTuple):
    """A variable without a Python object.

    Attributes:
      op: the op of the variable.
      value: a tensor of its value.
      initializer: the op that assigns the value fed to its second input.
    """

    op: tf.Operation
    value: tf.Tensor
    initializer: tf.Operation

    @property
    def shape(self) -> tf.TensorShape:
        return self.value.shape

    @property
    def dtype(self) -> tf.DType:
        return self.value.dtype


def all_variables(graph: tf.Graph) -> Dict[str, Any]:
    """A graph's global and local variables, by name: TensorFlow's objects, or `Unlisted`.

    The caller makes sure that no other thread reads or changes the graph at the same time.
    """
    with graph.as_default():
        listed = tf1.global_variables() + tf1.local_variables()
    by_name: Dict[str, Any] = {each.op.name: each for each in graphs.on_each_device(listed)}
    others = [op for op in graph.get_operations() if op.type in graphs.VARIABLES]
    others = [op for op in others if not op.name.startswith(graphs.OURS) and op.name not in by_name]
    made: Dict[tf.Operation, Unlisted] = getattr(graph, _KEPT_AS, {})
    new = [op for op in others if op not in made]
    if new:
        with tf_private.unfinalized(graph), ops.our_scope(graph, 'unlisted'):
            made.update((op, _unlisted(op)) for op in new)
        setattr(graph, _KEPT_AS, made)
    by_name.update((op.name, made[op]) for op in others)
    return by_name


def _unlisted(op: tf.Operation) -> Unlisted:
    value = ops.copy_of(op)
    given = tf1.placeholder(value.dtype, value.shape)
    return Unlisted(op, value, ops.assign(op, given))


def read_variables(session, variables: Dict[str, Any]) -> Dict[str, np.ndarray]:
    """Copies of the values of the initialized variables, by name."""
    try:
        values = session.run({name: fetched(each) for name, each in variables.items()})
    except tf.errors.FailedPreconditionError:
        values = dict(_one_by_one(session, variables))
    # Copy: a fetched ref variable is the variable's own memory.
    return {name: np.array(value) for name, value in values.items()}


def _one_by_one(session, variables: Dict[str, Any]) -> Iterator[Tuple[str, np.ndarray]]:
    for name, variable in variables.items():
        try:
            value = session.run(fetched(variable))
        except tf.errors.FailedPreconditionError:
            continue
        yield name, np.asarray(value)


def assign(session, values: Iterable[Tuple[Any, np.ndarray]]) -> None:
    """Assigns values to variables by running their initializers: a graph may be finalized."""
    # One run for each: two initializers may take one tensor, but a run feeds it one value.
    for variable, value in values:
        session.run(variable.initializer, {variable.initializer.inputs[1]: value})


def size_of(variables: Dict[str, Any]) -> int:
    """The size of variables in bytes, without variables of unknown shape."""
    return sum(
        (each.shape.num_elements() or 0) * each.dtype.base_dtype.size for each in variables.values()
    )


def fetched(variable: Any) -> Any:
    """The fetch that reads a variable."""
    return variable.value if isinstance(variable, Unlisted) else variable

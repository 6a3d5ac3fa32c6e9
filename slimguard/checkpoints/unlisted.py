"""Variables of a graph that none of its collections lists.

A graph that `tf.import_graph_def` made has no collections, and some scripts keep variables out of
them. Reading such a variable, and giving it a value, takes ops of ours.
"""

from typing import Any, Dict, NamedTuple

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
    """The variables of a graph, by name, local ones too: TensorFlow's objects, or `Unlisted`.

    The caller makes sure that no other thread reads or changes the graph meanwhile.
    """
    with graph.as_default():
        listed = tf1.global_variables() + tf1.local_variables()
    found: Dict[str, Any] = {each.op.name: each for each in graphs.on_each_device(listed)}
    others = [op for op in graph.get_operations() if op.type in graphs.VARIABLES]
    others = [op for op in others if not op.name.startswith(graphs.OURS) and op.name not in found]
    made: Dict[tf.Operation, Unlisted] = getattr(graph, _KEPT_AS, {})
    new = [op for op in others if op not in made]
    if new:
        with tf_private.unfinalized(graph), ops.our_scope(graph, 'unlisted'):
            made.update((op, _unlisted(op)) for op in new)
        setattr(graph, _KEPT_AS, made)
    found.update((op.name, made[op]) for op in others)
    return found


def fetched(variable: Any) -> Any:
    """The fetch that reads a variable."""
    return variable.value if isinstance(variable, Unlisted) else variable


def _unlisted(op: tf.Operation) -> Unlisted:
    value = ops.copy_of(op)
    given = tf1.placeholder(value.dtype, value.shape)
    return Unlisted(op, value, ops.assign(op, given))

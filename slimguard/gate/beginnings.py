"""The initial values of variables, where these are constant."""

from typing import Dict, Optional

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs


class Beginnings:
    """Knows what the variables of a graph begin with.

    Args:
      graph: the graph. It is read when it is first asked for.
    """

    def __init__(self, graph: tf.Graph):
        self._graph = graph
        self._initializers: Optional[Dict[tf.Operation, Optional[tf.Operation]]] = None

    def lowest_of(self, variable: Optional[tf.Operation]) -> Optional[float]:
        """The least of a variable's initial values; None if that is not known."""
        if self._initializers is None:
            with self._graph.as_default():
                known = tf1.global_variables() + tf1.local_variables()
            found = graphs.on_each_device(known)
            self._initializers = {each.op: each.initializer for each in found}
        initializer = None if variable is None else self._initializers.get(variable)
        return None if initializer is None else graphs.lowest_constant(initializer.inputs[-1])

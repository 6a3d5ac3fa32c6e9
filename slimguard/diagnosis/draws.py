"""Which ops of a step draw, that is, take input or make random numbers: :class:`Draws`."""

import re
from typing import Any, Dict, List, Set, Tuple

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.graph import key
from slimguard.graph.collectives import is_collective

# Stateful ops whose outputs depend on their inputs alone: checks and prints that pass a value on,
# and the ops that loops are made of.
_COMPUTES = re.compile(
    r'(CheckNumerics(V2)?|Print(V2)?|TensorArray.*|(Ref)?Stack(V2|Push.*|Pop.*|Close.*)?'
    r'|TemporaryVariable|DestroyTemporaryVariable|Assert)$'
)
_HANDLES = (tf.resource, tf.variant)


class Draws:
    """Finds the ops of a step that draw: that take input or make random numbers.

    Args:
      graph: the graph.
      ops: the ops of the step, in topological order.

    Attributes:
      writes: which ops of the graph write.
    """

    def __init__(self, graph: tf.Graph, ops: List[tf.Operation]):
        self._graph = graph
        self.writes = graphs.Writes(graph)
        self._bodies: Dict[str, bool] = {}
        self._draws: Set[tf.Operation] = set()
        self._tainted: Set[Tuple[tf.Operation, int]] = set()  # handles of iterators, queues, tables
        self._written: Dict[tf.Operation, frozenset] = {}  # by op, the variables written before it
        for op in ops:
            self._look_at(op)

    def __contains__(self, op) -> bool:
        return op in self._draws

    def _look_at(self, op) -> None:
        before = [self._written.get(needed, frozenset()) for needed in graphs.needs(op)]
        ahead = frozenset().union(*before)
        variables = self.writes.variables(op)
        self._written[op] = ahead.union(variables) if variables else ahead
        if not self._reaches_out(op, ahead, bool(variables)):
            return
        if not all(is_handle(t) for t in op.outputs):
            self._draws.add(op)
        self._tainted.update(key(t) for t in op.outputs if is_handle(t))

    def _reaches_out(self, op, ahead, writes: bool) -> bool:
        if op.type.startswith('Placeholder') or is_collective(op.type):
            return True
        if op.type in graphs.VARIABLES or _COMPUTES.match(op.type):
            return False
        if graphs.is_variable_read(op):
            return graphs.variable_read(op.outputs[0]) in ahead
        if self.writes.calls(op):
            return any(self._draws_inside(name) for name in self.writes.calls(op))
        if any(key(t) in self._tainted for t in op.inputs):
            return True
        stateful = graphs.is_stateful(op) and op.type not in graphs.READS
        return stateful or (writes and _returns_values(op))

    def _draws_inside(self, name: str) -> bool:
        """Whether the library function of that name draws something."""
        if name not in self._bodies:
            self._bodies[name] = False  # stands until then, for functions that call themselves
            function = self.writes.function(name)
            self._bodies[name] = function is not None and any(
                self._node_draws(node) for node in function.node_def
            )
        return self._bodies[name]

    def _node_draws(self, node) -> bool:
        if node.op in graphs.VARIABLES or node.op in graphs.READS or _COMPUTES.match(node.op):
            return False
        if is_collective(node.op):
            return True
        inner = self.writes.called_by(node)
        if inner:
            return any(self._draws_inside(name) for name in inner)
        op_def: Any = graphs.op_def_of_type(self._graph, node.op)
        return op_def is not None and op_def.is_stateful and bool(op_def.output_arg)


def _returns_values(op) -> bool:
    """Whether all consumers take a write's output as a value: a ref cannot be fed."""
    return bool(op.outputs) and not any(
        graphs.takes_reference(consumer, index)
        for tensor in op.outputs
        if graphs.is_reference(tensor)
        for consumer in tensor.consumers()
        for index, given in enumerate(consumer.inputs)
        if key(given) == key(tensor)
    )


def is_from_outside(op_type: str) -> bool:
    """Whether ops of this type draw a value that other drawn values do not determine."""
    return not is_written_value(op_type) and not is_collective(op_type)


def is_written_value(op_type: str) -> bool:
    """Whether ops of this type return a value that the step itself wrote and now reads back.

    Such a value was computed from other values that the step drew.
    """
    return _WRITTEN_VALUES.match(op_type) is not None


_WRITTEN_VALUES = re.compile(
    r'(Resource)?(Assign|Scatter|(Sparse)?Apply)|VariableV?2?$|ReadVariableOp$|ResourceGather'
)


def is_handle(tensor) -> bool:
    """Whether a tensor is a handle: a resource, a variant, or a queue of TensorFlow 1."""
    if tensor.dtype.base_dtype in _HANDLES:
        return True
    return graphs.is_reference(tensor) and tensor.dtype.base_dtype == tf.string

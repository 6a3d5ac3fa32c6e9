"""The tensors to fetch of a step, which arrive once it is done."""

from typing import Dict, NamedTuple, Optional

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.gate.tasks import Task, Tasks
from slimguard.graph import TrainOp, op_of, ops, plain_ops

# The attribute of a guarded train op that names the given one. It goes with the op into files.
_GUARDS = '_slimguard_guards'


class Outcome(NamedTuple):
    """The tensors to fetch of a step.

    Attributes:
      train_op: the guarded train op.
      written: bool scalar, whether the step was written.
      bad: bool vector, a flag for each label of the gate.
      step: the global step after the step, or None if the graph has none.
    """

    train_op: TrainOp
    written: tf.Tensor
    bad: tf.Tensor
    step: Optional[tf.Tensor]


class GlobalStep:
    """Reads the global step.

    Args:
      graph: the graph.
      make: makes the ops.
      tasks: the tasks of the gate.
      settled: by task other than home, a token that arrives once all writes there are done.
    """

    def __init__(
        self, graph: tf.Graph, make: ops.Maker, tasks: Tasks, settled: Dict[Task, tf.Tensor]
    ):
        self._graph = graph
        self._make = make
        self._tasks = tasks
        self._settled = settled

    def read(self, token: tf.Tensor) -> Optional[tf.Tensor]:
        """The global step once `token` is there; if it is on another task, once that is settled."""
        step = graphs.global_step(self._graph)
        if step is None:
            return None
        settled = self._settled.get(self._tasks.at(step.device), token)
        with tf.control_dependencies([settled]):
            if step.op.type in graphs.VARIABLES:
                # A copy where the variable is: a reference is sent to another device at once, and
                # not when the reader there runs.
                return self._make.copy(graphs.on_each_device([step])[0].op)
            return plain_ops.identity(step)


def outcome_of(
    bad: tf.Tensor, value: Optional[tf.Tensor], step: GlobalStep, original: Optional[TrainOp] = None
) -> Outcome:
    """The outcome of a step, read once `bad` is there.

    Args:
      bad: bool vector, a flag for each label of the gate.
      value: what the train op is to return, or None.
      step: reads the global step.
      original: the given train op, if this outcome's is to name it as the one that it guards.
    """
    with tf.control_dependencies([bad]):
        written = plain_ops.none_of(bad, name='written')
        name = 'train_op'
        said = {}
        if original is not None:
            said[_GUARDS] = tf1.AttrValue(s=tf.compat.as_bytes(original.name))
        train_op: TrainOp
        if value is None:
            train_op = plain_ops.create('NoOp', [], [], said, name)
        else:
            train_op = plain_ops.identity(value, name, said)
    return Outcome(train_op, written, bad, step.read(bad))


def guarded_by(train_op: TrainOp) -> Optional[TrainOp]:
    """The train op that a guarded one was made of, also after an import; None for any other."""
    op = op_of(train_op)
    try:
        name = tf.compat.as_str(op.get_attr(_GUARDS))
        return op.graph.as_graph_element(op.name.partition(graphs.OURS)[0] + name)
    except (ValueError, KeyError):  # it is not guarded, or the file left the original out
        return None

"""What there is to fetch of a step once it is done."""

from typing import Dict, NamedTuple, Optional

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.gate.tasks import Task, Tasks
from slimguard.graph import TrainOp, ops, plain_ops


class Outcome(NamedTuple):
    """What there is to fetch of a step.

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
      settled: by task other than home, a token that arrives when nothing is written there any more.
    """

    def __init__(
        self, graph: tf.Graph, make: ops.Maker, tasks: Tasks, settled: Dict[Task, tf.Tensor]
    ):
        self._graph = graph
        self._make = make
        self._tasks = tasks
        self._settled = settled

    def read(self, token: tf.Tensor) -> Optional[tf.Tensor]:
        """The global step once `token` is there; on another task, once that is settled."""
        step = tf1.train.get_global_step(self._graph)
        if step is None:
            return None
        settled = self._settled.get(self._tasks.at(step.device), token)
        with tf.control_dependencies([settled]):
            if step.op.type in graphs.VARIABLES:
                # Where the variable is: a reference that goes elsewhere is sent at once, and not
                # when the reader is to read.
                return self._make.copy(graphs.on_each_device([step])[0].op)
            return plain_ops.identity(step)


def outcome_of(bad: tf.Tensor, value: Optional[tf.Tensor], step: GlobalStep) -> Outcome:
    """What is read once `bad`, the flags of the step, are there."""
    with tf.control_dependencies([bad]):
        written = plain_ops.none_of(bad, name='written')
        name = 'train_op'
        train_op: TrainOp
        if value is None:
            train_op = plain_ops.create('NoOp', [], [], name=name)
        else:
            train_op = plain_ops.identity(value, name=name)
    return Outcome(train_op, written, bad, step.read(bad))

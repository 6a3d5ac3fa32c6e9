"""Updates of weights that nobody guards: `refuse_unguarded_writes`.

A gradient that was fetched and is fed again is no gradient to anybody who reads the graph, and an
update by ``assign`` may be anything: a step of a training, or a value that is set.
"""

from typing import Callable, Iterable, List, Sequence, Set

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.gate.written_beside import is_drawn
from slimguard.graph import TrainOp, op_of


class UnguardedWriteError(ValueError):
    """A trainable variable is written by what looks like a training, and is not guarded."""

    of = 'the update of'  # what the name is of that it comes with


def refuse_unguarded_writes(
    elements: Sequence[TrainOp], graph: tf.Graph, on_refusal: Callable[[str, Exception], None]
) -> None:
    """Tells, once for a run, of trainable variables that it trains with no gate.

    Such a write computes the new value of the old one, or of those of other variables, and of what
    is fed or drawn. Initial and restored values, and copies of variables, train nothing.

    Args:
      elements: what is fetched: nothing that is guarded.
      graph: its graph.
      on_refusal: called with the name of a variable that is written, and what to do.
    """
    written = _trained(map(op_of, elements), graph)
    if written:
        more = ' (and of %d more)' % (len(written) - 1) if len(written) > 1 else ''
        on_refusal(written[0], UnguardedWriteError(_BY_ASSIGN % more))


_BY_ASSIGN = (
    'a run writes it%s with what is fed or drawn, and neither an optimizer nor a gradient in this '
    'graph made the update. Where it trains, build slimguard.guard(tf.group(update)) ahead of the '
    'session and fetch that, or feed the gradient to apply_gradients of an optimizer'
)


def _trained(elements: Iterable[tf.Operation], graph: tf.Graph) -> List[str]:
    """The names of the trainable variables that a run of `elements` trains, in order."""
    writes = graphs.Writes(graph)
    trainable = graphs.trainable_in(graph)
    candidates = []
    for op in graphs.ancestors(list(elements)):
        written = [v for v in writes.variables(op) if v in trainable]
        if written and not op.name.startswith(graphs.OURS):
            candidates.append((op, written))
    if not candidates:
        return []
    initial = _initializers(graph)
    candidates = [each for each in candidates if each[0] not in initial]
    found = [v.name for op, written in candidates if _trains(op, writes) for v in written]
    return list(dict.fromkeys(found))


def _initializers(graph: tf.Graph) -> Set[tf.Operation]:
    with graph.as_default():
        return {each.initializer for each in graphs.on_each_device(tf1.trainable_variables())}


def _trains(write: tf.Operation, writes: graphs.Writes) -> bool:
    into = writes.inputs(write)
    values = [tensor.op for index, tensor in enumerate(write.inputs) if index not in into]
    sources = graphs.ancestors(values, needs=_data_of)
    is_of_old_value = graphs.changes_value(write) or bool(writes.calls(write))
    reads = is_of_old_value or any(op.type in graphs.VARIABLES for op in sources)
    return reads and any(_is_batch(op) for op in sources)


def _data_of(op: tf.Operation) -> Iterable[tf.Operation]:
    return [tensor.op for tensor in op.inputs]


def _is_batch(op: tf.Operation) -> bool:
    """Whether an op is fed or draws data: chance is none, nor is a number, such as a decay."""
    if op.type in graphs.VARIABLES or graphs.is_random(op) or not is_drawn(op):
        return False
    return not (op.type.startswith('Placeholder') and op.outputs[0].shape.rank == 0)

"""Updates that a script makes itself, in runs that train nothing: `own_updates_among`.

A running mean, a normalized weight, a loss scale that is doubled, a gradient that was fetched and
is fed again: `session.run(mean.assign(...))`. Whether such an update may make a NaN is not asked:
whatever is computed goes through a gate, which knows when the numbers are there. What only copies,
or sets a variable to what is fed, computes nothing, and is the script's own.
"""

from typing import Iterable, List, Sequence, Set

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.gate.gate import Gate
from slimguard.gate.writing_runs import guard_writes
from slimguard.gate.written_beside import MOST_NAMES, is_drawn
from slimguard.graph import TrainOp, op_of, ops
from slimguard.system import texts


class UnguardedUpdateError(ValueError):
    """An update of the script's own cannot be guarded.

    Attributes:
      name: the names of the variables that it writes.
    """

    of = 'the update of'  # what the name is of that it comes with

    def __init__(self, why: object, name: str):
        ValueError.__init__(self, str(why))
        self.name = name


def own_updates_among(
    elements: Sequence[TrainOp], graph: tf.Graph, fed: Sequence[tf.Tensor] = ()
) -> List[TrainOp]:
    """Those of the elements fetched in a run that compute variables which checkpoints hold.

    What counts together with a float, as the number of batches in a sum, is one as well. Local
    variables are in no checkpoint, as those of a metric. What sets initial values is left alone: of
    a variable that has none yet no copy can be made.

    Args:
      elements: what is fetched: nothing that trains.
      graph: its graph.
      fed: tensors computed within the step that the run feeds.

    Returns:
      The elements; none of them if they write no floats.
    """
    updates = _Updates(graph)
    elements = [each for each in elements if not op_of(each).name.startswith(graphs.OURS)]
    steps = [graphs.ancestors_beyond(fed, [op_of(each)]) for each in elements]
    written = [updates.variables(step) for step in steps]
    if not any(map(graphs.is_float_variable, set().union(*written))):
        return []
    writing = [set(updates.writing(step)) for step in steps]
    held = set().union(*(ops for ops, variables in zip(writing, written) if variables))
    # What comes after such a write is to come after the gate's, with what it writes itself.
    for _ in elements:
        held.update(*(ops for ops in writing if not held.isdisjoint(ops)))
    return [each for each, ops in zip(elements, writing) if not held.isdisjoint(ops)]


def guard_own_updates(elements: Sequence[TrainOp], fed: Sequence[tf.Tensor] = ()) -> Gate:
    """As `guard_writes`.

    Raises:
      UnguardedUpdateError: if something that they write can be neither held back nor put back.
    """
    try:
        return guard_writes(elements, fed)
    except (ValueError, TypeError) as error:
        graph = elements[0].graph
        step = graphs.ancestors_beyond(fed, map(op_of, elements))
        names = sorted(variable.name for variable in _Updates(graph).variables(step))
        raise UnguardedUpdateError(error, texts.listed(names, MOST_NAMES)) from None


def initialized_for(gate: Gate) -> List[tf.Tensor]:
    """For each variable that a gate of own updates writes, whether it has a value; bool scalars.

    What a run sets a variable to that has none yet is its initial value, and of nothing no copy can
    be made.
    """
    graph = gate.train_op.graph
    writes = graphs.Writes(graph)
    variables = [*gate.transient, *(v for op in gate.writes for v in writes.variables(op))]
    with ops.our_scope(graph, 'initialized'):
        return [ops.is_initialized(variable) for variable in dict.fromkeys(variables)]


class _Updates:
    """Says what a run of some ops computes and writes.

    Args:
      graph: their graph.
    """

    def __init__(self, graph: tf.Graph):
        self._writes = graphs.Writes(graph)
        with graph.as_default():
            kept = tf1.global_variables() + tf1.trainable_variables()
        kept = graphs.on_each_device(kept)
        self._kept = {variable.op for variable in kept}
        self._initial = {variable.initializer for variable in kept}

    def variables(self, step: Sequence[tf.Operation]) -> Set[tf.Operation]:
        """The ops of the variables; none if initial values are set among it."""
        writing = self.writing(step)
        if not self._initial.isdisjoint(writing):
            return set()
        computing = filter(self._computes, writing)
        return {v for op in computing for v in self._writes.variables(op) if v in self._kept}

    def writing(self, step: Sequence[tf.Operation]) -> List[tf.Operation]:
        """Those of the ops that write what checkpoints hold."""
        return [op for op in step if not self._kept.isdisjoint(self._writes.variables(op))]

    def _computes(self, write: tf.Operation) -> bool:
        """Whether what is written is computed of numbers of variables, or of a batch."""
        if graphs.changes_value(write) or self._writes.is_opaque(write):
            return True
        into = self._writes.inputs(write)
        values = [tensor.op for index, tensor in enumerate(write.inputs) if index not in into]
        sources = graphs.ancestors(values, needs=_data_of)
        return any(map(_has_numbers, sources)) and not all(map(_passes_on, sources))


def _data_of(op: tf.Operation) -> Iterable[tf.Operation]:
    return [tensor.op for tensor in op.inputs]


def _has_numbers(op: tf.Operation) -> bool:
    """Whether an op holds numbers, is fed or draws them; constants and chance are none."""
    if op.type in graphs.VARIABLES:
        return graphs.is_float_variable(op)
    return is_drawn(op) and not graphs.is_random(op)


def _passes_on(op: tf.Operation) -> bool:
    """Whether the floats that an op puts out are floats that it takes, or begin with it."""
    if not any(map(graphs.is_float, op.outputs)) or not op.inputs:
        return True
    if op.type == 'Cast':
        return not _narrows(op.inputs[0].dtype.base_dtype, op.outputs[0].dtype.base_dtype)
    return graphs.is_variable_read(op) or op.type in _PASS_ON or graphs.is_random(op)


def _narrows(source: tf.DType, target: tf.DType) -> bool:
    """Whether a number may be too large for what it is cast to."""
    if source.is_floating or source.is_complex:
        return target.size < source.size or (target == tf.float16 and source != tf.float16)
    return target == tf.float16


_PASS_ON = frozenset(
    'Identity IdentityN RefIdentity Switch RefSwitch Merge RefMerge Enter RefEnter Exit '
    'NextIteration Reshape ExpandDims Squeeze Transpose Tile BroadcastTo StopGradient StridedSlice '
    'Slice Split SplitV Pack Unpack ConcatV2 Gather GatherV2 GatherNd ReverseV2 Fill ZerosLike '
    'OnesLike Restore RestoreV2 RestoreSlice IteratorGetNext QueueDequeueV2 QueueDequeueManyV2 '
    'QueueDequeueUpToV2 PlaceholderWithDefault ResourceGather'.split()
)

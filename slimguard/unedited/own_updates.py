"""Updates that a script makes itself, in runs that do not train: `OwnUpdates`.

Examples are `session.run(mean.assign(...))` for a running mean, a normalized weight, a loss scale
that is doubled, a gradient that was fetched and is fed again. Every write of a computed value goes
through a gate. A write of a copied or a fed value is not guarded.
"""

from typing import Any, Dict, Iterable, List, Optional, Sequence, Set

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.compat import tf_private
from slimguard.gate.gate import Gate
from slimguard.gate.runs_without_training import guard_writes
from slimguard.gate.written_beside import MOST_NAMES
from slimguard.graph import TrainOp, op_of, ops
from slimguard.graph.single_runs import run_once
from slimguard.system import texts
from slimguard.unedited.patches import kept_on
from slimguard.unedited.shared_updates import each_once, is_ours

# At most this many updates that are built after the first gate are guarded. A gate has many ops,
# and TensorFlow reads the whole graph before it runs a new op.
_MOST_LATE = 50


class UnguardedUpdateError(ValueError):
    """An update of the script is not guarded.

    Args:
      why: why it is not guarded.
      names: the names of the variables that it writes.

    Attributes:
      name: the first of these names, and how many more there are.
    """

    of = 'the update of'  # put before the name of the variables

    def __init__(self, why: object, names: Sequence[str]):
        ValueError.__init__(self, str(why))
        self.name = texts.listed(names, MOST_NAMES)


class OwnUpdates:
    """Guards, in one graph, the writes of runs that do not train.

    Args:
      graph: the graph.
    """

    def __init__(self, graph: tf.Graph):
        self._graph = graph
        self._first: Optional[int] = None  # the number of an op of the first gate
        self._late = 0  # gates for updates that were built after that op

    def among(
        self,
        elements: Sequence[TrainOp],
        fed: Sequence[tf.Tensor] = (),
    ) -> List[TrainOp]:
        """The fetched elements of a run whose writes need a gate.

        If one element writes a computed value to a table or to a variable that is not local, all
        elements that write need the gate. So the others, such as a count of batches or a copy of
        the batch, are written together with it or not at all. Local variables, such as a metric's,
        are in no checkpoint.

        Args:
          elements: the fetched elements, none of which trains.
          fed: the computed tensors that the run feeds.
        """
        once = [each for each in each_once(elements) if not is_ours(each)]
        updates = _Updates(self._graph)
        steps = [graphs.ancestors_beyond(fed, [op_of(each)]) for each in once]
        if not any(_is_float(each) for step in steps for each in updates.computed(step)):
            return []
        return [each for each, step in zip(once, steps) if updates.writing(step)]

    def guard(self, elements: Sequence[TrainOp], fed: Sequence[tf.Tensor] = ()) -> Gate:
        """As `guard_writes`.

        Raises:
          UnguardedUpdateError: if one of their writes can be neither held back nor undone, or if
            the script keeps building updates between its runs.
        """
        step = graphs.ancestors_beyond(fed, map(op_of, elements))
        updates = _Updates(self._graph)
        names = sorted(each.name for each in updates.computed(step))
        if self._first is not None:
            numbers = map(tf_private.number_of, updates.writing(step))
            self._late += any(number > self._first for number in numbers)
        if self._late > _MOST_LATE:
            raise UnguardedUpdateError(_TOO_MANY % _MOST_LATE, names)
        try:
            gate = guard_writes(elements, fed)
        except (ValueError, TypeError) as error:
            raise UnguardedUpdateError(error, names) from None
        if self._first is None:
            self._first = tf_private.number_of(op_of(gate.train_op))
        return gate


def written_in(elements: Iterable[TrainOp], graph: tf.Graph) -> List[tf.Operation]:
    """The ops of the variables that a run of `elements` writes."""
    writes = graphs.Writes(graph)
    step = graphs.ancestors([op_of(each) for each in elements])
    return list(dict.fromkeys(variable for op in step for variable in writes.variables(op)))


def without_value(session, variables: Iterable[tf.Operation]) -> Set[tf.Operation]:
    """The variables that have no value in a session."""
    known = kept_on(session, 'with_value', set)
    unknown = [each for each in variables if each not in known]
    if not unknown:
        return set()
    asked: Dict[tf.Operation, Any] = kept_on(session.graph, 'asked_for_value', dict)
    new = [each for each in unknown if each not in asked]
    if new:
        with tf_private.unfinalized(session.graph), ops.our_scope(session.graph, 'has_value'):
            asked.update((each, ops.is_initialized(each)) for each in new)
    answers = run_once(session, [asked[each] for each in unknown])
    known.update(each for each, has_value in zip(unknown, answers) if has_value)
    return {each for each in unknown if each not in known}


class _Updates:
    """Tells what the ops of a run write, and whether the values are computed.

    Args:
      graph: their graph.
    """

    def __init__(self, graph: tf.Graph):
        self._writes = graphs.Writes(graph)
        with graph.as_default():
            listed = tf1.global_variables() + tf1.trainable_variables()
        listed = graphs.on_each_device(listed)
        self._initial = {variable.initializer for variable in listed}
        self._local = graphs.local_in(graph) - {variable.op for variable in listed}

    def writing(self, step: Iterable[tf.Operation]) -> List[tf.Operation]:
        """The ops that write values which checkpoints may hold."""
        return [op for op in step if self._kept_of(op) or _inserts(op)]

    def computed(self, step: Iterable[tf.Operation]) -> Set[tf.Operation]:
        """The ops of variables and tables that get computed values; [] in an initializing run."""
        writing = self.writing(step)
        if not self._initial.isdisjoint(writing):
            return set()
        variables: Set[tf.Operation] = set()
        for op in filter(self._computes, writing):
            variables.update([op.inputs[0].op] if _inserts(op) else self._kept_of(op))
        return variables

    def _kept_of(self, op: tf.Operation) -> List[tf.Operation]:
        """The variables that an op writes, except local variables."""
        return [each for each in self._writes.variables(op) if each not in self._local]

    def _computes(self, write: tf.Operation) -> bool:
        """Whether a write computes its value, and does not only pass it on."""
        if graphs.changes_value(write) or self._writes.is_opaque(write):
            return True
        made_of = graphs.ancestors(self._values_of(write), graphs.makers_of)
        return not all(map(_passes_on, made_of))

    def _values_of(self, write: tf.Operation) -> List[tf.Operation]:
        """The ops of a write's inputs, except the variable or table that it writes."""
        if _inserts(write):
            return [write.inputs[2].op]
        into = self._writes.inputs(write)
        return [tensor.op for index, tensor in enumerate(write.inputs) if index not in into]


def _inserts(op: tf.Operation) -> bool:
    """Whether an op writes floats to a table, which checkpoints hold as well."""
    return op.type.startswith('LookupTableInsert') and graphs.is_float(op.inputs[2])


def _is_float(written: tf.Operation) -> bool:
    return written.type not in graphs.VARIABLES or graphs.is_float_variable(written)


def _passes_on(op: tf.Operation) -> bool:
    """Whether an op computes no floats: it returns its inputs, or has no inputs."""
    if not any(map(graphs.is_float, op.outputs)) or not op.inputs:
        return True
    return graphs.is_variable_read(op) or op.type in _PASS_ON or graphs.is_random(op)


_PASS_ON = frozenset(
    'Identity IdentityN RefIdentity Switch RefSwitch Merge RefMerge Enter RefEnter Exit '
    'NextIteration Reshape ExpandDims Squeeze Transpose Tile BroadcastTo StopGradient StridedSlice '
    'Slice Split SplitV Pack Unpack ConcatV2 Gather GatherV2 GatherNd ReverseV2 Fill ZerosLike '
    'OnesLike Restore RestoreV2 RestoreSlice IteratorGetNext QueueDequeueV2 QueueDequeueManyV2 '
    'QueueDequeueUpToV2 PlaceholderWithDefault ResourceGather LookupTableFindV2 ParseTensor '
    'DecodeRaw'.split()
)

WITH_FIRST = (
    'the same run gives another variable its first value, and there is no older value to go back '
    'to. It is guarded from the next run on'
)
_TOO_MANY = (
    'the script builds an update anew for each run, and after the first guarded one only %d more '
    'are guarded: each makes the graph larger, and the next run slower. Build the update once, '
    'before the loop'
)

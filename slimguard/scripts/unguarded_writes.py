"""Updates of variables that nobody guards: `refuse_unguarded_writes`.

A gradient that was fetched and is fed again is no gradient to anybody who reads the graph, and an
update by ``assign`` may be anything: a step of a training, a statistic, or a value that is set.
"""

import re
from typing import Callable, Dict, Iterator, List, Optional, Sequence, Set

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.gate.written_beside import MOST_NAMES, is_drawn
from slimguard.graph import TrainOp, op_of
from slimguard.scripts.growing_writes import grows
from slimguard.scripts.risky_ops import data_of, divides, may_be_no_number, numbers_of
from slimguard.system import texts


class UnguardedWriteError(ValueError):
    """A variable is written by what looks like a training, or a statistic, and is not guarded."""

    of = 'the update of'  # what the name is of that it comes with


def refuse_unguarded_writes(
    elements: Sequence[TrainOp],
    graph: tf.Graph,
    fed: Sequence[tf.Tensor],
    on_refusal: Callable[[str, Exception], None],
) -> None:
    """Tells, once for a run, of variables that it trains with no gate, or keeps a statistic in.

    What trains computes the new value of a trainable variable of the old one, or of those of other
    variables, and of a batch: one that is fed or drawn, that a counter picks from what the graph
    holds, or that another run has put into a variable. Initial and restored values train nothing,
    nor do copies. A statistic is any other variable that checkpoints hold, such as a running mean,
    if its new value is computed of its own old one, or of weights, and of a batch that is fed or
    drawn. Of either kind are those that are computed of variables, by what makes a NaN of some
    numbers, such as a division, or that are made larger each time.

    Args:
      elements: what is fetched: nothing that is guarded.
      graph: its graph.
      fed: tensors computed within the step that the run feeds.
      on_refusal: called with the names of the variables that are written, and what to do.
    """
    step = graphs.ancestors_beyond(fed, map(op_of, elements))
    for why, names in _written(step, graph).items():
        on_refusal(texts.listed(list(dict.fromkeys(names)), MOST_NAMES), UnguardedWriteError(why))


_BY_ASSIGN = (
    'a run writes it with what is fed, drawn or picked, and neither an optimizer nor a gradient in '
    'this graph made the update. Where it trains, build slimguard.guard(tf.group(update)) ahead of '
    'the session and fetch that, or feed the gradient to apply_gradients of an optimizer'
)

_IS_STATISTIC = (
    'a run that trains nothing writes it with what is fed or drawn. Fetch the update together with '
    'the train op, whose gate it goes through then, or build slimguard.guard(tf.group(update)) '
    'ahead of the session and fetch that'
)


_DIVIDES = (
    'a run that trains nothing computes it of variables, and divides by what may be zero, takes a '
    'logarithm or a root, casts to fewer bits, or does what else is not finite everywhere. Build '
    'slimguard.guard(tf.group(update)) ahead of the session and fetch that'
)

_GROWS = (
    'a run that trains nothing makes it larger each time, or takes an exponential, and may end in '
    'an Inf. Bound it with tf.minimum, or build slimguard.guard(tf.group(update)) ahead of the '
    'session and fetch that'
)


def _written(step: Sequence[tf.Operation], graph: tf.Graph) -> Dict[str, List[str]]:
    """The names of the variables that a run of the ops in `step` writes so, by what is said."""
    writes = graphs.Writes(graph)
    trainable = graphs.trainable_in(graph)
    kept = _kept_numbers(graph) - trainable
    candidates = []
    for op in step:
        written = [v for v in writes.variables(op) if v in trainable or v in kept]
        if written and not op.name.startswith(graphs.OURS):
            candidates.append((op, written))
    if not candidates:
        return {}
    initial = _initializers(graph)
    candidates = [each for each in candidates if each[0] not in initial]
    buffers = _Buffers(graph, writes, trainable, initial)
    found: Dict[str, List[str]] = {}
    for op, written in candidates:
        weights = [v for v in written if v in trainable]
        sources = _sources(op, writes)
        trains = bool(weights) and _trains(op, sources, writes, buffers)
        is_computed = _is_computed(op, sources)
        for variable in written:
            if trains and variable in trainable:
                found.setdefault(_BY_ASSIGN, []).append(variable.name)
            elif variable in kept and is_computed and any(map(_is_batch, sources)):
                found.setdefault(_IS_STATISTIC, []).append(variable.name)
            elif is_computed and (divides(op) or any(map(may_be_no_number, sources))):
                found.setdefault(_DIVIDES, []).append(variable.name)
            elif is_computed and grows(op, variable, sources):
                found.setdefault(_GROWS, []).append(variable.name)
    return found


def _kept_numbers(graph: tf.Graph) -> Set[tf.Operation]:
    """The ops of the variables that checkpoints hold, and that a NaN can be in."""
    with graph.as_default():
        held = {each.op for each in graphs.on_each_device(tf1.global_variables())}
    return set(filter(graphs.is_float_variable, held))


def _initializers(graph: tf.Graph) -> Set[tf.Operation]:
    with graph.as_default():
        variables = tf1.global_variables() + tf1.local_variables() + tf1.trainable_variables()
    return {each.initializer for each in graphs.on_each_device(variables)}


class _Buffers:
    """Variables that hold batches, and are not trained.

    Args:
      graph: the graph.
      writes: says what writes.
      trainable: the ops of its trainable variables.
      initial: the ops that give variables their initial values.
    """

    def __init__(
        self,
        graph: tf.Graph,
        writes: graphs.Writes,
        trainable: Set[tf.Operation],
        initial: Set[tf.Operation],
    ):
        self.trainable = trainable
        self._graph = graph
        self._writes = writes
        self._initial = initial
        self._found: Optional[Set[tf.Operation]] = None

    def __contains__(self, op: tf.Operation) -> bool:
        if op.type not in graphs.VARIABLES or op in self.trainable:
            return False
        if self._found is None:
            self._found = set(self._find())
        return op in self._found

    def _find(self) -> Iterator[tf.Operation]:
        for op in self._graph.get_operations():
            variables = [] if op in self._initial else self._writes.variables(op)
            sources = _sources(op, self._writes) if variables else []
            if any(_is_batch(each) and not _SETS.match(each.type) for each in sources):
                yield from variables


def _trains(
    write: tf.Operation,
    sources: Sequence[tf.Operation],
    writes: graphs.Writes,
    buffers: _Buffers,
) -> bool:
    is_of_old_value = graphs.changes_value(write) or bool(writes.calls(write))
    if any(_is_batch(op) for op in sources):
        return is_of_old_value or any(op.type in graphs.VARIABLES for op in sources)
    if not is_of_old_value and buffers.trainable.isdisjoint(sources):
        return False
    return any(_is_picked_by_a_counter(op) or op in buffers for op in sources)


def _is_computed(write: tf.Operation, sources: Sequence[tf.Operation]) -> bool:
    """Whether what is written is computed of numbers that variables hold, and not only at a place
    that one says.
    """
    is_product = 'ScatterMul' in write.type or 'ScatterDiv' in write.type
    return (
        is_product
        or graphs.changes_value(write)
        or any(op.type in graphs.VARIABLES and graphs.is_float_variable(op) for op in sources)
    )


def _sources(write: tf.Operation, writes: graphs.Writes) -> Sequence[tf.Operation]:
    """The ops that what is written is computed by."""
    into = writes.inputs(write)
    values = [tensor.op for index, tensor in enumerate(write.inputs) if index not in into]
    return graphs.ancestors(values, needs=data_of)


def _is_batch(op: tf.Operation) -> bool:
    """Whether an op is fed or draws data: chance is none, nor is a number, such as a decay."""
    if op.type in graphs.VARIABLES or graphs.is_random(op) or not is_drawn(op):
        return False
    return not (op.type.startswith('Placeholder') and op.outputs[0].shape.rank == 0)


def _is_picked_by_a_counter(op: tf.Operation) -> bool:
    """Whether an op takes a part of something, at a place that a variable says."""
    if not _TAKES_A_PART.match(op.type):
        return False
    places = graphs.ancestors([tensor.op for tensor in op.inputs[1:]], needs=numbers_of)
    return any(each.type in graphs.VARIABLES for each in places)


# What a variable is set to from outside, such as a mask or a checkpoint, and not drawn for it.
_SETS = re.compile(r'Placeholder|Restore')
_TAKES_A_PART = re.compile(r'(Resource)?Gather(V2|Nd)?$|StridedSlice$|Slice$')

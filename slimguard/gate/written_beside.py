"""Writes beside the train op: the writes that a run makes together with it.

Examples are a running mean of the input and a counter: `session.run([train_op, update_mean])`. They
see the same batch, so they go through the same gate, and a bad step does not change their
variables. Local variables are exempt: no checkpoint holds them, and a metric may be NaN.
"""

from typing import AbstractSet, Any, Callable, Dict, Iterable, List, Sequence, Set, Tuple

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.gate.gate import Gate
from slimguard.graph import TrainOp, key, op_of
from slimguard.system import texts
from slimguard.system.log import log

# How many variables of an update a message names.
MOST_NAMES = 5


class OutsideTheGateError(ValueError):
    """A run fetches a guarded train op, and a write that would go around its gate."""

    of = 'the update of'  # put before the name of the update


def written_beside(
    elements: Sequence[TrainOp],
    training: Sequence[TrainOp],
    on_refusal: Callable[[str, Exception], None],
) -> List[TrainOp]:
    """The fetched elements that write and go through the gate of the train ops.

    slim's update ops always go through it. Another element does if the step uses the element's
    variables only before their update, as with the state of a recurrent layer: a gate delays the
    update until the decision, and must not change the values that the step reads.

    Args:
      elements: the fetched elements that do not train, each once.
      training: the fetched elements that train, together.
      on_refusal: called for each update that depends on the batch and stays outside the gate; takes
        the names of its variables, and the reason as an error.
    """
    graph = training[0].graph
    update_ops = {op_of(op) for op in graph.get_collection(tf1.GraphKeys.UPDATE_OPS)}
    local = graphs.local_in(graph)
    writes = graphs.Writes(graph)
    theirs = set(graphs.ancestors([op_of(each) for each in training]))
    all_needed = [set(graphs.ancestors([op_of(each)])) for each in elements]
    batch = _Batch(theirs, theirs.union(*all_needed), writes, graphs.needs)
    found = []
    for element, needed in zip(elements, all_needed):
        if not update_ops.isdisjoint(needed):
            found.append(element)
            continue
        written = [(op, each) for op in needed - theirs for each in _written_by(op, writes)]
        if {each for _, each in written} <= local:
            continue
        shared = {each.name for op, each in written if not _is_last_at(op, each, theirs)}
        if not shared:
            found.append(element)
        elif batch.is_taken_in_by({op for op, _ in written}):
            on_refusal(texts.listed(sorted(shared), MOST_NAMES), OutsideTheGateError(_IS_READ))
    return found


def _is_last_at(write: tf.Operation, variable: tf.Operation, theirs: Set[tf.Operation]) -> bool:
    """Whether `write` comes after all uses that `theirs` make of a variable, or a table."""
    if variable not in theirs:
        return True
    uses = _users(variable) & theirs
    # An Identity of a reference returns the variable's own memory, so its consumers read it, too.
    reads = [op for op in uses if op.type == 'Identity' and graphs.is_reference(op.inputs[0])]
    uses.update(user for read in reads for user in _users(read) & theirs)
    return uses.issubset(graphs.ancestors([write]))


def _users(op: tf.Operation) -> Set[tf.Operation]:
    return {user for tensor in op.outputs for user in tensor.consumers()}


def _written_by(op: tf.Operation, writes: graphs.Writes) -> List[tf.Operation]:
    """The ops of the variables that `op` writes, or the op of its table."""
    variables = writes.variables(op)
    return variables if variables or op not in writes else [op.inputs[0].op]


_IS_READ = (
    'the train op, beside which it is fetched, reads it, and nothing says which comes first; fetch '
    'tf.group(train_op, update) instead of both, or make one wait by tf.control_dependencies'
)


def refuse_around(
    elements: Sequence[TrainOp],
    found: Sequence[Gate],
    fed: Sequence[tf.Tensor],
    named: Set[str],
    by: str = '',
) -> None:
    """Refuses a run that would go around the gates of its train ops, before it begins.

    Such a run fetches the original of a write that a gate holds back, or another write that depends
    on the batch. A write that does not depend on the batch, such as a counter, is only logged once.

    Args:
      elements: the fetched elements.
      found: the gates of the train ops that the run fetches.
      fed: the fed tensors that the step would otherwise compute.
      named: the names of the variables in earlier log lines; this call adds the names that it logs.
      by: the name of the hook that fetches the elements; '' for the loop.

    Raises:
      OutsideTheGateError: names the fetch, the write, what it would do, and what to fetch.
    """
    guarded = {op_of(gate.train_op) for gate in found}
    others = {op_of(each): each for each in elements if op_of(each) not in guarded}
    others = {op: each for op, each in others.items() if not op.name.startswith(graphs.OURS)}
    if not others and len(guarded) < 2:
        return  # most steps: no need to read the graph
    fed_keys = set(map(key, fed))

    def needs(op: tf.Operation) -> Iterable[tf.Operation]:
        return () if op in guarded else graphs.needs(op, fed_keys)

    written = _Written(found[0].train_op.graph)
    needed = {op: set(graphs.ancestors([op], needs)) for op in others}
    by = by and 'by %s, ' % by
    _refuse_again([(each, needed[op]) for op, each in others.items()], found, written, by)
    first = found[0].original.name
    # Writes of the loss count as the train op's own, since the gate puts them back.
    own = guarded.union(op_of(gate.original) for gate in found)
    theirs = set(graphs.ancestors_beyond(fed, own))
    run = theirs.union(*needed.values())
    batch = _Batch(theirs, run, written.writes, needs, guarded, fed_keys)
    for op, element in others.items():
        outside = {each for each in needed[op] - theirs if written.names_by([each])}
        names = written.names_by(outside)
        if batch.is_taken_in_by(outside):
            told = (by, element.name, first, texts.listed(names, MOST_NAMES))
            raise OutsideTheGateError(_OF_THE_BATCH % told + _cure_of(element))
        waits = not guarded.isdisjoint(needed[op])
        # No line for variables that the train op uses: the script sets these.
        used = set() if waits else {each.name for each in theirs}
        for name in sorted(set(names) - used - named):
            named.add(name)
            why = _WAITS % op.name if waits else _HAS_ITS_GATE % first
            log().error('the update of %r is NOT guarded: %s', name, why)


def _refuse_again(
    others: Sequence[Tuple[TrainOp, Set[tf.Operation]]],
    found: Sequence[Gate],
    written: '_Written',
    by: str,
) -> None:
    """Refuses a run that makes both a write and a gate's clone of this write.

    Args:
      others: the elements fetched beside the guarded train ops, each with all ops that it runs.
      found: the gates; two of them may have clones of one write.
      written: as in `refuse_around`.
      by: who fetches the write, in words.
    """
    of_gates = [(gate, gate.original, set(gate.writes)) for gate in found]
    for gate in found:
        for owner, element, run in [*((None, *each) for each in others), *of_gates]:
            again = run.intersection(gate.writes) if owner is not gate else ()
            for write in sorted(again, key=lambda op: op.name):
                for name in written.names_by([write]):
                    told = by, element.name, gate.original.name, write.name, name
                    cure = _cure_of(element) if owner is None else _OF_TWO
                    raise OutsideTheGateError(_AGAIN % told + cure)


class _Batch:
    """The batch of a step: tells which writes depend on it.

    A write that only waits for the batch, by a control dependency, does not depend on it. A
    variable that is read after a write of the same run has the written value.

    Args:
      theirs: all ops that the train ops need.
      run: all ops of the run.
      needs: returns the ops that an op waits for.
      guarded: the guarded train ops, whose values depend on the batch.
      fed: the keys of the fed tensors that the step would otherwise compute.
    """

    def __init__(
        self,
        theirs: Set[tf.Operation],
        run: Set[tf.Operation],
        writes: graphs.Writes,
        needs: Callable[[tf.Operation], Iterable[tf.Operation]],
        guarded: AbstractSet[tf.Operation] = frozenset(),
        fed: AbstractSet[Any] = frozenset(),
    ):
        self._needs, self._guarded, self._fed = needs, guarded, fed
        self._written: Dict[tf.Operation, Set[tf.Operation]] = {}
        for op in run:
            for variable in writes.variables(op):
                self._written.setdefault(variable, set()).add(op)
        plain = {op for op in theirs if op in writes and not writes.calls(op)}
        drawn = (op for op in theirs - plain if op.type not in graphs.VARIABLES)
        self._drawn = set(filter(is_drawn, drawn)) | guarded

    def is_taken_in_by(self, some: Iterable[tf.Operation]) -> bool:
        """Whether one of the writes `some` depends on the batch."""
        return not self._drawn.isdisjoint(graphs.ancestors(some, self._values_of))

    def _values_of(self, op: tf.Operation) -> Iterable[tf.Operation]:
        """The ops that compute the inputs of `op`; for a read, also the writes that come first."""
        if op in self._guarded:
            return ()
        values = [t for t in op.inputs if t.dtype != tf.resource and key(t) not in self._fed]
        found = [each.op for each in values]
        read = graphs.variable_read(op.outputs[0]) if graphs.is_variable_read(op) else None
        if read in self._written:
            found += self._written[read].intersection(graphs.ancestors([op], self._needs))
        return found


class _Written:
    """Names the variables and tables that ops of a graph write, without local variables."""

    def __init__(self, graph: tf.Graph):
        self.writes, self._local = graphs.Writes(graph), graphs.local_in(graph)

    def names_by(self, some: Iterable[tf.Operation]) -> List[str]:
        """The names of the variables, and tables, that some ops write."""
        found = {each for op in some for each in _written_by(op, self.writes)}
        return sorted(each.name for each in found - self._local)


def _cure_of(element: TrainOp) -> str:
    """Advice on how to fetch an element that goes around a gate."""
    if isinstance(element, tf.Operation):
        return _OF_AN_OP
    is_scalar = graphs.is_float(element) and element.shape.rank == 0
    return _OF_A_VALUE + (_OF_A_LOSS if is_scalar else '')


_AGAIN = (
    'this run was refused, and nothing of it has run: fetched %sbeside a guarded train op, %r '
    'goes around the gate. It runs again what the train op %r does behind it: %r, which writes %r. '
    'A good step would write twice, and a bad step would write all the same. '
)

_OF_THE_BATCH = (
    'this run was refused, and nothing of it has run: fetched %sbeside a guarded train op, %r '
    'goes around the gate of %r. It writes %s, with values made of the same batch, and a bad batch '
    'would be written. '
)

_OF_TWO = (
    'Guard both train ops as one, slimguard.guard(tf.group(first, second)), and fetch that alone'
)
_OF_AN_OP = (
    'Fetch slimguard.guard(tf.group(train_op, update)), made ahead of the session, in place of both'
)
_OF_A_VALUE = _OF_AN_OP + (
    '; where the value is wanted, guard what returns it after the step: with '
    'tf.control_dependencies([train_op]): step = tf.identity(value), then fetch '
    'slimguard.guard(step, loss=loss) alone'
)
_OF_A_LOSS = '; if it is the loss, slimguard.guard(train_op, loss=it) is enough'

_HAS_ITS_GATE = (
    'it is fetched beside the train op %r, whose gate was made without it, so a bad step changes '
    'it all the same; build slimguard.guard(tf.group(train_op, update)), and fetch that'
)

_WAITS = (
    'it is written by what waits for the guarded train op, %r, and has no gate itself: a bad step '
    'changes it all the same; build slimguard.guard() of that as well, and fetch what it returns'
)


def is_drawn(op: tf.Operation) -> bool:
    """Whether an op is a placeholder, or may draw a batch or random numbers."""
    return op.type.startswith('Placeholder') or (
        graphs.is_stateful(op) and not graphs.is_variable_read(op)
    )

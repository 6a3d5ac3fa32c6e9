"""Writes that a script runs together with its train op, although the train op does not need them.

Examples are a running mean of the input and a counter: `session.run([train_op, update_mean])`. They
see the same batch, so they go through the same gate, and a bad step leaves them as they were. Local
variables are exempt: no checkpoint holds them, and a metric may be NaN in a good step.
"""

from typing import Callable, List, Sequence, Set

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.gate.gate import Gate
from slimguard.graph import TrainOp, op_of
from slimguard.system import texts

# How many of the variables that an update writes are named.
MOST_NAMES = 5


class OutsideTheGateError(ValueError):
    """What is written beside a train op stays outside its gate."""

    of = 'the update of'  # what the name is of that it comes with


def written_beside(
    elements: Sequence[TrainOp],
    training: Sequence[TrainOp],
    on_refusal: Callable[[str, Exception], None],
) -> List[TrainOp]:
    """Those of the elements fetched in a run that write, and go through the gate of what trains.

    An update op of slim's is one wherever it writes. Any other is one if the step does not use its
    variables but for reads that the update itself comes after, as the state of a recurrent layer: a
    gate has it wait for the decision, and what the step reads is to be what it would read without.

    Args:
      elements: what is fetched and does not train, each once.
      training: what is fetched and trains, together.
      on_refusal: called with the names of the variables of which an update sees the batch and
        stays outside, and why.
    """
    graph = training[0].graph
    update_ops = {op_of(op) for op in graph.get_collection(tf1.GraphKeys.UPDATE_OPS)}
    local = graphs.local_in(graph)
    writes = graphs.Writes(graph)
    theirs = set(graphs.ancestors([op_of(each) for each in training]))
    found = []
    for element in elements:
        needed = set(graphs.ancestors([op_of(element)]))
        if not update_ops.isdisjoint(needed):
            found.append(element)
            continue
        written = [(op, each) for op in needed - theirs for each in _written_by(op, writes)]
        if {each for _, each in written} <= local:
            continue
        shared = {each.name for op, each in written if not _is_last_at(op, each, theirs)}
        if not shared:
            found.append(element)
        elif any(is_drawn(each) for each in needed & theirs if each.type not in graphs.VARIABLES):
            on_refusal(texts.listed(sorted(shared), MOST_NAMES), OutsideTheGateError(_IS_READ))
    return found


def _is_last_at(write: tf.Operation, variable: tf.Operation, theirs: Set[tf.Operation]) -> bool:
    """Whether all that `theirs` do with a variable, or a table, is done when `write` writes it."""
    if variable not in theirs:
        return True
    uses = _users(variable) & theirs
    # What an Identity of a reference returns is the variable's own memory.
    reads = [op for op in uses if op.type == 'Identity' and graphs.is_reference(op.inputs[0])]
    uses.update(user for read in reads for user in _users(read) & theirs)
    return uses.issubset(graphs.ancestors([write]))


def _users(op: tf.Operation) -> Set[tf.Operation]:
    return {user for tensor in op.outputs for user in tensor.consumers()}


def _written_by(op: tf.Operation, writes: graphs.Writes) -> List[tf.Operation]:
    """The ops of the variables that `op` writes, or that of its table."""
    variables = writes.variables(op)
    return variables if variables or op not in writes else [op.inputs[0].op]


_IS_READ = (
    'the train op, beside which it is fetched, reads it, and nothing says which comes first; fetch '
    'tf.group(train_op, update) instead of both, or make one wait by tf.control_dependencies'
)


_HAS_ITS_GATE = (
    'it is fetched beside the train op %r, whose gate was made without it, so a bad step changes '
    'it all the same; build slimguard.guard(tf.group(train_op, update)), and fetch that'
)

_IS_IN_IT = (
    'the train op %r, beside which it is fetched, makes it too, and its gate runs a clone of it: a '
    'good step writes it twice, and a bad one changes it all the same. Fetch the guarded train op '
    'alone; or, of two train ops that both make it, slimguard.guard(tf.group(first, second))'
)

_WAITS = (
    'it is written by what waits for the guarded train op, %r, and has no gate itself: a bad step '
    'changes it all the same; build slimguard.guard() of that as well, and fetch what it returns'
)


def refuse_behind(
    elements: Sequence[TrainOp],
    train_ops: Sequence[TrainOp],
    on_refusal: Callable[[str, Exception], None],
) -> None:
    """Tells of what a run writes once guarded train ops are done, which nobody guards then.

    Args:
      elements: what is fetched, and waits for them.
      train_ops: the guarded train ops.
      on_refusal: called with the name of a variable that is written after the gate, and why.
    """
    theirs = set(graphs.ancestors(map(op_of, train_ops)))
    writes = graphs.Writes(elements[0].graph)
    told = graphs.local_in(elements[0].graph)
    for element in elements:
        behind = set(graphs.ancestors([op_of(element)])) - theirs
        written = {each for op in behind for each in _written_by(op, writes)} - told
        for name in sorted(each.name for each in written):
            on_refusal(name, OutsideTheGateError(_WAITS % op_of(element).name))
        told |= written


def refuse_outside(
    elements: Sequence[TrainOp],
    gate: Gate,
    others: Sequence[Gate],
    on_refusal: Callable[[str, Exception], None],
) -> None:
    """Tells of what a run writes beside a guarded train op, which nobody guards then.

    Args:
      elements: what is fetched, and waits for no guarded train op, but may be one.
      gate: the gate of the train op.
      others: those of other train ops that are fetched.
      on_refusal: called with the name of a variable that is written outside the gate, and why.
    """
    train_op, original = op_of(gate.train_op), op_of(gate.original)
    beside = [each for each in elements if op_of(each) is not train_op]
    beside = [each for each in beside if not op_of(each).name.startswith(graphs.OURS)]
    if not beside and not others:
        return  # as in most steps: the graph need not be read
    writes = graphs.Writes(train_op.graph)
    outside: Set[tf.Operation] = set()

    def refuse(name, error=None):
        on_refusal(name, OutsideTheGateError(_HAS_ITS_GATE % original.name))

    if beside:
        found = written_beside([e for e in beside if op_of(e) is not original], [original], refuse)
        outside = set(graphs.ancestors(map(op_of, found))).difference(graphs.ancestors([original]))
    for name in sorted({each.name for op in outside for each in _written_by(op, writes)}):
        refuse(name)
    # What a gate copies ahead, it puts back whoever fetches it; of the others it has clones.
    run = set(graphs.ancestors(map(op_of, [*beside, *(each.train_op for each in others)])))
    run.update(*(each.writes for each in others))
    again = {each for op in run.intersection(gate.writes) for each in _written_by(op, writes)}
    for name in sorted(each.name for each in again - graphs.local_in(train_op.graph)):
        on_refusal(name, OutsideTheGateError(_IS_IN_IT % original.name))


def is_drawn(op: tf.Operation) -> bool:
    """Whether an op is a placeholder, or may draw a batch or chance."""
    return op.type.startswith('Placeholder') or (
        graphs.is_stateful(op) and not graphs.is_variable_read(op)
    )

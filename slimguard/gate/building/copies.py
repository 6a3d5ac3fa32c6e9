"""Copies of variables, and how they are put back.

A write of the forward pass gets a control input, by which it waits for the copy of its variable.
Each gate whose step makes this write restores the variable from the copy.
"""

from typing import Dict, List, Optional, Sequence

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.compat import tf_private
from slimguard.graph import ops
from slimguard.graph.control_flow import ENTERS
from slimguard.graph.sessions import unseen_by_sessions

# Values of variables at one moment, by the op of the variable.
Copies = Dict[tf.Operation, tf.Tensor]


def restore(copies: Copies, token: tf.Tensor, name: str) -> tf.Tensor:
    """Writes copies back once `token` is alive. The returned `token` arrives when that is done.

    Weights come last: otherwise another process could update a restored weight with an exploded
    slot that is not restored yet, and ruin the weight.
    """
    trainable = graphs.trainable_in(token.graph) if copies else set()
    weights = [variable for variable in copies if variable in trainable]
    slots = [variable for variable in copies if variable not in trainable]
    for variables in filter(None, (slots, weights)):
        with tf.control_dependencies([token]):
            assigns = [ops.assign(variable, copies[variable]) for variable in variables]
        token = ops.after(assigns, token, name)
    return token if copies else ops.after([], token, name)


def copies_ahead(graph: tf.Graph) -> Dict[tf.Operation, tf.Operation]:
    """A graph's variables copied before writes, by the op that copies; callers add to it."""
    return graphs.kept_on(graph, 'copies_ahead', dict)


def require_unseen(
    put_back: Dict[tf.Operation, List[tf.Operation]], order: Sequence[tf.Operation]
) -> None:
    """Raises ValueError if a session may have seen a write that has to get a control input.

    Args:
      put_back: the forward writes, by variable.
      order: the ops of the step.
    """
    if not put_back:
        return
    graph = next(iter(put_back)).graph
    is_unseen = unseen_by_sessions(graph)
    for variable, writes in put_back.items():
        entries = _entries(writes, order)
        known = _copy_awaited(variable, entries)
        if all(is_unseen(entry) or _waits_for(entry, known) for entry in entries):
            continue
        sessions = graphs.open_sessions(graph)
        raise ValueError(
            'cannot guard: %s %r writes %r in the forward pass, before the gradients are known, '
            'so it has to be put back after a bad step; but the session %r was opened on this '
            'graph before, and what a session has seen cannot be wired any more. Build the train '
            'op first and open the session then; or leave update ops in the UPDATE_OPS '
            'collection and use slimguard.create_train_op, which holds them back'
            % (writes[0].type, writes[0].name, variable.name, sessions[0] if sessions else 'that')
        )


def copy_ahead(
    put_back: Dict[tf.Operation, List[tf.Operation]], order: Sequence[tf.Operation]
) -> Copies:
    """Copies the variables of forward writes, and makes the writes wait for the copies.

    If a write already waits for a copy that serves another train op, this gate uses that copy.
    """
    copies: Copies = {}
    for variable, writes in put_back.items():
        entries = _entries(writes, order)
        copied = _copy_awaited(variable, entries)
        if copied is None:
            copied = ops.copy_of(variable)
            copies_ahead(variable.graph)[copied.op] = variable
        copies[variable] = copied
        for entry in entries:
            if not _waits_for(entry, copied):
                tf_private.add_control_input(entry, copied.op)
    return copies


def copy_ahead_of_others(graph: tf.Graph) -> None:
    """Makes further updates of the copied variables wait for their copies, too.

    A model that is built a second time, for an evaluation, updates the same moving averages by ops
    of its own. It leaves out ops that a session has seen, initializers, and other writes that do
    not depend on the old value.
    """
    known = copies_ahead(graph)
    is_unseen = unseen_by_sessions(graph) if known else bool
    for copying, variable in known.items():
        for op in _updates_of(variable):
            if is_unseen(op) and copying not in op.control_inputs:
                tf_private.add_control_input(op, copying)


def is_put_back(write: tf.Operation) -> bool:
    """Whether a write waits for a copy of the variable that it changes."""
    known = copies_ahead(write.graph)
    return bool(known) and not known.keys().isdisjoint(write.control_inputs)


def _copy_awaited(variable: tf.Operation, entries: Sequence[tf.Operation]) -> Optional[tf.Tensor]:
    """The copy of a variable that one of `entries` already waits for; None if there is none."""
    known = copies_ahead(variable.graph)
    awaited = (op for entry in entries for op in entry.control_inputs)
    return next((op.outputs[0] for op in awaited if known.get(op) is variable), None)


def _waits_for(entry: tf.Operation, copied: Optional[tf.Tensor]) -> bool:
    return copied is not None and copied.op in entry.control_inputs


def _updates_of(variable: tf.Operation) -> List[tf.Operation]:
    writes = graphs.Writes(variable.graph)
    return [
        op
        for op in variable.outputs[0].consumers()
        if op in writes
        and not op.name.startswith(graphs.OURS)
        and graphs.loop_around(op) is None
        and (
            graphs.changes_value(op)
            or variable in graphs.ancestors([tensor.op for tensor in op.inputs[1:]])
        )
    ]


def _entries(writes: Sequence[tf.Operation], order: Sequence[tf.Operation]) -> List[tf.Operation]:
    """The ops that must wait to make `writes` wait: for a write in a loop, the loop's Enters."""
    entries: List[tf.Operation] = []
    for write in writes:
        loop = graphs.loop_around(write)
        if loop is None:
            entries.append(write)
        else:
            enters = [op for op in order if op.type in ENTERS]
            entries.extend(op for op in enters if graphs.flow_around(op) is loop)
    return entries

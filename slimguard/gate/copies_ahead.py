"""Keeps the copies of a graph that are made ahead of forward writes.

A write waits for the copy of its variable, by one more control input. Each gate whose step has the
write in it puts the variable back from that copy.
"""

from typing import Dict, List, Optional, Sequence

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.compat import tf_private
from slimguard.gate.copies import Copy
from slimguard.graph.sessions import unseen_by_sessions

_KEPT_AS = '_slimguard_copies_ahead'


def copies_ahead(graph: tf.Graph) -> Dict[tf.Operation, Copy]:
    """A dictionary to add to: the copies made ahead of a graph's writes, by the copying op."""
    known = getattr(graph, _KEPT_AS, None)
    if known is None:
        known = {}
        setattr(graph, _KEPT_AS, known)
    return known


def copy_awaited(variable: tf.Operation, entries: Sequence[tf.Operation]) -> Optional[Copy]:
    """The copy of a variable that one of `entries` waits for already, if there is one."""
    known = copies_ahead(variable.graph)
    found = (known.get(op) for entry in entries for op in entry.control_inputs)
    return next((each for each in found if each and variable in each.variables), None)


def waits_for(entry: tf.Operation, made: Optional[Copy]) -> bool:
    """Whether an op waits for a copy."""
    return made is not None and made.value.op in entry.control_inputs


def copy_ahead_of_others(graph: tf.Graph) -> None:
    """Makes further updates of the copied variables wait for their copies, too.

    A model that is built a second time, for an evaluation, updates the same moving averages by ops
    of its own. This leaves out ops that a session has seen, initial values, and other writes that
    do not depend on the old value.
    """
    known = copies_ahead(graph)
    is_unseen = unseen_by_sessions(graph) if known else bool
    for made in known.values():
        for variable in made.variables:
            for op in _updates_of(variable):
                if is_unseen(op) and not waits_for(op, made):
                    tf_private.add_control_input(op, made.value.op)


def _updates_of(variable: tf.Operation) -> List[tf.Operation]:
    writes = graphs.Writes(variable.graph)
    return [
        op
        for op in variable.outputs[0].consumers()
        if op in writes
        and not op.name.startswith(graphs.OURS)
        and graphs.loop_around(op) is None
        and (graphs.changes_value(op) or variable in graphs.ancestors(_makers_of_value(op)))
    ]


def _makers_of_value(write: tf.Operation) -> List[tf.Operation]:
    return [tensor.op for tensor in write.inputs[1:]]


def is_put_back(write: tf.Operation) -> bool:
    """Whether a write waits for a copy of the variable that it changes."""
    known = copies_ahead(write.graph)
    return bool(known) and not known.keys().isdisjoint(write.control_inputs)

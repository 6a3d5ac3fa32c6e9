"""Copies the variables of forward writes ahead, and reads them once they are written."""

from typing import Any, Dict, List, Sequence

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.compat import tf_private
from slimguard.gate.checked_values import Check
from slimguard.gate.copies import Copy, copy, values_of
from slimguard.gate.copies_ahead import copies_ahead, copy_awaited, waits_for
from slimguard.gate.plan import Plan
from slimguard.graph import ops, plain_ops
from slimguard.graph.control_flow import ENTERS
from slimguard.graph.sessions import unseen_by_sessions


def require_unseen(plan: Plan) -> None:
    """Raises if a write that needs one more control input may be known to a session already."""
    if not plan.put_back:
        return
    is_unseen = unseen_by_sessions(plan.step.graph)
    for variable, writes in plan.put_back.items():
        entries = _entries(writes, plan)
        known = copy_awaited(variable, entries)
        if all(is_unseen(entry) or waits_for(entry, known) for entry in entries):
            continue
        sessions = graphs.open_sessions(plan.step.graph)
        raise ValueError(
            'cannot guard: %s %r writes %r in the forward pass, before the gradients are known, '
            'so it has to be put back after a bad step; but the session %r was opened on this '
            'graph before, and what a session has seen cannot be wired any more. Build the train '
            'op first and open the session then; or leave update ops in the UPDATE_OPS '
            'collection and use slimguard.create_train_op, which holds them back'
            % (writes[0].type, writes[0].name, variable.name, sessions[0] if sessions else 'that')
        )


def copy_ahead(plan: Plan, make: ops.Maker) -> List[Copy]:
    """Copies the variables that are to be put back, and makes their writes wait for the copies.

    If a write waits already for a copy made for another train op, that copy serves this gate too.
    """
    entries = {variable: _entries(writes, plan) for variable, writes in plan.put_back.items()}
    awaited = {variable: copy_awaited(variable, found) for variable, found in entries.items()}
    known = {variable: made for variable, made in awaited.items() if made is not None}
    new = {variable: found for variable, found in entries.items() if variable not in known}
    copies = [each for together in _apart(new, plan) for each in copy(make, together, None)]
    copies_ahead(plan.step.graph).update((made.value.op, made) for made in copies)
    sources = {**known, **{variable: made for made in copies for variable in made.variables}}
    for variable, source in sources.items():
        for entry in entries[variable]:
            if not waits_for(entry, source):
                tf_private.add_control_input(entry, source.value.op)
    return copies + _parts(make, known)


def _apart(entries: Dict[tf.Operation, List[tf.Operation]], plan: Plan) -> List[List[tf.Operation]]:
    """Groups of variables that one copy may hold: in a group no write leads to another.

    If one did, the second write would wait for the copy by way of the first, so Grappler would
    remove its own control edge. But a run that feeds a tensor in between skips the first write.
    """
    if len(entries) < 2:  # mostly there is none, and reading the step takes long
        return [list(entries)] if entries else []
    firsts = {found[0] for found in entries.values()}
    depths: Dict[tf.Operation, int] = {}
    for op in plan.step.order:
        depths[op] = max([depths.get(each, 0) for each in plan.step.needs(op)], default=0)
        depths[op] += op in firsts
    groups: Dict[Any, List[tf.Operation]] = {}
    for variable, found in entries.items():
        group = depths[found[0]] if len(found) == 1 else variable
        groups.setdefault(group, []).append(variable)
    return list(groups.values())


def _parts(make: ops.Maker, known: Dict[tf.Operation, Copy]) -> List[Copy]:
    """The copies of variables; of a copy that holds others as well, only the known ones' parts."""
    found: List[Copy] = []
    for whole in {made.value.op: made for made in known.values()}.values():
        if all(variable in known for variable in whole.variables):
            found.append(whole)
            continue
        values = values_of(make, [whole])
        found += [Copy([v], values[v]) for v in whole.variables if v in known]
    return found


def read_opaque_writes(plan: Plan, make: ops.Maker, known: tf.Tensor) -> List[Check]:
    """Reads the variables whose new value is known only after the write.

    Args:
      plan: the plan of the gate.
      make: makes the ops.
      known: a bool scalar that is there from the beginning.
    """
    if not plan.opaque_forward:
        return []
    written = ops.after(plan.barrier, known, 'written_forward')
    return [
        Check(_read_after(written, variable, make), 'update of ' + variable.name)
        for variable in plan.opaque_forward
    ]


def read_from_others(plan: Plan, make: ops.Maker) -> List[Check]:
    """Reads the variables that others write, as they are before the update.

    None in a trial, which checks the values made of them afterwards.
    """
    found = []
    for variable in [] if plan.trial else plan.from_others:
        is_resource = graphs.is_resource(variable)
        value = make.copy(variable) if is_resource else variable.outputs[0]
        found.append(Check(value, 'variable ' + variable.name))
    return found


def _read_after(token: tf.Tensor, variable: tf.Operation, make: ops.Maker) -> tf.Tensor:
    """The value a variable has once `token`, a bool scalar, is there."""
    with variable.graph.colocate_with(variable):
        if graphs.is_resource(variable):
            with tf.control_dependencies([token]):
                return make.copy(variable)
        # Grappler may swap a copy with the op after it (see `finite_checks.Moment`). It leaves a
        # switch in its place, since the side is not known before it runs.
        switch = tf.raw_ops.Switch(data=variable.outputs[0], pred=token)
        return plain_ops.merge([switch.output_false, switch.output_true], 'written')


def _entries(writes: Sequence[tf.Operation], plan: Plan) -> List[tf.Operation]:
    """The ops that have to wait so that `writes` do: for a write in a loop, the loop's Enters."""
    entries: List[tf.Operation] = []
    for write in writes:
        loop = graphs.loop_around(write)
        if loop is None:
            entries.append(write)
            continue
        enters = [op for op in plan.step.order if op.type in ENTERS]
        entries.extend(op for op in enters if graphs.flow_around(op) is loop)
    return entries

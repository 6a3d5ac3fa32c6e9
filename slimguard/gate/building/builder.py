"""Puts the parts of the gate of one train op together.

:mod:`slimguard.gate` says how it works. The parts are built in this order: the fast path
(fast_path.py) and the exact check (exact_checks.py), copies, the update, the check of what the
update wrote, undoing, the announcement.
"""

from typing import NamedTuple, Optional, Sequence

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.gate.building import fast_path
from slimguard.gate.building.announcement import Untold, announce
from slimguard.gate.building.copies import Copies, copy_ahead, require_unseen, restore
from slimguard.gate.building.exact_checks import (
    SMALL_32,
    StepChecks,
    check_late_loss,
    read_opaque_writes,
)
from slimguard.gate.building.fast_path import Limits, SquareSums, make_limits
from slimguard.gate.building.flags import Flags, join_flags
from slimguard.gate.building.gated_clones import GatedClones
from slimguard.gate.building.outcome import measure, outcome_of, value_after_step
from slimguard.gate.building.rank_libraries import ranks_of
from slimguard.gate.chief_update import accumulators_of
from slimguard.gate.gate import Gate
from slimguard.gate.reading.checked_values import Check
from slimguard.gate.reading.plan import Plan
from slimguard.graph import key, op_of, ops
from slimguard.graph.devices import Home, processor_of
from slimguard.graph.ops import after, branch


def build(plan: Plan, max_loss: Optional[float]) -> Gate:
    """Builds a gate in the graph of its plan.

    Raises:
      ValueError: if there is a limit but no loss, or if a session has seen an op that would have to
        be changed.
    """
    _require_loss(plan, max_loss)
    require_unseen(plan.put_back, plan.step.order)
    home = processor_of(_home_of(plan))
    with ops.our_scope(plan.step.graph, 'gate'), tf.device(home):
        return _Build(plan, _feeds_of(plan, home, max_loss)).run(max_loss)


def _home_of(plan: Plan) -> str:
    """The device of the loss, or of the chief. The decision is made on the CPU of its task."""
    if plan.chief_at is not None:
        return plan.chief_at
    near = [*plan.losses, *(check.tensor for check in plan.checks)]
    return near[0].device if near else plan.step.train_op.device


class NoLossError(ValueError):
    """There is a limit for the loss, and no loss."""


class _Feeds(NamedTuple):
    """The inputs of a gate: placeholders with defaults, and its `Untold`."""

    untold: Untold
    watched: tf.Tensor
    # The data input of the switches. If this were their predicate, Grappler would replace it by a
    # constant on either side, and abort on TensorFlow 1.15 if a loop waits for that constant.
    token: tf.Tensor
    limits: Limits


def _feeds_of(plan: Plan, home: str, max_loss: Optional[float]) -> _Feeds:
    untold = Untold(plan.step.graph, home, plan.losses[0] if plan.losses else None)
    watched = tf1.placeholder_with_default(untold.is_watched, [], 'watched')
    token = tf1.placeholder_with_default(tf.constant(SMALL_32), [], 'token')
    return _Feeds(untold, watched, token, make_limits(bool(plan.losses), max_loss))


class Decision(NamedTuple):
    """The decision about the update: flags, and tokens; a token that does not arrive is dead.

    Attributes:
      flags: what the checks of values and of copies found.
      is_fine: bool scalar, true if no flag is set and the update runs; dead on the fast path.
      fast: arrives if the step takes the fast path; None if no step of the gate takes it.
      prepared: arrives if nothing bad was found, and `copies` are made.
      refused: arrives if something bad was found, in a value or in a copy.
      go: starts the update; arrives with `fast` or `prepared`.
      copies: the variables as they were before the update.
    """

    flags: Flags
    is_fine: tf.Tensor
    fast: Optional[tf.Tensor]
    prepared: tf.Tensor
    refused: tf.Tensor
    go: tf.Tensor
    copies: Copies


class _After(NamedTuple):
    """The tokens and findings once the update has run or was refused.

    `fast_ran` arrives on the fast path, and only there; the other fields are dead then.
    """

    fast_ran: Optional[tf.Tensor]  # arrives when the update ran
    checked: tf.Tensor  # arrives when the update ran, or was refused
    flags: Flags
    is_good: tf.Tensor  # true if no flag was set, before or after the update


class _End(NamedTuple):
    """How the step ended, off the fast path."""

    good: tf.Tensor  # arrives if the step is written
    undone: tf.Tensor  # arrives after a bad step, when all variables are as before the step


class _Build:
    """Builds the parts of one gate, in the order they run."""

    def __init__(self, plan: Plan, feeds: _Feeds):
        self._plan = plan
        self._feeds = feeds
        self._home = Home(feeds.watched.op)
        self._checks = StepChecks(plan, feeds.limits, self._home)
        self._ranks = ranks_of(plan.step)

    def run(self, max_loss: Optional[float]) -> Gate:
        plan, feeds, step = self._plan, self._feeds, self._plan.step
        ahead = copy_ahead(plan.put_back, step.order)
        checks = [*plan.checks, *read_opaque_writes(plan, feeds.watched)]
        sums = self._sums(checks)
        decision = self._decide(checks, sums)
        clones = GatedClones(plan, decision.go)
        updated = self._check_after(decision, clones, ahead)
        end = _end(decision, updated, ahead)
        flags = join_flags([decision.flags, updated.flags])
        self._ranks.note_checks(flags.labels)
        at = plan, clones, decision.go, decision.refused
        value = None if step.core is None else value_after_step(step.core, *at)
        told = announce(plan, flags, feeds.watched, feeds.untold, end.undone)
        bad = _flags_at_end(flags, updated, end.good, told)
        announced = outcome_of(bad, value, step.train_op)
        values = {key(t): value_after_step(t, *at) for t in plan.values}
        untold_count = feeds.untold.count_after(announced.bad)
        measures = measure(plan, sums, self._home, announced)
        row = measures.row(untold_count)
        feeds.untold.counts.add(row.name)
        undone = plan.variables if plan.trial or plan.is_chiefs else ()
        return Gate(
            **announced._asdict(),
            original=step.train_op,
            labels=tuple(flags.labels),
            watched=feeds.watched,
            untold=feeds.untold,
            untold_count=untold_count,
            is_good=updated.is_good,
            loss=plan.losses[0] if plan.losses else None,
            limit=feeds.limits.loss,
            norm_limit=feeds.limits.half_square,
            measures=measures,
            row=row,
            max_loss=max_loss,
            gated=frozenset(plan.gated),
            writes=clones.writes(),
            raises=bool(step.raises),
            values=values,
            transient=tuple(dict.fromkeys([*plan.put_back, *undone])),
            takes_from=frozenset(accumulators_of(step.order) if plan.is_chiefs else ()),
            is_beside=plan.is_chiefs,
            fed=step.fed,
            trains=plan.trains,
            ranks=self._ranks,
        )

    def _sums(self, checks: Sequence[Check]) -> SquareSums:
        """The sums of squares of all values; of gradients only, if no step takes the fast path."""
        values = [Check(loss, 'loss') for loss in self._plan.losses] + list(checks)
        if self._plan.trial:
            values = [value for value in values if value.gradient_of]
        return SquareSums(values, self._plan.losses, self._home)

    def _decide(self, checks: Sequence[Check], sums: SquareSums) -> Decision:
        """Builds the fast path; for other steps the exact check, copies, and a check of the copies.

        If several processes or threads train, a variable may hold a bad value that another of them
        is about to undo. An update computed from this value is bad as well; and if this step
        restored a copy of it after the other has restored its own, the variable would be lost. So a
        step whose copies are not finite does not begin its update.
        """
        plan, token = self._plan, self._feeds.token
        if plan.trial:  # only the variables, once written, show whether the step is bad
            fast, checking = None, after(plan.barrier, token, 'checking')
        else:
            is_fast = fast_path.all_are_small(plan, sums, self._feeds.limits)
            is_fast = self._ranks.all_of(is_fast, 'fast')
            fast, checking = branch(token, is_fast, 'fast')
        flags = self._checks.before_update(checks, checking, sums.of_gradients())
        flags = self._ranks.any_of(flags, 'before', is_first=plan.trial)
        is_fine = ops.none_of(flags.vector, name='is_fine')
        fine, refused = branch(token, is_fine, 'fine')
        with tf.control_dependencies([fine]):
            copies = {variable: ops.copy_of(variable) for variable in plan.variables}
        prepared = after(copies.values(), fine, 'copied')
        if plan.changed:
            found = self._ranks.any_of(self._checks.of_copies(copies, fine), 'copies')
            with tf.control_dependencies([refused]):
                no_copies = tf.constant([False] * len(found.labels), tf.bool)
            found = found._replace(vector=ops.merge([found.vector, no_copies], 'lost'))
            flags = join_flags([flags, found])
            is_fine = ops.none_of(flags.vector, name='are_good')
            prepared, not_good = branch(prepared, is_fine, 'prepared')
            refused = ops.merge([refused, not_good], 'refused')
        go = prepared if fast is None else ops.merge([fast, prepared], 'go')
        return Decision(flags, is_fine, fast, prepared, refused, go, copies)

    def _check_after(self, decision: Decision, clones: GatedClones, ahead: Copies) -> _After:
        """Checks what the update wrote."""
        plan, fast = self._plan, decision.fast
        ran = [clones.of_op(op_of(plan.step.train_op))]
        fast_ran = None if fast is None else after(ran, fast, 'ran_fast')
        tried = after(ran, decision.prepared, 'tried')
        checked = ops.merge([tried, decision.refused], 'checked')
        found = [self._checks.after_update(checked, ahead)]
        if plan.late_loss is not None:
            value = clones.of(plan.late_loss)
            found.append(check_late_loss(plan.late_loss, value, decision.refused))
        flags = self._ranks.any_of(join_flags(found), 'after')
        nothing_found = ops.none_of(flags.vector)
        is_good = tf.logical_and(nothing_found, decision.is_fine)
        return _After(fast_ran, checked, flags, is_good)


def _end(decision: Decision, updated: _After, ahead: Copies) -> _End:
    """Puts variables back after a bad step."""
    good, bad = branch(updated.checked, updated.is_good, 'good')
    undo, unwritten = branch(bad, decision.is_fine, 'undo')
    undone = ops.merge([restore(decision.copies, undo, 'undone'), unwritten], 'unwritten')
    return _End(good, restore(ahead, undone, 'put_back'))


def _flags_at_end(flags: Flags, updated: _After, good: tf.Tensor, undone: tf.Tensor) -> tf.Tensor:
    """The flags; they arrive with `good`, `undone` or `fast_ran`, when the step is done."""
    bad = after([ops.merge([good, undone], 'decided')], flags.vector, 'flags')
    if updated.fast_ran is None:
        return bad
    with tf.control_dependencies([updated.fast_ran]):
        no_flags = tf.constant([False] * len(flags.labels), tf.bool)
    return ops.merge([no_flags, bad], 'bad')


def _require_loss(plan: Plan, max_loss: Optional[float]) -> None:
    if max_loss is not None and not plan.losses:
        raise NoLossError(
            'max_loss=%r needs a loss to compare with, and train op %r has none; pass it as '
            'slimguard.guard(train_op, loss=total_loss, max_loss=%r)'
            % (max_loss, plan.step.train_op.name, max_loss)
        )

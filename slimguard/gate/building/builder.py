"""Builds the gate of one train op: the decision whether a step is bad, and all that depends on it.

:mod:`slimguard.gate` says how it works. The parts are built in this order: the fast path and the
exact check, copies, the update, the check of what the update wrote, undoing, the announcement.
"""

from typing import Dict, NamedTuple, Optional, Sequence

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.gate.building import fast_path
from slimguard.gate.building.announcement import announce
from slimguard.gate.building.copies import Copies, copy_ahead, require_unseen
from slimguard.gate.building.fast_path import Limits, make_limits
from slimguard.gate.building.finite_checks import SMALL_32
from slimguard.gate.building.flags import Flags, join_flags
from slimguard.gate.building.gated_clones import GatedClones
from slimguard.gate.building.measures import measure
from slimguard.gate.building.outcome import GlobalStep, outcome_of, value_after_step, value_of_step
from slimguard.gate.building.rank_libraries import ranks_of
from slimguard.gate.building.square_sums import SquareSums
from slimguard.gate.building.step_checks import StepChecks, check_late_loss, read_opaque_writes
from slimguard.gate.building.tasks import (
    Checked,
    Decision,
    Task,
    Tasks,
    copy_at,
    decide,
    settle_there,
    tell,
    undo_here,
)
from slimguard.gate.building.untold import Untold
from slimguard.gate.chief_update import accumulators_of
from slimguard.gate.gate import Gate
from slimguard.gate.reading.checked_values import Check
from slimguard.gate.reading.plan import Plan
from slimguard.graph import key, op_of, ops
from slimguard.graph.devices import Home
from slimguard.graph.ops import after, branch


def build(plan: Plan, max_loss: Optional[float]) -> Gate:
    """Builds a gate in the graph of its plan.

    Raises:
      ValueError: if there is a limit and no loss to compare with, or if a session has seen an op
        that would have to be changed.
    """
    _require_loss(plan, max_loss)
    require_unseen(plan.put_back, plan.step.order)
    tasks = Tasks(plan)
    with ops.our_scope(plan.step.graph, 'gate'), tf.device(tasks.home.device):
        return _Build(plan, tasks, _feeds_of(plan, tasks.home, max_loss)).run(max_loss)


class NoLossError(ValueError):
    """There is a limit for the loss, and no loss."""


class _Feeds(NamedTuple):
    """What a gate is built from: placeholders with defaults, and its `Untold`."""

    untold: Untold
    watched: tf.Tensor
    # The data of the switches. Not their predicate: Grappler would make constants of it, and on
    # TensorFlow 1.15 abort if a loop waits for one.
    token: tf.Tensor
    limits: Limits


def _feeds_of(plan: Plan, home: Task, max_loss: Optional[float]) -> _Feeds:
    untold = Untold(plan.step.graph, home.device, plan.losses[0] if plan.losses else None)
    watched = tf1.placeholder_with_default(untold.is_watched, [], 'watched')
    token = tf1.placeholder_with_default(tf.constant(SMALL_32), [], 'token')
    return _Feeds(untold, watched, token, make_limits(bool(plan.losses), max_loss))


class _Before(NamedTuple):
    """The tokens and findings before the update."""

    flags: Flags
    is_fine: tf.Tensor  # whether no flag is set, so that the update runs; dead on the fast path
    decisions: Dict[Task, Decision]


class _After(NamedTuple):
    """The tokens and findings after the update, or after its refusal.

    `fast_ran` arrives on the fast path, and only there; the other fields are dead then.
    """

    fast_ran: Optional[tf.Tensor]  # arrives when the update ran
    checked: tf.Tensor  # arrives when the update ran at home, or was refused
    flags: Flags
    is_good: tf.Tensor  # true if no flag was set, before or after the update


class _End(NamedTuple):
    """How the step ended, off the fast path."""

    good: tf.Tensor  # arrives if the step is written
    undone: tf.Tensor  # arrives after a bad step, when all variables are as they were
    settled: Dict[Task, tf.Tensor]  # by other task: arrives once all writes there are done


class _Build:
    """Builds the parts of one gate, in the order they run."""

    def __init__(self, plan: Plan, tasks: Tasks, feeds: _Feeds):
        self._plan = plan
        self._tasks = tasks
        self._feeds = feeds
        self._home = Home(feeds.watched.op)
        self._checks = StepChecks(plan, feeds.limits, self._home)
        self._ranks = ranks_of(plan.step)

    def run(self, max_loss: Optional[float]) -> Gate:
        plan, feeds, step = self._plan, self._feeds, self._plan.step
        ahead = copy_ahead(plan.put_back, step.order)
        checks = [*plan.checks, *read_opaque_writes(plan, feeds.watched)]
        sums = self._sums(checks)
        before = self._check_before(checks, sums)
        decisions = before.decisions
        go = {task: decision.go for task, decision in decisions.items()}
        clones = GatedClones(plan, self._tasks, go)
        updated = self._check_after(before, clones, ahead)
        end = self._end(before, updated, clones, ahead)
        flags = join_flags([before.flags, updated.flags])
        self._ranks.note_checks(flags.labels)
        here = decisions[self._tasks.home]
        value = value_of_step(plan, clones, here)
        count = GlobalStep(step.graph, self._tasks, end.settled)
        told = announce(plan, flags, feeds.watched, feeds.untold, end.undone, count)
        bad = _flags_at_end(flags, updated, end.good, told)
        announced = outcome_of(bad, value, count, step.train_op)
        quiet = outcome_of(_flags_at_end(flags, updated, end.good, end.undone), value, count)
        values = {key(t): value_after_step(t, plan, clones, here) for t in plan.values}
        untold_count = feeds.untold.count_after(announced.bad)
        measures = measure(plan, sums, self._home, announced)
        undone = plan.variables if plan.trial or plan.is_chiefs else ()
        return Gate(
            original=step.train_op,
            announced=announced,
            quiet=quiet,
            labels=tuple(flags.labels),
            watched=feeds.watched,
            untold=feeds.untold,
            untold_count=untold_count,
            is_good=updated.is_good,
            loss=plan.losses[0] if plan.losses else None,
            limit=feeds.limits.loss,
            norm_limit=feeds.limits.half_square,
            measures=measures,
            row=measures.counted_row(feeds.untold, untold_count),
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
        """The sums of squares of all values; only of gradients, if no step takes the fast path."""
        values = [Check(loss, 'loss') for loss in self._plan.losses] + list(checks)
        if self._plan.trial:
            values = [value for value in values if value.gradient_of]
        return SquareSums(values, self._plan.losses, self._home)

    def _check_before(self, checks: Sequence[Check], sums: SquareSums) -> _Before:
        """The fast path; if a step does not take it, the exact check, and a check of copies."""
        plan, token = self._plan, self._feeds.token
        if plan.trial:  # only the written variables tell
            fast, checking = None, after(plan.barrier, token, 'checking')
        else:
            is_fast = fast_path.all_are_small(plan, sums, self._feeds.limits)
            is_fast = self._ranks.all_of(is_fast, 'fast')
            fast, checking = branch(token, is_fast, 'fast')
        flags = self._checks.before_update(checks, checking, sums.of_gradients())
        flags = self._ranks.any_of(flags, 'before', is_first=plan.trial)
        is_fine = ops.none_of(flags.vector, name='is_fine')
        checked = {self._tasks.home: Checked(fast, *branch(token, is_fine, 'fine'))}
        for task in self._tasks.others:
            assert fast is not None, 'a trial has one task'
            checked[task] = tell(task, fast, is_fine)
        return self._check_copies(checked, flags, is_fine)

    def _check_copies(
        self, checked: Dict[Task, Checked], flags: Flags, is_fine: tf.Tensor
    ) -> _Before:
        """Copies and decides, in each task.

        If several processes or threads train, a variable may hold a value that another of them is
        about to undo. An update computed from it is bad as well; and if this step restores a copy
        of it, after the other has restored its own, the variable is lost for good. So a step whose
        copies are not finite does not begin its update.
        """
        copies = {task: copy_at(task, each.fine) for task, each in checked.items()}
        are_good = None
        if self._plan.changed:
            found = self._ranks.any_of(self._lost_in(copies, checked), 'copies')
            with tf.control_dependencies([checked[self._tasks.home].refused]):
                no_copies = tf.constant([False] * len(found.labels), tf.bool)
            found = found._replace(vector=ops.merge([found.vector, no_copies], 'lost'))
            flags = join_flags([flags, found])
            is_fine = are_good = ops.none_of(flags.vector, name='are_good')
        decisions = {task: decide(task, checked[task], copies[task], are_good) for task in checked}
        return _Before(flags, is_fine, decisions)

    def _lost_in(self, copies: Dict[Task, Copies], checked: Dict[Task, Checked]) -> Flags:
        found = []
        for task, made in copies.items():
            if not self._plan.changed.isdisjoint(task.variables):
                with tf.device(task.device):
                    found.append(self._checks.of_copies(made, checked[task].fine))
        return join_flags(found)

    def _check_after(
        self,
        before: _Before,
        clones: GatedClones,
        ahead: Copies,
    ) -> _After:
        """Checks what the update wrote, in each task."""
        plan, home, decisions = self._plan, self._tasks.home, before.decisions
        fast = decisions[home].fast
        ran = [clones.of_op(op_of(plan.step.train_op))]
        fast_ran = None if fast is None else after(ran, fast, 'ran_fast')
        checked = _checked(ran, decisions[home])
        found = [self._checks.after_update(home, checked, ahead)]
        for task in self._tasks.others:
            with tf.device(task.device):
                checked_there = _checked(clones.writes_at(task), decisions[task])
                found.append(self._checks.after_update(task, checked_there, ahead))
        if plan.late_loss is not None:
            value = clones.of(plan.late_loss)
            found.append(check_late_loss(plan.late_loss, value, decisions[home].refused))
        flags = self._ranks.any_of(join_flags(found), 'after')
        nothing_found = ops.none_of(flags.vector)
        is_good = tf.logical_and(nothing_found, before.is_fine)
        return _After(fast_ran, checked, flags, is_good)

    def _end(
        self,
        before: _Before,
        updated: _After,
        clones: GatedClones,
        ahead: Copies,
    ) -> _End:
        """Puts variables back after a bad step, in each task."""
        home, decisions = self._tasks.home, before.decisions
        good, bad = branch(updated.checked, updated.is_good, 'good')
        undo, unwritten = branch(bad, before.is_fine, 'undo')
        undone = undo_here(home, ahead, decisions[home].copies, undo, unwritten)
        if not self._tasks.others:
            return _End(good, undone, {})
        ends_well = [tf.cast(flag, tf.float32) for flag in (before.is_fine, updated.is_good)]
        end = tf.add_n(ends_well)
        ends = {
            task: settle_there(task, ahead, decisions[task], clones.writes_at(task), end)
            for task in self._tasks.others
        }
        undone = after([each.undone for each in ends.values()], undone, 'undone_everywhere')
        return _End(good, undone, {task: each.settled for task, each in ends.items()})


def _checked(ran: Sequence[tf.Operation], decision: Decision) -> tf.Tensor:
    """A token: arrives when the update ran in a task, or was refused; not on the fast path."""
    return ops.merge([after(ran, decision.prepared, 'tried'), decision.refused], 'checked')


def _flags_at_end(flags: Flags, updated: _After, good: tf.Tensor, undone: tf.Tensor) -> tf.Tensor:
    """The flags, once one of `good`, `undone` and `fast_ran` tells that the step is done."""
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

"""Builds the gate of one train op: the decision whether a step is bad, and all that depends on it.

:mod:`slimguard.gate` says how it works. The parts are built in this order: the fast path and the
exact check, copies, the update, the check of what the update wrote, undoing, the announcement.
"""

from typing import Dict, NamedTuple, Optional, Sequence

import tensorflow as tf

from slimguard.gate import fast_path, regularizers
from slimguard.gate.announcement import announce
from slimguard.gate.checked_values import Check
from slimguard.gate.copies import Copy
from slimguard.gate.decision_at_tasks import Checked, Decision, copy_at, decide, tell
from slimguard.gate.finite_checks import SMALL_32
from slimguard.gate.flags import Flags, each_once, join_flags
from slimguard.gate.flags_in_words import Label
from slimguard.gate.forward_copies import (
    copy_ahead,
    read_from_others,
    read_opaque_writes,
    require_unseen,
)
from slimguard.gate.gated_clones import GatedClones
from slimguard.gate.limits import Limits, make_limits
from slimguard.gate.measures import Measures, measure
from slimguard.gate.outcome import GlobalStep, Outcome, outcome_of
from slimguard.gate.plan import Plan
from slimguard.gate.rank_libraries import ranks_of
from slimguard.gate.ranks import Ranks
from slimguard.gate.square_sums import SquareSums
from slimguard.gate.step_checks import StepChecks, check_late_loss
from slimguard.gate.step_value import value_after_step, value_of_step
from slimguard.gate.tasks import Task, Tasks
from slimguard.gate.undo import settle_there, undo_here
from slimguard.gate.untold import Untold
from slimguard.graph import op_of, ops, plain_ops
from slimguard.graph.devices import Home
from slimguard.graph.ops import after, branch


class Built(NamedTuple):
    """What was built; :class:`slimguard.gate.Gate` says what each is.

    Attributes:
      untold: the bad steps that no watcher has been told of.
      untold_count: how many of these there are after a step that fetches `announced`.
      announced: what to fetch if a bad step is to print or raise.
      quiet: what to fetch if it is not to.
      values: the values of the plan's tensors, once the step has run.
      measures: the loss, learning rate and gradients of a step, good or bad.
      row: the measures and the count, in one vector; see `Measures.counted_row`.
      writes: the clones of the gated writes, by the write.
      ranks: the processes that run the step together.
    """

    watched: tf.Tensor
    limits: Limits
    labels: Sequence[Label]
    is_good: tf.Tensor
    untold: Untold
    untold_count: tf.Tensor
    announced: Outcome
    quiet: Outcome
    values: Sequence[tf.Tensor]
    measures: Measures
    row: tf.Tensor
    writes: Dict[tf.Operation, tf.Operation]
    ranks: Ranks


def build(plan: Plan, max_loss: Optional[float]) -> Built:
    """Builds a gate in the graph of its plan.

    Raises:
      ValueError: if there is a limit and no loss to compare with, or if a session has seen an op
        that would have to be changed.
    """
    _require_loss(plan, max_loss)
    require_unseen(plan)
    regularizers.delay(plan)
    tasks = Tasks(plan)
    with ops.our_scope(plan.step.graph, 'gate'), tf.device(tasks.home.device):
        return _Build(plan, tasks, _feeds_of(plan, tasks.home, max_loss)).run()


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
    watched = plain_ops.feedable(untold.is_watched, name='watched')
    token = plain_ops.feedable(plain_ops.constant(SMALL_32, tf.float32), name='token')
    return _Feeds(untold, watched, token, make_limits(bool(plan.losses), max_loss))


class _Before(NamedTuple):
    """What is known before the update."""

    flags: Flags
    is_fine: tf.Tensor  # whether no flag is set, so that the update runs; dead on the fast path
    decisions: Dict[Task, Decision]


class _After(NamedTuple):
    """What is known after the update, or after it was refused.

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
        self._make = ops.Maker(plan.step.graph)
        self._home = Home(feeds.watched.op)
        self._checks = StepChecks(plan, feeds.limits, self._make, self._home)
        self._ranks = ranks_of(plan.step)

    def run(self) -> Built:
        plan, feeds, make = self._plan, self._feeds, self._make
        ahead = copy_ahead(plan, make)
        checks = [*plan.checks, *read_opaque_writes(plan, make, feeds.watched)]
        checks += read_from_others(plan, make)
        sums = self._sums(checks)
        before = self._check_before(checks, sums)
        decisions = before.decisions
        go = {task: decision.go for task, decision in decisions.items()}
        clones = GatedClones(plan, self._tasks, go)
        updated = self._check_after(before, clones, ahead)
        end = self._end(before, updated, clones, ahead)
        flags = each_once(join_flags([before.flags, updated.flags]))
        self._ranks.note_checks(flags.labels)
        value = value_of_step(plan, clones, decisions[self._tasks.home])
        step = GlobalStep(plan.step.graph, make, self._tasks, end.settled)
        told = announce(plan, flags, feeds.watched, feeds.untold, end.undone, step)
        bad = _flags_at_end(flags, updated, end.good, told)
        announced = outcome_of(bad, value, step, plan.step.train_op)
        quiet = outcome_of(_flags_at_end(flags, updated, end.good, end.undone), value, step)
        here = decisions[self._tasks.home]
        values = [value_after_step(tensor, plan, clones, here) for tensor in plan.values]
        count = feeds.untold.count_after(announced.bad)
        measures = measure(plan, sums, self._home, announced)
        return Built(
            feeds.watched,
            feeds.limits,
            flags.labels,
            updated.is_good,
            feeds.untold,
            count,
            announced,
            quiet,
            values,
            measures,
            measures.counted_row(feeds.untold, count),
            clones.writes(),
            self._ranks,
        )

    def _sums(self, checks: Sequence[Check]) -> SquareSums:
        """The sums of squares of all values; only of gradients, if no step takes the fast path."""
        values = [Check(loss, 'loss') for loss in self._plan.losses] + list(checks)
        if self._plan.trial:
            values = [value for value in values if value.gradient_of]
        return SquareSums(values, self._plan.losses, self._make, self._home)

    def _check_before(self, checks: Sequence[Check], sums: SquareSums) -> _Before:
        """The fast path; if a step does not take it, the exact check, and a check of copies."""
        plan, token = self._plan, self._feeds.token
        if plan.trial:  # only the written variables tell
            fast, checking = None, after(plan.barrier, token, 'looking')
        else:
            is_fast = fast_path.all_are_small(plan, sums, self._feeds.limits)
            is_fast = self._ranks.all_of(is_fast, 'fast')
            fast, checking = branch(token, is_fast, 'calm')
        flags = self._checks.before_update(checks, checking, sums.of_gradients())
        flags = self._ranks.any_of(flags, 'before', is_first=plan.trial)
        is_fine = plain_ops.none_of(flags.vector, name='is_fine')
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
        copies = {
            task: copy_at(self._make, self._plan, task, each.fine) for task, each in checked.items()
        }
        are_good = None
        if self._plan.changed:
            found = self._ranks.any_of(self._lost_in(copies, checked), 'copies')
            with tf.control_dependencies([checked[self._tasks.home].refused]):
                no_copies = plain_ops.constant([False] * len(found.labels), tf.bool)
            found = found._replace(vector=plain_ops.merge([found.vector, no_copies], 'lost'))
            flags = join_flags([flags, found])
            is_fine = are_good = plain_ops.none_of(flags.vector, name='are_good')
        decisions = {task: decide(task, checked[task], copies[task], are_good) for task in checked}
        return _Before(flags, is_fine, decisions)

    def _lost_in(self, copies: Dict[Task, Sequence[Copy]], checked: Dict[Task, Checked]) -> Flags:
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
        ahead: Sequence[Copy],
    ) -> _After:
        """Checks what the update wrote, in each task."""
        plan, home, decisions = self._plan, self._tasks.home, before.decisions
        fast = decisions[home].fast
        ran = [clones.of_op(op_of(plan.step.train_op))]
        fast_ran = None if fast is None else after(ran, fast, 'ran_calm')
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
        nothing_found = plain_ops.none_of(flags.vector)
        is_good = plain_ops.logical_and(nothing_found, before.is_fine)
        return _After(fast_ran, checked, flags, is_good)

    def _end(
        self,
        before: _Before,
        updated: _After,
        clones: GatedClones,
        ahead: Sequence[Copy],
    ) -> _End:
        """Puts variables back after a bad step, in each task."""
        make, home, decisions = self._make, self._tasks.home, before.decisions
        good, bad = branch(updated.checked, updated.is_good, 'good')
        undo, unwritten = branch(bad, before.is_fine, 'undo')
        undone = undo_here(make, home, ahead, decisions[home].copies, undo, unwritten)
        if not self._tasks.others:
            return _End(good, undone, {})
        ends_well = [plain_ops.cast(flag, tf.float32) for flag in (before.is_fine, updated.is_good)]
        end = tf.add_n(ends_well)
        ends = {
            task: settle_there(make, task, ahead, decisions[task], clones.writes_at(task), end)
            for task in self._tasks.others
        }
        undone = after([each.undone for each in ends.values()], undone, 'held_everywhere')
        return _End(good, undone, {task: each.settled for task, each in ends.items()})


def _checked(ran: Sequence[tf.Operation], decision: Decision) -> tf.Tensor:
    """A token: arrives when the update ran in a task, or was refused; not on the fast path."""
    return plain_ops.merge([after(ran, decision.prepared, 'tried'), decision.refused], 'looked')


def _flags_at_end(flags: Flags, updated: _After, good: tf.Tensor, undone: tf.Tensor) -> tf.Tensor:
    """The flags, once one of `good`, `undone` and `fast_ran` tells that the step is done."""
    bad = after([plain_ops.merge([good, undone], 'decided')], flags.vector, 'flags')
    if updated.fast_ran is None:
        return bad
    with tf.control_dependencies([updated.fast_ran]):
        no_flags = plain_ops.constant([False] * len(flags.labels), tf.bool)
    return plain_ops.merge([no_flags, bad], 'bad')


def _require_loss(plan: Plan, max_loss: Optional[float]) -> None:
    if max_loss is not None and not plan.losses:
        raise NoLossError(
            'max_loss=%r needs a loss to compare with, and train op %r has none; pass it as '
            'slimguard.guard(train_op, loss=total_loss, max_loss=%r)'
            % (max_loss, plan.step.train_op.name, max_loss)
        )

"""Builds the decision whether a step is bad, and all that hangs on it: the gate of one train op.

:mod:`slimguard.gate` says how it works. It is built in this order: a fast path, or else an exact
check; the update, once copies are made; a check of what it wrote, and undoing it; telling.
"""

from typing import Dict, NamedTuple, Optional, Sequence

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.gate import fast_path, regularizers
from slimguard.gate.announcement import announce
from slimguard.gate.checked_values import Check
from slimguard.gate.copies import Copy
from slimguard.gate.decision_at_tasks import Decision, decide_here, decide_there
from slimguard.gate.finite_checks import SMALL_32
from slimguard.gate.flags import Flags, join_flags
from slimguard.gate.flags_in_words import Label
from slimguard.gate.forward_copies import copy_ahead, read_opaque_writes, require_unseen
from slimguard.gate.gated_clones import GatedClones
from slimguard.gate.limits import Limits, make_limits
from slimguard.gate.measures import Measures, measure
from slimguard.gate.outcome import GlobalStep, Outcome, outcome_of
from slimguard.gate.plan import Plan
from slimguard.gate.square_sums import SquareSums
from slimguard.gate.step_checks import StepChecks, check_late_loss
from slimguard.gate.step_value import value_after_step, value_of_step
from slimguard.gate.tasks import Task, Tasks
from slimguard.gate.undo import settle_there, undo_here
from slimguard.gate.untold import Untold
from slimguard.graph import op_of, ops
from slimguard.graph.devices import Home
from slimguard.graph.ops import after, branch, merge


class Built(NamedTuple):
    """What was built; :class:`slimguard.gate.Gate` says what each is.

    Attributes:
      untold: the bad steps that no watcher has been told of.
      untold_count: how many these are after the step, where `announced` is fetched.
      announced: what is fetched where a bad step is to print or raise.
      quiet: what is fetched where it is not to.
      values: the values of the plan's tensors, once the step has run.
      measures: what is known of a step, good or bad.
      row: all of that and the count, in one vector; see `Measures.counted_row`.
      writes: by gated write, its clone.
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


def build(plan: Plan, max_loss: Optional[float]) -> Built:
    """Builds a gate in the graph of its plan.

    Raises:
      ValueError: if there is a limit and no loss to compare with, or if a session has seen what
        would have to be changed.
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
    """What a gate begins with: placeholders, which have defaults."""

    untold: Untold
    watched: tf.Tensor
    # What the switches hand on. Not their predicate: Grappler would make constants of that, and
    # abort on TensorFlow 1.15 where a loop waits for one.
    token: tf.Tensor
    limits: Limits


def _feeds_of(plan: Plan, home: Task, max_loss: Optional[float]) -> _Feeds:
    untold = Untold(plan.step.graph, home.device, plan.losses[0] if plan.losses else None)
    watched = tf1.placeholder_with_default(untold.is_watched, [], name='watched')
    token = tf1.placeholder_with_default(SMALL_32, [], name='token')
    return _Feeds(untold, watched, token, make_limits(bool(plan.losses), max_loss))


class _Before(NamedTuple):
    """What is known before the update."""

    fast: Optional[tf.Tensor]  # arrives if the step takes the fast path
    flags: Flags
    is_fine: tf.Tensor  # whether no flag is set; dead on the fast path, as all that follows is
    fine: tf.Tensor  # arrives if so
    refused: tf.Tensor  # arrives if not


class _After(NamedTuple):
    """What is known after the update, or after it was refused.

    `fast_ran` arrives on the fast path, and only there; all the rest is dead then.
    """

    fast_ran: Optional[tf.Tensor]  # arrives when the update ran
    checked: tf.Tensor  # arrives when the update ran at home, or was refused
    flags: Flags
    is_good: tf.Tensor  # whether no flag is set, neither before the update nor after


class _End(NamedTuple):
    """How the step ended, off the fast path."""

    good: tf.Tensor  # arrives if the step is written
    undone: tf.Tensor  # arrives after a bad step, when all variables are as they were
    settled: Dict[Task, tf.Tensor]  # by other task, arrives when nothing is written there any more


class _Build:
    """The parts of one gate, in the order they run. They share where and with what it is built."""

    def __init__(self, plan: Plan, tasks: Tasks, feeds: _Feeds):
        self._plan = plan
        self._tasks = tasks
        self._feeds = feeds
        self._make = ops.Maker(plan.step.graph)
        self._home = Home(feeds.watched.op)
        self._checks = StepChecks(plan, feeds.limits, self._make, self._home)

    def run(self) -> Built:
        plan, feeds, make = self._plan, self._feeds, self._make
        ahead = copy_ahead(plan, make)
        checks = [*plan.checks, *read_opaque_writes(plan, make, feeds.watched)]
        sums = self._sums(checks)
        before = self._check_before(checks, sums)
        decisions = self._decide(before)
        go = {task: decision.go for task, decision in decisions.items()}
        clones = GatedClones(plan, self._tasks, go)
        updated = self._check_after(before, decisions, clones, ahead)
        end = self._end(before, updated, decisions, clones, ahead)
        flags = join_flags([before.flags, updated.flags])
        value = value_of_step(plan, clones, decisions[self._tasks.home])
        step = GlobalStep(plan.step.graph, make, self._tasks, end.settled)
        told = announce(plan, flags, feeds.watched, feeds.untold, end.undone, step)
        announced = outcome_of(_flags_at_end(flags, updated, end.good, told), value, step)
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
        )

    def _sums(self, checks: Sequence[Check]) -> SquareSums:
        """The sums of squares of all values; where no step takes the fast path, of gradients."""
        values = [Check(loss, 'loss') for loss in self._plan.losses] + list(checks)
        if self._plan.trial:
            values = [value for value in values if value.gradient_of]
        return SquareSums(values, self._plan.losses, self._make, self._home)

    def _check_before(self, checks: Sequence[Check], sums: SquareSums) -> _Before:
        """The fast path, and the exact check where that is not taken."""
        plan, token = self._plan, self._feeds.token
        if plan.trial:  # only what was written tells
            fast, checking = None, after(plan.barrier, token, 'looking')
        else:
            is_fast = fast_path.all_are_small(plan, sums, self._feeds.limits)
            fast, checking = branch(token, is_fast, 'calm')
        flags = self._checks.before_update(checks, checking, sums.of_gradients())
        is_fine = tf.logical_not(tf.reduce_any(flags.vector), name='is_fine')
        return _Before(fast, flags, is_fine, *branch(token, is_fine, 'fine'))

    def _decide(self, before: _Before) -> Dict[Task, Decision]:
        """Tells each task whether to run the update."""
        make, home = self._make, self._tasks.home
        decisions = {home: decide_here(make, home, before.fast, before.fine, before.refused)}
        for task in self._tasks.others:
            assert before.fast is not None, 'a trial has one task'
            decisions[task] = decide_there(make, task, before.fast, before.is_fine)
        return decisions

    def _check_after(
        self,
        before: _Before,
        decisions: Dict[Task, Decision],
        clones: GatedClones,
        ahead: Sequence[Copy],
    ) -> _After:
        """Checks what the update wrote, in each task."""
        plan, home = self._plan, self._tasks.home
        ran = [clones.of_op(op_of(plan.step.train_op))]
        fast_ran = None if before.fast is None else after(ran, before.fast, 'ran_calm')
        checked = _checked(ran, decisions[home])
        found = [self._checks.after_update(home, checked, ahead)]
        for task in self._tasks.others:
            with tf.device(task.device):
                checked_there = _checked(clones.writes_at(task), decisions[task])
                found.append(self._checks.after_update(task, checked_there, ahead))
        if plan.late_loss is not None:
            value = clones.of(plan.late_loss)
            found.append(check_late_loss(plan.late_loss, value, before.refused))
        flags = join_flags(found)
        nothing_found = tf.logical_not(tf.reduce_any(flags.vector))
        is_good = tf.logical_and(nothing_found, before.is_fine)
        return _After(fast_ran, checked, flags, is_good)

    def _end(
        self,
        before: _Before,
        updated: _After,
        decisions: Dict[Task, Decision],
        clones: GatedClones,
        ahead: Sequence[Copy],
    ) -> _End:
        """Puts variables back after a bad step, in each task."""
        make, home = self._make, self._tasks.home
        good, bad = branch(updated.checked, updated.is_good, 'good')
        undo, unwritten = branch(bad, before.is_fine, 'undo')
        undone = undo_here(make, home, ahead, decisions[home].copies, undo, unwritten)
        if not self._tasks.others:
            return _End(good, undone, {})
        end = tf.cast(before.is_fine, tf.float32) + tf.cast(updated.is_good, tf.float32)
        ends = {
            task: settle_there(make, task, ahead, decisions[task], clones.writes_at(task), end)
            for task in self._tasks.others
        }
        undone = after([each.undone for each in ends.values()], undone, 'held_everywhere')
        return _End(good, undone, {task: each.settled for task, each in ends.items()})


def _checked(ran: Sequence[tf.Operation], decision: Decision) -> tf.Tensor:
    """Arrives when the update ran in a task, or was refused; not on the fast path."""
    return merge([after(ran, decision.prepared, 'tried'), decision.refused], 'looked')


def _flags_at_end(flags: Flags, updated: _After, good: tf.Tensor, undone: tf.Tensor) -> tf.Tensor:
    """The flags, once one of `good`, `undone` and `fast_ran` tells that the step is done."""
    bad = after([merge([good, undone], 'decided')], flags.vector, 'flags')
    if updated.fast_ran is None:
        return bad
    with tf.control_dependencies([updated.fast_ran]):
        no_flags = tf.zeros([len(flags.labels)], tf.bool)
    return merge([no_flags, bad], 'bad')


def _require_loss(plan: Plan, max_loss: Optional[float]) -> None:
    if max_loss is not None and not plan.losses:
        raise NoLossError(
            'max_loss=%r needs a loss to compare with, and train op %r has none; pass it as '
            'slimguard.guard(train_op, loss=total_loss, max_loss=%r)'
            % (max_loss, plan.step.train_op.name, max_loss)
        )

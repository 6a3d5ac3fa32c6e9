"""The tasks that hold variables of a gate, and how each gets the decision.

In a training on one machine there is one task. Every message to another crosses the network. So
each task works alone as far as it can: it copies its variables, checks them, and puts them back.
The decision, its flags and its strings stay on the task's CPU, which reads them in any case; other
devices have no kernels for strings.

builder.py makes the decision. Off the fast path a task gets three messages: when to copy its
variables, whether all copies are good, and how the step ended.
"""

from typing import Dict, List, NamedTuple, Optional, Sequence

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.gate.building.copies import Copies, restore
from slimguard.gate.building.finite_checks import SMALL_32
from slimguard.gate.reading.plan import Plan
from slimguard.graph import ops
from slimguard.graph.devices import processor_of, task_of


class Task:
    """A task of the cluster. It is a key of dictionaries, so it is compared by identity.

    Attributes:
      device: the device for the gate's ops there, a CPU.
      variables: the plan's `variables` that are there.
      put_back: the variables of the plan's `put_back` that are there.
    """

    def __init__(self, device: str):
        self.device = device
        self.variables: List[tf.Operation] = []
        self.put_back: List[tf.Operation] = []


class Tasks:
    """The tasks of a gate.

    Attributes:
      home: the task of the loss, or of the chief. Its CPU makes the decision, wherever the
        variables live.
      others: the other tasks that hold variables.
    """

    def __init__(self, plan: Plan):
        self._writes = plan.step.writes
        self._tasks = _find_tasks(plan, _device_of_home(plan))
        self.home, *self.others = self._tasks.values()

    def of(self, op: tf.Operation) -> Task:
        """The task of an op. A write runs where its variable is, whatever its device says."""
        variables = self._writes.variables(op)
        return self.at(variables[0].device if variables else graphs.device_of(op))

    def at(self, device: str) -> Task:
        """The task of a device; home, if that task holds no variables."""
        return self._tasks.get(task_of(device), self.home)


def _find_tasks(plan: Plan, device: str) -> Dict[tuple, Task]:
    """The variables of each task; the home of the decision, on `device`, comes first."""
    tasks = {task_of(device): Task(processor_of(device))}
    # Writes that can be judged only after the update, or are in a branch that may not run, need
    # one wait for all of them: then the home device does everything.
    together = plan.trial or any(graphs.context_of(op) is not None for op in plan.step.writing)
    gated = set(plan.variables)
    for variable in dict.fromkeys([*plan.variables, *plan.put_back]):
        name = task_of(device if together else variable.device)
        task = tasks.setdefault(name, Task(processor_of(variable.device)))
        if variable in plan.put_back:
            task.put_back.append(variable)
        if variable in gated:
            task.variables.append(variable)
    return tasks


def _device_of_home(plan: Plan) -> str:
    if plan.chief_at is not None:
        return plan.chief_at
    near = [*plan.losses, *(check.tensor for check in plan.checks)]
    return near[0].device if near else plan.step.train_op.device


class Checked(NamedTuple):
    """The result of the checks, as tokens in one task; in each step one of them arrives.

    Attributes:
      fast: arrives if the step takes the fast path; None if no step of the gate does.
      fine: arrives if the exact check found nothing bad.
      refused: arrives if the exact check found something.
    """

    fast: Optional[tf.Tensor]
    fine: tf.Tensor
    refused: tf.Tensor


class Decision(NamedTuple):
    """The decision, as tokens in one task; a token arrives if its meaning is true.

    Attributes:
      fast: arrives if the step takes the fast path; None if no step of the gate does.
      prepared: arrives if nothing bad was found, and `copies` are made.
      refused: arrives if something bad was found, in a value or in a copy.
      go: starts the update: `fast` or `prepared`.
      copies: the variables of the task as they were before the update.
    """

    fast: Optional[tf.Tensor]
    prepared: tf.Tensor
    refused: tf.Tensor
    go: tf.Tensor
    copies: Copies


def tell(task: Task, fast: tf.Tensor, is_fine: tf.Tensor) -> Checked:
    """Tells another task in one number: 2 for the fast path, 1 for nothing bad, 0 for bad."""
    with tf.control_dependencies([fast]):
        no_check = tf.constant(2.0, tf.float32)
    told = ops.merge([no_check, tf.cast(is_fine, tf.float32)], 'verdict')
    with tf.device(task.device):
        told = tf.identity(told)
        token = tf1.placeholder_with_default(tf.constant(SMALL_32), [], 'token')
        fast_there, checked = ops.branch(token, tf.greater(told, 1.5), 'fast')
        return Checked(fast_there, *ops.branch(checked, tf.greater(told, 0.5), 'fine'))


def copy_at(task: Task, fine: tf.Tensor) -> Copies:
    """Copies a task's variables once `fine` is there. Writes to them must wait for the copies."""
    with tf.control_dependencies([fine]):
        return {variable: ops.copy_of(variable) for variable in task.variables}


def decide(task: Task, checked: Checked, copies: Copies, are_good: Optional[tf.Tensor]) -> Decision:
    """Starts a task's update, or refuses it, once all copies are checked.

    Args:
      task: the task.
      checked: what the checks of the values found.
      copies: the copies made there.
      are_good: a bool scalar, whether the copies of all tasks are good; None if none is checked.
    """
    with tf.device(task.device):
        made = ops.after(copies.values(), checked.fine, 'copied')
        if are_good is None:
            prepared, refused = made, checked.refused
        else:
            told = tf.greater(tf.identity(tf.cast(are_good, tf.float32)), 0.5)
            prepared, not_good = ops.branch(made, told, 'prepared')
            refused = ops.merge([checked.refused, not_good], 'refused')
        go = prepared if checked.fast is None else ops.merge([checked.fast, prepared], 'go')
    return Decision(checked.fast, prepared, refused, go, copies)


class Settled(NamedTuple):
    """Tokens that say how a step ended in a task that does not hold the loss.

    Attributes:
      undone: arrives after a bad step, when the variables of the task are as they were.
      settled: arrives after any step, once all writes there are done.
    """

    undone: tf.Tensor
    settled: tf.Tensor


def undo_here(
    task: Task, ahead: Copies, copies: Copies, undo: tf.Tensor, unwritten: tf.Tensor
) -> tf.Tensor:
    """Puts the variables of a task back; the returned token arrives when that is done.

    Args:
      task: the task.
      ahead: the copies made ahead of forward writes, of all tasks.
      copies: the copies made before the update, of this task.
      undo: arrives if the update ran and was bad.
      unwritten: arrives if the update was refused.
    """
    undone = ops.merge([restore(copies, undo, 'undone'), unwritten], 'unwritten')
    here = {variable: ahead[variable] for variable in task.put_back}
    return restore(here, undone, 'put_back')


def settle_there(
    task: Task,
    ahead: Copies,
    decision: Decision,
    written: Sequence[tf.Operation],
    end: tf.Tensor,
) -> Settled:
    """Tells another task how the step ended: `end` is 2 for good, 1 for undo, 0 for refused.

    The task does not wait until the update has run everywhere: on the fast path it gets no message,
      and would wait for this one alone.
    """
    assert decision.fast is not None, 'a trial has one task'
    with tf.device(task.device):
        end = tf.identity(end)
        good, bad = ops.branch(end, tf.greater(end, 1.5), 'good')
        undo, unwritten = ops.branch(bad, tf.greater(end, 0.5), 'undo')
        undo = ops.after(written, undo, 'undo')
        undone = undo_here(task, ahead, decision.copies, undo, unwritten)
        fast = ops.after(written, decision.fast, 'ran_fast')
        good = ops.after(written, good, 'ran_good')
        return Settled(undone, ops.merge([fast, good, undone], 'settled'))

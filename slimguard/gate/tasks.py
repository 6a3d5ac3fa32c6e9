"""The tasks that hold variables of a gate. In a training on one machine there is one.

Every message to a task crosses the network. So each task works alone as far as it can: it copies
its variables, checks them, and puts them back. The decision, its flags and its strings stay on the
task's CPU, which reads them in any case; other devices have no kernels for strings.
"""

from typing import Dict, List, NamedTuple, Sequence

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.gate.plan import Plan
from slimguard.graph.devices import processor_of, task_of


class Task:
    """A task of the cluster. It is a key of dictionaries, so it is compared by identity.

    Attributes:
      device: the device for the gate's ops there, a CPU.
      variables: the plan's `variables` that are there.
      put_back: the variables of the plan's `put_back` that are there.
    """

    def __init__(
        self, device: str, variables: Sequence[tf.Operation], put_back: Sequence[tf.Operation]
    ):
        self.device = device
        self.variables = variables
        self.put_back = put_back


class Tasks:
    """The tasks of a gate.

    Attributes:
      home: the task of the loss, or of the chief. Its CPU makes the decision, wherever the
        variables live.
      others: the other tasks that hold variables.
    """

    def __init__(self, plan: Plan):
        self._writes = plan.step.writes
        tasks = _find_tasks(plan, _device_of_home(plan))
        self._tasks = dict(zip(tasks, map(_frozen, tasks.values())))
        self.home, *self.others = self._tasks.values()

    def of(self, op: tf.Operation) -> Task:
        """The task of an op. A write runs where its variable is, whatever its device says."""
        variables = self._writes.variables(op)
        return self.at(variables[0].device if variables else graphs.device_of(op))

    def at(self, device: str) -> Task:
        """The task of a device; home, if that task holds no variables."""
        return self._tasks.get(task_of(device), self.home)


class _Found(NamedTuple):
    device: str
    variables: List[tf.Operation]
    put_back: List[tf.Operation]


def _frozen(found: _Found) -> Task:
    return Task(found.device, tuple(found.variables), tuple(found.put_back))


def _find_tasks(plan: Plan, device: str) -> Dict[tuple, _Found]:
    """The variables of each task; the home of the decision, on `device`, comes first."""
    tasks = {task_of(device): _Found(processor_of(device), [], [])}
    # Writes that can be judged only after the update, or are in a branch that may not run, need
    # one wait for all of them: then the home device does everything.
    together = plan.trial or any(graphs.context_of(op) is not None for op in plan.step.writing)
    gated = set(plan.variables)
    for variable in dict.fromkeys([*plan.variables, *plan.put_back]):
        name = task_of(device if together else variable.device)
        task = tasks.setdefault(name, _Found(processor_of(variable.device), [], []))
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

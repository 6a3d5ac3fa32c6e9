"""`find_left_alone`: writes that a run without training makes even when the values are bad."""

from typing import Set

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.gate.step_graph import StepGraph
from slimguard.gate.step_inputs import StepInputs


def find_left_alone(step: StepGraph) -> Set[tf.Operation]:
    """The writes that are not held back in a run that trains nothing.

    They are writes to local variables, which are in no checkpoint, such as the epoch counter of an
    input; and to a counter that picks the batch: if held back, it would pick the bad batch again.
    A gate also runs clones of the writes that it holds back and of all ops after them. With such a
    counter among them, the clones would draw a batch of their own.
    """
    local = graphs.local_in(step.graph)
    found, floats, others = set(), set(), []
    for write in step.writing:
        variables = step.writes.variables(write)
        if variables and local.issuperset(variables):
            found.add(write)
        elif any(map(graphs.is_float_variable, variables)):
            floats.add(write)
        elif variables:
            others.append(write)
    if not others:
        return found
    updates = step.and_what_follows(floats)
    inputs = StepInputs(step, updates, [])
    for write in others:
        variables = step.writes.variables(write)
        if write not in updates and any(inputs.include(write, each) for each in variables):
            found.add(write)
    return found

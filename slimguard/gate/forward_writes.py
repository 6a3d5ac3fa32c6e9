"""Which forward writes are put back after a bad step, and which ops all gated writes wait for."""

from typing import Dict, List, Optional, Sequence, Set

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.gate.step_graph import StepGraph
from slimguard.gate.step_inputs import StepInputs
from slimguard.graph.control_flow import WAYS_OUT


class ForwardWrites:
    """Collects the writes that gradients wait for, by what has to happen to each.

    Attributes:
      put_back: the writes to undo after a bad step, by variable.
      opaque: the float variables of `put_back` whose new value can only be read afterwards.
    """

    def __init__(self, step: StepGraph, gated: Set[tf.Operation], losses: Sequence[tf.Tensor]):
        self._step = step
        self._gated = gated
        self._losses = losses
        self._inputs: Optional[StepInputs] = None
        self.put_back: Dict[tf.Operation, List[tf.Operation]] = {}
        self.opaque: List[tf.Operation] = []

    def add(self, write: tf.Operation) -> bool:
        """Collects a write; returns whether the values that it takes are to be checked.

        Raises:
          ValueError: if the write cannot be undone.
        """
        variables = self._step.writes.variables(write)
        _require_variables(write, variables)
        floats = [v for v in variables if graphs.is_float_variable(v)]
        for variable in variables:
            if variable in floats or not self._is_input(write, variable):
                self.put_back.setdefault(variable, []).append(write)
        if self._step.writes.is_opaque(write) or graphs.loop_around(write) is not None:
            self.opaque.extend(v for v in floats if v not in self.opaque)
            return False
        return bool(floats)

    def _is_input(self, write: tf.Operation, variable: tf.Operation) -> bool:
        """Whether to keep the value that `write` wrote: its old value picks the bad batch again."""
        if self._inputs is None:
            self._inputs = StepInputs(self._step, self._gated, self._losses)
        return self._inputs.include(write, variable)


def find_barrier(
    step: StepGraph, gated: Set[tf.Operation], put_back: Dict[tf.Operation, List[tf.Operation]]
) -> List[tf.Operation]:
    """The ops that must have run before anything is written: asserts, forward writes, and so on."""
    barrier = list(step.waits)
    for op in step.order:
        if op in gated:
            barrier.extend(step.controls(op))
    for writes in put_back.values():
        barrier.extend(writes)
        barrier.extend(_ways_out(step, writes))
    # An op inside a branch or a loop may never run, and nothing could wait for it.
    return [
        op for op in dict.fromkeys(barrier) if op not in gated and graphs.context_of(op) is None
    ]


def _ways_out(step: StepGraph, writes: List[tf.Operation]) -> List[tf.Operation]:
    """The ops that lead out of the branches and loops that `writes` are in.

    An op that waits for these has waited for the writes: every path from a write to the train op
    leads through one of them.
    """
    around = {graphs.outermost_context(write) for write in writes} - {None}
    if not around:
        return []
    return [
        op
        for op in step.order
        if op.type in WAYS_OUT
        and any(graphs.outermost_context(needed) in around for needed in step.needs(op))
    ]


def _require_variables(write: tf.Operation, variables: List[tf.Operation]) -> None:
    if not variables:
        raise ValueError(
            'cannot guard: %s %r writes in the forward pass, before the gradients are known, '
            'and what it writes cannot be read back to be restored. Make it depend on the '
            'gradients, or leave it out of the train op' % (write.type, write.name)
        )

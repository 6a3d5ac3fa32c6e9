"""Creates the gated ops a second time, behind a switch. The originals stay and do not run."""

from typing import Dict, List, NamedTuple

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.compat import tf_private
from slimguard.gate.reading.plan import Plan
from slimguard.graph import ops
from slimguard.graph.control_flow import ENTERS

_MERGES = frozenset(['Merge', 'RefMerge'])


class _BackEdge(NamedTuple):
    """An input that closes a loop: its source is cloned later than the op that takes it."""

    op: tf.Operation
    index: int
    source: tf.Tensor


class GatedClones:
    """Creates the gated ops a second time, to run only if the update is allowed.

    Args:
      go: the token that starts the update.
    """

    def __init__(self, plan: Plan, go: tf.Tensor):
        self._plan = plan
        self._go = go.op
        self._clones: Dict[tf.Operation, tf.Operation] = {}
        back_edges: List[_BackEdge] = []
        for op in plan.step.order:
            if op in plan.gated:
                self._clones[op] = self._create(op, back_edges)
        for op, index, source in back_edges:
            tf_private.replace_input(self._clones[op], index, self.of(source))

    def of_op(self, op: tf.Operation) -> tf.Operation:
        """The clone of a gated op."""
        return self._clones[op]

    def of(self, tensor: tf.Tensor) -> tf.Tensor:
        """The clone's output that replaces `tensor`; `tensor` itself if its op is not gated."""
        clone = self._clones.get(tensor.op)
        return tensor if clone is None else clone.outputs[tensor.value_index]

    def writes(self) -> Dict[tf.Operation, tf.Operation]:
        """The clone of each gated write, in the order in which they run."""
        return {op: clone for op, clone in self._clones.items() if op in self._plan.step.writes}

    def _create(self, op: tf.Operation, back_edges: List[_BackEdge]) -> tf.Operation:
        inputs: List[tf.Tensor] = []
        for index, source in enumerate(map(self._plan.step.resolve, op.inputs)):
            if source.op in self._plan.gated and source.op not in self._clones:
                back_edges.append(_BackEdge(op, index, source))
                inputs.append(inputs[0])  # the loop's entry, until the source is cloned
            else:
                inputs.append(self.of(source))
        controls = [self._clones.get(c, c) for c in self._plan.step.controls(op)]
        controls += self._switch(op)
        return ops.create_like(op, inputs, controls, '_' + self._go.name)

    def _switch(self, op: tf.Operation) -> List[tf.Operation]:
        """The control input that makes a clone dead with `go`; [] if another input does so."""
        if op.type in _MERGES:
            return []  # a Merge is alive if one of its inputs is, whatever it waits for
        loop = graphs.loop_around(op)
        if loop is not None and not (op.type in ENTERS and graphs.flow_around(op) is loop):
            return []  # no op in a loop can wait for an op outside; the loop's Enters wait
        dies_anyway = any(
            needed in self._clones and needed.type not in _MERGES
            for needed in self._plan.step.needs(op)
        )
        return [] if dies_anyway else [self._go]

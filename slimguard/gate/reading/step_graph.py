"""The ops of a step: all ops that a train op needs, and its value without the checks around it."""

from typing import Dict, FrozenSet, Iterable, List, NamedTuple, Optional, Sequence, Set

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.graph import TrainOp, key, op_of

_CHECKS = frozenset('CheckNumerics CheckNumericsV2'.split())


class GuardedBefore(NamedTuple):
    """What a guarded train op was made of: the given op, and the ops that its gate clones."""

    original: tf.Operation
    gated: FrozenSet[tf.Operation]


class StepGraph:
    """The ops that a train op needs, read through older gates.

    To read through a gate means to take the original instead of the guarded train op.

    Attributes:
      core: the Tensor whose value the train op returns, without the Identity and CheckNumerics
        ops around it; None if the train op is an Operation.
      raises: the messages of those CheckNumerics ops.
      waits: what those CheckNumerics ops wait for.
      order: every op that the train op needs, in topological order.
      writes: which ops of the graph write, and what.
      writing: the writes in `order`.
      gated_before: the ops that older gates in this step hold back.

    Args:
      guarded: the train ops that are guarded already.
      fed: the tensors that runs of the step feed; ops that only these tensors need do not run.
    """

    def __init__(
        self,
        train_op: TrainOp,
        loss: Optional[tf.Tensor],
        guarded: Dict[tf.Operation, GuardedBefore],
        fed: Sequence[tf.Tensor] = (),
    ):
        self.train_op = train_op
        self.graph = train_op.graph
        self.raises: List[str] = []
        self.waits: List[tf.Operation] = []
        self.gated_before: Set[tf.Operation] = set()
        self.fed = tuple(fed)
        self._fed = {key(tensor) for tensor in fed}
        self._guarded = guarded
        self._peeled: Dict[tf.Operation, tf.Tensor] = {}
        self._needs: Dict[tf.Operation, List[tf.Operation]] = {}  # the answers of `needs`
        self.core = self._peel(train_op) if isinstance(train_op, tf.Tensor) else None
        if self.core is None:
            self._peel_group(op_of(train_op))
        roots = [op_of(train_op)] + ([] if loss is None else [loss.op])
        self.order = graphs.ancestors(roots, self.needs)
        self.writes = graphs.Writes(self.graph)
        self.writing = [op for op in self.order if op in self.writes]
        if not self.writing:
            raise ValueError(
                'train op %r writes no variable, so there is nothing to guard; pass the op that '
                'applies the gradients' % train_op.name
            )

    def resolve(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensor to look at in place of `tensor`.

        For an output of a guarded train op, the output of its original; for an output of a
        CheckNumerics, its input; else `tensor` itself.
        """
        if tensor.op in self._peeled:
            return self._peeled[tensor.op]
        stand_in = self._stand_in(tensor.op)
        return tensor if stand_in is tensor.op else stand_in.outputs[0]

    def needs(self, op: tf.Operation) -> List[tf.Operation]:
        """The ops that `op` needs, read through older gates."""
        found = self._needs.get(op)
        if found is None:
            given = [self.resolve(t) for t in op.inputs if key(t) not in self._fed]
            found = [t.op for t in given if key(t) not in self._fed] + self.controls(op)
            self._needs[op] = found
        return found

    def controls(self, op: tf.Operation) -> List[tf.Operation]:
        """The control inputs of `op`, read through older gates."""
        return [self._stand_in(control) for control in graphs.controls_of(op)]

    def and_what_follows(self, ops: Iterable[tf.Operation]) -> Set[tf.Operation]:
        """`ops`, and all ops of the step that need one of them."""
        found = set(ops)
        for op in self.order if found else ():
            if not found.isdisjoint(self.needs(op)):
                found.add(op)
        return found

    def source_of(self, loss: tf.Tensor) -> tf.Tensor:
        """The tensor under a loss that create_train_op wrapped, so that it is checked once."""
        while loss.op.type == 'Identity' and not graphs.is_reference(loss.op.inputs[0]):
            loss = self.resolve(loss.op.inputs[0])
        return self.resolve(loss)

    def _stand_in(self, op: tf.Operation) -> tf.Operation:
        """The original of `op`, if `op` is a guarded train op; else `op`."""
        before = self._guarded.get(op)
        if before is None:
            return op
        self.gated_before.update(before.gated)
        return before.original

    def _peel(self, core: tf.Tensor) -> tf.Tensor:
        while core.op.type in _CHECKS or (
            core.op.type == 'Identity' and not graphs.is_reference(core.op.inputs[0])
        ):
            inner = core.op.inputs[0]
            if core.op.type in _CHECKS:
                self.raises.append(tf.compat.as_str(core.op.get_attr('message')))
                self.waits.extend(self.controls(core.op))
                self._peeled[core.op] = inner
            core = self.resolve(inner)
        return core

    def _peel_group(self, train_op: tf.Operation) -> None:
        """Takes the Identity and CheckNumerics ops off the train ops in a `tf.group`."""
        seen = set()
        waiting = [train_op]
        while waiting:
            op = waiting.pop()
            if op in seen:
                continue
            seen.add(op)
            if op.type == 'NoOp':
                waiting.extend(self.controls(op))
            elif op.type in _CHECKS or (op.type == 'Identity' and self.controls(op)):
                self._peel(op.outputs[0])

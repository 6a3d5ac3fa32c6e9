"""Which ops make up a step: its gate, and all that it needs."""

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple, Union

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.gate import Gate, Label
from slimguard.graph import key, op_of


class GateCopy(NamedTuple):
    """The attributes of a gate in another graph; see `slimguard.gate.Gate`."""

    train_op: Any
    loss: Optional[tf.Tensor]
    written: tf.Tensor
    bad: tf.Tensor
    labels: Tuple[Label, ...]
    watched: tf.Tensor


AnyGate = Union[Gate, GateCopy]


def gate_roots(gate: AnyGate) -> List[tf.Operation]:
    """The ops at the end of a gate's step: with all they need, they make up the step."""
    return [op_of(gate.train_op), gate.written.op, gate.bad.op]


def split_at_gate(gate: AnyGate) -> Tuple[List[tf.Operation], List[tf.Tensor]]:
    """The ops of a gate, and the float tensors of the user's graph that they take."""
    ours = [op for op in graphs.ancestors(gate_roots(gate)) if op.name.startswith(graphs.OURS)]
    taken = {key(t): t for op in ours for t in op.inputs if not t.op.name.startswith(graphs.OURS)}
    return ours, [t for t in taken.values() if graphs.is_float(t)]


def ops_up_to(checked: Sequence[tf.Tensor], fed) -> List[tf.Operation]:
    """The ops that `checked` need if the tensors whose keys are in `fed` are fed."""
    roots = [t.op for t in checked if key(t) not in fed]
    return graphs.ancestors(roots, lambda op: graphs.needs(op, fed))

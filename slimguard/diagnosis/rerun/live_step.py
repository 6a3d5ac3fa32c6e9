"""A bad step in the training's own session, where running it again writes and draws nothing."""

from typing import Dict

import numpy as np

from slimguard import graph as graphs
from slimguard.compat import tf_private
from slimguard.diagnosis.capture import Capture
from slimguard.diagnosis.rerun.step import Step
from slimguard.diagnosis.step_ops import ops_up_to, split_at_gate
from slimguard.graph import key
from slimguard.graph.control_flow import Flow
from slimguard.graph.source_lines import Origins


def live_step(session, capture: Capture, values: Dict[str, np.ndarray]) -> Step:
    """The step in the training's own session. Use it if `can_run_live` says so."""
    givens = {name: [t.name for t in given] for name, given in capture.givens.items()}
    return Step(session, capture.gate, values, Origins(session.graph), {}, givens)


def can_run_live(session, capture: Capture, values: Dict[str, np.ndarray]) -> bool:
    """Whether the forward and backward pass can be run again in the training's own session.

    They would write or draw in three cases: the loss waits for a write of a moving average; an op
    waits for an iterator without using its output; or a function draws, since TensorFlow inlines
    calls before it looks at feeds. Tensors in a branch need a session that prepares calls.
    """
    fed = {key(t) for t in capture.sources if t.name in values}
    drawn = {op for op, _ in fed}
    _, checked = split_at_gate(capture.gate)
    writes = graphs.Writes(capture.gate.bad.graph)
    if any(writes.calls(op) for op in drawn):
        return False
    also = [t for given in capture.givens.values() for t in given]
    ops = ops_up_to(checked + also, fed)
    if any(op in drawn or op in writes for op in ops):
        return False
    if tf_private.makes_callables(session):
        return True
    flow = Flow(ops)
    # `run` refuses to fetch a tensor in a branch; in a copied graph TensorFlow does not notice it.
    return all(op.graph.is_fetchable(op) or flow.is_in_loop(op) for op in ops)

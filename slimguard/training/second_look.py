"""Whether variables are lost, or were seen while another process put them back: `look_again`."""

import dataclasses
import time

import numpy as np
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.training.incident_reading import Reading

# Seconds to wait before each look. Together they are longer than another process takes to restore a
# variable.
_PAUSES = (0.0, 0.1, 0.3, 0.6)
# The labels of what was not finite before the step.
_LOST = ('before', 'state')


def look_again(session, reading: Reading) -> Reading:
    """The report of a bad step, unless the variables that it found bad are finite now.

    An update that overflows is written, checked and put back. Another worker may read a weight in
    between: an asynchronous worker, or a replica slower than the others. Then its own step is bad,
    and nothing is lost.
    """
    gate = reading.gate
    if gate is None or not reading.incident.state_lost:
        return reading
    lost = {label.name for label in gate.labels_of(reading.bad) if label.kind in _LOST}
    with session.graph.as_default():
        each = graphs.on_each_device(tf1.global_variables())
        variables = [v for v in each if v.op.name in lost]
    if len(variables) != len(lost) or not _are_finite_soon(session, variables):
        return reading
    bad = [is_bad and label.kind not in _LOST for label, is_bad in zip(gate.labels, reading.bad)]
    verdict = gate.explain(bad)
    if any(bad):
        reason = verdict.reason + '; it read a weight that another process was putting back'
    else:  # its update did not begin, since the gate found the weight bad
        verdict = gate.explain(reading.bad)
        reason = verdict.reason + '; another process was putting that back'
    incident = dataclasses.replace(
        reading.incident, reason=reason, tensors=verdict.tensors, state_lost=False
    )
    return reading._replace(incident=incident, bad=bad)


def _are_finite_soon(session, variables) -> bool:
    for pause in _PAUSES:
        time.sleep(pause)
        if all(np.isfinite(value).all() for value in session.run(variables)):
            return True
    return False

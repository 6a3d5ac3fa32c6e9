"""Makes an `Incident` of what a run gave: a gate's values, a loss, a numeric check that raised.

Each comes as a :class:`Reading`: the incident, and the gate that told of it.
"""

import dataclasses
import time
from typing import Callable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard import graph as graphs
from slimguard.gate.reading.losses import label_of
from slimguard.incidents.history import History
from slimguard.incidents.incident import Incident

# The ops of `tf.debugging.check_numerics`.
_CHECKS = ('CheckNumerics', 'CheckNumericsV2')


class Reading(NamedTuple):
    """An incident, and the values that showed it.

    Attributes:
      incident: the `Incident`.
      gate: the gate whose flags showed it, or None.
      bad: the flags.
      history: the last steps, this one included, if they are known.
      is_spike: whether all values were finite, but far above those of the last good steps.
    """

    incident: Incident
    gate: Optional[gates.Gate] = None
    bad: Sequence[bool] = ()
    history: Optional[History] = None
    is_spike: bool = False

    def on(self, worker: str) -> 'Reading':
        """The same, with the name of the process it happened in."""
        return self._replace(incident=dataclasses.replace(self.incident, worker=worker))


def by_run(found: Sequence[Reading]) -> List[List[Reading]]:
    """The incidents that a run has reported, by the run in which they happened.

    Returns:
      Lists of one incident each. If several gates refused the batch of the last run, their
      incidents are in one list, the last, with the gravest first.
    """
    # A gate reports the last run last; a thread runs the writes beside the steps.
    last = {each.gate: each for each in found if each.gate is not None and not each.gate.is_beside}
    if len(last) < 2:
        return [[each] for each in found]
    together = sorted(last.values(), key=_is_mild)
    return [[each] for each in found if not any(each is one for one in together)] + [together]


def _is_mild(reading: Reading) -> Tuple[bool, bool]:
    return reading.incident.held, not reading.incident.state_lost


def of_gate(gate: gates.Gate, values: gates.Told) -> Reading:
    """Reads a bad step from the values of a gate."""
    step = None if values.step is None else int(values.step)
    loss = None if values.loss is None else float(values.loss)
    strategy = 'check_numerics' if gate.raises else 'hook'
    incident = _incident_of(gate.explain(values.bad), step, loss, strategy)
    return Reading(incident, gate, values.bad)


def of_loss(
    loss: tf.Tensor, value, max_loss: Optional[float], step: Callable[[], Optional[int]]
) -> Optional[Reading]:
    """Reads a bad step from a loss, if no gate holds the update; None if the loss is good.

    Args:
      loss: the loss.
      value: its fetched value.
      max_loss: the largest loss that is no incident, or None.
      step: asks for the global step; called after a bad loss only.
    """
    value = float(value)
    is_finite = np.isfinite(value)
    if is_finite and (max_loss is None or value <= max_loss):
        return None
    name = label_of(loss)
    incident = Incident.now(
        step=step(),
        loss=value,
        reason=(gates.ABOVE_MAX_LOSS if is_finite else 'not finite: ') + name,
        tensors=(name,),
        strategy='hook',
        held=False,
    )
    return Reading(incident)


def of_error(error: tf.errors.OpError, step: Callable[[], int]) -> Optional[Reading]:
    """Reads a bad step from the error of a numeric check; None for any other error."""
    verdict = _explain(error)
    if verdict is None:
        return None
    return Reading(_incident_of(verdict, step(), None, 'check_numerics'))


def _incident_of(
    verdict: gates.Verdict, step: Optional[int], loss: Optional[float], strategy: str
) -> Incident:
    return Incident.now(
        step=step,
        loss=loss,
        reason=verdict.reason,
        tensors=verdict.tensors,
        strategy=strategy,
        state_lost=verdict.state_lost,
    )


def _explain(error: tf.errors.OpError) -> Optional[gates.Verdict]:
    labels = gates.labels_in(error.message)
    if labels:
        return gates.explain(labels)
    if error.op is None or error.op.type not in _CHECKS:
        return None
    checked = error.op.inputs[0].op.name
    said = tf.compat.as_str(error.op.get_attr('message'))
    return gates.Verdict((checked,), 'not finite: %s (%s)' % (checked, said), False)


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

"""A `session.run` as a watcher sees it: its guarded train ops, what to fetch, its incidents."""

import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard.incidents.incident import Incident


class Fetched(NamedTuple):
    """What is fetched beside a train op, and what it is then found to be."""

    bad: Any = None
    step: Any = None
    loss: Any = None


class Run:
    """A kind of run: the same fetches every time. What to fetch beside, and how to read it."""

    def __init__(self, found: Sequence[gates.Gate], loss: Optional[tf.Tensor], graph: tf.Graph):
        self.gates = found
        self.looks_at_loss = loss is not None
        self._loss = loss
        self._global_step = tf1.train.get_global_step(graph)
        self.fetches: Dict[str, Any] = {}
        for number, gate in enumerate(found):
            fetched = Fetched(gate.bad, gate.step, gate.loss)
            for name, tensor in fetched._asdict().items():
                if tensor is not None:
                    self.fetches['%s %d' % (name, number)] = tensor
        if loss is not None:
            self.fetches['loss'] = loss

    def incidents(self, results: dict, max_loss: Optional[float], session) -> List[tuple]:
        """The incidents in the values of one run, each with its gate and the gate's `bad`."""
        found = []
        for number, gate in enumerate(self.gates):
            fetched = Fetched(*[results.get('%s %d' % (f, number)) for f in Fetched._fields])
            if np.count_nonzero(fetched.bad):
                found.append((incident_of(gate, *fetched), gate, fetched.bad))
        if self._loss is not None and not found:
            loss = float(results['loss'])
            if not np.isfinite(loss) or (max_loss is not None and loss > max_loss):
                found.append((self._of_loss(loss, session), None, ()))
        return found

    def _of_loss(self, loss: float, session) -> Incident:
        name = 'loss ' + self._loss.op.name
        step = self._global_step
        return Incident(
            # Fetched with the run, it could have been read before the update or after.
            step=None if step is None else int(session.run(step)),
            loss=loss,
            reason='not finite: ' + name if not np.isfinite(loss) else 'above max_loss: ' + name,
            tensors=(name,),
            strategy='hook',
            time=time.time(),
            held=False,
        )


def incident_of(gate: gates.Gate, bad: Sequence[bool], step, loss) -> Incident:
    """The incident that the values of a gate's `bad`, `step` and `loss` tell of."""
    finding = gate.explain(bad)
    return Incident(
        step=None if step is None else int(step),
        loss=None if loss is None else float(loss),
        reason=finding.reason,
        tensors=finding.tensors,
        strategy='check_numerics' if gate.raises else 'hook',
        time=time.time(),
        state_lost=finding.state_lost,
    )


def fetched_elements(fetches, graph: tf.Graph) -> list:
    """The Tensors and Operations in a `fetches` argument of `Session.run`, of any structure."""
    elements = []
    for fetch in tf.nest.flatten(fetches, expand_composites=True):
        try:
            elements.append(graph.as_graph_element(fetch))
        except (TypeError, ValueError, KeyError):
            continue  # not ours to complain about: the session does
    return elements

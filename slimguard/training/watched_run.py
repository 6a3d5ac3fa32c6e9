"""A `session.run` as a watcher sees it: its guarded train ops, what to fetch, its incidents."""

import collections.abc
import functools
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard import graph as graphs
from slimguard.graph import op_of
from slimguard.training import incident_reading
from slimguard.training.fetch_structures import attrs_values, is_attrs
from slimguard.training.incident_reading import GateValues, Reading


class Run:
    """A kind of run: the same fetches every time. What to fetch beside, and how to read it."""

    def __init__(self, found: Sequence[gates.Gate], loss: Optional[tf.Tensor], graph: tf.Graph):
        self.gates = found
        self.looks_at_loss = loss is not None
        self._loss = loss
        self._global_step = tf1.train.get_global_step(graph)
        self.fetches: Dict[str, Any] = {}
        for number, gate in enumerate(found):
            tensors = GateValues(gate.bad, gate.step, gate.loss)
            for name, tensor in tensors._asdict().items():
                if tensor is not None:
                    self.fetches['%s %d' % (name, number)] = tensor
        if loss is not None:
            self.fetches['loss'] = loss

    def feeds(self, run_context, max_loss: Optional[float]) -> Dict[tf.Tensor, Any]:
        """What a hook feeds to have the gates tell it of the step."""
        # Two hooks may watch the same gate, and TensorFlow takes each feed from one of them.
        fed = run_context.__dict__.setdefault('_slimguard_fed', set())
        feeds: Dict[tf.Tensor, Any] = {}
        for gate in self.gates:
            if gate not in fed:
                fed.add(gate)
                feeds.update({gate.watched: True, **limits_of(gate, max_loss)})
        return feeds

    def read(self, results: dict, max_loss: Optional[float], session) -> List[Reading]:
        """The incidents in the values of one run."""
        found = []
        for number, gate in enumerate(self.gates):
            fetched = [results.get('%s %d' % (name, number)) for name in GateValues._fields]
            values = GateValues(*fetched)
            if values.is_bad:
                found.append(incident_reading.of_gate(gate, values))
        if self._loss is not None and not found:
            step = functools.partial(self._step_now, session)
            reading = incident_reading.of_loss(self._loss, results['loss'], max_loss, step)
            found += [] if reading is None else [reading]
        return found

    def _step_now(self, session) -> Optional[int]:
        """The global step. Fetched with the run, it could be that before the update or after."""
        step = self._global_step
        return None if step is None else int(session.run(step))


class WatchedRuns:
    """Knows which runs are steps to watch, and what to fetch in each kind of them.

    Args:
      loss: a loss to watch where no gate knows it; None for none.
      refusal: what a step of a train op without a gate is refused with; None to take it.
    """

    def __init__(self, loss: Optional[tf.Tensor], refusal: Optional[str]):
        self._loss = loss
        self._refusal = refusal
        self._runs: Dict[tuple, Optional[Run]] = {}
        self._last: Tuple[Any, Optional[Run]] = (None, None)

    def run_for(self, run_context) -> Optional[Run]:
        """What to fetch in such a run, or None if it is no step to watch."""
        args = run_context.original_args
        last, run = self._last  # read at once: threads may train in one session
        if args is not last:
            graph = run_context.session.graph
            elements = fetched_elements(args.fetches, graph)
            names = tuple(element.name for element in elements)
            if names not in self._runs:
                self._runs[names] = self._plan(elements, graph)
            run = self._runs[names]
            self._last = args, run
        return run

    def _plan(self, elements: list, graph: tf.Graph) -> Optional[Run]:
        found = [gate for gate in map(gates.gate_of, elements) if gate is not None]
        if found:
            found = [gate for gate in dict.fromkeys(found) if self._is_mine(gate)]
            return Run(found, self._loss_beside(found), graph) if found else None
        if self._loss is None or not _is_step(elements, self._loss, graph):
            return None
        if self._refusal is not None:
            raise ValueError(self._refusal)
        return Run([], self._loss, graph)

    def _is_mine(self, gate: gates.Gate) -> bool:
        """With several trainings in a graph, a hook with a loss watches those that have it."""
        if self._loss is None or gate.loss is None:
            return True
        needed = graphs.ancestors([op_of(gate.original), gate.loss.op])
        return self._loss.op in needed or gate.loss.op in graphs.ancestors([self._loss.op])

    def _loss_beside(self, found: Sequence[gates.Gate]) -> Optional[tf.Tensor]:
        """The loss to look at beside the gates: one that no gate knows."""
        return self._loss if all(gate.loss is None for gate in found) else None


def _is_step(elements: list, loss: tf.Tensor, graph: tf.Graph) -> bool:
    needed = graphs.ancestors([op_of(element) for element in elements])
    writes = graphs.Writes(graph)
    return loss.op in needed or any(op in writes for op in needed)


def limits_of(gate: gates.Gate, max_loss: Optional[float]) -> dict:
    """What to feed so that a gate knows the largest loss that is no incident."""
    if max_loss is None:
        return {}
    if gate.limit is None:
        raise ValueError(
            'max_loss=%r needs a loss in the gate, and train op %r has none; pass it as '
            'slimguard.guard(train_op, loss=total_loss)' % (max_loss, gate.original.name)
        )
    if gate.max_loss not in (None, max_loss):
        raise ValueError(
            'max_loss=%r here, but slimguard.guard() was given max_loss=%r; say it once'
            % (max_loss, gate.max_loss)
        )
    return {gate.limit: float(max_loss)}


def fetched_elements(fetches, graph: tf.Graph) -> list:
    """The Tensors and Operations in a `fetches` argument of `Session.run`, of any structure."""
    elements = []
    for fetch in _leaves(fetches):
        try:
            elements.append(graph.as_graph_element(fetch))
        except (TypeError, ValueError, KeyError):
            continue  # not ours to complain about: the session does
    return elements


def _leaves(fetches) -> Iterator[Any]:
    if isinstance(
        fetches, collections.abc.Mapping
    ):  # whose keys may be hooks, which `tf.nest` cannot sort
        fetches = list(fetches.values())
    elif is_attrs(fetches):
        fetches = attrs_values(fetches)
    if isinstance(fetches, (list, tuple)):
        for each in fetches:
            yield from _leaves(each)
    else:
        yield from tf.nest.flatten(fetches, expand_composites=True)

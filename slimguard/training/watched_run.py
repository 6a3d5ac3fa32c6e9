"""A run of a watched session: what to fetch with it, and the incidents that its values tell of."""

import dataclasses
import functools
import math
import weakref
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard import graph as graphs
from slimguard.gate.reading.losses import label_of
from slimguard.incidents.history import IS_GOOD, LOSS, STEP, UNTOLD, History
from slimguard.incidents.incident import Incident
from slimguard.training.step_history import StepHistory

# The ops of `tf.debugging.check_numerics`.
_CHECKS = ('CheckNumerics', 'CheckNumericsV2')


# The kinds of labels of a step whose values are all finite.
_OUT_OF_BOUNDS = (gates.Label.LIMIT, gates.Label.NORM, gates.Label.RANK)


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

    @property
    def labels(self) -> Sequence[gates.Label]:
        """The labels of what the gate found to be bad."""
        return [] if self.gate is None else self.gate.labels_of(self.bad)

    @property
    def is_finite(self) -> bool:
        """Whether the gate found no NaN or Inf: values were out of bounds only."""
        return all(label.kind in _OUT_OF_BOUNDS for label in self.labels)

    def on(self, worker: str) -> 'Reading':
        """The same, with the name of the process it happened in."""
        return self._replace(incident=dataclasses.replace(self.incident, worker=worker))


class Run:
    """A kind of run, with the same fetches every time: what else to fetch, and how to read it.

    Args:
      found: the gates of the train ops that it runs.
      loss: a loss to check besides, or None.
      rows: by gate, the row of the step: the vector to fetch, whose columns history.py names.
      histories: by gate, its `StepHistory`, or None.
      graph: the graph.
      in_branches: the gates of train ops in branches. If a run does not take their branch, their
        tensors cannot be fetched, so these gates are read after the run.

    Attributes:
      gates: `found`.
      fetches: the tensors that a hook asks for.
    """

    def __init__(
        self,
        found: Sequence[gates.Gate],
        loss: Optional[tf.Tensor],
        rows: Sequence[tf.Tensor],
        histories: Sequence[Optional[StepHistory]],
        graph: tf.Graph,
        in_branches: Sequence[gates.Gate] = (),
    ):
        self.gates = found
        self._in_branches = in_branches
        self._all_gates = [*found, *in_branches]
        self._loss = loss
        places = (place for place, gate in enumerate(found) if gate.loss is not None)
        self._with_loss = next(places, None)  # the first gate that knows its loss
        self._global_step = graphs.global_step(graph)
        self._session: Callable[[], Any] = lambda: None  # the step that was watched last
        self._beside = [each for gate in found for each in gate.beside]
        self._histories = [*histories, *(None for _ in in_branches)]
        self._has_limits = any(each is not None and each.spike for each in histories)
        self.fetches = [*rows, *(each.count for each in self._beside)]
        self.fetches += [] if loss is None else [loss]
        self._args = tf1.train.SessionRunArgs(self.fetches)

    def args(self, run_context, max_loss: Optional[float]) -> tf1.train.SessionRunArgs:
        """The fetches and feeds of a hook, with which the gates report the step to it."""
        session = run_context.session
        if self._session() is not session:
            for gate in [*self._all_gates, *(each.gate for each in self._beside)]:
                gate.untold.watch(session)
            self._session = weakref.ref(session)
        if max_loss is None and not self._has_limits:
            return self._args
        # Two hooks may watch the same gate, and TensorFlow takes each feed from one of them.
        fed = run_context.__dict__.setdefault('_slimguard_fed', set())
        feeds: Dict[tf.Tensor, Any] = {}
        for gate, history in zip(self._all_gates, self._histories):
            if gate not in fed:
                fed.add(gate)
                feeds.update(limits_of(gate, max_loss, history))
        return self._args._replace(feed_dict=feeds or None)

    def note(self, values: Sequence[Any], training: Any) -> None:
        """Notes in a `Training` the global step after a run, and its loss where that is finite."""
        step = values[0][STEP] if self.gates else math.nan
        training.step = int(step) if step == step else None
        loss = math.nan
        if self._loss is not None:
            loss = values[-1]
        elif self._with_loss is not None:
            loss = values[self._with_loss][LOSS]
        if math.isfinite(loss):
            training.loss = loss

    def read(
        self, values: Sequence[Any], max_loss: Optional[float], run_context
    ) -> List[List[Reading]]:
        """Reads the incidents from the values of one run; those of one batch are in one list.

        The graph has decided by then (gate/building/builder.py).
        """
        found: List[Reading] = []
        for gate, row, history in zip(self.gates, values, self._histories):
            told = list(_told_in(run_context, gate)) if row[UNTOLD] else []
            if history is not None and row[IS_GOOD]:
                history.note_good(row)
            elif history is not None and told:
                # Of threads that train in one session, one may take what another's step told.
                told[-1] = _with_history(told[-1], history, row, max_loss)
            found += told
        for each, count in zip(self._beside, values[len(self.gates) :]):
            found += _told_in(run_context, each.gate) if count else []
        for gate in self._in_branches:
            found += _told_in(run_context, gate)
        if self._loss is not None and not found:
            step = functools.partial(self._step_now, run_context.session)
            reading = of_loss(self._loss, values[-1], max_loss, step)
            found += [] if reading is None else [reading]
        return _by_run(found) if found else []

    def forget(self, session) -> None:
        """Drops what the gates have put aside to tell."""
        for gate in self._all_gates:
            gate.untold.take(session)

    def _step_now(self, session) -> Optional[int]:
        """The global step. Fetched with the run, it could be that before the update or after."""
        step = self._global_step
        return None if step is None else int(session.run(step))


def limits_of(gate: gates.Gate, max_loss: Optional[float], history: Optional[StepHistory]) -> dict:
    """The feeds that give a gate its limits, of the loss and of the gradient norm."""
    limits = {} if max_loss is None else {gate.limit: _checked_limit(gate, max_loss)}
    if history is not None:
        limits.update(history.limits(max_loss))
    return limits


def _checked_limit(gate: gates.Gate, max_loss: float) -> float:
    """A limit for the loss, or ValueError if the gate has none, or another."""
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
    return float(max_loss)


def _told_in(run_context, gate: gates.Gate) -> List[Reading]:
    """The reports of a gate at the end of a run: the same for each hook that watches it."""
    told = run_context.__dict__.setdefault('_slimguard_told', {})
    if gate not in told:
        told[gate] = [of_gate(gate, each) for each in gate.untold.take(run_context.session)]
    return told[gate]


def of_gate(gate: gates.Gate, values: gates.Told) -> Reading:
    """Reads a bad step from the values of a gate."""
    step = None if values.step is None else int(values.step)
    loss = None if values.loss is None else float(values.loss)
    strategy = 'check_numerics' if gate.raises else 'hook'
    incident = _incident_of(gate.explain(values.bad), step, loss, strategy)
    return Reading(incident, gate, values.bad)


def _with_history(
    reading: Reading, history: StepHistory, row: np.ndarray, max_loss: Optional[float]
) -> Reading:
    """Completes a reading with what the last steps say of it; keeps the row of the step."""
    norm, ratio, said = history.note_bad(row, reading.labels, max_loss)
    incident = dataclasses.replace(
        reading.incident,
        gradient_norm=norm,
        gradient_norm_ratio=ratio,
        reason=gates.explain(reading.labels, said).reason,
    )
    is_spike = reading.is_finite and bool(said)
    return reading._replace(incident=incident, history=history.last(), is_spike=is_spike)


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


def _by_run(found: Sequence[Reading]) -> List[List[Reading]]:
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

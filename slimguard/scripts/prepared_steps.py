"""A step of a script that comes again, in one prepared call: :class:`PreparedSteps`.

In every run a session takes fetches and feeds apart and puts the values together. With what a
watcher fetches and feeds besides, that takes longer than a small step. A prepared call does it
once, and reads the gate's flags without feeding anything.
"""

from typing import Any, Dict, NamedTuple, Optional, Sequence

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard.compat import tf_private
from slimguard.gate import Gate, Told
from slimguard.incidents.history import Entry
from slimguard.scripts.script_watcher import ScriptWatcher
from slimguard.scripts.train_steps import Step
from slimguard.training.prepared_call import PreparedCall, PreparedCalls, are_ready
from slimguard.training.step_history import StepHistory
from slimguard.training.watched_run import limits_of

_NO_FEEDS: Dict[tf.Tensor, Any] = {}


class Done(NamedTuple):
    """A step that a prepared call ran.

    Attributes:
      values: what the script fetched, as a session gives it.
      told: what the gate told.
      is_bad: whether it told of a bad step.
      gate: the gate.
      history: what keeps the last steps of it, or None.
      entry: the row of the step, for that.
    """

    values: Any
    told: Told
    is_bad: bool
    gate: Gate
    history: Optional[StepHistory] = None
    entry: Optional[Entry] = None


class PreparedSteps:
    """Runs the steps of one session in prepared calls; it does not keep the session.

    Args:
      watcher: what watches the steps. It is not asked what to fetch: it only looks at gates.
    """

    def __init__(self, watcher: ScriptWatcher):
        self._watcher = watcher
        self._calls = PreparedCalls()

    def run(self, session, step: Step, feed_dict: Optional[dict]) -> Optional[Done]:
        """Runs a step; returns None, and runs nothing, where the session itself has to."""
        feeds = feed_dict or _NO_FEEDS
        if type(feeds) is not dict or tf_private.is_closed(session):
            return None
        asked = (step, *map(id, feeds)) if feeds else step
        call = self._calls.of(asked, _Call.of, session, step, self._watcher, feeds)
        return None if call is None else call.run(feeds)


class _Call(NamedTuple):
    """A prepared call of a step with one gate, and what is fetched of that gate."""

    gate: Gate
    history: Optional[StepHistory]
    places: Sequence[Optional[int]]  # for each field of `Told`: which of what is fetched
    call: PreparedCall
    kept: Any  # so that no other object gets the ids that it is known by

    @classmethod
    def of(cls, session, step: Step, watcher: ScriptWatcher, feeds: dict) -> Optional['_Call']:
        """A prepared call, or None where a session has to see to the step."""
        context = tf1.train.SessionRunContext(step.args, session)
        if step.quiet is None or not watcher.only_looks_at(step.gates[0], context):
            return None
        gate = step.gates[0]
        if gate.beside:  # which the watcher has to ask for
            return None
        wanted = Told(gate.quiet.bad, gate.quiet.step, gate.loss)
        told, places = [], []
        for tensor in wanted:
            places.append(None if tensor is None else len(told))
            told += [] if tensor is None else [tensor]
        evidence = watcher.evidence_of(gate)
        targets = [] if evidence is None else [evidence.fetch]
        if not are_ready(feeds):
            return None
        history = watcher.histories.of(gate)
        own = told + ([] if history is None else [gate.measures.vector])
        fed = {**feeds, **limits_of(gate, None, history)}
        call = PreparedCall.of(session, own, targets, {'script': step.quiet}, fed)
        return None if call is None else cls(gate, history, places, call, list(feeds))

    def run(self, feeds: dict) -> Optional[Done]:
        """Runs it; None where the session has to convert what is fed."""
        limits = limits_of(self.gate, None, self.history)
        feeds = {**feeds, **limits} if limits else feeds
        fed = self.call.values_of(feeds)
        if fed is None:
            return None
        own, results = self.call(fed)
        told = Told(*[None if place is None else own[place] for place in self.places])
        is_bad, entry = told.is_bad, None
        if self.history is not None:
            entry = told.step, not is_bad, own[-1]
        return Done(results['script'], told, is_bad, self.gate, self.history, entry)

"""A `session.run` as a watcher sees it: its guarded train ops, what to fetch, its incidents."""

import functools
import math
import os
import weakref
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard import graph as graphs
from slimguard.gate.building.announcement import Told
from slimguard.gate.written_beside import refuse_around
from slimguard.graph import op_of
from slimguard.incidents.history import IS_GOOD, LOSS, STEP
from slimguard.system.log import log
from slimguard.training import incident_reading
from slimguard.training.fetch_structures import RunKinds, are_taken, fetched_elements, inner_feeds
from slimguard.training.incident_reading import Reading
from slimguard.training.step_history import Histories, StepHistory


class Run:
    """A kind of run, with the same fetches every time: what else to fetch, and how to read it.

    Args:
      found: the gates of the train ops that it runs.
      loss: a loss to check besides, or None.
      told: by gate, the vector to fetch: how many bad steps its watcher is to be told of, and then
        the row of the step.
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
        told: Sequence[tf.Tensor],
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
        self.fetches = [*told, *(each.count for each in self._beside)]
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
        step = values[0][1 + STEP] if self.gates else math.nan
        training.step = int(step) if step == step else None
        loss = math.nan
        if self._loss is not None:
            loss = values[-1]
        elif self._with_loss is not None:
            loss = values[self._with_loss][1 + LOSS]
        if math.isfinite(loss):
            training.loss = loss

    def read(self, values: Sequence[Any], max_loss: Optional[float], run_context) -> List[Reading]:
        """Reads the incidents from the values of one run.

        The graph has decided by then (gate/building/builder.py). The row of a gate, of which
        outcome.py makes it, begins with the number of bad steps that no watcher has read yet.
        """
        found: List[Reading] = []
        for gate, row, history in zip(self.gates, values, self._histories):
            told = list(_told_in(run_context, gate)) if row[0] else []
            if history is not None and row[1 + IS_GOOD]:
                history.note_good(row[1:])
            elif history is not None and told:
                # Of threads that train in one session, one may take what another's step told.
                told[-1] = history.note_bad(row[1:], told[-1], max_loss)
            found += told
        for each, count in zip(self._beside, values[len(self.gates) :]):
            found += _told_in(run_context, each.gate) if count else []
        for gate in self._in_branches:
            found += _told_in(run_context, gate)
        if self._loss is not None and not found:
            step = functools.partial(self._step_now, run_context.session)
            reading = incident_reading.of_loss(self._loss, values[-1], max_loss, step)
            found += [] if reading is None else [reading]
        return found

    def forget(self, session) -> None:
        """Drops what the gates have put aside to tell."""
        for gate in self._all_gates:
            gate.untold.take(session)

    def _step_now(self, session) -> Optional[int]:
        """The global step. Fetched with the run, it could be that before the update or after."""
        step = self._global_step
        return None if step is None else int(session.run(step))


def _told_in(run_context, gate: gates.Gate) -> List[Reading]:
    """The reports of a gate at the end of a run: the same for each hook that watches it."""
    told = run_context.__dict__.setdefault('_slimguard_told', {})
    if gate not in told:
        told[gate] = _readings(gate, gate.untold.take(run_context.session))
    return told[gate]


def _readings(gate: gates.Gate, told: Sequence[Told]) -> List[Reading]:
    return [incident_reading.of_gate(gate, each) for each in told]


class _Around:
    """Refuses runs that go around gates; logs once each variable that a bad step would change."""

    def __init__(self) -> None:
        self._named: Set[str] = set()

    def refuse(self, elements: list, found: Sequence[gates.Gate], fed, by: str = '') -> None:
        """As `refuse_around`, whose `on_told` goes to the log."""
        refuse_around(elements, found, fed, self._tell, by)

    def _tell(self, name: str, why: str) -> None:
        if name not in self._named:
            self._named.add(name)
            log().error('the update of %r is NOT guarded: %s', name, why)


class HookFetches:
    """Refuses steps in which a hook's fetches go around a gate, as it does for the loop's own.

    Args:
      graph: the graph of the session.
    """

    def __init__(self, graph: tf.Graph):
        self._graph = graph
        self._around = _Around()
        self._kinds = RunKinds()

    def require_gated(
        self, fetches: Mapping[Any, Any], feed_dict: Any, asked: Any, of_loop: Any = ()
    ) -> None:
        """Checks a step before its run.

        Args:
          fetches: the fetches by hook; those of the loop under a str in place of a hook.
          feed_dict: the feeds of the loop and the hooks.
          asked: a key that identifies these fetches.
          of_loop: other fetches of the loop.

        Raises:
          OutsideTheGateError: names the hook, and says as much as `refuse_around`.
        """
        fed = inner_feeds(self._graph, feed_dict)
        self._kinds.of(self._look, [dict(fetches), of_loop], fed, asked=asked)

    def _look(self, both: list, fed: Sequence[tf.Tensor]) -> bool:
        found = gates_run_by(fetched_elements(both, self._graph), self._graph)
        for hook in both[0] if found else ():
            if not isinstance(hook, str):
                own = fetched_elements(both[0][hook], self._graph)
                self._around.refuse(own, found, fed, type(hook).__name__)
        return True


class WatchedRuns:
    """Knows which runs are steps to watch, and what to fetch in each kind of them.

    Args:
      loss: a loss to watch if no gate knows it; None for none.
      refusal: the error for a step of a train op without a gate; None to accept it, with a warning
        if there is no loss to watch.
      told_by: gives the vector to fetch to know of a gate's steps, by whether what a bad step drew
        is kept.
      histories: the last steps of gates.
      guards_beside: whether another part gates writes beside a train op, or warns of them.
      watches_ahead: whether all gates are watched from the start, since the first run may bypass
        the hooks; else only the gates of runs that threads make beside the steps.
    """

    def __init__(
        self,
        loss: Optional[tf.Tensor],
        refusal: Optional[str],
        told_by: Callable[[gates.Gate, bool], tf.Tensor],
        histories: Histories,
        guards_beside: bool,
        watches_ahead: bool,
    ):
        self._loss = loss
        self._histories = histories
        self._guards_beside = guards_beside
        self._watches_ahead = watches_ahead
        self._told_by = told_by
        self._refusal = refusal
        self._runs = RunKinds()
        self._around = _Around()
        self._told_of: Set[str] = set()  # train ops of others, by name
        self._process = os.getpid()

    def run_for(self, run_context) -> Optional[Run]:
        """What to fetch in such a run, or None if it is no step to watch."""
        args = run_context.original_args
        graph = run_context.session.graph
        fed = inner_feeds(graph, args.feed_dict)
        return self._runs.of(self._plan, args.fetches, fed, graph)

    def watch(self, session) -> None:
        """Watches runs before the first step, or beside the steps; called before any run."""
        for gate in dict.fromkeys(gates.gates_of(session.graph).values()):
            if gate.is_beside or self._watches_ahead:
                gate.untold.watch(session)

    def leave(self, session) -> List[Reading]:
        """Returns the bad steps that no watcher has read; later ones of the session are printed."""
        untold: List[Reading] = []
        if os.getpid() != self._process:
            return untold  # in a fork no session can run anything
        for gate in dict.fromkeys(gates.gates_of(session.graph).values()):
            if not gate.untold.watches(session):
                continue
            try:
                untold += _readings(gate, gate.untold.unwatch(session))
            except tf.errors.OpError as error:  # a server that is gone must not fail a good end
                log().warning('the end of the session is not clean: %s', error)
            except RuntimeError:  # it is closed, by another thread or before a new round
                break
        return untold

    def _plan(self, fetches, fed: Sequence[tf.Tensor], graph: tf.Graph) -> Optional[Run]:
        elements = fetched_elements(fetches, graph)
        all_found = gates_run_by(elements, graph)
        if all_found:
            mine = [gate for gate in all_found if self._is_mine(gate)]
            if not mine:
                self._tell_of_no_gate(all_found, graph)
                return None
            if not self._guards_beside:
                self._around.refuse(elements, all_found, fed)
            in_branches = [each for each in mine if graphs.flow_around(op_of(each.original))]
            found = [each for each in mine if each not in in_branches]
            histories = [self._histories.of(gate) for gate in found]
            is_kept = not fed or not are_taken(fed, elements)
            if found and not is_kept:
                log().warning(_NOT_KEPT, found[0].original.name, fed[0].name)
            told = [self._told_by(gate, is_kept) for gate in found]
            loss = self._loss_beside(mine)
            return Run(found, loss, told, histories, graph, in_branches)
        is_step = _updates_unguarded(elements)
        if self._loss is not None:
            is_step = _is_step(elements, self._loss, graph)
        if is_step and self._refusal is not None:
            raise ValueError(self._refusal)
        if self._loss is not None and is_step:
            return Run([], self._loss, [], [], graph)
        if is_step:
            log().warning(_NOT_GUARDED, elements[0].name)
        return None

    def _is_mine(self, gate: gates.Gate) -> bool:
        """If a graph has several trainings, a hook with a loss watches those with that loss."""
        if self._loss is None or gate.loss is None:
            return True
        needed = graphs.ancestors([op_of(gate.original), gate.loss.op])
        return self._loss.op in needed or gate.loss.op in graphs.ancestors([self._loss.op])

    def _loss_beside(self, found: Sequence[gates.Gate]) -> Optional[tf.Tensor]:
        """The loss to check beside the gates: one that no gate knows or checks."""
        if self._loss is None or all(gate.loss is None for gate in found):
            return self._loss
        if any(gate.loss is self._loss for gate in found):
            return None
        checked = [op_of(gate.original) for gate in found]
        checked += [gate.loss.op for gate in found if gate.loss is not None]
        return None if _copied(self._loss).op in graphs.ancestors(checked) else self._loss

    def _tell_of_no_gate(self, of_others: Sequence[gates.Gate], graph: tf.Graph) -> None:
        """Warns that a run is not watched, if no training has the hook's loss."""
        if any(map(self._is_mine, gates.gates_of(graph).values())):
            return
        assert self._loss is not None  # without a loss all gates are the hook's
        name = of_others[0].original.name
        if name not in self._told_of:
            self._told_of.add(name)
            log().error(_OF_OTHERS, name, self._loss.name)


_NOT_GUARDED = (
    'train op %r has no gate: a bad update stays in the weights, and nobody is told. Build it with '
    'slimguard.create_train_op(), or run slimguard.guard(train_op) in its place'
)


_OF_OTHERS = (
    'steps of %r are not watched by the hook with the loss %r, which no guarded train op computes. '
    'Give the hook the loss that is trained on, or none'
)


_NOT_KEPT = (
    'bad steps of %r are not examined where the run feeds %r, which the step computes itself: what '
    'is kept of a step is made for all its inputs. Feed a placeholder, or use slimguard run'
)


def _copied(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor of which this one is a copy."""
    while tensor.op.type in ('Identity', 'CheckNumerics'):
        tensor = tensor.op.inputs[0]
    return tensor


def gates_run_by(elements: list, graph: tf.Graph) -> List[gates.Gate]:
    """The gates of the guarded train ops that a run fetches, or needs; each once."""
    found = [gate for gate in map(gates.gate_of, elements) if gate is not None]
    return list(dict.fromkeys(found + sum(_waited_for(elements, graph).values(), [])))


def _waited_for(elements: list, graph: tf.Graph) -> Dict[tf.Operation, List[gates.Gate]]:
    """By fetched op, the gates of train ops that a run needs without fetching them."""
    known = {op_of(each.train_op): each for each in gates.gates_of(graph).values()}
    others = [op for op in map(op_of, elements) if op not in known]
    others = [op for op in others if not op.name.startswith(graphs.OURS)]
    if not known or known.keys().isdisjoint(graphs.ancestors(others)):
        return {}
    found = {op: [known[each] for each in graphs.ancestors([op]) if each in known] for op in others}
    return {op: needed for op, needed in found.items() if needed}


def _updates_unguarded(elements: list) -> bool:
    """Whether a run trains without any gate."""
    needed = graphs.ancestors([op_of(element) for element in elements])
    return any(graphs.is_apply(op) and not op.name.startswith(graphs.OURS) for op in needed)


def _is_step(elements: list, loss: tf.Tensor, graph: tf.Graph) -> bool:
    """Whether a run without a gate is a step: it trains, or nothing shows that it does not."""
    needed = graphs.ancestors([op_of(element) for element in elements])
    if gates.gates_of(graph):  # it is guarded here, and this hook may watch the loss only
        return any(map(graphs.is_apply, needed))
    writes = graphs.Writes(graph)
    return loss.op in needed or any(op in writes for op in needed)


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

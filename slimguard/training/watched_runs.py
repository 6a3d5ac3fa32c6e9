"""Which runs of a session are steps to watch, and which incidents their values show.

Run          a kind of run: what to fetch, and how to read incidents from the values
WatchedRuns  which runs of a session are steps; the `Run` of each kind
"""

import functools
import math
import os
import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard import graph as graphs
from slimguard.gate.written_beside import refuse_around
from slimguard.graph import op_of
from slimguard.incidents.fallback_chain import FallbackChain
from slimguard.incidents.history import IS_GOOD, LOSS, STEP, UNTOLD
from slimguard.incidents.policies import Skip
from slimguard.incidents.policy_language import OnNan
from slimguard.system.log import log
from slimguard.training.fetch_structures import RunKinds, are_taken, fetched_elements, inner_feeds
from slimguard.training.open_incident import OpenIncident, of_gate, of_loss
from slimguard.training.step_history import Histories, StepHistory


class Run:
    """One kind of run: what a hook fetches in it, and how to read incidents from the values.

    Args:
      run_gates: the gates of the train ops that it runs.
      loss: a loss to check besides the gates, or None.
      rows: by gate, the row of the step: a vector to fetch; history.py names its columns.
      histories: by gate, its `StepHistory`, or None.
      graph: the graph.
      in_branches: the gates of train ops in branches. A run that does not take the branch cannot
        fetch their tensors, so these gates are read after the run.

    Attributes:
      gates: `run_gates`.
      fetches: the tensors that a hook asks for.
      train_ops: the names of the gates' train ops, with those in branches; '' stands for a loss
        without a gate.
    """

    def __init__(
        self,
        run_gates: Sequence[gates.Gate],
        loss: Optional[tf.Tensor],
        rows: Sequence[tf.Tensor],
        histories: Sequence[Optional[StepHistory]],
        graph: tf.Graph,
        in_branches: Sequence[gates.Gate] = (),
    ):
        self.gates = run_gates
        self._in_branches = in_branches
        self._all_gates = [*run_gates, *in_branches]
        self.train_ops = [*(gate.original.name for gate in self._all_gates), '']
        self._loss = loss
        places = (place for place, gate in enumerate(run_gates) if gate.loss is not None)
        self._with_loss = next(places, None)  # the first gate that knows its loss
        self._global_step = graphs.global_step(graph)
        self._session: Callable[[], Any] = lambda: None  # the session of the last watched step
        self._beside = [each for gate in run_gates for each in gate.beside]
        self._histories = [*histories, *(None for _ in in_branches)]
        self._has_limits = any(each is not None and each.spike for each in histories)
        self.fetches = [*rows, *(each.count for each in self._beside)]
        self.fetches += [] if loss is None else [loss]
        self._args = tf1.train.SessionRunArgs(self.fetches)

    def args(self, run_context, max_loss: Optional[float]) -> tf1.train.SessionRunArgs:
        """The fetches and feeds of a hook; makes the gates report the steps of this session."""
        session = run_context.session
        if self._session() is not session:
            for gate in [*self._all_gates, *(each.gate for each in self._beside)]:
                gate.untold.watch(session)
            self._session = weakref.ref(session)
        if max_loss is None and not self._has_limits:
            return self._args
        # Two hooks may watch the same gate, but only one of them may feed its tensors.
        fed = run_context.__dict__.setdefault('_slimguard_fed', set())
        feeds: Dict[tf.Tensor, Any] = {}
        for gate, history in zip(self._all_gates, self._histories):
            if gate not in fed:
                fed.add(gate)
                feeds.update(limits_of(gate, max_loss, history))
        return self._args._replace(feed_dict=feeds or None)

    def note_step(self, values: Sequence[Any], training: Any) -> None:
        """Notes in a `Training` the global step after a run, and its loss if finite."""
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
    ) -> List[List[OpenIncident]]:
        """Opens the incidents that the values of a run show, in lists with one batch each.

        The gate has decided in the graph which steps are bad (gate/building/builder.py).
        """
        incidents: List[OpenIncident] = []
        for gate, row, history in zip(self.gates, values, self._histories):
            reports = _reports_in(run_context, gate) if row[UNTOLD] else []
            of_this_run: List[OpenIncident] = []
            if history is not None and row[IS_GOOD]:
                history.note_good(row)
            elif history is not None and reports:
                # If several threads train in a session, one may get another's report.
                *reports, last = reports
                of_this_run = [history.note_bad(last, row, max_loss)]
                if len(self.gates) > 1:  # the others may have written their updates
                    told = gate.original.name, len(self.gates)
                    of_this_run[0].note_reason(_ONE_OF % told)
            incidents += [of_gate(gate, each, max_loss=max_loss) for each in reports]
            incidents += of_this_run
        counts = values[len(self.gates) :]
        others = [each.gate for each, count in zip(self._beside, counts) if count]
        for gate in [*others, *self._in_branches]:
            reports = _reports_in(run_context, gate)
            incidents += [of_gate(gate, each, max_loss=max_loss) for each in reports]
        if self._loss is not None and not incidents:
            step = functools.partial(self._step_now, run_context.session)
            opened = of_loss(self._loss, values[-1], max_loss, step)
            incidents += [] if opened is None else [opened]
        return _by_run(incidents) if incidents else []

    def forget(self, session) -> None:
        """Drops the gates' reports that nobody has read."""
        for gate in self._all_gates:
            gate.untold.take_reports(session)

    def _step_now(self, session) -> Optional[int]:
        """The global step, by another run: a fetch of this run might read it before the update."""
        step = self._global_step
        return None if step is None else int(session.run(step))


_ONE_OF = '; this is the update of train op %s, one of %d in the run'


def limits_of(gate: gates.Gate, max_loss: Optional[float], history: Optional[StepHistory]) -> dict:
    """The feeds that give a gate its limits of loss and gradient norm."""
    limits = {} if max_loss is None else {gate.limit: _checked_limit(gate, max_loss)}
    if history is not None:
        limits.update(history.limits(max_loss))
    return limits


def _checked_limit(gate: gates.Gate, max_loss: float) -> float:
    """`max_loss` as a feed; ValueError if the gate checks no loss, or has another limit."""
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


def _reports_in(run_context, gate: gates.Gate) -> List[gates.Told]:
    """A gate's reports at the end of a run; each of its watchers gets the same."""
    reports = run_context.__dict__.setdefault('_slimguard_reports', {})
    if gate not in reports:
        reports[gate] = gate.untold.take_reports(run_context.session)
    return reports[gate]


def _by_run(incidents: Sequence[OpenIncident]) -> List[List[OpenIncident]]:
    """Groups the incidents that gates report after a run; some may come from earlier runs.

    Returns:
      Lists of incidents. If several gates refused the batch of the run that just ended, the last
      list has their incidents, the most serious first. Each other list has one incident.
    """
    # The last report of a gate is about the run that just ended. Leave out gates beside the steps:
    # a thread runs them, on batches of its own.
    of_gates = [each for each in incidents if each.gate is not None and not each.gate.is_beside]
    last = {each.gate: each for each in of_gates}
    if len(last) < 2:
        return [[each] for each in incidents]
    together = sorted(last.values(), key=_is_mild)
    return [[each] for each in incidents if each not in together] + [together]


def _is_mild(opened: OpenIncident) -> Tuple[bool, bool]:
    return opened.incident.held, not opened.incident.state_lost


# Which runs are steps.


class WatchedRuns:
    """Knows which runs are steps to watch, and what to fetch in each kind of them.

    Args:
      loss: a loss to watch if no gate knows it; or None.
      refusal: the beginning of the error for a step of a train op without a gate; None to accept
        such a step, with a warning if there is no loss to watch.
      row_of: returns the row to fetch, given a gate and whether to keep a bad step's input.
      histories: the last steps of gates.
      guards_beside: whether other code gates writes beside a train op, or warns of them.
      watches_ahead: whether to watch all gates from the start, since the first run may bypass the
        hooks; else only the gates of runs that threads make beside the steps.
    """

    def __init__(
        self,
        loss: Optional[tf.Tensor],
        refusal: Optional[str],
        row_of: Callable[[gates.Gate, bool], tf.Tensor],
        histories: Histories,
        guards_beside: bool,
        watches_ahead: bool,
    ):
        self._loss = loss
        self._histories = histories
        self._guards_beside = guards_beside
        self._watches_ahead = watches_ahead
        self._row_of = row_of
        self._refusal = refusal
        self._runs = RunKinds()
        self._named: Set[str] = set()  # names in earlier log lines: train ops, variables
        self._process = os.getpid()

    def run_for(self, run_context) -> Optional[Run]:
        """The `Run` that says what to fetch and read; None if this is no step to watch."""
        args = run_context.original_args
        graph = run_context.session.graph
        fed = inner_feeds(graph, args.feed_dict)
        return self._runs.of(self._plan, args.fetches, fed, graph)

    def watch(self, session) -> None:
        """Also watches runs before the first step and beside the steps. Call it before any run."""
        for gate in dict.fromkeys(gates.gates_of(session.graph).values()):
            if gate.is_beside or self._watches_ahead:
                gate.untold.watch(session)

    def leave(self, session) -> List[OpenIncident]:
        """Stops watching; returns the bad steps that nobody has read. Gates print later ones."""
        unread: List[OpenIncident] = []
        if os.getpid() != self._process:
            return unread  # no session works in a fork
        for gate in dict.fromkeys(gates.gates_of(session.graph).values()):
            try:
                unread += [of_gate(gate, each) for each in gate.untold.unwatch(session)]
            except tf.errors.OpError as error:  # a missing server must not spoil a good end
                log().warning('the end of the session is not clean: %s', error)
            except RuntimeError:  # the session is closed, by another thread or before a new round
                break
        return unread

    def _plan(self, fetches, fed: Sequence[tf.Tensor], graph: tf.Graph) -> Optional[Run]:
        elements = fetched_elements(fetches, graph)
        run_gates = gates_run_by(elements, graph)
        if run_gates:
            mine = [gate for gate in run_gates if self._is_mine(gate)]
            if not mine:
                self._log_no_gate(run_gates, graph)
                return None
            if not self._guards_beside:
                refuse_around(elements, run_gates, fed, self._named)
            in_branches = [each for each in mine if graphs.flow_around(op_of(each.original))]
            always_run = [each for each in mine if each not in in_branches]
            histories = [self._histories.of(gate) for gate in always_run]
            is_kept = not fed or not are_taken(fed, elements)
            if always_run and not is_kept:
                log().warning(_NOT_KEPT, always_run[0].original.name, fed[0].name)
            rows = [self._row_of(gate, is_kept) for gate in always_run]
            loss = self._loss_beside(mine)
            return Run(always_run, loss, rows, histories, graph, in_branches)
        is_step = _updates_unguarded(elements)
        if self._loss is not None:
            is_step = _is_step(elements, self._loss, graph)
        if is_step and self._refusal is not None:
            raise ValueError(self._refusal + _NOT_GUARDED % _name_of_step(elements))
        if self._loss is not None and is_step:
            return Run([], self._loss, [], [], graph)
        if is_step:
            log().warning(_NOT_GUARDED, _name_of_step(elements))
        return None

    def _is_mine(self, gate: gates.Gate) -> bool:
        """Whether this hook watches a gate: a hook with a loss watches only trainings of it."""
        if self._loss is None or gate.loss is None:
            return True
        needed = graphs.ancestors([op_of(gate.original), gate.loss.op])
        return self._loss.op in needed or gate.loss.op in graphs.ancestors([self._loss.op])

    def _loss_beside(self, watched: Sequence[gates.Gate]) -> Optional[tf.Tensor]:
        """The hook's loss, if no gate knows or checks it; else None."""
        if self._loss is None or all(gate.loss is None for gate in watched):
            return self._loss
        if any(gate.loss is self._loss for gate in watched):
            return None
        checked = [op_of(gate.original) for gate in watched]
        checked += [gate.loss.op for gate in watched if gate.loss is not None]
        return None if _copied(self._loss).op in graphs.ancestors(checked) else self._loss

    def _log_no_gate(self, of_others: Sequence[gates.Gate], graph: tf.Graph) -> None:
        """Warns, if no training has the hook's loss, that a run is not watched."""
        if any(map(self._is_mine, gates.gates_of(graph).values())):
            return
        assert self._loss is not None  # without a loss all gates are the hook's
        name = of_others[0].original.name
        if name not in self._named:
            self._named.add(name)
            log().error(_OF_OTHERS, name, self._loss.name)


def require_loss_in(graph: tf.Graph, loss: Optional[tf.Tensor], name: str) -> None:
    if loss is not None and loss.graph is not graph:
        raise ValueError(
            'the loss %r of %s belongs to another graph than the training; build the hook '
            'in the graph that is trained' % (loss.name, name)
        )


def refusal_without_gate(
    policies: FallbackChain, on_nan: OnNan, loss: Optional[tf.Tensor]
) -> Optional[str]:
    """The beginning of the error for a train op without a gate; None to watch its loss instead."""
    needs_gate = policies.may(Skip) or (loss is None and on_nan is not None)
    return 'on_nan=%r cannot be done, as ' % (on_nan,) if needs_gate else None


_NOT_GUARDED = (
    'train op %r is not guarded: its bad updates stay in the weights, and nobody is told. Before '
    'the session is made, write train_op = slimguard.guard(train_op, loss=loss), and run that; '
    'slimguard.create_train_op(loss, optimizer) makes a train op that is guarded'
)


_OF_OTHERS = (
    'steps of %r are not watched by the hook with the loss %r, which no guarded train op computes. '
    'Give the hook the loss that is trained on, or none'
)


_NOT_KEPT = (
    'bad steps of %r are not examined in a run that feeds %r, which the step would otherwise '
    'compute. Feed a placeholder, or use slimguard run'
)


def _copied(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor of which this one is a copy."""
    while tensor.op.type in ('Identity', 'CheckNumerics'):
        tensor = tensor.op.inputs[0]
    return tensor


def gates_run_by(elements: list, graph: tf.Graph) -> List[gates.Gate]:
    """The gates of the guarded train ops that a run fetches or needs, each once."""
    fetched = [gate for gate in map(gates.gate_of, elements) if gate is not None]
    return list(dict.fromkeys(fetched + sum(_waited_for(elements, graph).values(), [])))


def _waited_for(elements: list, graph: tf.Graph) -> Dict[tf.Operation, List[gates.Gate]]:
    """By fetched op, the gates of train ops that a run needs without fetching them."""
    known = {op_of(each.train_op): each for each in gates.gates_of(graph).values()}
    others = [op for op in map(op_of, elements) if op not in known]
    others = [op for op in others if not op.name.startswith(graphs.OURS)]
    if not known or known.keys().isdisjoint(graphs.ancestors(others)):
        return {}
    needed = {op: [known[n] for n in graphs.ancestors([op]) if n in known] for op in others}
    return {op: its_gates for op, its_gates in needed.items() if its_gates}


def _updates_unguarded(elements: list) -> bool:
    """Whether a run trains without any gate."""
    needed = graphs.ancestors([op_of(element) for element in elements])
    return any(graphs.is_apply(op) and not op.name.startswith(graphs.OURS) for op in needed)


def _name_of_step(elements: list) -> str:
    """The name of the fetched element that trains."""
    return next((each for each in elements if _updates_unguarded([each])), elements[0]).name


def _is_step(elements: list, loss: tf.Tensor, graph: tf.Graph) -> bool:
    """Whether a run without a gate is a step: it trains, or may train."""
    needed = graphs.ancestors([op_of(element) for element in elements])
    if gates.gates_of(graph):  # steps have gates; a run of the loss alone may evaluate
        return any(map(graphs.is_apply, needed))
    writes = graphs.Writes(graph)
    return loss.op in needed or any(op in writes for op in needed)

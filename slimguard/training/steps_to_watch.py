"""Which runs of a session are steps to watch: :class:`WatchedRuns`."""

import os
from typing import Callable, Dict, List, Optional, Sequence, Set

import tensorflow as tf

from slimguard import gate as gates
from slimguard import graph as graphs
from slimguard.gate.written_beside import refuse_around
from slimguard.graph import op_of
from slimguard.incidents.fallback_chain import FallbackChain
from slimguard.incidents.policies import Skip
from slimguard.incidents.policy_language import OnNan
from slimguard.system.log import log
from slimguard.training.fetch_structures import RunKinds, are_taken, fetched_elements, inner_feeds
from slimguard.training.step_history import Histories
from slimguard.training.watched_run import Reading, Run, of_gate


class WatchedRuns:
    """Knows which runs are steps to watch, and what to fetch in each kind of them.

    Args:
      loss: a loss to watch if no gate knows it; None for none.
      refusal: how the error for a step of a train op without a gate begins; None to accept it, with
        a warning if there is no loss to watch.
      row_of: gives the row of a gate's steps, by whether what a bad step drew is kept.
      histories: the last steps of gates.
      guards_beside: whether another part gates writes beside a train op, or warns of them.
      watches_ahead: whether all gates are watched from the start, since the first run may bypass
        the hooks; else only the gates of runs that threads make beside the steps.
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
        self._around = Around()
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
                untold += [of_gate(gate, each) for each in gate.untold.unwatch(session)]
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
            rows = [self._row_of(gate, is_kept) for gate in found]
            loss = self._loss_beside(mine)
            return Run(found, loss, rows, histories, graph, in_branches)
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


def require_loss_in(graph: tf.Graph, loss: Optional[tf.Tensor], name: str) -> None:
    if loss is not None and loss.graph is not graph:
        raise ValueError(
            'the loss %r of %s belongs to another graph than the training; build the hook '
            'in the graph that is trained' % (loss.name, name)
        )


def refusal_without_gate(
    policies: FallbackChain, on_nan: OnNan, loss: Optional[tf.Tensor]
) -> Optional[str]:
    """How the error for a train op without a gate begins; None to watch its loss instead."""
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


def _name_of_step(elements: list) -> str:
    """The name of what a run fetches that trains."""
    return next((each for each in elements if _updates_unguarded([each])), elements[0]).name


def _is_step(elements: list, loss: tf.Tensor, graph: tf.Graph) -> bool:
    """Whether a run without a gate is a step: it trains, or nothing shows that it does not."""
    needed = graphs.ancestors([op_of(element) for element in elements])
    if gates.gates_of(graph):  # it is guarded here, and this hook may watch the loss only
        return any(map(graphs.is_apply, needed))
    writes = graphs.Writes(graph)
    return loss.op in needed or any(op in writes for op in needed)


class Around:
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

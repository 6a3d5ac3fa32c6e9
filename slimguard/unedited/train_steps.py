"""Finds the train ops among the fetches of a run, and guards them: :class:`TrainSteps`.

A script may build anything around the optimizer's result: a group with moving averages, a loss that
waits for the update. Only a run shows which op is the step. So the gate is made for the fetched
ops, and from then on runs fetch the gate's tensors instead.

Ops that are in the graph when a session runs can get no new inputs later. So the last ops built
around new updates, which most scripts fetch, are guarded before the next run.
"""

import dataclasses
from typing import Any, Callable, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard import graph as graphs
from slimguard.compat import tf_private
from slimguard.gate import NoLossError, copies_ahead, copy_ahead_of_others
from slimguard.gate.arguments import is_made_inside
from slimguard.gate.chief_update import takes_accumulated
from slimguard.gate.gate import Gate
from slimguard.gate.guard import gated_writes, guard_with_values
from slimguard.gate.histograms import leave_out_bad_values
from slimguard.gate.written_beside import written_beside
from slimguard.graph import TrainOp, key, op_of, ops
from slimguard.graph.sessions import OWN_WORK, note_seen
from slimguard.graph.token_queues import has_token_queue
from slimguard.training.fetch_structures import (
    RunKinds,
    are_taken,
    fetched_elements,
    map_fetches,
    not_fed,
)
from slimguard.unedited.ending import Account
from slimguard.unedited.optimizer_notes import OptimizerNotes
from slimguard.unedited.own_updates import OwnUpdates, written_in
from slimguard.unedited.shared_updates import (
    SharedUpdates,
    each_once,
    element_key,
    ends_of,
    is_ours,
)


class Gated(NamedTuple):
    """The fetched elements of a run that need the same update, and its gate."""

    gate: Gate
    elements: Sequence[TrainOp]

    @property
    def name(self) -> str:
        """The name of the train op that the script fetches, or of the op from which it was made."""
        return name_of(self.elements[0])


def name_of(train_op: TrainOp) -> str:
    """The script's name of a train op, not the name of our guarded one."""
    op = op_of(gates.original_of(train_op))
    # `assign_sub` of a resource variable returns a read after the write.
    writes = op.control_inputs if op.type == 'ReadVariableOp' else []
    return writes[0].name if writes else op.name


@dataclasses.dataclass(frozen=True, eq=False)
class GuardedStep:
    """A run that trains, or only writes.

    Attributes:
      gates: its gates, one for each separate update.
      names: by gate, the name of the train op that the script fetches; empty if it only writes.
      args: the fetches: the script's, with guarded elements in place of those that train, and the
        train ops of the gates. It is always the same object, so that watchers recognize it.
      is_watched: whether a `NanLossHook` or `slimguard.train` watches it already. Then all other
        attributes are empty.
      written: the ops of the variables that it may restore, except those of train ops.
    """

    gates: Sequence[Gate]
    names: Sequence[str]
    args: tf1.train.SessionRunArgs
    is_watched: bool
    written: Sequence[tf.Operation]


class TrainSteps:
    """Guards the train ops of one graph.

    Args:
      graph: the graph; finalized or not.
      notes: the results of the optimizers.
      max_loss: a larger loss is a bad step; None for no limit.
      account: notes updates that cannot be guarded, and train ops whose loss is not known.
    """

    def __init__(
        self,
        graph: tf.Graph,
        notes: OptimizerNotes,
        max_loss: Optional[float],
        account: Account,
    ):
        self._graph = graph
        self._notes = notes
        self._max_loss = max_loss
        self._account = account
        self._version = -1  # the graph's version when all train ops were last guarded
        self._known_updates: Set[str] = set()
        self._updates = SharedUpdates(graph, notes)
        self._own_updates = OwnUpdates(graph)
        self._steps = RunKinds()

    def prepare(self) -> None:
        """Guards the train ops built since the last call. Call it before every run of a session."""
        if self._graph.version == self._version:
            return
        with OWN_WORK:
            self._guard_new()
        self._version = self._graph.version

    def _guard_new(self) -> None:
        updates = [*self._notes.updates(self._graph), *self._notes.written_by_hand(self._graph)]
        new = [update for update in updates if update.name not in self._known_updates]
        self._known_updates.update(update.name for update in new)
        if new:  # the script may have guarded some of them itself
            originals = [op_of(g.original) for g in gates.gates_of(self._graph).values()]
            guarded = set(graphs.ancestors(originals))
            new = [update for update in new if op_of(update) not in guarded]
        if has_token_queue(self._graph):  # the workers' train op guards a chief's update
            new = [update for update in new if not takes_accumulated(op_of(update))]
        if new or copies_ahead(self._graph):
            self._guard_ends(new)
        note_seen(self._graph)

    def _guard_ends(self, new: Sequence[TrainOp]) -> None:
        """Guards ops built around new updates; call it before a session has seen them."""
        with tf_private.unfinalized(self._graph):
            for end in dict.fromkeys(end for update in new for end in ends_of(update)):
                if is_made_inside(end):
                    continue  # guard the op that runs the loop or branch
                try:
                    self._guard([end], ())
                    # A script may fetch such a loss beside the train op; the gate undoes its
                    # writes.
                    for loss in self._notes.losses_that_write(end):
                        self._guard([end, loss], ())
                except gates.NoLearningRateError:
                    raise
                except (ValueError, TypeError):
                    pass  # a run that fetches the op will report the error
            if new:
                leave_out_bad_values(self._graph)
            copy_ahead_of_others(self._graph)

    def step_for(
        self,
        fetches,
        fed: Sequence[tf.Tensor] = (),
        gives_first: bool = False,
    ) -> Optional[GuardedStep]:
        """The step that a run of `fetches` makes; None if it does nothing that can be guarded.

        Args:
          fetches: what the script fetches.
          fed: the computed tensors that the run feeds, see `inner_feeds`.
          gives_first: whether the writes that do not train give variables their first values, and
            are left out.
        """
        return self._steps.of(self._add_step, fetches, fed, gives_first)

    def names_of_updates(self, fetches) -> List[str]:
        """The names of the elements of `fetches` that train, or else write, without a gate."""
        elements = fetched_elements(fetches, self._graph)
        together = [each for group in self._updates.by_update(elements) for each in group]
        together = together or self._own_updates.among(elements)
        return [name_of(each) for each in together if gates.gate_of(each) is None]

    def _add_step(self, *asked) -> Optional[GuardedStep]:
        knows_all = self._version == self._graph.version
        with OWN_WORK:
            step = self._make_step(*asked)
        if knows_all:  # `prepare` need not look at our new ops
            self._version = self._graph.version
        return step

    def _make_step(
        self, fetches, fed: Sequence[tf.Tensor], gives_first: bool
    ) -> Optional[GuardedStep]:
        if fed and not are_taken(fed, fetched_elements(fetches, self._graph)):
            return self.step_for(fetches, (), gives_first)
        elements = not_fed(fetched_elements(fetches, self._graph), fed)
        if _is_watched(elements, self._graph):
            return GuardedStep([], [], tf1.train.SessionRunArgs(fetches), True, [])
        training = self._updates.by_update(elements, fed)
        joined = self._joined(training, elements, fed)
        beside = self._beside(elements, joined) if joined and not gives_first else []
        if beside:
            joined = self._joined([joined[0] + beside, *joined[1:]], elements, fed)
        parts: List[Optional[Gated]] = []
        written: List[tf.Operation] = []
        for together in joined:
            part = self._guarded(together, fed)
            if part is None:
                keys = set(map(element_key, together))
                apart = [each for each in training if element_key(each[0]) in keys]
                apart = [each for each in apart if len(each) < len(together)]
                parts += [self._guarded(each, fed) for each in apart]
            else:
                parts.append(part)
                written += written_in(beside, self._graph) if together is joined[0] else []
        trains = bool(parts)
        if not trains and not gives_first:
            writing = self._own_updates.among(elements, fed)
            if writing:
                parts.append(self._guarded(writing, fed, self._own_updates.guard))
                written = written_in(writing, self._graph)
        guarded = [part for part in parts if part is not None]
        if not guarded:
            return None
        own = [part.gate for part in guarded]
        names = [part.name for part in guarded if trains]
        asked = [_through_gates(fetches, guarded, self._graph), [gate.train_op for gate in own]]
        return GuardedStep(own, names, tf1.train.SessionRunArgs(asked), False, written)

    def _guarded(
        self,
        together: Sequence[TrainOp],
        fed: Sequence[tf.Tensor],
        guard: Optional[Callable[..., gates.Gate]] = None,
    ) -> Optional[Gated]:
        """Elements that are fetched together, with their gate; None if they cannot be guarded."""
        try:
            with tf_private.unfinalized(self._graph):
                made = Gated((guard or self._guard)(together, fed), together)
        except gates.NoLearningRateError:
            raise
        except (ValueError, TypeError) as error:
            self._account.refuse(getattr(error, 'name', together[-1].name), error)
            return None
        if made.gate.loss is None and (guard is None or self._max_loss is not None):
            why = self._notes.why_unknown(made.gate.original, fed)
            if why or self._max_loss is not None:
                self._account.say_no_loss(made.name, why)
        return made

    def _joined(
        self,
        groups: Sequence[List[TrainOp]],
        elements: Sequence[TrainOp],
        fed: Sequence[tf.Tensor],
    ) -> List[List[TrainOp]]:
        """The groups, with other fetched elements that would make writes of their gates."""

        def gated_writes_of(together: Sequence[TrainOp]) -> Set[tf.Operation]:
            try:
                with tf_private.unfinalized(self._graph):
                    train_op, loss, *_ = self._to_guard(together, fed)
                    return gated_writes(train_op, loss, fed)
            except (ValueError, TypeError):  # `_guarded` will report the error
                return set()

        return self._updates.join(groups, elements, fed, gated_writes_of) if groups else []

    def _beside(
        self,
        elements: Sequence[TrainOp],
        training: Sequence[List[TrainOp]],
    ) -> List[TrainOp]:
        """The elements that do not train, but write values of the first training group's batch."""
        ends = {element_key(each) for together in training for each in together}
        others = [each for each in each_once(elements) if element_key(each) not in ends]
        others = [e for e in others if not is_ours(e) and not graphs.is_enqueue(op_of(e))]
        return written_beside(others, training[0], self._account.refuse)

    def _guard(self, elements: Sequence[TrainOp], fed: Sequence[tf.Tensor]) -> gates.Gate:
        """The gate of elements that are fetched together; it replaces gates of single elements."""
        train_op, loss, max_loss, values = self._to_guard(elements, fed)
        try:
            return guard_with_values(train_op, loss, max_loss, values, fed)
        except NoLossError:
            return guard_with_values(train_op, loss, None, values, fed)

    def _to_guard(
        self, elements: Sequence[TrainOp], fed: Sequence[tf.Tensor]
    ) -> Tuple[TrainOp, Optional[tf.Tensor], Optional[float], List[tf.Tensor]]:
        """The train op, loss, `max_loss` and values to pass to `guard_with_values` for a gate."""
        owns = [gate for gate in map(gates.gate_of, elements) if gate is not None]
        elements = [gates.original_of(each) for each in elements]
        train_op = _train_op_of(elements, self._graph)
        loss = self._notes.loss_of(train_op, fed)
        if fed:
            train_op = _group(map(op_of, elements), self._graph)
        elif loss is not None and isinstance(train_op, tf.Tensor):
            if key(_behind(train_op)) != key(_behind(loss)):
                train_op = op_of(train_op)  # else a gate would take its value for the loss
        known = gates.gates_of(self._graph).get(op_of(train_op).name)
        if known is not None:  # guarded before, perhaps as an op without the value
            train_op = known.original
        values = [e for e in elements if isinstance(e, tf.Tensor) and e is not train_op]
        max_loss = self._max_loss
        for own in owns:  # settings of the script's own `guard`
            loss = loss if own.loss is None or fed else own.loss
            max_loss = own.max_loss or max_loss
        return train_op, loss, max_loss, values


def _behind(value: tf.Tensor) -> tf.Tensor:
    """The tensor behind copies and checks of it."""
    while value.op.type in ('Identity', 'CheckNumerics', 'CheckNumericsV2'):
        value = value.op.inputs[0]
    return value


def _is_watched(elements: Sequence[TrainOp], graph: tf.Graph) -> bool:
    """Whether a run fetches the gate's tensors that are meant for hooks."""
    names = {each.name for each in elements}
    return any(not names.isdisjoint(gate.untold.counts) for gate in gates.gates_of(graph).values())


def _train_op_of(elements: Sequence[TrainOp], graph: tf.Graph) -> TrainOp:
    """The train op to guard: the element that needs all others, or a group of them."""
    own = {op_of(element) for element in elements}
    for element in sorted(elements, key=lambda each: isinstance(each, tf.Operation)):
        if own <= set(graphs.ancestors([op_of(element)])):
            return element
    return _group(own, graph)


def _group(own: Iterable[tf.Operation], graph: tf.Graph) -> tf.Operation:
    with ops.our_scope(graph, 'step'):
        return ops.group(own, 'together')


def _through_gates(fetches, parts: Sequence[Gated], graph: tf.Graph) -> Any:
    """`fetches` in the same structure, with the gates' tensors for the elements of `parts`."""
    stand_ins = {
        element_key(element): _stand_in(element, part.gate)
        for part in parts
        for element in part.elements
    }

    def stand_in(fetch):
        elements = fetched_elements(fetch, graph)
        other = stand_ins.get(element_key(elements[0])) if len(elements) == 1 else None
        return fetch if other is None else other

    return map_fetches(fetches, stand_in)


def _stand_in(element: TrainOp, gate: gates.Gate) -> TrainOp:
    if isinstance(element, tf.Operation):
        return op_of(gate.train_op)
    return gate.values.get(element_key(gates.original_of(element)), gate.train_op)

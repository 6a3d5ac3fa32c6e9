"""`Gate`: the tensors and properties of a guarded train op; and the gates of a graph."""

import dataclasses
from typing import (
    Any,
    Callable,
    Dict,
    FrozenSet,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.gate.building.announcement import Untold
from slimguard.gate.building.flags import Label, Verdict, explain
from slimguard.gate.building.outcome import Measures, guarded_by
from slimguard.gate.building.ranks import Ranks
from slimguard.graph import TrainOp, Writes, key, op_of, ops


class Beside(NamedTuple):
    """A guarded run that a thread makes beside the steps of a gate.

    Attributes:
      gate: the gate of that run.
      count: int32 scalar, how many bad runs no watcher has read yet, after a step.
    """

    gate: 'Gate'
    count: tf.Tensor


@dataclasses.dataclass(eq=False)
class Gate:
    """The tensors and properties of one guarded train op; hooks and loops fetch from it.

    Attributes:
      train_op: the guarded train op: a Tensor or an Operation, as the given one was.
      original: the train op that was given.
      loss: the floating scalar that counts as the step's loss, or None.
      written: bool scalar, whether the step was written. This, `bad` and `step` are read after the
        step is done.
      bad: bool vector, an element for each of `labels`; all False if the step was written.
      labels: a `Label` for each element of `bad`.
      step: the global step after the step, or None if the graph has none.
      watched: bool scalar to feed. If it is True, a bad step neither prints nor raises.
      untold: in a session that is watched, keeps the report of a bad step instead of printing or
        raising; see `Untold`.
      untold_count: int32 scalar, how many bad steps `untold` keeps after this one.
      is_good: bool scalar, whether a step off the fast path is written; dead on the fast path, so
        ops that wait for it cost nothing there.
      limit: float64 scalar to feed: the largest loss that is no incident; None without a loss.
      norm_limit: float64 scalar to feed: half the square of the largest gradient norm that is no
        incident; Inf unless it is fed.
      measures: loss, learning rate and gradients of a step, to fetch; see `Measures`.
      row: `measures` and `untold_count` in one vector; see `Measures.row`.
      max_loss: the default of `limit`, or None.
      gated: the ops of the given train op whose clones run behind the switch.
      writes: the clone of each write in `gated`.
      raises: whether a bad step raises `InvalidArgumentError` in the session.
      values: by the key of a tensor fetched beside the train op, the tensor to fetch in its place.
      transient: the ops of the variables that any bad step may make non-finite until it restores
        them; another thread may read them in between. Empty for most gates, since their bad steps
        write, and then undo, only an update that overflows inside the optimizer.
      beside: the guarded runs that threads make beside these steps: the updates of the chief of
        synchronous replicas, and summaries that write.
      takes_from: for the gate of a chief's update, the accumulators that it takes gradients from.
      is_beside: whether a thread makes the gate's runs; the steps do not fetch this gate.
      fed: the computed tensors that runs of the step feed; empty for most gates.
      trains: whether it may guard a train op; False for a run that only writes.
      ranks: the processes that run the step together, and decide as one; see `Ranks`.
    """

    train_op: TrainOp
    original: TrainOp
    written: tf.Tensor
    bad: tf.Tensor
    labels: Tuple[Label, ...]
    step: Optional[tf.Tensor]
    watched: Any  # a feed's key, but type stubs call a Tensor unhashable
    untold: Untold
    untold_count: tf.Tensor
    is_good: tf.Tensor
    loss: Optional[tf.Tensor]
    limit: Any
    norm_limit: Any
    measures: Measures
    row: tf.Tensor
    max_loss: Optional[float]
    gated: FrozenSet[tf.Operation]
    writes: Dict[tf.Operation, tf.Operation]
    raises: bool
    values: Dict[Any, tf.Tensor]
    transient: Tuple[tf.Operation, ...]
    takes_from: FrozenSet[tf.Operation]
    is_beside: bool
    fed: Tuple[tf.Tensor, ...]
    trains: bool
    ranks: Ranks
    beside: Tuple[Beside, ...] = ()

    def run_beside(self, other: 'Gate') -> None:
        """Lets this gate's watchers learn of bad runs of `other`, which a thread runs."""
        other.is_beside = True
        with ops.our_scope(self.train_op.graph, 'beside'):
            self.beside += (Beside(other, other.untold.count_after(self.bad)),)

    @property
    def limits(self) -> List[tf.Tensor]:
        """`limit` and `norm_limit`, but only those that the gate compares with something."""
        limits = [] if self.limit is None else [self.limit]
        return limits + ([self.norm_limit] if self.measures.gradients else [])

    def explain(
        self,
        bad: Sequence[bool],
        limits: Optional[Mapping[str, str]] = None,
        max_loss: Optional[float] = None,
    ) -> Verdict:
        """Puts a fetched `bad` vector into words.

        Args:
          bad: the values of `bad`.
          limits: as for `flags.explain`.
          max_loss: the limit of the loss in that run; None for the gate's own, if it has one.
        """
        most = self.max_loss if max_loss is None else max_loss
        verdict = explain(self.labels_of(bad), limits, most)
        where = ''
        if self.is_beside:
            where = "in the chief's update: " if self.takes_from else 'in a run of the summaries: '
        return verdict._replace(reason=where + verdict.reason)

    def labels_of(self, bad: Sequence[bool]) -> List[Label]:
        """The labels of the flags that are set in a fetched `bad` vector."""
        return [label for label, is_bad in zip(self.labels, bad) if is_bad]


def gates_of(graph: tf.Graph) -> Dict[str, Gate]:
    """The gates of a graph, each by two names: of its original and of its guarded train op."""
    return graphs.kept_on(graph, 'gates', dict)


def ranks_in(graph: tf.Graph) -> Ranks:
    """The processes that run a graph's guarded steps together; or this process alone."""
    found = (gate.ranks for gate in gates_of(graph).values())
    return next((each for each in found if each.are_several), Ranks())


def variables_behind_gates(graph: tf.Graph) -> Set[tf.Operation]:
    """The ops of the variables that guarded train ops of a graph write."""
    writes = Writes(graph)
    found: Set[tf.Operation] = set()
    for gate in dict.fromkeys(gates_of(graph).values()):
        found.update(gate.transient, *map(writes.variables, gate.writes))
    return found


def gate_of(train_op: TrainOp) -> Optional[Gate]:
    """The gate of a guarded train op, or None if it is not guarded."""
    op = op_of(train_op)
    gate = gates_of(op.graph).get(op.name)
    return gate if gate is not None and op_of(gate.train_op) is op else None


def original_of(train_op: TrainOp) -> TrainOp:
    """The original of a guarded train op; `train_op` itself if it is not guarded.

    An imported graph may hold train ops that were guarded when it was saved. Their `Gate` objects
    are lost, so no watcher can watch them.
    """
    gate = gate_of(train_op)
    if gate is not None:
        return gate.original
    original = guarded_by(train_op)
    return train_op if original is None else original


def through_gates(
    graph: tf.Graph, fed: Sequence[tf.Tensor] = ()
) -> Callable[[tf.Operation], Iterable[tf.Operation]]:
    """A function for `graphs.ancestors`: the ops that an op needs if the tensors `fed` are fed.

    It returns only the original for a guarded train op, to find ancestors through gates.
    """
    fed_keys = set(map(key, fed))
    originals = {op_of(gate.train_op): op_of(gate.original) for gate in gates_of(graph).values()}

    def needs(op: tf.Operation) -> Iterable[tf.Operation]:
        original = originals.get(op)
        return graphs.needs(op, fed_keys) if original is None else [original]

    return needs

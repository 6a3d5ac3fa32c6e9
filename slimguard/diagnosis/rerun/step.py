"""A step that can be run again, as often as one likes, without writing."""

from typing import Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, TypeVar

import numpy as np
import tensorflow as tf

from slimguard import graph as graphs
from slimguard.diagnosis.ranges import numbers
from slimguard.diagnosis.rerun.chunks import bytes_of, in_chunks
from slimguard.diagnosis.step_ops import (
    AnyGate,
    gate_roots,
    ops_up_to,
    split_at_gate,
)
from slimguard.graph import key, single_runs
from slimguard.graph.control_flow import Flow
from slimguard.graph.source_lines import Origin

_CHUNK_BYTES = 192 << 20  # fetched at once
_T = TypeVar('_T')


def batch_size(drawn: Iterable[Tuple[str, np.ndarray]]) -> Optional[int]:
    """The first dimension of the bad arrays; else that of most arrays; random ones count least.

    Args:
      drawn: what a step drew: the type of each op, and its value.
    """
    sizes: Dict[int, float] = {}
    for op_type, value in drawn:
        if np.ndim(value):
            is_bad = value.dtype.kind not in 'OSUbiu' and not np.isfinite(numbers(value)).all()
            weight = 100.0 if is_bad else (0.01 if 'Random' in op_type else 1.0)
            sizes[len(value)] = sizes.get(len(value), 0.0) + weight
    return max(sizes, key=lambda size: sizes[size]) if sizes else None


def with_rows_replaced(
    drawn: Dict[_T, np.ndarray], rows: Sequence[int], of: int, other: int
) -> Dict[_T, np.ndarray]:
    """What a step drew, with copies of the row `other` in the place of some of a batch of `of`.

    An array belongs to the batch if its first dimension is the batch's. Many graphs are built for
    batches of one size, so no row is taken out.
    """
    replaced = dict(drawn)
    for name, value in drawn.items():
        if np.ndim(value) and len(value) == of:
            replaced[name] = np.array(value)
            replaced[name][list(rows)] = value[other]
    return replaced


class Step:
    """A step to run again.

    Args:
      session: the session, with the variables as they were before the step.
      gate: the `Gate`, or a `GateCopy`.
      feed: what the step drew, by Tensor names.
      origins: returns the origin of the op of a name.
      names: by the name of a tensor that stands in for another: the other's name, its op's type.
      givens: by the name of a source, the names of the float tensors it was computed from.
      restore: called after each run, to undo what it wrote; None if a run writes nothing.

    Attributes:
      ops: the ops to run again, in topological order, without the gate's own and without ops that
        only fed tensors need.
      ours: the ops of the gate.
      checked: the float tensors that the gate checks and the gated ops take.
    """

    def __init__(
        self,
        session,
        gate: AnyGate,
        feed: Dict[str, np.ndarray],
        origins: Callable[[str], Origin],
        names: Dict[str, Tuple[str, str]],
        givens: Dict[str, List[str]],
        restore: Optional[Callable[[], None]] = None,
    ):
        self.session = session
        self.gate = gate
        self.graph = session.graph
        self.feed = {self.graph.get_tensor_by_name(name): v for name, v in feed.items()}
        self.origins = origins
        self._names = names
        self._restore = restore
        self._fed = {key(t) for t in self.feed}
        self.ours, self.checked = split_at_gate(gate)
        self._givens = {
            key(self.graph.get_tensor_by_name(name)): list(
                map(self.graph.get_tensor_by_name, given)
            )
            for name, given in givens.items()
        }
        also = [t for given in self._givens.values() for t in given]
        self.ops = ops_up_to(self.checked + also, self._fed)
        self.flow = Flow(graphs.ancestors(gate_roots(gate)))
        self._taken: Dict[Tuple[tf.Operation, int], bool] = {}
        self._find_taken()

    def is_fed(self, tensor: tf.Tensor) -> bool:
        return key(tensor) in self._fed

    def givens_of(self, tensor: tf.Tensor) -> List[tf.Tensor]:
        """The float tensors that the value fed as `tensor` was computed from, as far as known."""
        return list(self._givens.get(key(tensor), ()))

    def needs(self, op: tf.Operation) -> Iterator[tf.Operation]:
        """The ops that an op needs, and the ops that computed the values fed to it."""
        yield from graphs.needs(op)
        for tensor in op.inputs:
            yield from (given.op for given in self.givens_of(tensor))

    def name_of(self, tensor: tf.Tensor) -> str:
        """The name that `tensor` has in the user's graph."""
        return self._names.get(tensor.name, (tensor.name,))[0]

    def type_of(self, op: tf.Operation) -> str:
        """The type that `op` has in the user's graph."""
        for tensor in op.outputs[:1]:
            if tensor.name in self._names:
                return self._names[tensor.name][1]
        return op.type

    def can_fetch(self, tensor: tf.Tensor) -> bool:
        """Whether `tensor` has one value in this step."""
        if self.is_fed(tensor):
            return True
        if self.flow.is_in_loop(tensor.op):
            return False
        conditions = self.flow.conditions(tensor)
        return all(self._taken.get(c.pred) == c.value for c in conditions)

    def fetch(self, tensors: Sequence[tf.Tensor]) -> List[Optional[np.ndarray]]:
        """Runs the step as far as `tensors`. None stands for a tensor that has no value."""
        fed = {key(t): value for t, value in self.feed.items()}
        values: Dict[Tuple[tf.Operation, int], Optional[np.ndarray]] = {}
        to_run = []
        for tensor in tensors:
            if key(tensor) in fed:
                values[key(tensor)] = fed[key(tensor)]
            else:
                to_run.append(tensor)
        values.update(zip([key(t) for t in to_run], self._run_or_split(to_run)))
        return [values[key(t)] for t in tensors]

    def fetch_without(
        self, tensor: tf.Tensor, rows: Sequence[int], of: int
    ) -> Optional[np.ndarray]:
        """As `fetch` of one tensor, with another row in the place of some of a batch of `of`."""
        other = next(row for row in range(of) if row not in rows)
        drawn, self.feed = self.feed, with_rows_replaced(self.feed, rows, of, other)
        try:
            return self.fetch([tensor])[0]
        finally:
            self.feed = drawn

    def in_chunks(self, tensors: Iterable[tf.Tensor]) -> Iterable[List[tf.Tensor]]:
        """`tensors` in lists that fit into memory beside a training, as far as shapes are known."""
        rows = max([v.shape[0] for v in self.feed.values() if np.ndim(v)], default=1)
        return in_chunks(tensors, lambda tensor: bytes_of(tensor, rows), _CHUNK_BYTES)

    def _run(self, tensors: List[tf.Tensor]) -> List[Optional[np.ndarray]]:
        is_in_branch = not all(map(self.graph.is_fetchable, tensors))
        run = single_runs.fetch_once if is_in_branch else single_runs.run_once
        values = run(self.session, tensors, self.feed)
        if self._restore is not None:
            self._restore()
        return values

    def _run_or_split(self, tensors):
        if not tensors:
            return []
        try:
            return self._run(list(tensors))
        except tf.errors.InvalidArgumentError as error:
            if len(tensors) == 1:
                if 'not have value' in error.message or 'was dead' in error.message:
                    return [None]  # its branch did not run after all
                raise
            half = len(tensors) // 2
            return self._run_or_split(tensors[:half]) + self._run_or_split(tensors[half:])

    def _find_taken(self) -> None:
        """Finds out which branches the step took: outer conditions first, then those inside."""
        conditions = {c for op in self.ops for t in op.outputs for c in self.flow.conditions(t)}
        preds = {c.pred: c.pred[0].outputs[c.pred[1]] for c in conditions}
        waiting = {k: t for k, t in preds.items() if not self.flow.is_in_loop(t.op)}
        while True:
            ready = [t for t in waiting.values() if self.can_fetch(t)]
            if not ready:
                return
            for tensor, value in zip(ready, self.fetch(ready)):
                del waiting[key(tensor)]
                if value is not None:
                    self._taken[key(tensor)] = bool(value)

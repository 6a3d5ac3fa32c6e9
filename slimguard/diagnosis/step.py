"""A step that can be run again, as often as one likes, without writing.

The diagnosis works on a :class:`Step`: a session, the ops of the step, and the values to feed in
place of its sources. The step is the training's own (:func:`live_step`) if running the forward and
the backward pass again writes and draws nothing. Otherwise, and in another process, it comes from
:mod:`step_copy`: a graph and a session of its own, with a copy of the variables.
"""

from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
    Union,
)

import numpy as np
import tensorflow as tf

from slimguard import graph as graphs
from slimguard.diagnosis.capture import Capture, gate_roots
from slimguard.diagnosis.ranges import numbers
from slimguard.gate import Gate, Label
from slimguard.graph import key, single_runs
from slimguard.graph.control_flow import Flow
from slimguard.graph.source_lines import Origin, Origins

# Fetched at once. More takes more memory, and less takes more runs, each of which takes a good part
# of a second in a large graph.
_CHUNK_BYTES = 192 << 20
_UNKNOWN_BYTES = 1 << 20  # what a tensor of unknown rank counts for
_T = TypeVar('_T')


class GateCopy(NamedTuple):
    """The attributes of a gate in another graph; see `slimguard.gate.Gate`."""

    train_op: Any
    loss: Optional[tf.Tensor]
    written: tf.Tensor
    bad: tf.Tensor
    labels: Tuple[Label, ...]
    watched: tf.Tensor


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
        gate: Union[Gate, GateCopy],
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
        self.ours, self.checked = _split_at_gate(gate)
        self._givens = {
            key(self.graph.get_tensor_by_name(name)): list(
                map(self.graph.get_tensor_by_name, given)
            )
            for name, given in givens.items()
        }
        also = [t for given in self._givens.values() for t in given]
        self.ops = _ops_up_to(self.checked + also, self._fed)
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
        return _in_chunks(tensors, rows)

    def _run(self, tensors: List[tf.Tensor]) -> List[Optional[np.ndarray]]:
        values = single_runs.run_once(self.session, tensors, self.feed)
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


def live_step(session, capture: Capture, values: Dict[str, np.ndarray]) -> Step:
    """The step in the training's own session. Use it if `can_run_live` says so."""
    givens = {name: [t.name for t in given] for name, given in capture.givens.items()}
    return Step(session, capture.gate, values, Origins(session.graph), {}, givens)


def can_run_live(capture: Capture, values: Dict[str, np.ndarray]) -> bool:
    """Whether the forward and backward pass can be run again in the training's own session.

    They would write or draw in three cases: the loss waits for a write of a moving average; an op
    waits for an iterator without using its output; or a function draws, since TensorFlow inlines
    calls before it looks at feeds. Where an op is in a branch, `run` refuses to fetch it; in a
    copied graph TensorFlow does not notice the branch.
    """
    fed = {key(t) for t in capture.sources if t.name in values}
    drawn = {op for op, _ in fed}
    _, checked = _split_at_gate(capture.gate)
    writes = graphs.Writes(capture.gate.bad.graph)
    if any(writes.calls(op) for op in drawn):
        return False
    also = [t for given in capture.givens.values() for t in given]
    ops = _ops_up_to(checked + also, fed)
    if any(op in drawn or op in writes for op in ops):
        return False
    flow = Flow(ops)
    return all(op.graph.is_fetchable(op) or flow.is_in_loop(op) for op in ops)


def _split_at_gate(gate: Union[Gate, GateCopy]) -> Tuple[List[tf.Operation], List[tf.Tensor]]:
    """The ops of a gate, and the float tensors of the user's graph that they take."""
    ours = [op for op in graphs.ancestors(gate_roots(gate)) if op.name.startswith(graphs.OURS)]
    taken = {key(t): t for op in ours for t in op.inputs if not t.op.name.startswith(graphs.OURS)}
    return ours, [t for t in taken.values() if graphs.is_float(t)]


def _ops_up_to(checked: Sequence[tf.Tensor], fed) -> List[tf.Operation]:
    """The ops that `checked` need if the tensors whose keys are in `fed` are fed."""
    roots = [t.op for t in checked if key(t) not in fed]
    return graphs.ancestors(roots, lambda op: graphs.needs(op, fed))


# In parts.


def _in_chunks(tensors: Iterable[tf.Tensor], rows: int = 1) -> Iterator[List[tf.Tensor]]:
    """`tensors` in lists of at most `_CHUNK_BYTES`; a larger one is in a list of its own."""
    chunk: List[tf.Tensor] = []
    size = 0
    for tensor in tensors:
        more = bytes_of(tensor, rows)
        if chunk and size + more > _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(tensor)
        size += more
    if chunk:
        yield chunk


def variables_in_chunks(
    session, capture: Capture, names: Iterable[str]
) -> Iterator[Dict[str, np.ndarray]]:
    """The values of a step's variables, in parts that fit into memory, by the ops' names."""
    names_of = {key(capture.reads[name]): name for name in names}
    for chunk in _in_chunks([capture.reads[name] for name in names_of.values()]):
        yield single_runs.run_once(session, {names_of[key(read)]: read for read in chunk})


def bytes_of(tensor: tf.Tensor, rows: int = 1) -> int:
    """About how many bytes a tensor has; a dimension that is not known counts as `rows`."""
    if tensor.shape.rank is None:
        return _UNKNOWN_BYTES
    sizes = [size or rows for size in tensor.shape.as_list()]
    return int(np.prod(sizes, dtype=np.float64)) * max(tensor.dtype.base_dtype.size, 1)

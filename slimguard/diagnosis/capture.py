"""Keeps what a bad step *drew*: input and random numbers, such as its batch and dropout masks.

:class:`Capture` finds these *sources* by walking the graph back from a gate, and adds ops that keep
their values, in the graph, when the gate finds the step bad. On good steps these ops are a dead
branch: no copy, no fetch. Nothing is drawn a second time.

    capture = Capture(gate)                          # before the graph is finalized
    row = session.run([gate.train_op, capture.row], ...)[1]
    values = capture.take(session)                   # after a bad step; a dictionary of arrays

How it works
------------
These are sources: a placeholder; a stateful op that is no variable (iterators, queues, tables,
random ops, `py_func`); an op that takes a handle of such an op; a write whose value is used, such
as a counter that picks the batch; and a variable that is read after a write in the same step. A v2
`tf.cond` or `tf.function` that contains a source is a source as a whole. A tensor that the gate's
runs feed is a source in place of the ops that compute it.

A bad step leaves the variables unchanged. So it computes the same again if the kept values are fed.

A staging area keeps the values. Each branch of a v1 `tf.cond` has a staging area of its own, since
an op in a branch that was not taken has no value. Inside a v1 `tf.while_loop` a source has a value
in each iteration, and none of them can be fetched: `missing` lists such sources.
"""

import threading
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.diagnosis.draws import Draws, is_handle, is_written_value
from slimguard.gate import Gate, Label
from slimguard.graph import key, op_of, ops, single_runs
from slimguard.graph.ops import StagingArea
from slimguard.incidents.history import History
from slimguard.incidents.incident import Incident

# The most bytes that one run fetches. More bytes take more memory; fewer bytes take more runs, and
# one run of a large graph takes a good part of a second.
_CHUNK_BYTES = 192 << 20
_UNKNOWN_BYTES = 1 << 20  # the assumed size of a tensor of unknown rank


class Capture:
    """The sources of a gate's step, and the ops that keep their values after a bad one.

    Args:
      gate: the gate of the train op. Its graph must not be finalized.

    Attributes:
      gate: the gate.
      ops: the ops of the step without the gate's own, in topological order.
      sources: the Tensors whose values are kept.
      missing: the ops whose drawn values cannot be kept.
      givens: by the name of a source, the float Tensors that its value is computed from: the
        inputs of a `py_func` or a collective, or the values that the step wrote to the variable.
      reads: by the name of each variable op of the step, a Tensor that only reads the variable.
      row: the gate's `row`; after a bad step it waits until the values are kept. Fetch this one in
        every step, not the gate's.
      exported: the step as plain data, once `export` has made it; else None.

    Raises:
      RuntimeError: if the graph is finalized.
    """

    def __init__(self, gate: Gate):
        self.gate = gate
        self.exported: Any = None
        # Several threads may train in one session. Only one may take at a time, since taking from
        # an empty area blocks. A bad step that clears an area at that moment fills it again.
        self._taking = threading.Lock()
        self._graph = gate.bad.graph
        if self._graph.finalized:
            raise RuntimeError(
                'the graph is finalized, so nothing can be captured any more. Make the Capture '
                'right after the train op is guarded'
            )
        everything = graphs.ancestors_beyond(gate.fed, gate_roots(gate))
        self.ops = [op for op in everything if not op.name.startswith(graphs.OURS)]
        self.variables = [op for op in everything if op.type in graphs.VARIABLES]
        draws = Draws(self._graph, self.ops)
        self.draws = [op for op in self.ops if op in draws]
        self.sources, self.missing = self._split(set(everything))
        self.givens = self._find_givens(draws.writes)
        with ops.our_scope(self._graph, 'capture'):
            self.reads = {v.name: _read(v) for v in self.variables}
            with tf.device(self._device()):
                self._build()

    def take(self, session) -> Dict[str, np.ndarray]:
        """Empties the staging areas. Returns what the last bad step drew, by the Tensors' names.

        Sources in branches that were not taken are left out. After a good step the dictionary is
        empty.
        """
        values = {}
        with self._taking:
            full = self._full_areas(session)
            while full:
                unstages = [area.unstage for area in full]
                for area, taken in zip(full, single_runs.run_once(session, unstages)):
                    for tensor, value in zip(area.tensors, taken):
                        values[tensor.name] = np.asarray(value)
                full = self._full_areas(session)
        return values

    def bytes_to_copy(self) -> int:
        """Estimates how many bytes of variables a copy of the step needs."""
        return sum(bytes_of(self.reads[op.name]) for op in self.ops if op.name in self.reads)

    def variables_in(self, session, names: Iterable[str]) -> Iterator[Dict[str, np.ndarray]]:
        """Yields values of the step's variables by op name, in parts that fit into memory."""
        names_of = {key(self.reads[name]): name for name in names}
        for chunk in in_chunks([self.reads[name] for name in names_of.values()]):
            yield single_runs.run_once(session, {names_of[key(read)]: read for read in chunk})

    def _full_areas(self, session) -> List['_Area']:
        sizes = single_runs.run_once(session, [area.size for area in self._areas])
        return [area for area, size in zip(self._areas, sizes) if size]

    def _split(self, step) -> Tuple[List[tf.Tensor], List[tf.Operation]]:
        sources = self.gate.limits + _fed_within(self.gate.fed, step)
        missing = []
        for op in self.draws:
            if graphs.loop_around(op) is not None:
                missing.append(op)
                continue
            used = [t for t in op.outputs if not step.isdisjoint(t.consumers())]
            sources.extend(t for t in used if not is_handle(t))
        sources = list({key(t): t for t in sources}.values())
        # An op is missing only if the step needs it even when all sources are fed.
        reached = set(graphs.ancestors_beyond(sources, gate_roots(self.gate)))
        return sources, [op for op in missing if op in reached]

    def _find_givens(self, writes: graphs.Writes) -> Dict[str, List[tf.Tensor]]:
        written: Dict[tf.Operation, List[tf.Tensor]] = {}
        for op in self.ops:
            for variable in writes.variables(op):
                written.setdefault(variable, []).extend(v.tensor for v in graphs.values_of(op))
        drawn, givens = set(self.draws), {}
        for source in self.sources:
            op = source.op
            if op not in drawn or op.type == 'PlaceholderWithDefault':
                continue  # a limit of the gate, or a tensor that the script feeds
            given = [t for t in op.inputs if graphs.is_float(t) and not graphs.is_reference(t)]
            if is_written_value(op.type):
                variable = graphs.variable_read(source) or graphs.variable_behind(source)
                given = written.get(variable, given) if variable is not None else given
            given = [t for t in given if self._is_kept(t)]
            if given:
                givens[source.name] = given
        return givens

    def _is_kept(self, tensor: tf.Tensor) -> bool:
        """Whether `tensor` can be computed again, since all its sources are kept."""
        kept = {key(t) for t in self.sources}
        ops = graphs.ancestors_beyond(self.sources, [] if key(tensor) in kept else [tensor.op])
        in_loop = graphs.loop_around(tensor.op) is not None
        return not in_loop and not any(op in self.draws for op in ops)

    def _device(self) -> tf1.DeviceSpec:
        """The CPU of the gate's task, so that the kept values take no accelerator memory."""
        device = tf1.DeviceSpec.from_string(self.gate.written.device)
        device.device_type, device.device_index = 'CPU', 0
        return device

    def _build(self) -> None:
        # The switch passes `watched`, not its own predicate: see gate/building/builder.py.
        is_good = self.gate.is_good
        bad = tf.raw_ops.Switch(data=self.gate.watched, pred=is_good).output_false
        self._areas = [_Area(self._graph, tensors) for tensors in self._by_branch()]
        # An older bad step's values are cleared first, since staging into a full area blocks.
        with tf.control_dependencies([tf.identity(bad, name='bad_step')]):
            cleared = [area.clear() for area in self._areas]
        staged = [area.stage(is_good, cleared) for area in self._areas]
        self.row = self.gate.measures.row(self._count_after(staged, bad))
        self.gate.untold.counts.add(self.row.name)

    def _count_after(self, staged: List[tf.Operation], bad: tf.Tensor) -> tf.Tensor:
        """The gate's `untold_count`; after a bad step it waits for the `staged` ops that run."""
        kept = []
        for area, stage in zip(self._areas, staged):
            token = ops.after([stage], bad, 'kept')
            kept.append(ops.lift(token, area.tensors[0].op, False))
        good, after_bad = ops.branch(self.gate.untold_count, self.gate.written, 'told')
        count = ops.merge([good, ops.after(kept, after_bad, 'told_when_kept')], 'untold')
        self.gate.untold.counts.add(count.name)
        return count

    def _by_branch(self) -> List[List[tf.Tensor]]:
        """The sources, grouped by the branch that they run in."""
        groups: Dict[object, List[tf.Tensor]] = {}
        for tensor in self.sources:
            groups.setdefault(graphs.flow_around(tensor.op), []).append(tensor)
        return list(groups.values())


class BadStep(NamedTuple):
    """A bad step, as `diagnose` and `bundle.write` take it.

    Attributes:
      session: the session of the training, with the variables as the step left them.
      capture: the `Capture` of the train op.
      values: what the step drew, as `capture.take` returned it.
      labels: what the gate found to be bad: the labels of the true elements of `gate.bad`.
      incident: the `Incident`; a bundle needs it.
      history: the last steps, the bad one included; None if they are not known.
      explosion: the sentence of `explosion_in` on the history; '' if it shows no explosion.
    """

    session: Any
    capture: Capture
    values: Dict[str, np.ndarray]
    labels: Sequence[Label] = ()
    incident: Optional[Incident] = None
    history: Optional[History] = None
    explosion: str = ''


class _Area:
    """A staging area for the tensors of one branch, on the device of the scope it is made in."""

    def __init__(self, graph: tf.Graph, tensors: List[tf.Tensor]):
        self.tensors = tensors
        self._area = StagingArea(graph, [t.dtype for t in tensors], 'area')
        self.size = self._area.size()
        self.unstage = self._area.take()

    def clear(self) -> tf.Operation:
        return self._area.clear()

    def stage(self, is_good: tf.Tensor, cleared: List[tf.Operation]) -> tf.Operation:
        values = []
        for tensor in self.tensors:
            with tensor.op.graph.colocate_with(tensor.op):
                # Copy a ref: it would be read late, when another op may have written to it again.
                value = tf.raw_ops.DeepCopy(x=tensor) if graphs.is_reference(tensor) else tensor
                values.append(tf.raw_ops.Switch(data=value, pred=is_good).output_false)
        with tf.control_dependencies(cleared):
            return self._area.put(values)


def _fed_within(fed: Sequence[tf.Tensor], step: Set[tf.Operation]) -> List[tf.Tensor]:
    """The fed tensors that ops of the step take.

    Raises:
      ValueError: if the step also needs the op of a fed tensor, for another of its outputs.
    """
    taken = [t for t in fed if not step.isdisjoint(t.consumers())]
    for tensor in taken:
        if tensor.op in step and not tensor.op.type.startswith('Placeholder'):
            raise ValueError('%r is fed, and the step runs its op' % tensor.name)
    return taken


def _read(variable: tf.Operation) -> tf.Tensor:
    output = variable.outputs[0]
    if output.dtype != tf.resource:
        return output
    with variable.graph.colocate_with(variable):
        dtype = tf.as_dtype(variable.get_attr('dtype'))
        return tf.raw_ops.ReadVariableOp(resource=output, dtype=dtype)


def gate_roots(gate: Any) -> List[tf.Operation]:
    """The last ops of a gate's step; these and their ancestors are the step."""
    return [op_of(gate.train_op), gate.written.op, gate.bad.op]


# Tensors in parts that fit into memory beside a training.


def in_chunks(tensors: Iterable[tf.Tensor], rows: int = 1) -> Iterator[List[tf.Tensor]]:
    """Yields `tensors` in lists of at most `_CHUNK_BYTES`; a larger tensor gets its own list."""
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


def bytes_of(tensor: tf.Tensor, rows: int = 1) -> int:
    """Estimates a tensor's size in bytes; an unknown dimension counts as `rows`."""
    if tensor.shape.rank is None:
        return _UNKNOWN_BYTES
    sizes = [size or rows for size in tensor.shape.as_list()]
    return int(np.prod(sizes, dtype=np.float64)) * max(tensor.dtype.base_dtype.size, 1)

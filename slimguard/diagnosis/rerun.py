"""A step that can be run again, as often as one likes, without writing.

:class:`Step` is what the diagnosis works on: a session, the ops of the step, and what to feed in
place of what they drew. It comes from the training itself (:func:`live_step`), where running the
forward and the backward pass again writes and draws nothing. Or it comes from a :class:`Replica`, a
graph of its own in a session of its own, with a copy of the variables: in another process, or where
the forward pass writes.
"""

from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import gate as gates
from slimguard import graph as graphs
from slimguard.diagnosis.capture import Capture, gate_roots, is_random, needs_beyond
from slimguard.diagnosis.source_lines import Origin, Origins, Recorded, record
from slimguard.graph import key, op_of
from slimguard.graph.control_flow import Flow

# What is fetched at once: larger parts take more memory, and smaller ones more runs.
_CHUNK_BYTES = 192 << 20
_VARIABLE_BYTES = 32 << 20
_UNKNOWN_BYTES = 1 << 20  # what a tensor of unknown rank counts for


class ReplayError(ValueError):
    """A step cannot be run again here; the message says what is missing."""


class GateCopy(NamedTuple):
    """What a gate's attributes are in another graph; see `slimguard.gate.Gate`."""

    train_op: Any
    loss: Optional[tf.Tensor]
    written: tf.Tensor
    bad: tf.Tensor
    labels: Tuple[gates.Label, ...]
    watched: tf.Tensor
    limit: Optional[tf.Tensor]


class Step:
    """A step to run again.

    Args:
      session: the session, with the variables as they were before the step.
      gate: the `Gate`, or a `GateCopy`.
      feed: what the step drew, by Tensor names.
      origins: says where the op of a name comes from.
      names: for a tensor that stands in for another: the other's name and its op's type.
      missing: names of ops that drew something that was not kept.
      restore: called after each run, to undo what it wrote; None if a run writes nothing.

    Attributes:
      ops: the ops to run again, each after what it needs. The gate's own are not among them, nor
        is what only what is fed needs.
      ours: the ops of the gate.
      checked: the float tensors that the gate looks at and the held ops take.
    """

    def __init__(
        self,
        session,
        gate,
        feed: Dict[str, np.ndarray],
        origins: Callable[[str], Origin],
        names: Dict[str, Tuple[str, str]],
        missing: Sequence[str],
        restore: Optional[Callable[[], None]] = None,
    ):
        self.session = session
        self.gate = gate
        self.graph = session.graph
        self.feed = {self.graph.get_tensor_by_name(name): v for name, v in feed.items()}
        self.origins = origins
        self.missing = list(missing)
        self._names = names
        self._restore = restore
        self._fed = {key(t) for t in self.feed}
        self.ours, self.checked = _looked_at(gate)
        self.ops = _ops_of(self.checked, self._fed)
        self.flow = Flow(graphs.ancestors(gate_roots(gate)))
        self._taken: Dict[Tuple[tf.Operation, int], bool] = {}
        self._find_taken()
        self._blind = self._find_blind()

    def is_fed(self, tensor: tf.Tensor) -> bool:
        return key(tensor) in self._fed

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
        """Whether `tensor` has one value in this step, and running up to it draws nothing new."""
        if self.is_fed(tensor):
            return True
        if self.flow.is_in_loop(tensor.op) or tensor.op in self._blind:
            return False
        conditions = self.flow.conditions(tensor)
        return all(self._taken.get(c.pred) == c.value for c in conditions)

    def is_blind(self, op: tf.Operation) -> bool:
        """Whether `op` cannot be run again because something it needs was not kept."""
        return op in self._blind

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

    def in_chunks(self, tensors: Iterable[tf.Tensor]) -> Iterable[List[tf.Tensor]]:
        """`tensors` in lists that fit into memory beside a training, as far as shapes are known."""
        rows = max([v.shape[0] for v in self.feed.values() if np.ndim(v)], default=1)
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

    def _run(self, tensors: List[tf.Tensor]) -> List[np.ndarray]:
        values = self.session.run(tensors, self.feed)
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
                    return [None]  # in a branch that we took for one that runs
                raise
            half = len(tensors) // 2
            return self._run_or_split(tensors[:half]) + self._run_or_split(tensors[half:])

    def _find_taken(self) -> None:
        """Which branches the step took: conditions inside branches after those around them."""
        conditions = {c for op in self.ops for t in op.outputs for c in self.flow.conditions(t)}
        preds = {c.pred: c.pred[0].outputs[c.pred[1]] for c in conditions}
        waiting = {k: t for k, t in preds.items() if not self.flow.is_in_loop(t.op)}
        self._blind = self._find_blind()
        while True:
            ready = [t for t in waiting.values() if self.can_fetch(t)]
            if not ready:
                return
            for tensor, value in zip(ready, self.fetch(ready)):
                del waiting[key(tensor)]
                if value is not None:
                    self._taken[key(tensor)] = bool(value)

    def _find_blind(self) -> set:
        """The ops that need something that was drawn and is not kept. Chance is drawn anew."""
        missing = set(self.missing)
        blind = {op for op in self.ops if op.name in missing and not is_random(op)}
        grown = bool(blind)
        while grown:  # a loop hands it back to its beginning
            found = [
                op
                for op in self.ops
                if op not in blind and any(n in blind for n in needs_beyond(op, self._fed))
            ]
            blind.update(found)
            grown = bool(found)
        return blind


def live_step(session, capture: Capture, values: Dict[str, np.ndarray]) -> Step:
    """The step in the training's own session. Use it if `can_run_live` says so."""
    missing = [op.name for op in capture.missing]
    return Step(session, capture.gate, values, Origins(session.graph), {}, missing)


def can_run_live(capture: Capture, values: Dict[str, np.ndarray]) -> bool:
    """Whether the forward and backward pass can be run again in the training's own session.

    They would write or draw where a write of a moving average has to come before the loss; where an
    op waits for an iterator and does not use what it returns; and where a function draws, since
    TensorFlow replaces calls by what is called before it looks at what is fed.
    """
    fed = {key(t) for t in capture.sources if t.name in values}
    drawn = {op for op, _ in fed}
    _, checked = _looked_at(capture.gate)
    writes = graphs.Writes(capture.gate.bad.graph)
    if any(writes.calls(op) for op in drawn):
        return False
    ops = _ops_of(checked, fed)
    if any(op in drawn or op in writes for op in ops):
        return False
    flow = Flow(ops)
    # TensorFlow lets nobody fetch what is in a branch, and loses track of that in a copy.
    return all(op.graph.is_fetchable(op) or flow.is_in_loop(op) for op in ops)


def _looked_at(gate) -> Tuple[List[tf.Operation], List[tf.Tensor]]:
    """The ops of a gate, and the float tensors of the user's graph that they take."""
    ours = [op for op in graphs.ancestors(gate_roots(gate)) if op.name.startswith(graphs.OURS)]
    taken = {key(t): t for op in ours for t in op.inputs if not t.op.name.startswith(graphs.OURS)}
    return ours, [t for t in taken.values() if graphs.is_float(t)]


def _ops_of(checked: Sequence[tf.Tensor], fed) -> List[tf.Operation]:
    roots = [t.op for t in checked if key(t) not in fed]
    return graphs.ancestors(roots, lambda op: needs_beyond(op, fed))


class Plain:
    """A step as plain data: a GraphDef without what draws, and the names to run it by.

    Attributes:
      graph_def: the ops of the step, the gate's included; a placeholder for each source.
      names: a dictionary of what JSON can hold: names of tensors, sources and variables.
    """

    def __init__(self, graph_def: tf1.GraphDef, names: Dict[str, Any]):
        self.graph_def = graph_def
        self.names = names


def export(capture: Capture) -> Plain:
    """Takes a step out of its graph. The graph is only read."""
    return _Export(capture).plain


class _Export:
    def __init__(self, capture: Capture):
        self._capture = capture
        gate = capture.gate
        self._graph = gate.bad.graph
        self._sources: Dict[tf.Operation, List[tf.Tensor]] = {}
        for tensor in capture.sources:
            self._sources.setdefault(tensor.op, []).append(tensor)
        self._flow = Flow(graphs.ancestors(gate_roots(gate)))
        # Also those that only other sources need, to look at.
        ops = graphs.ancestors(
            gate_roots(gate) + list(self._sources) + capture.variables, self._needs
        )
        self._kept = {op.name for op in ops}
        graph_def = tf1.GraphDef()
        whole = self._graph.as_graph_def()
        graph_def.versions.CopyFrom(whole.versions)
        for node in whole.node:
            if node.name in self._kept:
                op = self._graph.get_operation_by_name(node.name)
                if op in self._sources:
                    graph_def.node.extend(self._placeholders(op))
                else:
                    graph_def.node.append(self._without_ties(node))
        _copy_functions(whole.library, graph_def)
        self.plain = Plain(graph_def, self._names())

    def _needs(self, op):
        if op not in self._sources:
            return graphs.needs(op)
        # In a branch, the placeholder is to be as dead as the source was.
        in_branch = any(self._flow.conditions(t) for t in op.outputs)
        return list(graphs.needs(op)) if in_branch else []

    def _placeholders(self, op) -> List[tf1.NodeDef]:
        controls = ['^' + needed.name for needed in dict.fromkeys(self._needs(op))]
        nodes = []
        if len(op.outputs) > 1:
            nodes.append(tf1.NodeDef(name=op.name, op='NoOp', input=controls))
        for tensor in self._sources[op]:
            node = tf1.NodeDef(name=_stand_in(tensor), op='Placeholder', input=controls)
            node.attr['dtype'].type = tensor.dtype.base_dtype.as_datatype_enum
            node.attr['shape'].shape.CopyFrom(tensor.shape.as_proto())
            nodes.append(node)
        return nodes

    def _without_ties(self, node) -> tf1.NodeDef:
        """A node without its device, and with placeholders for what it took from sources."""
        if node.op == 'PrintV2':
            # Nothing is to be printed; and TensorFlow 1.15 cannot import one after a loop, where
            # it has lost sight of what is a scalar.
            controls = ['^' + self._renamed(n).lstrip('^').partition(':')[0] for n in node.input]
            return tf1.NodeDef(name=node.name, op='NoOp', input=list(dict.fromkeys(controls)))
        copy = tf1.NodeDef()
        copy.CopyFrom(node)
        copy.device = ''
        del copy.input[:]
        for name in node.input:
            copy.input.append(self._renamed(name))
        ties = copy.attr['_class'].list.s if '_class' in copy.attr else ()
        known = [t for t in ties if tf.compat.as_str(t)[len('loc:@') :] in self._kept]
        if ties:
            del copy.attr['_class']
        if known:
            copy.attr['_class'].list.s.extend(known)
        return copy

    def _renamed(self, name: str) -> str:
        if name.startswith('^'):
            return name
        op_name, _, index = name.partition(':')
        op = self._graph.get_operation_by_name(op_name)
        if op not in self._sources:
            return name
        return _stand_in(op.outputs[int(index or 0)])

    def _names(self) -> Dict[str, Any]:
        gate, capture = self._capture.gate, self._capture
        slices = _slices(self._graph)
        return {
            'made_with': tf.__version__,
            'train_op': op_of(gate.train_op).name,
            'loss': None if gate.loss is None else self._tensor(gate.loss),
            'written': gate.written.name,
            'bad': gate.bad.name,
            'watched': gate.watched.name,
            'limit': None if gate.limit is None else gate.limit.name,
            'labels': [list(label) for label in gate.labels],
            'sources': {t.name: [_stand_in(t), t.op.type] for t in capture.sources},
            'variables': {
                v.name: [tf.as_dtype(v.get_attr('dtype')).base_dtype.name]
                + list(slices.get(v.name, (v.name, '')))
                for v in capture.variables
            },
            'missing': [op.name for op in capture.missing],
            'origins': self._origins(),
        }

    def _tensor(self, tensor) -> str:
        return _stand_in(tensor) + ':0' if tensor.op in self._sources else tensor.name

    def _origins(self) -> Dict[str, Any]:
        ops = graphs.ancestors([op_of(self._capture.gate.original)])
        table = record(Origins(self._graph), dict.fromkeys(ops + self._capture.ops))
        for op, tensors in self._sources.items():
            for tensor in tensors:
                if op.name in table['ops']:
                    table['ops'][_stand_in(tensor)] = table['ops'][op.name]
        return table


def _copy_functions(library, graph_def: tf1.GraphDef) -> None:
    """Copies those functions of a library that a graph calls, and those that these call."""
    functions = {function.signature.name: function for function in library.function}
    gradients = {gradient.function_name: gradient for gradient in library.gradient}
    waiting = list(graph_def.node)
    seen = set()
    while waiting:
        node = waiting.pop()
        called = [f.name for v in node.attr.values() for f in [v.func] + list(v.list.func)]
        for name in called + [node.op]:
            if name not in functions or name in seen:
                continue
            seen.add(name)
            graph_def.library.function.append(functions[name])
            waiting.extend(functions[name].node_def)
            if name in gradients:
                graph_def.library.gradient.append(gradients[name])
                waiting.append(tf1.NodeDef(op=gradients[name].gradient_func))


def _stand_in(source: tf.Tensor) -> str:
    """The name of the placeholder for a source."""
    if len(source.op.outputs) == 1:
        return source.op.name
    return '%s/output_%d' % (source.op.name, source.value_index)


def _slices(graph: tf.Graph) -> Dict[str, Tuple[str, str]]:
    """For partitioned variables, by op name: the name in checkpoints, and which part it is."""
    found = {}
    for name in (tf1.GraphKeys.GLOBAL_VARIABLES, tf1.GraphKeys.LOCAL_VARIABLES):
        for variable in graph.get_collection(name):
            # As TensorFlow's Saver does; there is no public name.
            info = getattr(variable, '_save_slice_info', None)
            if info is not None:
                found[variable.op.name] = (info.full_name, info.spec)
    return found


class Replica:
    """A step in a graph and a session of its own.

    Use it as a context manager, or call `close`.

    Args:
      plain: the step.
      variables: called with names of variable ops; yields dictionaries with their values.

    Attributes:
      graph, session: its own.
      gate: a `GateCopy`.

    Raises:
      ReplayError: if the graph cannot be built here, because this TensorFlow lacks an op.
    """

    def __init__(self, plain: Plain, variables: Callable[[List[str]], Iterable[dict]]):
        self._plain = plain
        self._variables = variables
        names = plain.names
        self.graph = tf.Graph()
        with self.graph.as_default():
            try:
                tf.import_graph_def(plain.graph_def, name='')
            except (ValueError, tf.errors.OpError, TypeError) as error:
                raise ReplayError(
                    'TensorFlow %s cannot build the graph of this step, which TensorFlow %s made: '
                    '%s. Use the TensorFlow that trained, or a newer one; and if the op comes from '
                    'a library, call tf.load_op_library first'
                    % (tf.__version__, names['made_with'], _first_part(error))
                ) from None
            try:
                self._loads = {name: self._load_op(name) for name in names['variables']}
                self.gate = self._find_gate(names)
            except (KeyError, ValueError, TypeError) as error:
                raise ReplayError('the graph of this step is not whole: %s' % error) from None
        writes = graphs.Writes(self.graph)
        ops = graphs.ancestors(gate_roots(self.gate))
        theirs = [op for op in ops if not op.name.startswith(graphs.OURS)]
        self._written_ahead = {v.name for op in theirs for v in writes.variables(op)}
        config = tf1.ConfigProto(allow_soft_placement=True)
        self.session = tf1.Session(graph=self.graph, config=config)
        self._loaded: Set[str] = set()
        self._ahead: Dict[str, np.ndarray] = {}

    def step(self, values: Dict[str, np.ndarray]) -> Step:
        """The step, fed with what it drew, by the names of the sources in the user's graph."""
        names = self._plain.names
        feed = {self._stand_in(name): value for name, value in values.items()}
        originals = {
            self._stand_in(name): (name, op_type) for name, (_, op_type) in names['sources'].items()
        }
        _, checked = _looked_at(self.gate)
        self._load([op.name for op in graphs.ancestors(t.op for t in checked)])
        return Step(
            self.session,
            self.gate,
            feed,
            Recorded(names['origins']),
            originals,
            names['missing'],
            self._restore if self._written_ahead else None,
        )

    def decide(self, values: Dict[str, np.ndarray]) -> List[gates.Label]:
        """Runs the whole step through its gate, fed with what it drew: the labels of what is bad.

        A good step is written. The variables get their values back before they are used again.
        """
        self._load(self._loads)
        feed = {self._stand_in(name): value for name, value in values.items()}
        feed[self.gate.watched] = True
        bad = self.session.run(self.gate.bad, feed)
        if np.shape(bad) != (len(self.gate.labels),):
            raise ReplayError('the gate of this step says %s, not a flag a label' % (bad,))
        labels = [label for label, is_bad in zip(self.gate.labels, bad) if is_bad]
        if not labels:
            self._loaded.clear()
        return labels

    def load_all(self) -> None:
        """Gives all variables the values they had before the step, if they do not have them."""
        self._load(self._loads)

    def _stand_in(self, name: str) -> str:
        return self._plain.names['sources'][name][0] + ':0'

    def _load(self, names: Iterable[str]) -> None:
        """Loads those variables among the ops `names` that are not loaded yet."""
        missing = [name for name in names if name in self._loads and name not in self._loaded]
        for values in self._variables(missing) if missing else ():
            self._assign(values)
            self._loaded.update(values)
            for name in self._written_ahead.intersection(values):
                self._ahead[name] = values[name]

    def _assign(self, values: Dict[str, np.ndarray]) -> None:
        feed = {self._loads[name][0]: value for name, value in values.items()}
        self.session.run([self._loads[name][1] for name in values], feed)

    def _restore(self) -> None:
        """Undoes what the forward pass wrote."""
        self._assign(self._ahead)

    def _find_gate(self, names: Dict[str, Any]) -> GateCopy:
        def find(kind: str) -> Optional[tf.Tensor]:
            return None if names[kind] is None else self.graph.get_tensor_by_name(names[kind])

        return GateCopy(
            train_op=self.graph.get_operation_by_name(names['train_op']),
            loss=find('loss'),
            written=find('written'),
            bad=find('bad'),
            labels=tuple(gates.Label(*label) for label in names['labels']),
            watched=find('watched'),
            limit=find('limit'),
        )

    def _load_op(self, name: str):
        variable = self.graph.get_operation_by_name(name)
        dtype = tf.as_dtype(variable.get_attr('dtype')).base_dtype
        target = variable.outputs[0]
        with tf.name_scope(graphs.OURS + 'load/'):
            value = tf1.placeholder(dtype)
            if variable.type == 'VarHandleOp':
                return value, tf.raw_ops.AssignVariableOp(resource=target, value=value)
            return value, tf.raw_ops.Assign(ref=target, value=value, validate_shape=False).op

    def close(self) -> None:
        self.session.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _first_part(error: Exception) -> str:
    """What an import complains of, without the signature of the op that follows."""
    return str(error).partition('; signature=')[0].partition('\n')[0]


def variables_in_chunks(session, capture: Capture, names) -> Iterable[Dict[str, np.ndarray]]:
    """The values of a step's variables, in parts that fit into memory, by the ops' names."""
    chunk: Dict[str, tf.Tensor] = {}
    size = 0
    for name in names:
        read = capture.reads[name]
        more = bytes_of(read, 1)
        if chunk and size + more > _VARIABLE_BYTES:
            yield session.run(chunk)
            chunk, size = {}, 0
        chunk[name] = read
        size += more
    if chunk:
        yield session.run(chunk)


def bytes_of(tensor: tf.Tensor, rows: int = 1) -> int:
    """How large a tensor is, about; what is not known of its shape counts as `rows`."""
    if tensor.shape.rank is None:
        return _UNKNOWN_BYTES
    sizes = [size or rows for size in tensor.shape.as_list()]
    return int(np.prod(sizes, dtype=np.float64)) * max(tensor.dtype.base_dtype.size, 1)

"""Runs a step again, any number of times, without writing to the training's variables.

A :class:`Step` has a graph and a session of its own, with a copy of the variables. It is built from
an :class:`ExportedStep`, which comes from the training's graph or from a bundle. So a diagnosis
while training and a later replay run the same step.
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
    Set,
    Tuple,
)

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.diagnosis.capture import gate_roots, in_chunks
from slimguard.diagnosis.exported_step import ExportedStep
from slimguard.gate import Label
from slimguard.graph import key, single_runs
from slimguard.graph.control_flow import Flow
from slimguard.graph.source_lines import Recorded

Values = Dict[str, np.ndarray]
Feed = Dict[tf.Tensor, np.ndarray]


class ReplayError(ValueError):
    """A step cannot be run again here; the message says what is missing."""


class GateCopy(NamedTuple):
    """The attributes of a gate in another graph; see `slimguard.gate.Gate`."""

    train_op: Any
    loss: Optional[tf.Tensor]
    written: tf.Tensor
    bad: tf.Tensor
    labels: Tuple[Label, ...]
    watched: tf.Tensor


class Step:
    """A step to run again, in a graph and a session of its own.

    Use it as a context manager, or call `close`.

    Args:
      exported: the step as plain data.
      variables: called with names of variable ops; yields dictionaries with the values from before
        the step. The variables of `ops` are read at once, the others only when needed.
      values: what the step drew, by the sources' names in the user's graph.
      gpu_options: the GPU options of the training's session, if it runs in this process.

    Attributes:
      graph, session: its own.
      gate: a `GateCopy`.
      feed: what the step drew, by placeholder; each source has one.
      origins: called with the name of an op, returns its `Origin`.
      ops: the ops to run again, in topological order, without the gate's own and without ops that
        only fed tensors need.
      ours: the ops of the gate.
      checked: the float tensors that the gate checks, and the float inputs of the gated ops.
      flow: the conditions and loops around the ops.

    Raises:
      ReplayError: if the graph cannot be built here, because this TensorFlow lacks an op.
    """

    def __init__(
        self,
        exported: ExportedStep,
        variables: Callable[[List[str]], Iterable[Values]],
        values: Values,
        gpu_options: Optional[tf1.GPUOptions] = None,
    ):
        self._names = names = exported.names
        self.graph = tf.Graph()
        with self.graph.as_default():
            _import(exported)
            try:
                self._loads = {name: _load_op(self.graph, name) for name in names['variables']}
                self.gate = _find_gate(self.graph, names)
            except (KeyError, ValueError, TypeError) as error:
                raise ReplayError('the graph of this step is not whole: %s' % error) from None
        config = tf1.ConfigProto(allow_soft_placement=True, gpu_options=gpu_options)
        # No Grappler: rewriting the graph would take longer than its few runs.
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        self.session = tf1.Session(graph=self.graph, config=config)
        self.origins = Recorded(names['origins'])
        step = graphs.ancestors(gate_roots(self.gate))
        self.flow = Flow(step)
        self.ours = [op for op in step if op.name.startswith(graphs.OURS)]
        self.checked = _floats_taken_by(self.ours)
        self._originals = {
            self._placeholder(name).name: (name, op_type)
            for name, (_, op_type) in names['sources'].items()
        }
        self._givens = {
            key(self._placeholder(name)): [self.graph.get_tensor_by_name(each) for each in given]
            for name, given in names['givens'].items()
        }
        self._read = variables
        self._loaded: Set[str] = set()
        # The variables that the forward pass writes, and their values before the step.
        self._written_ahead = _written_by(self.graph, step)
        self._ahead: Values = {}
        self.draw({self._placeholder(name): value for name, value in values.items()})

    def draw(self, feed: Feed) -> None:
        """Sets the values that the step draws in later runs."""
        self.feed = feed
        self._fed = {key(t) for t in self.feed}
        also = [t for given in self._givens.values() for t in given]
        self.ops = _ops_up_to(self.checked + also, self._fed)
        self._load(op.name for op in self.ops if op.type in graphs.VARIABLES)
        self._taken: Dict[Tuple[tf.Operation, int], bool] = {}
        self._find_taken()

    def decide(self) -> List[Label]:
        """Runs the whole step, gate included; returns the labels of the checks that failed.

        If none fails, the step updates the variables, and their old values are loaded again.
        """
        self._load(self._loads)
        self._restore()
        feed: Dict[Any, Any] = dict(self.feed)
        feed[self.gate.watched] = True
        bad = self.session.run(self.gate.bad, feed)
        labels = [label for label, is_bad in zip(self.gate.labels, bad) if is_bad]
        if not labels:
            self.reload()
        return labels

    def reload(self) -> None:
        """Gives all variables the values that they had before the step."""
        self._loaded.clear()
        self._load(self._loads)

    def close(self) -> None:
        self.session.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def is_fed(self, tensor: tf.Tensor) -> bool:
        return key(tensor) in self._fed

    def givens_of(self, tensor: tf.Tensor) -> List[tf.Tensor]:
        """The float tensors that the value of a fed `tensor` was computed from; [] if unknown."""
        return list(self._givens.get(key(tensor), ()))

    def needs(self, op: tf.Operation) -> Iterator[tf.Operation]:
        """Yields the ops that an op needs; for a fed input, the ops that computed the fed value."""
        yield from graphs.needs(op)
        for tensor in op.inputs:
            yield from (given.op for given in self.givens_of(tensor))

    def name_of(self, tensor: tf.Tensor) -> str:
        """The name that `tensor` has in the user's graph."""
        return self._originals.get(tensor.name, (tensor.name,))[0]

    def type_of(self, op: tf.Operation) -> str:
        """The type that `op` has in the user's graph."""
        for tensor in op.outputs[:1]:
            if tensor.name in self._originals:
                return self._originals[tensor.name][1]
        return op.type

    def can_fetch(self, tensor: tf.Tensor) -> bool:
        """Whether `tensor` has one value: no loop holds it, and no branch that was not taken."""
        if self.is_fed(tensor):
            return True
        if self.flow.is_in_loop(tensor.op):
            return False
        conditions = self.flow.conditions(tensor)
        return all(self._taken.get(c.pred) == c.value for c in conditions)

    def fetch(
        self, tensors: Sequence[tf.Tensor], feed: Optional[Feed] = None
    ) -> List[Optional[np.ndarray]]:
        """The values of `tensors`; None for a tensor in a branch that did not run.

        Args:
          tensors: the tensors.
          feed: what to feed in place of `self.feed`.
        """
        feed = self.feed if feed is None else feed
        values: Dict[Tuple[tf.Operation, int], Optional[np.ndarray]] = {
            key(t): value for t, value in feed.items()
        }
        to_run = [t for t in tensors if not self.is_fed(t)]
        values.update(zip(map(key, to_run), self._run_or_split(to_run, feed)))
        return [values[key(t)] for t in tensors]

    def in_chunks(self, tensors: Iterable[tf.Tensor]) -> Iterable[List[tf.Tensor]]:
        """Yields `tensors` in lists that fit into memory beside a training, by their shapes."""
        rows = max([v.shape[0] for v in self.feed.values() if np.ndim(v)], default=1)
        return in_chunks(tensors, rows)

    def _run_or_split(self, tensors, feed):
        if not tensors:
            return []
        try:
            values = single_runs.run_once(self.session, tensors, feed)
            self._restore()
            return values
        except tf.errors.InvalidArgumentError as error:
            if len(tensors) == 1:
                if 'not have value' in error.message or 'was dead' in error.message:
                    return [None]  # the tensor's branch did not run
                raise
            half = len(tensors) // 2
            halves = tensors[:half], tensors[half:]
            return [value for each in halves for value in self._run_or_split(each, feed)]

    def _find_taken(self) -> None:
        """Finds out which branches the step took: outer conditions first, then inner ones."""
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

    def _load(self, names: Iterable[str]) -> None:
        """Assigns the values from before the step to variables that were not loaded yet."""
        for values in self._read([name for name in names if name not in self._loaded]):
            self._assign(values)
            self._loaded.update(values)
            self._ahead.update((name, values[name]) for name in self._written_ahead & values.keys())

    def _restore(self) -> None:
        """Undoes the writes of the forward pass."""
        if self._ahead:
            self._assign(self._ahead)

    def _assign(self, values: Values) -> None:
        feed = {self._loads[name].value: value for name, value in values.items()}
        self.session.run([self._loads[name].op for name in values], feed)

    def _placeholder(self, source: str) -> tf.Tensor:
        return self.graph.get_tensor_by_name(self._names['sources'][source][0] + ':0')


class _Load(NamedTuple):
    """How to assign a value to a variable: the placeholder to feed, and the op to run."""

    value: tf.Tensor
    op: tf.Operation


def _import(exported: ExportedStep) -> None:
    try:
        # The import adds default attributes to its argument in place. No copy is needed, since an
        # exported step has all of them already.
        tf.import_graph_def(exported.graph_def, name='')
    except (ValueError, tf.errors.OpError, TypeError) as error:
        raise ReplayError(
            'TensorFlow %s cannot build the graph of this step, which TensorFlow %s made: '
            '%s. Use the TensorFlow that trained, or a newer one; and if the op comes from '
            'a library, call tf.load_op_library first'
            % (tf.__version__, exported.names['made_with'], _first_part(error))
        ) from None


def _first_part(error: Exception) -> str:
    """The first line of an import's error message, up to the signature of the op."""
    return str(error).partition('; signature=')[0].partition('\n')[0]


def _find_gate(graph: tf.Graph, names: Dict[str, Any]) -> GateCopy:
    loss = names['loss']
    return GateCopy(
        train_op=graph.get_operation_by_name(names['train_op']),
        loss=None if loss is None else graph.get_tensor_by_name(loss),
        written=graph.get_tensor_by_name(names['written']),
        bad=graph.get_tensor_by_name(names['bad']),
        labels=tuple(Label(*label) for label in names['labels']),
        watched=graph.get_tensor_by_name(names['watched']),
    )


def _load_op(graph: tf.Graph, name: str) -> _Load:
    variable = graph.get_operation_by_name(name)
    dtype = tf.as_dtype(variable.get_attr('dtype')).base_dtype
    target = variable.outputs[0]
    with tf.name_scope(graphs.OURS + 'load/'):
        value = tf1.placeholder(dtype)
        if variable.type == 'VarHandleOp':
            return _Load(value, tf.raw_ops.AssignVariableOp(resource=target, value=value))
        assigned = tf.raw_ops.Assign(ref=target, value=value, validate_shape=False)
        return _Load(value, assigned.op)


def _written_by(graph: tf.Graph, step: Sequence[tf.Operation]) -> Set[str]:
    """The names of the variables that the user's ops in a step write before the gate decides."""
    writes = graphs.Writes(graph)
    theirs = [op for op in step if not op.name.startswith(graphs.OURS)]
    return {v.name for op in theirs for v in writes.variables(op)}


def _floats_taken_by(ours: Sequence[tf.Operation]) -> List[tf.Tensor]:
    """The float tensors of the user's graph that the ops of a gate take."""
    taken = {key(t): t for op in ours for t in op.inputs if not t.op.name.startswith(graphs.OURS)}
    return [t for t in taken.values() if graphs.is_float(t)]


def _ops_up_to(checked: Sequence[tf.Tensor], fed) -> List[tf.Operation]:
    """The ops that compute `checked` when the tensors with the keys `fed` are fed."""
    roots = [t.op for t in checked if key(t) not in fed]
    return graphs.ancestors(roots, lambda op: graphs.needs(op, fed))

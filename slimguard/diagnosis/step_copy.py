"""A step in a graph and a session of its own, with a copy of the variables."""

from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Set

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.diagnosis.capture import gate_roots
from slimguard.diagnosis.exported_step import ExportedStep
from slimguard.diagnosis.step import GateCopy, Step
from slimguard.gate import Label
from slimguard.graph.source_lines import Recorded

Values = Dict[str, np.ndarray]


class ReplayError(ValueError):
    """A step cannot be run again here; the message says what is missing."""


class StepCopy:
    """A step in a graph and a session of its own.

    Use it as a context manager, or call `close`.

    Args:
      exported: the step.
      variables: called with names of variable ops; yields dictionaries with their values.

    Attributes:
      graph, session: its own.
      gate: a `GateCopy`.

    Raises:
      ReplayError: if the graph cannot be built here, because this TensorFlow lacks an op.
    """

    def __init__(self, exported: ExportedStep, variables: Callable[[List[str]], Iterable[Values]]):
        self._names = names = exported.names
        self.graph = tf.Graph()
        with self.graph.as_default():
            _import(exported)
            try:
                loads = {name: _load_op(self.graph, name) for name in names['variables']}
                self.gate = _find_gate(self.graph, names)
            except (KeyError, ValueError, TypeError) as error:
                raise ReplayError('the graph of this step is not whole: %s' % error) from None
        config = tf1.ConfigProto(allow_soft_placement=True)
        # There are few runs: Grappler would take longer to rewrite the graph than they take.
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        self.session = tf1.Session(graph=self.graph, config=config)
        self._loads, self._read = loads, variables
        self._written_ahead = _written_ahead(self.gate)
        self._ahead: Values = {}
        self.load()

    def step(self, values: Values) -> Step:
        """The step, fed with `values`: what it drew, by the sources' names in the user's graph."""
        originals = {
            self._placeholder(name): (name, op_type)
            for name, (_, op_type) in self._names['sources'].items()
        }
        givens = {self._placeholder(n): g for n, g in self._names['givens'].items()}
        return Step(
            self.session,
            self.gate,
            self._feed(values),
            Recorded(self._names['origins']),
            originals,
            givens,
            self._restore if self._ahead else None,
        )

    def decide(self, values: Values) -> List[Label]:
        """Runs the whole step, gate included, fed with what it drew; the labels of what is bad.

        A good step writes its update, and the variables are loaded again.
        """
        self._restore()
        feed: Dict[Any, Any] = dict(self._feed(values))
        feed[self.gate.watched] = True
        bad = self.session.run(self.gate.bad, feed)
        labels = [label for label, is_bad in zip(self.gate.labels, bad) if is_bad]
        if not labels:
            self.load()
        return labels

    def load(self) -> None:
        """Gives all variables the values that they had before the step."""
        for values in self._read(list(self._loads)):
            self._assign(values)
            self._ahead.update((name, values[name]) for name in self._written_ahead & values.keys())

    def _restore(self) -> None:
        """Undoes the writes of the forward pass."""
        self._assign(self._ahead)

    def _assign(self, values: Values) -> None:
        feed = {self._loads[name].value: value for name, value in values.items()}
        self.session.run([self._loads[name].op for name in values], feed)

    def _feed(self, values: Values) -> Values:
        return {self._placeholder(name): value for name, value in values.items()}

    def _placeholder(self, source: str) -> str:
        return self._names['sources'][source][0] + ':0'

    def close(self) -> None:
        self.session.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class _Load(NamedTuple):
    """Gives a variable a value: what to feed, and the op to run."""

    value: tf.Tensor
    op: tf.Operation


def _import(exported: ExportedStep) -> None:
    try:
        # The import adds missing attributes to the GraphDef, but an exported step has them all.
        tf.import_graph_def(exported.graph_def, name='')
    except (ValueError, tf.errors.OpError, TypeError) as error:
        raise ReplayError(
            'TensorFlow %s cannot build the graph of this step, which TensorFlow %s made: '
            '%s. Use the TensorFlow that trained, or a newer one; and if the op comes from '
            'a library, call tf.load_op_library first'
            % (tf.__version__, exported.names['made_with'], _first_part(error))
        ) from None


def _first_part(error: Exception) -> str:
    """The error message of an import, without the signature of the op that follows."""
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


def _written_ahead(gate: GateCopy) -> Set[str]:
    """The variables that the forward pass writes, by the names of their ops."""
    writes = graphs.Writes(gate.bad.graph)
    ops = graphs.ancestors(gate_roots(gate))
    theirs = [op for op in ops if not op.name.startswith(graphs.OURS)]
    return {v.name for op in theirs for v in writes.variables(op)}

""":class:`LearningRates`: a factor for learning rates, which a session keeps.

After a rollback the updates of a training may have to be smaller. The factor multiplies an input of
each gated clone that writes weights: the learning rate of an optimizer's kernel, or the value that
another op adds to a trainable variable or subtracts from it. The optimizer and the schedule stay as
they are.

A table of the session holds the factor, which is 1 at first. The table needs no initializer; a
variable would be in the checkpoints.
"""

import random
import weakref
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.compat import tf_private
from slimguard.gate.gate import Gate, gates_of
from slimguard.gate.guard import KEPT_RATES
from slimguard.gate.reading.kernels import RATES
from slimguard.graph import key, ops
from slimguard.graph.devices import processor_of
from slimguard.graph.walk import arguments_of

_ADDED = ('value', 'updates')
# Ops that add to a variable, or subtract from it.
_ADDS = frozenset(
    'AssignAdd AssignSub AssignAddVariableOp AssignSubVariableOp ScatterAdd ScatterSub '
    'ResourceScatterAdd ResourceScatterSub ScatterNdAdd ScatterNdSub ResourceScatterNdAdd '
    'ResourceScatterNdSub'.split()
)


class NoLearningRateError(ValueError):
    """The updates of a train op cannot be made smaller."""


class _Input(NamedTuple):
    """An input of an op that is to be multiplied."""

    op: tf.Operation
    index: int


class LearningRates:
    """The factor of all learning rates of one graph; `scale_learning_rates` makes it.

    Args:
      graph: the graph; ops are added to it.
      device: where the factor is kept; processes that share the factor pass the same device.

    Attributes:
      is_used: whether the factor multiplies anything.
    """

    def __init__(self, graph: tf.Graph, device: str):
        self.is_used = False
        self._graph = graph
        self._scaled: Dict[Tuple[tf.Operation, int], tf.Tensor] = {}
        self._ready: Any = weakref.WeakSet()  # sessions
        self._known: Set[Gate] = set()
        self._wired: List[Gate] = []  # gates that are older than the factor
        with ops.our_scope(graph, 'learning_rates'), tf.device(device):
            table = tf.raw_ops.MutableHashTableV2(
                key_dtype=tf.int64, value_dtype=tf.float64, shared_name='slimguard_learning_rates'
            )
            where = tf.constant(0, tf.int64)
            self._factor = tf.raw_ops.LookupTableFindV2(
                table_handle=table, keys=where, default_value=tf.constant(1.0, tf.float64)
            )
            self._value = tf1.placeholder(tf.float64, [])
            self._set = tf.raw_ops.LookupTableInsertV2(
                table_handle=table, keys=where, values=self._value
            )
            # A session that has seen an op runs it with its old inputs, and TensorFlow does not say
            # which ops a session has seen. So `Untold.clear`, which no step runs, also gets a new
            # input: with the new inputs, a run of `clear` leaves a sign in the table.
            no_sign = tf.constant(0.0, tf.float64)
            self._sign = tf1.placeholder_with_default(tf.constant(1, tf.int64), [])
            self._leave_sign = tf.raw_ops.LookupTableInsertV2(
                table_handle=table, keys=self._sign, values=no_sign + 1.0
            )
            self._has_sign = tf.raw_ops.LookupTableFindV2(
                table_handle=table, keys=self._sign, default_value=no_sign
            )
            self._remove_sign = tf.raw_ops.LookupTableRemoveV2(
                table_handle=table, keys=tf.reshape(self._sign, [1])
            )

    def get(self, session) -> float:
        """The factor in a session."""
        return float(session.run(self._factor))

    def set(self, session, factor: float) -> None:
        """From its next step on, a session multiplies learning rates by `factor`.

        Raises:
          NoLearningRateError: if the session has seen the train op before its inputs changed.
        """
        if session not in self._ready:
            self._require_wired(session)
            self._ready.add(session)
        session.run(self._set, {self._value: factor})

    def _require_wired(self, session) -> None:
        for gate in self._wired:
            sign = {self._sign: random.randrange(2, 2**62)}  # several processes may share the table
            session.run(gate.untold.clear, sign)
            if not session.run(self._has_sign, sign):
                raise NoLearningRateError(_SEEN % gate.original.name)
            session.run(self._remove_sign, sign)

    def scale(self, gate: Gate, is_new: bool) -> None:
        """Multiplies the updates of a gate, and the learning rate in its measures, by the factor.

        Args:
          is_new: whether no session can have seen the gate.

        Raises:
          NoLearningRateError: if an op that writes weights takes no learning rate.
        """
        if gate in self._known:
            return
        inputs = _inputs_to_scale(gate)
        with ops.our_scope(self._graph, 'learning_rates'):
            for op, index in [*inputs, gate.measures.rate]:
                tf_private.replace_input(op, index, self._times(op.inputs[index]))
        if not is_new:
            tf_private.add_control_input(gate.untold.clear, self._leave_sign)
            self._wired.append(gate)
        self._known.add(gate)
        self.is_used = self.is_used or bool(inputs)

    def _times(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensor times the factor; the op is made once for all consumers."""
        if key(tensor) not in self._scaled:
            with tf.device(tensor.op.device or None):
                factor = tf.cast(self._factor, tensor.dtype.base_dtype)
                self._scaled[key(tensor)] = tf.multiply(tensor, factor)
        return self._scaled[key(tensor)]


def learning_rates_of(graph: tf.Graph) -> Optional[LearningRates]:
    """The factor of a graph's learning rates; None if there is none."""
    return graphs.kept_already(graph, KEPT_RATES)


def scale_learning_rates(graph: tf.Graph, is_shared: bool) -> LearningRates:
    """Multiplies the learning rates of a graph, also those of later gates, by a factor.

    Args:
      graph: the graph; finalized or not.
      is_shared: whether all processes that train the graph's global step share the factor.

    Raises:
      NoLearningRateError: if a gate writes weights with an op that takes no learning rate.
    """
    rates = learning_rates_of(graph)
    with tf_private.unfinalized(graph), graph.as_default():
        with tf_private.lock_against_sessions(graph):
            if rates is None:
                rates = LearningRates(graph, _device_for(graph, is_shared))
            for gate in dict.fromkeys(gates_of(graph).values()):
                rates.scale(gate, is_new=False)
            graphs.kept_on(graph, KEPT_RATES, lambda: rates)
    return rates


def _device_for(graph: tf.Graph, is_shared: bool) -> str:
    step = graphs.global_step(graph)
    if is_shared and step is not None:
        return processor_of(step.device)
    gates = list(gates_of(graph).values())
    return processor_of(gates[0].written.op.device if gates else '')


def _inputs_to_scale(gate: Gate) -> List[_Input]:
    """The inputs of a gate to multiply, so that all updates of weights shrink by the factor."""
    graph = gate.train_op.graph
    trainable = {variable.name for variable in graphs.trainable_in(graph)}
    writes = graphs.Writes(graph)
    found: List[_Input] = []
    scaled: Set[tf.Operation] = set()
    for write, clone in gate.writes.items():
        weights = [v for v in writes.variables(write) if v.name in trainable]
        weights = [v for v in weights if graphs.is_float_variable(v)]
        if not weights and not graphs.is_apply(write):
            continue
        index = None
        if graphs.loop_around(write) is None and not writes.calls(write):
            index = _index_of_rate(write)
        if index is not None:
            scaled.add(write)
            if graphs.constant_scalar(clone.inputs[index]) is None or graphs.is_apply(write):
                found.append(_Input(clone, index))
        elif not gate.trains:
            continue  # a run that does not train, such as one that clips weights, has no rate
        elif graphs.is_apply(write) or scaled.isdisjoint(graphs.ancestors([write])):
            # Only an assignment after a scaled update may stay: it is a constraint.
            raise NoLearningRateError(_NO_RATE % (write.type, write.name))
    return found


def _index_of_rate(write: tf.Operation) -> Optional[int]:
    """The index of the learning rate, or of the added value, among a write's inputs; or None."""
    names = [argument.name for argument in arguments_of(write)]
    roles = RATES if graphs.is_apply(write) else _ADDED if write.type in _ADDS else ()
    return next((names.index(role) for role in roles if role in names), None)


_NO_RATE = (
    'a rollback with a factor (rollback:3x0.1) multiplies learning rates, and %s %r, which writes '
    'weights of this training, takes none that slimguard could multiply (SyncReplicasOptimizer, '
    'training inside of a loop or a function, a plain assignment). Leave the factor out; from '
    'Python, Rollback(on_rollback=...) can lower the rate'
)
_SEEN = (
    'a rollback with a factor (rollback:3x0.1) multiplies learning rates in the guarded train op '
    '%r, but this session has run something before it was watched, and what a session has seen '
    'cannot be wired any more. Watch it before its first run, or open a new one. A hook that needs '
    'initialized variables at once, such as a CheckpointSaverHook, has to be left out then: save '
    'in the loop by a slimguard.FiniteSaver'
)

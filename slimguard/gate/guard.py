"""`guard`: puts a train op behind a gate."""

import contextlib
import gc
from typing import Dict, List, Optional, Sequence, Set

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.compat import tf_private
from slimguard.gate.arguments import (
    as_train_op,
    require_loss,
    require_loss_of,
    require_max_loss,
    require_outside,
)
from slimguard.gate.building.builder import build
from slimguard.gate.chief_update import find_chief_updates, run_gated
from slimguard.gate.gate import Gate, gate_of, gates_of, original_of
from slimguard.gate.reading.gated_ops import find_gated_ops
from slimguard.gate.reading.losses import NOT_KNOWN, as_scalar, mean_of
from slimguard.gate.reading.plan import make_plan
from slimguard.gate.reading.step_graph import GuardedBefore, StepGraph
from slimguard.graph import TrainOp, is_accumulator, key, op_of, ops
from slimguard.system.log import log

# A graph keeps its `LearningRates`, if any, under this name; see learning_rates.py.
KEPT_RATES = 'learning_rates'


def gated_writes(
    train_op: TrainOp, loss: Optional[tf.Tensor], fed: Sequence[tf.Tensor] = ()
) -> Set[tf.Operation]:
    """The writes that a gate clones; a run that also fetches one of these writes it twice.

    Args:
      train_op, loss, fed: as for `guard_with_values`.

    Raises:
      ValueError: if the train op cannot be guarded.
    """
    step = StepGraph(train_op, loss, _guarded_in(train_op.graph), fed)
    return find_gated_ops(step, loss=loss).intersection(step.writing)


def _guarded_in(graph: tf.Graph) -> Dict[tf.Operation, GuardedBefore]:
    known = gates_of(graph).values()
    return {op_of(gate.train_op): GuardedBefore(op_of(gate.original), gate.gated) for gate in known}


def guard(
    train_op: TrainOp, loss: Optional[tf.Tensor] = None, max_loss: Optional[float] = None
) -> TrainOp:
    """Returns a train op that does what `train_op` does, and changes nothing in a bad step.

    A step is bad if the loss, a gradient or another value about to be written is NaN or Inf, if
    the loss is above `max_loss`, or if a variable is not finite after the update, as when the
    optimizer squares a large gradient into an Inf. Then no variable changes a bit.

    Run the returned op instead of the given one. If nobody watches (no `NanLossHook`, no
    `slimguard.train`), a bad step prints one line to stderr. If the given op has a
    ``check_numerics`` of its own around the loss, a bad step raises
    `tf.errors.InvalidArgumentError` instead.

    New ops live under the scope ``slimguard``. The graph's existing ops stay as they are, with
    three exceptions. A write of the forward pass (``slim.batch_norm(updates_collections=None)``, or
    update ops under ``tf.control_dependencies`` around ``minimize``) gets a control input, so that
    the variable is copied before it. The queue runner of a `SyncReplicasOptimizer` runs a guarded
    update. The returned op takes the place of `train_op` in the TRAIN_OP collection.

    In a `tf.distribute` strategy, as in the `model_fn` of an Estimator with a `MirroredStrategy`,
    all replicas call this, and decide together: a NaN or Inf in one keeps all from writing.

    Args:
      train_op: a Tensor or an Operation, from `create_train_op`, `optimizer.minimize`,
        `apply_gradients`, a `tf.group` or `tf.cond` of these, or anything else that writes.
      loss: a floating scalar Tensor to check as well. By default the train op itself, if it is a
        Tensor with the loss's value; else the members of the LOSSES collection that the train op
        computes. If there is none, and the train op trains, the log says so.
      max_loss: a positive finite number; a step with a larger loss is bad. Default: no limit. The
        limit stops the update of that step only: the update that makes a training explode may come
        from an earlier step, with a small loss.

    Returns:
      A Tensor or an Operation, as `train_op` is. Its value in a bad step is the bad loss. If the
      update itself computes the value, it is NaN, or zeros for types without NaN. A train op that
      is guarded already is returned unchanged; one from a file, by `import_meta_graph`, gets a new
      gate.

    Raises:
      TypeError: if `train_op` is neither a Tensor nor an Operation.
      ValueError: if a write can be neither held back nor put back; if `train_op` is made inside of
        a loop or function, which would run it and not its gate; if `loss` is no floating scalar of
        the same graph, or is made in a loop or branch that does not hold `train_op`; if `max_loss`
        is not positive and finite, or there is no loss.
      RuntimeError: in eager mode, or if the graph is finalized.
    """
    train_op = as_train_op(train_op)
    require_outside(train_op)
    require_max_loss(max_loss)
    if loss is not None:
        require_loss(loss, 'loss')
        require_loss_of(loss, train_op)
    replica = tf.distribute.get_replica_context() if tf.distribute.has_strategy() else None
    if replica is None:
        is_new = gate_of(train_op) is None
        gate = guard_with_values(train_op, loss, max_loss, ())
        if is_new and gate.loss is None and any(map(graphs.is_apply, gate.writes)):
            log().warning(NOT_KNOWN, gate.original.name, _NONE_GIVEN)
        return gate.train_op
    # Each replica calls this, with a loss of its own. The replicas share the update, and the gate.
    gate = replica.merge_call(_guard_replicas, args=(train_op, loss, max_loss))
    value = gate.values.get(key(train_op)) if isinstance(train_op, tf.Tensor) else None
    if value is None:
        return gate.train_op
    with ops.our_scope(train_op.graph, 'replica'), tf.device(train_op.device):
        return ops.after([op_of(gate.train_op)], value, 'train_op')


_NONE_GIVEN = 'guard() was given none, and the LOSSES collection has none that it computes'


def _guard_replicas(strategy, train_op, loss, max_loss: Optional[float]) -> Gate:
    """The gate of the replicas' update; `train_op` and `loss` hold what each replica has given."""
    train_ops = list(dict.fromkeys(strategy.experimental_local_results(train_op)))
    losses = [each for each in strategy.experimental_local_results(loss) if each is not None]
    if not losses and len(train_ops) > 1:  # a train op of `create_train_op` returns its loss
        losses = _losses_returned(train_ops)
    one = mean_of(losses) if losses else None
    if len(train_ops) == 1:
        return guard_with_values(train_ops[0], one, max_loss, ())
    with ops.our_scope(train_ops[0].graph, 'step'):
        together = ops.group(dict.fromkeys(map(op_of, train_ops)), 'together')
    values = [each for each in train_ops if isinstance(each, tf.Tensor)]
    return guard_with_values(together, one, max_loss, values)


def _losses_returned(train_ops: Sequence[TrainOp]) -> List[tf.Tensor]:
    """The floating scalars that train ops return."""
    guarded = _guarded_in(train_ops[0].graph)
    values = [StepGraph(each, None, guarded).core for each in train_ops]
    return [each for each in values if each is not None and graphs.is_float(each)]


def guard_with_values(
    train_op: TrainOp,
    loss: Optional[tf.Tensor],
    max_loss: Optional[float],
    values: Sequence[tf.Tensor],
    fed: Sequence[tf.Tensor] = (),
    trains: bool = True,
) -> Gate:
    """As `guard`, for a step that also fetches `values`, which then wait for the train op.

    Args:
      train_op, loss, max_loss: as for `guard`, and checked.
      values: tensors that the train op needs; `Gate.values` has the tensors to fetch for them.
      fed: computed tensors that runs of the step feed. Runs that feed others need another train op,
        since a train op has one gate.
      trains: whether the forward pass may write; if False, the gate holds back all writes.
    """
    graph = train_op.graph
    if gate_of(train_op) is None:
        train_op = original_of(train_op)
    known = gates_of(graph)
    gate = known.get(op_of(train_op).name)
    if gate is not None:
        scalar = None if loss is None else as_scalar(loss)
        same_loss = scalar is None or (gate.loss is not None and key(scalar) == key(gate.loss))
        has_values = all(key(value) in gate.values for value in values)
        if same_loss and has_values and max_loss in (None, gate.max_loss):
            return gate
        train_op = gate.original
    _require_open_graph(train_op)
    graphs.note_counter(op_of(train_op))
    guarded = _guarded_in(graph)
    # No session of another thread may see a half-built gate: ops that a session has seen can get
    # no new inputs.
    with graph.as_default(), tf_private.lock_against_sessions(graph), _no_collection():
        plan = make_plan(train_op, loss, guarded, values, fed=fed, trains=trains)
        gate = build(plan, max_loss)
        rates = graphs.kept_already(graph, KEPT_RATES)
        if rates is not None:
            rates.scale(gate, is_new=True)
        _note(gate)
        for chief in _chiefs_of(gate):
            gate.run_beside(chief)
    train_ops = graph.get_collection_ref(tf1.GraphKeys.TRAIN_OP)
    train_ops[:] = [gate.train_op if element is train_op else element for element in train_ops]
    return gate


def _note(gate: Gate) -> None:
    known = gates_of(gate.train_op.graph)
    known[op_of(gate.train_op).name] = gate
    known.setdefault(op_of(gate.original).name, gate)


def _chiefs_of(gate: Gate) -> List[Gate]:
    """The gates of the chiefs' updates, which take the gradients that `gate` accumulates."""
    filled = {write.inputs[0].op for write in gate.writes if is_accumulator(write)}
    if not filled:
        return []
    graph = gate.train_op.graph
    known = dict.fromkeys(gates_of(graph).values())
    found = [each for each in known if not filled.isdisjoint(each.takes_from)]
    return found or _guard_chief_updates(gate, filled)


def _guard_chief_updates(gate: Gate, filled: Set[tf.Operation]) -> List[Gate]:
    """Guards the updates that take gradients from the accumulators that `gate` fills."""
    made: List[Gate] = []
    try:
        for update in find_chief_updates(gate.train_op.graph, filled):
            # On the device of the steps, since their watchers also watch the chief's updates.
            near = gate.written.op.device
            plan = make_plan(update.train_op, None, update.without_tokens, chief_at=near)
            chief = build(plan, None)
            is_in_time = run_gated(update, chief.train_op, chief.written)
            _note(chief)
            made.append(chief)
            if not is_in_time:
                _warn_of_chief(gate.original, 'a thread has begun to run %r' % update.sync_op.name)
    except ValueError as error:
        _warn_of_chief(gate.original, error)
    return made


def _warn_of_chief(train_op: TrainOp, why: object) -> None:
    """Warns, once for each train op, that the update with its gradients is not guarded."""
    warned = graphs.kept_on(train_op.graph, 'warned_of_chief', set)
    if train_op.name not in warned:
        warned.add(train_op.name)
        log().warning(
            'the gradients of train op %r are guarded, and the update that the chief '
            'makes of them is NOT: %s. Call slimguard.guard() right after minimize() or '
            'apply_gradients() of the SyncReplicasOptimizer.',
            train_op.name,
            why,
        )


def _require_open_graph(train_op: TrainOp) -> None:
    if train_op.graph.finalized:
        raise RuntimeError(
            'the graph is finalized, so train op %r cannot be guarded any more. Call '
            'slimguard.guard() right after the train op is built, before a Supervisor or a '
            'MonitoredSession takes the graph' % train_op.name
        )


@contextlib.contextmanager
def _no_collection():
    """Pauses garbage collection: it takes as long as creating the ops, and would free none."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

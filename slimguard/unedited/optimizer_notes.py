"""Notes the losses that a script differentiates, their gradients, and the updates by them.

The graph itself shows only updates by kernels of optimizers, and shows no losses. An optimizer of
the script's own may use ``assign`` instead of a kernel, and a script may write
``w.assign_sub(rate * gradient)`` itself.

It does not note gradients that a `tf.GradientTape` makes, or that are made inside a function.
Updates by such gradients are guarded like other values that a script computes
(:mod:`slimguard.unedited.own_updates`).
"""

from typing import Any, FrozenSet, List, NamedTuple, Optional, Sequence, Set, Tuple

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.compat import tf_private
from slimguard.gate import mean_of
from slimguard.gate.written_beside import is_drawn
from slimguard.graph import TrainOp, kept_on, key, op_of
from slimguard.graph.control_flow import SWITCHES
from slimguard.graph.sessions import Inside
from slimguard.system import texts
from slimguard.unedited.patches import Patches

# How many losses a log line names if it is not known whether they count as one loss.
_MOST_NAMES = 3


class Differentiated(NamedTuple):
    """A loss, the ops that return its gradients, and keys (`_variable_of`) of the variables."""

    loss: tf.Tensor
    gradients: List[tf.Operation]
    by: FrozenSet[Any]


class OptimizerNotes:
    """Remembers, by graph, the differentiated losses and the results of `apply_gradients`."""

    def __init__(self) -> None:
        self._inside = Inside()

    def install(self, patches: Patches) -> None:
        """Begins to take notes of every `tf.compat.v1.train.Optimizer`, and of `tf.gradients`."""
        patches.wrap_in_all(tf1.train.Optimizer, 'compute_gradients', self._compute_gradients)
        patches.wrap_in_all(tf1.train.Optimizer, 'apply_gradients', self._apply_gradients)
        patches.wrap(tf_private.gradients_module(), tf_private.GRADIENTS, self._gradients)

    def losses(self, graph: tf.Graph) -> List[Differentiated]:
        """The floating tensors that were differentiated, with their gradients, in order."""
        return kept_on(graph, 'losses', list)

    def loss_of(self, train_op: TrainOp, fed: Sequence[tf.Tensor]) -> Optional[tf.Tensor]:
        """The loss that a train op trains; None if it has no loss, or if `why_unknown` says why.

        If several losses train the same variables, such as the losses of replicas, this is their
        mean, computed by new ops.

        Args:
          train_op: the train op.
          fed: the computed tensors that runs of the step feed.

        Returns:
          A floating Tensor of shape [].
        """
        losses, why_unknown = self._losses_of(train_op, fed)
        return mean_of(losses) if losses and not why_unknown else None

    def why_unknown(self, train_op: TrainOp, fed: Sequence[tf.Tensor]) -> str:
        """Why a train op's loss is not known; '' if it is known, or if the train op has no loss."""
        return self._losses_of(train_op, fed)[1]

    def _losses_of(
        self, train_op: TrainOp, fed: Sequence[tf.Tensor]
    ) -> Tuple[List[tf.Tensor], str]:
        """The losses that a train op trains, and why they are not its loss ('' if they are)."""
        needed = set(graphs.ancestors_beyond(fed, [op_of(train_op)]))
        noted = self.losses(train_op.graph)
        noted = [each for each in noted if not needed.isdisjoint(each.gradients)]
        if len(noted) > 1:
            # A gradient from which a loss is computed, such as a gradient penalty, trains nothing.
            within = [set(graphs.ancestors([each.loss.op])) for each in noted]
            noted = [e for e in noted if all(ops.isdisjoint(e.gradients) for ops in within)]
        losses = list({key(each.loss): each.loss for each in noted}.values())
        # Several losses count as one if they train the same variables, as the losses of towers do.
        if len(losses) > 1 and len({each.by for each in noted}) > 1:
            names = texts.listed([loss.op.name for loss in losses], _MOST_NAMES)
            return losses, 'it trains several losses by different variables: ' + names
        for loss in losses:
            if not graphs.is_seen_from(loss, op_of(train_op)):
                return losses, '%s is made inside of a loop or branch' % loss.op.name
            # An update may need fewer inputs than the value of its loss: perhaps it does not need a
            # placeholder, a batch, or a write that the loss waits for.
            if not _inputs_of(loss, fed) <= needed:
                return losses, '%s needs an input that the update does not need' % loss.op.name
        return losses, ''

    def losses_that_write(self, train_op: TrainOp) -> List[tf.Tensor]:
        """The losses that wait for writes that a run of only the train op does not make."""
        needed = set(graphs.ancestors([op_of(train_op)]))
        writes = graphs.Writes(train_op.graph)
        losses, why_unknown = self._losses_of(train_op, ())
        return [
            loss
            for loss in losses
            if why_unknown and any(op in writes for op in _inputs_of(loss, ()) - needed)
        ]

    def updates(self, graph: tf.Graph) -> List[TrainOp]:
        """The results of `apply_gradients`, in order."""
        return kept_on(graph, 'updates', list)

    def writes_of_gradients(self, graph: tf.Graph) -> List[tf.Operation]:
        """The ops that write values computed from a gradient, in the order they were made.

        This includes writes that add up gradients in a separate run, and an optimizer's writes.
        """
        waiting: List[tf.Operation] = list(kept_on(graph, 'gradients', list))
        seen = set(waiting)
        while waiting:
            takers = {taker for output in waiting.pop().outputs for taker in _takers(output)}
            waiting += takers - seen
            seen |= takers
        writes = graphs.Writes(graph)
        theirs = [op for op in seen if not op.name.startswith(graphs.OURS)]
        return sorted(filter(writes.variables, theirs), key=tf_private.number_of)

    def written_by_hand(self, graph: tf.Graph) -> List[tf.Operation]:
        """The `writes_of_gradients` that belong to no optimizer's update."""
        theirs = set(graphs.ancestors(list(map(op_of, self.updates(graph)))))
        written = self.writes_of_gradients(graph)
        return [op for op in written if op not in theirs and not graphs.is_apply(op)]

    def has_functions(self, graph: tf.Graph) -> bool:
        """Whether functions of a graph hold updates; branches of a v2 `tf.cond` are functions."""
        return bool(kept_on(graph, 'functions', list))

    def _compute_gradients(self, original, optimizer, *args, **kwargs):
        # Only the outermost call is noted: an optimizer may pass a scaled loss to another.
        with self._inside:
            computed = original(optimizer, *args, **kwargs)
        if not self._inside:
            self._note([args[0] if args else kwargs.get('loss')], computed)
        return computed

    def _gradients(self, original, ys, xs, grad_ys=None, *args, **kwargs):
        with self._inside:
            computed = original(ys, xs, grad_ys, *args, **kwargs)
        if not self._inside:
            # With `grad_ys`, the call continues from other gradients, so `ys` are no losses.
            continues = any(each is not None for each in _flat(grad_ys))
            losses = [] if continues else list(map(_unscaled, _flat(ys)))
            self._note(losses, list(zip(computed, _flat(xs))))
        return computed

    def _note(self, losses: Sequence[Any], computed: Sequence[Tuple[Any, Any]]) -> None:
        """Notes `computed`, pairs of a gradient and its variable, and their losses."""
        if tf.executing_eagerly():
            return
        known = [(gradient.op, by) for gradient, by in computed if gradient is not None]
        gradients, by = [op for op, _ in known], frozenset(_variable_of(each) for _, each in known)
        if gradients:
            kept_on(gradients[0].graph, 'gradients', list).extend(gradients)
        for loss in losses:
            if not isinstance(loss, tf.Tensor) or _outermost(loss.graph) is not loss.graph:
                continue
            if loss.dtype.base_dtype.is_floating:
                self.losses(loss.graph).append(Differentiated(loss, gradients, by))

    def _apply_gradients(self, original, optimizer, *args, **kwargs):
        made = original(optimizer, *args, **kwargs)
        if not tf.executing_eagerly():
            # SyncReplicasOptimizer returns a variable if variables are resources.
            self._note_update(made.op if isinstance(made, tf.Variable) else made)
        return made

    def _note_update(self, update) -> None:
        if isinstance(update, (tf.Tensor, tf.Operation)):
            graph = _outermost(update.graph)
            if graph is update.graph:
                self.updates(graph).append(update)
            else:
                kept_on(graph, 'functions', list).append(update.name)


def _data_of(op: tf.Operation) -> Sequence[tf.Tensor]:
    """An op's inputs without the condition of a Switch, which is no part of the value."""
    return op.inputs[:1] if op.type in SWITCHES else op.inputs


def _takers(tensor: tf.Tensor) -> List[tf.Operation]:
    """The ops that compute from a tensor's values; [] for a handle, which holds no values."""
    if tensor.dtype in (tf.variant, tf.resource):
        return []
    wanted = key(tensor)
    return [op for op in tensor.consumers() if wanted in map(key, _data_of(op))]


def _flat(given: Any) -> List[Any]:
    return list(given) if isinstance(given, (list, tuple)) else [given]


def _unscaled(loss: Any) -> Any:
    """A loss without its scale, that is, a variable that the script later divides gradients by."""
    if isinstance(loss, tf.Tensor) and loss.op.type == 'Mul':
        others = [each for each in loss.op.inputs if graphs.variable_read(each) is None]
        return others[0] if len(others) == 1 else loss
    return loss


def _variable_of(given: Any) -> Any:
    """A key for the variable of a gradient: its op, if it has one.

    For a variable that a `tf.distribute` strategy mirrors, it is the first replica's variable.
    """
    if isinstance(given, tf.Tensor):
        return graphs.variable_read(given) or given.op
    of_replicas = tf.distribute.get_strategy().experimental_local_results(given)
    return getattr(of_replicas[0], 'op', id(given))


def _inputs_of(tensor: tf.Tensor, fed: Sequence[tf.Tensor]) -> Set[tf.Operation]:
    """The ops behind a tensor that write, are placeholders, or draw batches or random numbers."""
    needed = graphs.ancestors_beyond(fed, [tensor.op])
    writes = graphs.Writes(tensor.graph)
    return {
        op for op in needed if op in writes or (is_drawn(op) and op.type not in graphs.VARIABLES)
    }


def _outermost(graph: tf.Graph) -> tf.Graph:
    """The graph that a session runs; the graph of a function is nested in it."""
    while getattr(graph, 'outer_graph', None) is not None:
        graph = graph.outer_graph
    return graph

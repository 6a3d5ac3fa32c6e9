"""The gate: a train op is rewritten so that a bad step changes nothing.

:func:`guard` takes any train op and returns one that does the same, except that nothing is
written unless everything about to be written is finite. It knows graphs, and nothing of sessions,
hooks or slim.

How it works
------------
Looking back from the train op, every op falls into one of three parts (:mod:`slimguard.gate.plan`):

* *forward*: what the loss and the gradients are computed from. It is never touched.
* *held*: the writes (optimizer kernels, moving averages, the global step) and whatever runs after
  one of them. These ops are created a second time, behind a switch, and the guarded train op runs
  those. A dead branch is never executed, so a bad step writes nothing. The originals stay in the
  graph and are not run.
* *forward writes*: writes that gradients wait for, such as the moving averages of
  ``slim.batch_norm(updates_collections=None)``. They cannot be held back, so they are put back:
  the variable is copied ahead of the write, and restored after a bad step.

The decision is made in two looks. The first is cheap: one sum of squares for each value, short
vectors together, and one comparison. If all are small, the step is *calm*: all values are finite,
and a sum of such steps cannot overflow either (adding numbers of that size to a large one leaves it
as it is). Else the second look decides exactly, value by value, and also looks at the variables
*after* the update, with copies at hand to undo it: that is how a finite gradient that overflows
inside an optimizer is caught. While steps are calm, the second look is a dead branch; so that it is
a small one, values of one shape in one place are joined there, looked at, copied and put back
together (:mod:`slimguard.gate.finite_checks`).

Where that does not hold, no step is calm: writes inside loops and functions, and kernels that can
make a NaN of small numbers (centered RMSProp, or an `epsilon` of zero). There each step is a
trial, with copies of what it writes.

On a cluster, the decision is made where the loss is. Each task that holds variables gets one
number, the verdict, and from it makes its own switches: its variables are copied, looked at and
put back where they are, and only flags come back.
"""

import contextlib
import gc
import math
import sys
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.gate import regularizers
from slimguard.gate.finite_checks import SMALL_32, Look, Now
from slimguard.gate.plan import Check, Plan, TrainOp, key, op_of
from slimguard.graph import ops
from slimguard.graph.devices import Home, processor_of, task_of
from slimguard.graph.ops import branch, for_arithmetic, merge

tf1 = tf.compat.v1

# A step is calm if every value's sum of squares (halved) is below this. With p bits of precision,
# adding what is smaller than x / 2**(p+1) leaves x as it is, so accumulated values and squares
# stay in range for ever if twice this limit times 2**(p+1) does.
_CALM = {tf.float64: 1e280, tf.float32: 1e28, tf.bfloat16: 1e28, tf.float16: 4.0}
# The same for a learning rate and the like, which multiply what was checked.
_CALM_FACTOR = 1e12

_ENTERS = frozenset(['Enter', 'RefEnter'])


class Label(NamedTuple):
    """What one element of a gate's `bad` vector stands for."""

    kind: str  # 'value', 'square', 'limit', 'state' or 'clone'
    name: str

    def __str__(self) -> str:
        return '%s:%s' % self


class Finding(NamedTuple):
    """What was bad about a step: the names, and a sentence."""

    tensors: Tuple[str, ...]
    reason: str
    state_lost: bool  # variables were not finite already before the step


class Outcome(NamedTuple):
    """What there is to fetch of a step."""

    train_op: TrainOp
    written: tf.Tensor
    bad: tf.Tensor
    step: Optional[tf.Tensor]


class _Copy(NamedTuple):
    """The values of variables at one moment: if of several, joined along their first axis."""

    variables: List[tf.Operation]
    value: tf.Tensor


class Gate:
    """What is known of one guarded train op; hooks and loops fetch from it.

    Attributes:
      train_op: the guarded train op, of the kind (Tensor or Operation) that was given.
      original: the train op that was given.
      loss: the floating scalar that counts as the step's loss, or None.
      written: bool scalar, whether the step was written. This and what follows is read after the
        step is done.
      bad: bool vector, an element for each of `labels`; all False if the step was written.
      labels: a `Label` for each element of `bad`.
      step: the global step after the step, or None if the graph has none.
      watched: bool scalar to feed. Fed True, a bad step neither prints nor raises.
      quiet: train_op, written, bad and step once more, as an `Outcome`. Fetched instead of those, a
        bad step neither prints nor raises, and nothing has to be fed: that is quicker.
      is_good: bool scalar, whether a step that was looked at twice is written; dead in a calm step,
        so what waits for it costs nothing there.
      limit: float64 scalar to feed: the largest loss that is no incident; None without a loss.
      max_loss: the default of `limit`, or None.
      raises: whether a bad step raises `InvalidArgumentError` in the session.
      transient: the ops of the variables that can hold what is not finite for a moment in any bad
        step, until it is put back or undone: who reads them from another thread may see it. Empty
        for a usual gate, which writes nothing in a bad step; there only an update of finite values
        that overflows inside the optimizer is written and undone.
    """

    def __init__(self, plan: Plan, max_loss: Optional[float]):
        self.original = plan.train_op
        self.loss = plan.losses[0] if plan.losses else None  # type: Optional[tf.Tensor]
        self.raises = bool(plan.raises)
        undone = plan.variables if plan.trial else []
        self.transient = tuple(dict.fromkeys(list(plan.put_back) + undone))
        self.max_loss = max_loss
        build = _Build(plan, max_loss)
        self.train_op, self.written, self.bad, self.step = build.announced
        self.quiet = build.quiet
        self.is_good = build.is_good
        self.labels = tuple(build.labels)
        self.watched = build.watched
        self.limit = build.limit

    def explain(self, bad: Sequence[bool]) -> Finding:
        """What a fetched `bad` vector says."""
        return explain(self.labels_of(bad))

    def labels_of(self, bad: Sequence[bool]) -> List[Label]:
        """The labels of what a fetched `bad` vector says is bad."""
        return [label for label, is_bad in zip(self.labels, bad) if is_bad]


# What the error of a gate with `raises` says, ahead of its labels.
ERROR = 'slimguard: this step wrote nothing. Bad: '


def labels_in(message: str) -> List[Label]:
    """The labels in the message of an error that a gate raised; empty for any other message."""
    _, found, rest = message.partition(ERROR + '] [')
    items = rest.partition(']')[0].split('|') if found else ()
    return [Label(*item.split(':', 1)) for item in items]


def explain(labels: Sequence[Label]) -> Finding:
    """Puts what was bad about a step into a sentence."""

    def named(kind: str, most: int = 5) -> str:
        names = [label.name for label in labels if label.kind == kind]
        rest = ' and %d more' % (len(names) - most) if len(names) > most else ''
        return ', '.join(names[:most]) + rest

    parts = []
    if named('value'):
        where = ' (in %s)' % named('clone') if named('clone') else ''
        parts.append('not finite: ' + named('value') + where)
    if named('square'):
        parts.append('too large to be squared by the optimizer: ' + named('square'))
    if named('limit'):
        parts.append('above max_loss: ' + named('limit'))
    state_lost = bool(named('state') and parts)
    if state_lost:
        parts.append('not finite already before this step: ' + named('state'))
    elif named('state'):
        parts.append('not finite once updated: ' + named('state'))
    tensors = tuple(dict.fromkeys(label.name for label in labels if label.kind != 'clone'))
    return Finding(tensors, '; '.join(parts) or 'not finite', state_lost)


def gates_of(graph: tf.Graph) -> Dict[str, Gate]:
    """The gates of a graph, by the names of the given train op and of the guarded one."""
    # On the graph itself, so that it goes when the graph goes. A collection would make
    # `export_meta_graph` warn about what it cannot serialize.
    if not hasattr(graph, '_slimguard_gates'):
        graph._slimguard_gates = {}
    return graph._slimguard_gates


def gate_of(train_op: TrainOp) -> Optional[Gate]:
    """The gate of a guarded train op, or None if it is not guarded."""
    op = op_of(train_op)
    gate = gates_of(op.graph).get(op.name)
    return gate if gate is not None and op_of(gate.train_op) is op else None


def guard(
    train_op: TrainOp, loss: Optional[tf.Tensor] = None, max_loss: Optional[float] = None
) -> TrainOp:
    """Returns a train op that does what `train_op` does, and changes nothing in a bad step.

    A step is bad if a gradient or another value about to be written is NaN or Inf, if the loss
    is, if the loss is above `max_loss`, if the optimizer would square a gradient into an Inf, or
    if a variable is not finite after the update. Then every variable keeps its bits.

    Run the returned op instead of the given one. If nobody watches (no `NanLossHook`, no
    `slimguard.train`), a bad step prints one line to stderr; or, where the given op has a
    ``check_numerics`` of its own around the loss, it raises `tf.errors.InvalidArgumentError`.

    To put back what the forward pass writes (``slim.batch_norm(updates_collections=None)``,
    or update ops under ``tf.control_dependencies`` around ``minimize``), a copy of each such
    variable is made ahead of the write, for which the write op gets one more control input. The
    gradient of a regularizer gets one as well, so that it does not lie in memory before the
    gradient of the data that it is added to is there (:mod:`slimguard.gate.regularizers`).
    Nothing else that exists in the graph is changed. New ops live under the scope ``slimguard``.
    If `train_op` is in the TRAIN_OP collection, the returned op takes its place there.

    Args:
      train_op: a Tensor or an Operation: of `create_train_op`, `optimizer.minimize`,
        `apply_gradients`, a `tf.group` or `tf.cond` of such, or anything else that writes.
      loss: a floating scalar Tensor to check as well. By default the train op itself, where it is
        a Tensor with the loss's value; else those members of the LOSSES collection that the train
        op computes.
      max_loss: a positive finite number; a larger loss is a bad step. Default: no limit.

    Returns:
      A Tensor or an Operation, as `train_op` is. Its value in a bad step is the bad loss; or NaN
      (zeros, for integers and the like), where the value comes out of the update itself.
      Guarding a guarded train op returns it as it is.

    Raises:
      TypeError: if `train_op` is neither a Tensor nor an Operation.
      ValueError: if a write can be neither held back nor put back; if `loss` is no floating
        scalar of the same graph; if `max_loss` is not positive and finite, or there is no loss.
      RuntimeError: in eager mode, or if the graph is finalized.
    """
    train_op = as_train_op(train_op)
    require_max_loss(max_loss)
    if loss is not None:
        require_loss(loss, 'loss')
        if loss.graph is not train_op.graph:
            raise ValueError(
                'loss %r belongs to another graph than train op %r; build both in one tf.Graph'
                % (loss.name, train_op.name)
            )
    graph = train_op.graph
    known = gates_of(graph)
    gate = known.get(op_of(train_op).name)
    if gate is not None:
        same_loss = loss is None or (gate.loss is not None and key(loss) == key(gate.loss))
        if same_loss and max_loss in (None, gate.max_loss):
            return gate.train_op
        train_op = gate.original
    if graph.finalized:
        raise RuntimeError(
            'the graph is finalized, so train op %r cannot be guarded any more. Call '
            'slimguard.guard() right after the train op is built, before a Supervisor or a '
            'MonitoredSession takes the graph' % train_op.name
        )
    guarded = {op_of(g.train_op): op_of(g.original) for g in known.values()}
    # No session of another thread may see a gate half built: what a session has seen cannot be
    # wired any more. The lock that sessions take has no public name.
    with graph.as_default(), graph._mutation_lock(), _no_collection():
        gate = Gate(Plan(train_op, loss, lambda op: guarded.get(op, op)), max_loss)
    known[op_of(gate.train_op).name] = gate
    known.setdefault(op_of(train_op).name, gate)
    train_ops = graph.get_collection_ref(tf1.GraphKeys.TRAIN_OP)
    train_ops[:] = [gate.train_op if element is train_op else element for element in train_ops]
    return gate.train_op


@contextlib.contextmanager
def _no_collection():
    """No garbage collection: among thousands of new ops that stay, it takes as long as they do."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def writes_something(train_op: TrainOp) -> bool:
    """Whether running `train_op` writes a variable or an accumulator."""
    writes = graphs.Writes(train_op.graph)
    return any(op in writes for op in graphs.ancestors([op_of(train_op)]))


def require_loss(loss, name: str) -> None:
    """Raises TypeError, ValueError or RuntimeError unless `loss` is a floating scalar Tensor."""
    if not isinstance(loss, tf.Tensor):
        raise TypeError('%s must be a tf.Tensor, the scalar loss, but is %r' % (name, loss))
    _require_graph(loss, name)
    if not loss.dtype.base_dtype.is_floating:
        raise ValueError(
            '%s must be a floating scalar, but %r is of dtype %s'
            % (name, loss.name, loss.dtype.base_dtype.name)
        )
    if not loss.shape.is_compatible_with([]):
        raise ValueError(
            '%s must be a floating scalar, but %r has shape %s; reduce it first, for example '
            'with tf.reduce_mean' % (name, loss.name, loss.shape)
        )


def require_max_loss(max_loss) -> None:
    """Raises ValueError unless `max_loss` is None or a positive finite number."""
    if max_loss is None:
        return
    try:
        good = not isinstance(max_loss, bool) and 0 < float(max_loss) < math.inf
    except (TypeError, ValueError):
        good = False
    if not good:
        raise ValueError('max_loss must be a positive finite number or None, not %r' % (max_loss,))


def as_train_op(train_op) -> TrainOp:
    """`train_op`, if it is a Tensor or an Operation of a graph; for a variable, what writes it.

    `assign` of a resource variable returns a variable, and so does SyncReplicasOptimizer.

    Raises:
      TypeError, RuntimeError: for anything else.
    """
    if isinstance(train_op, tf.Variable) and not tf.executing_eagerly():
        return train_op.op
    if not isinstance(train_op, (tf.Tensor, tf.Operation)):
        raise TypeError(
            'train_op must be a tf.Tensor or a tf.Operation, as create_train_op() or '
            'optimizer.minimize() return it, not %r' % (train_op,)
        )
    _require_graph(train_op, 'train_op')
    return train_op


def _require_graph(element, name: str) -> None:
    if hasattr(element, 'numpy'):  # as only tensors of eager mode have it
        raise RuntimeError(
            '%s is an eager tensor, and slimguard guards graphs. Call '
            'tf.compat.v1.disable_eager_execution() at the start of the program, or build the '
            'model inside "with tf.Graph().as_default():"' % name
        )


class _Place:
    """A task that holds variables, and what is known there. On one machine there is one place.

    What is told to a place crosses the network, so there everything that can be is done with what
    is there: variables are copied, looked at and put back where they are.

    Attributes:
      device: where to put what is done here.
      variables: those of the plan's `variables` that are here.
      put_back: those of the plan's `put_back` that are here.
      calm, fine, refused: tokens; the one that arrives says how the looks ended before the update.
      go: the token that starts the update: `calm`, or `fine` once `copies` are made.
      copies: the variables as they were before the update.
      settled: arrives when nothing is written here any more; None at home.
    """

    def __init__(self, device: str):
        self.device = device
        self.variables: List[tf.Operation] = []
        self.put_back: List[tf.Operation] = []
        self.calm = self.fine = self.refused = self.go = self.settled = None
        self.copies: List[_Copy] = []


class _Build:
    """Carries out a plan. It is made inside the graph, and read by `Gate`."""

    def __init__(self, plan: Plan, max_loss: Optional[float]):
        self._plan = plan
        self._make = ops.Maker(plan.graph)
        self.labels: List[Label] = []
        if max_loss is not None and not plan.losses:
            raise ValueError(
                'max_loss=%r needs a loss to compare with, and train op %r has none; pass it as '
                'slimguard.guard(train_op, loss=total_loss, max_loss=%r)'
                % (max_loss, plan.train_op.name, max_loss)
            )
        _require_unseen(plan)
        regularizers.delay(plan)
        self._home = _Place(self._device())
        self._places = self._find_places()
        with ops.our_scope(plan.graph, 'gate'), tf.device(self._home.device):
            self._build(max_loss)

    def _device(self) -> str:
        """Where the loss is: the decision is the worker's, wherever the variables live."""
        plan = self._plan
        near = [t for t in plan.losses] + [check.tensor for check in plan.checks]
        return near[0].device if near else plan.train_op.device

    def _find_places(self) -> Dict[tuple, _Place]:
        """The places of a training on several machines, by task; the home of the decision first."""
        plan = self._plan
        places = {task_of(self._home.device): self._home}
        # What can only be judged afterwards, or is in a branch that may not run, is waited for as
        # a whole: then there is one place.
        together = plan.trial or any(graphs.context_of(op) is not None for op in plan.writing)
        held = set(plan.variables)
        for variable in dict.fromkeys(plan.variables + list(plan.put_back)):
            task = task_of(self._home.device if together else variable.device)
            place = places.setdefault(task, _Place(processor_of(variable.device)))
            if variable in plan.put_back:
                place.put_back.append(variable)
            if variable in held:
                place.variables.append(variable)
        return places

    def _place_of(self, op) -> _Place:
        """Where an op runs. A write runs where its variable is, whatever its device says."""
        variables = self._plan.writes.variables(op)
        device = variables[0].device if variables else graphs.device_of(op)
        return self._places.get(task_of(device), self._home)

    def _build(self, max_loss: Optional[float]) -> None:
        plan = self._plan
        self.watched = tf1.placeholder_with_default(False, [], name='watched')
        self._where = Home(self.watched.op)
        # What the switches below hand on. Not their predicate: Grappler would make constants of
        # that, and abort on TensorFlow 1.15 where a loop waits for one.
        token = tf1.placeholder_with_default(SMALL_32, [], name='token')
        self.limit = None
        if plan.losses:
            limit = tf.constant(math.inf if max_loss is None else max_loss, tf.float64)
            self.limit = tf1.placeholder_with_default(limit, [], name='max_loss')
        copies_ahead = self._copy_ahead_of_forward_writes()
        checks = plan.checks + self._read_opaque_forward_writes()

        # First look. A trial has none: there, only what was written tells.
        if plan.trial:
            calm, looking = None, _after(plan.barrier, token, 'looking')
        else:
            is_calm = self._is_calm(checks)
            calm, looking = branch(token, is_calm, 'calm')

        # Second look: before the update.
        before = self._bad_before(checks, looking)
        is_fine = tf.logical_not(tf.reduce_any(before), name='is_fine')
        fine, refused = branch(token, is_fine, 'fine')
        home, *others = self._places.values()
        self._arrive(home, calm, fine, refused)
        for place in others:
            self._send_verdict(place, calm, is_fine)

        twin = self._make_twin()
        wrote = [twin[op_of(plan.train_op)]]
        calm_ran = None if calm is None else _after(wrote, calm, 'ran_calm')
        tried = _after(wrote, home.fine, 'tried')

        # Second look: after the update, or after it was refused.
        looked = merge([tried, refused], 'looked')
        after = [self._bad_after(looked, home)]
        for place in others:
            with tf.device(place.device):
                done = _after(self._writes_at(place, twin), place.fine, 'tried')
                after.append(self._bad_after(merge([done, place.refused], 'looked'), place))
        if plan.late_loss is not None:
            after.append(self._bad_late_loss(twin, refused))
        after = tf.concat(after, 0)
        is_good = self.is_good = tf.logical_and(tf.logical_not(tf.reduce_any(after)), is_fine)
        good, bad = branch(looked, is_good, 'good')
        undo, unwritten = branch(bad, is_fine, 'undo')
        held = self._hold(home, undo, unwritten, copies_ahead)
        if others:
            end = tf.cast(is_fine, tf.float32) + tf.cast(is_good, tf.float32)
            held_there = [self._send_end(place, end, twin, copies_ahead) for place in others]
            held = _after(held_there, held, 'held_everywhere')

        flags = tf.concat([before, after], 0)
        value = self._value(twin, wrote, refused)
        self.announced = self._outcome(good, self._announce(held, flags), flags, calm_ran, value)
        self.quiet = self._outcome(good, held, flags, calm_ran, value)

    # Places.

    def _arrive(self, place: _Place, calm, fine: tf.Tensor, refused: tf.Tensor) -> None:
        """What a place does once the decision is known there: copies, and then the update."""
        place.calm, place.refused = calm, refused
        place.copies = self._copy(place.variables, Now(fine))
        place.fine = _after([copy.value for copy in place.copies], fine, 'prepared')
        place.go = place.fine if calm is None else merge([calm, place.fine], 'go')

    def _send_verdict(self, place: _Place, calm: tf.Tensor, is_fine: tf.Tensor) -> None:
        """Tells a place, in one number, what the second look found: 2 if there was none."""
        with tf.control_dependencies([calm]):
            no_look = tf.constant(2.0)
        verdict = merge([no_look, tf.cast(is_fine, tf.float32)], 'verdict')
        with tf.device(place.device):
            verdict = tf.identity(verdict)
            token = tf1.placeholder_with_default(SMALL_32, [], name='token')
            calm, looking = branch(token, tf.greater(verdict, 1.5), 'calm')
            fine, refused = branch(looking, tf.greater(verdict, 0.5), 'fine')
            self._arrive(place, calm, fine, refused)

    def _send_end(self, place: _Place, end: tf.Tensor, twin, copies_ahead) -> tf.Tensor:
        """Tells a place how the second look ended: 2 is good, 1 is to be undone.

        This does not wait until the update has run everywhere: in a calm step there is nothing
        to tell, and the place would wait for that.
        """
        with tf.device(place.device):
            end = tf.identity(end)
            written = self._writes_at(place, twin)
            good, bad = branch(end, tf.greater(end, 1.5), 'good')
            undo, unwritten = branch(bad, tf.greater(end, 0.5), 'undo')
            held = self._hold(place, _after(written, undo, 'undo'), unwritten, copies_ahead)
            calm = _after(written, place.calm, 'ran_calm')
            place.settled = merge([calm, _after(written, good, 'ran_good'), held], 'settled')
            return held

    def _hold(self, place: _Place, undo, unwritten, copies_ahead) -> tf.Tensor:
        """Puts the variables of a place back; the returned token arrives when it is done."""
        held = merge([self._restore(place.copies, undo, 'undone'), unwritten], 'held')
        ahead = [copy for copy in copies_ahead if copy.variables[0] in place.put_back]
        return self._restore(ahead, held, 'put_back')

    def _writes_at(self, place: _Place, twin) -> List[tf.Operation]:
        return [
            made
            for op, made in twin.items()
            if op in self._plan.writes and self._place_of(op) is place
        ]

    def _outcome(self, good, held, flags, calm_ran, value) -> Outcome:
        """What is read once the step is done, which one of `good`, `held`, `calm_ran` tells."""
        bad = _after([merge([good, held], 'decided')], flags, 'flags')
        if calm_ran is not None:
            with tf.control_dependencies([calm_ran]):
                no_flags = tf.zeros([len(self.labels)], tf.bool)
            bad = merge([no_flags, bad], 'bad')
        with tf.control_dependencies([bad]):
            written = tf.logical_not(tf.reduce_any(bad), name='written')
            name = 'train_op'
            train_op = tf.no_op(name=name) if value is None else tf.identity(value, name=name)
        return Outcome(train_op, written, bad, self._read_global_step(bad))

    def _read_global_step(self, now: tf.Tensor) -> Optional[tf.Tensor]:
        """The global step once `now` is there; on another task, once that is settled."""
        step = tf1.train.get_global_step(self._plan.graph)
        if step is None:
            return None
        place = self._places.get(task_of(step.device), self._home)
        with tf.control_dependencies([now if place.settled is None else place.settled]):
            if step.op.type in graphs.VARIABLES:
                # Where the variable is: a reference that goes elsewhere is sent at once, and not
                # when the reader is to read.
                return self._make.copy(step.op)
            return tf.identity(step)

    # Looking.

    def _is_calm(self, checks: Sequence[Check]) -> tf.Tensor:
        plan = self._plan
        looked_at = [Check(loss, 'loss') for loss in plan.losses] + list(checks)
        sizes: Dict[Tuple[str, tf.DType, float], List[tf.Tensor]] = {}
        for group in self._make.small([check.tensor for check in looked_at]):
            together = [looked_at[number] for number in group]
            tensor = together[0].tensor
            near = self._where.near(tensor)
            if len(together) > 1:
                axis = self._make.constant(0, near)
                tensor = self._make.join([check.tensor for check in together], axis, near)
            size = self._make.sum_of_squares(for_arithmetic(tensor), near)
            size = ops.lift(size, tensor.op, 0.0)
            limit = _CALM.get(tensor.dtype.base_dtype, _CALM[tf.float32])
            if any(check.is_factor for check in together):
                limit = _CALM_FACTOR
            here = self._where.device_near(size)
            sizes.setdefault((here, size.dtype, limit), []).append(size)
        calm = []
        for (device, dtype, limit), found in sizes.items():
            with tf.device(device):
                if dtype == tf.float16:  # whose limit is so low that a sum would soon be above it
                    calm.append(tf.reduce_all(tf.less(tf.stack(found), limit)))
                else:  # no size is negative, so each is below what their sum is below
                    calm.append(tf.less(tf.add_n(found), limit))
        if plan.losses:
            # What equals the limit in the loss's dtype is left to the second look.
            loss = plan.losses[0]
            calm.append(tf.less(loss, tf.cast(self.limit, loss.dtype)))
        is_calm = calm[0] if calm else tf.constant(True)  # a train op that only counts
        for more in calm[1:]:
            is_calm = tf.logical_and(is_calm, more)
        return _after(plan.barrier, is_calm, 'is_calm')

    def _bad_before(self, checks: Sequence[Check], looking: tf.Tensor) -> tf.Tensor:
        plan = self._plan
        losses = [Check(loss, 'loss ' + loss.op.name) for loss in plan.losses]
        looked_at = losses + list(checks)
        look = Look(self._make, [check.tensor for check in looked_at], Now(looking), self._where)
        flags = [look.not_finite()]
        self.labels.extend(Label('value', check.name) for check in looked_at)
        if losses:
            with tf.control_dependencies([looking]):
                above = tf.greater(tf.cast(losses[0].tensor, tf.float64), self.limit)
            flags.append(tf.expand_dims(above, 0))
            self.labels.append(Label('limit', losses[0].name))
        if plan.squares:
            numbers = {key(check.tensor): n for n, check in enumerate(looked_at)}
            flags.append(look.overflows([numbers[key(check.tensor)] for check in plan.squares]))
            self.labels.extend(Label('square', check.name) for check in plan.squares)
        if plan.clones:
            flags.append(self._bad_clones(looking))
        return tf.concat(flags, 0)

    def _bad_clones(self, looking: tf.Tensor) -> tf.Tensor:
        """Which clones of the model put something into gradients or losses that is not finite."""
        clones = self._plan.clones
        summands = [summand for given in clones.values() for summand in given]
        found = Look(self._make, summands, Now(looking), self._where).not_finite()
        sizes = [len(given) for given in clones.values()]
        self.labels.extend(Label('clone', name) for name in clones)
        return tf.stack([tf.reduce_any(part) for part in tf.split(found, sizes)])

    def _bad_after(self, looked: tf.Tensor, place: _Place) -> tf.Tensor:
        written = dict.fromkeys(place.variables + place.put_back)
        floats = [variable for variable in written if graphs.is_float_variable(variable)]
        with tf.control_dependencies([looked]):
            values = [self._make.copy(v) if graphs.is_resource(v) else v.outputs[0] for v in floats]
        self.labels.extend(Label('state', variable.name) for variable in floats)
        return Look(self._make, values, Now(looked), Home(looked.op)).not_finite()

    def _bad_late_loss(self, twin, refused: tf.Tensor) -> tf.Tensor:
        """The flag of a loss that comes out of the update; it is false where that was refused."""
        loss = self._plan.late_loss
        self.labels.append(Label('value', 'loss ' + loss.op.name))
        value = _twin_of(loss, twin, self._plan.held)
        with tf.control_dependencies([refused]):
            unknown = tf.constant(False)
        is_bad = tf.logical_not(tf.math.is_finite(for_arithmetic(value)))
        return tf.expand_dims(merge([is_bad, unknown], 'bad_late_loss'), 0)

    # Forward writes.

    def _copy_ahead_of_forward_writes(self) -> List['_Copy']:
        put_back = self._plan.put_back
        copies = self._copy(list(put_back), None)
        for copy in copies:
            writes = [write for variable in copy.variables for write in put_back[variable]]
            for entry in _entries(writes, self._plan):
                entry._add_control_input(copy.value.op)
        return copies

    def _read_opaque_forward_writes(self) -> List[Check]:
        plan = self._plan
        if not plan.opaque_forward:
            return []
        written = _after(plan.barrier, self.watched, 'written_forward')
        return [
            Check(self._read_after(written, variable), 'update of ' + variable.name)
            for variable in plan.opaque_forward
        ]

    def _read_after(self, now: tf.Tensor, variable: tf.Operation) -> tf.Tensor:
        """The value a variable has once `now`, a bool scalar, is there."""
        with tf1.colocate_with(variable):
            if graphs.is_resource(variable):
                with tf.control_dependencies([now]):
                    return self._make.copy(variable)
            # Grappler may swap a copy with what is done to it (see `looks.Now`); a switch, of
            # which no one knows the side before it runs, stays where it is.
            switch = tf.raw_ops.Switch(data=variable.outputs[0], pred=now)
            return merge([switch.output_false, switch.output_true], 'written')

    def _copy(self, variables: Sequence[tf.Operation], now: Optional[Now]) -> List['_Copy']:
        """Copies of variables, made `now` (or at once). What writes them must wait for these."""
        make, copies = self._make, []
        with tf.control_dependencies([] if now is None else [now.token]):
            for group in make.alike([variable.outputs[0] for variable in variables]):
                chosen = [variables[number] for number in group]
                if len(chosen) == 1:
                    value = make.copy(chosen[0])
                else:
                    axis = make.constant(0, chosen[0]) if now is None else now.zero
                    value = make.join([v.outputs[0] for v in chosen], axis, chosen[0])
                copies.append(_Copy(chosen, value))
        return copies

    def _restore(self, copies: Sequence['_Copy'], pivot: tf.Tensor, name: str) -> tf.Tensor:
        """Writes copies back once `pivot` is alive. Returns `pivot`, afterwards."""
        make, assigns = self._make, []
        with tf.control_dependencies([pivot]):
            for variables, value in copies:
                number = len(variables)
                values = make.split(value, number, variables[0]) if number > 1 else [value]
                assigns.extend(make.assign(*pair) for pair in zip(variables, values))
        return _after(assigns, pivot, name)

    # Holding.

    def _make_twin(self) -> Dict[tf.Operation, tf.Operation]:
        """Creates the held ops a second time, to run only if `go` is alive."""
        plan = self._plan
        twin: Dict[tf.Operation, tf.Operation] = {}
        loose_ends = []
        for op in plan.order:
            if op not in plan.held:
                continue
            sources = [plan.resolve(t) for t in op.inputs]
            inputs = [_twin_of(source, twin, plan.held) for source in sources]
            for index, source in enumerate(sources):
                if inputs[index] is None:
                    # The back edge of a loop: its twin comes later. Until then, the loop's entry.
                    loose_ends.append((op, index, source))
                    inputs[index] = inputs[0]
            controls = [twin.get(c, c) for c in plan.controls(op)]
            controls += self._switch(op, twin)
            twin[op] = ops.create_like(op, inputs, controls, '_' + self._home.go.op.name)
        for op, index, source in loose_ends:
            twin[op]._update_input(index, twin[source.op].outputs[source.value_index])
        return twin

    def _switch(self, op, twin) -> List[tf.Operation]:
        """What to wait for so that `op` is dead if `go` is: nothing, if an input of it is dead."""
        if op.type in ('Merge', 'RefMerge'):
            return []  # alive if one of its inputs is, whatever it waits for
        loop = graphs.loop_around(op)
        if loop is not None and not (op.type in _ENTERS and graphs.flow_around(op) is loop):
            return []  # nothing inside of a loop can wait for what is outside; its entries do
        place = self._place_of(op)
        if place is not self._home and op in self._plan.writes:
            return [place.go.op]  # the copies that it has to wait for are made there
        dies_anyway = any(
            needed in twin and needed.type not in ('Merge', 'RefMerge')
            for needed in self._plan.needs(op)
        )
        return [] if dies_anyway else [place.go.op]

    def _value(self, twin, wrote: List[tf.Operation], refused: tf.Tensor) -> Optional[tf.Tensor]:
        """The value of the train op, if it has one."""
        core = self._plan.core
        if core is None or core.op not in self._plan.held:
            return core
        # The value comes out of the update. Where that was refused: what it would be without.
        ran = _after(wrote, self._home.go, 'ran')
        value = _after([ran], twin[core.op].outputs[core.value_index], 'value')
        with tf.control_dependencies([refused]):
            instead = tf.identity(self._without_update(core, {}))
        return merge([value, instead], 'value_of_step')

    def _without_update(self, tensor: tf.Tensor, made: dict) -> tf.Tensor:
        """`tensor`, computed from the variables as they are."""
        plan, op = self._plan, tensor.op
        if op not in plan.held:
            return tensor
        variable = graphs.variable_behind(tensor)
        if variable is not None and tensor.dtype != tf.resource:
            return _read(variable)
        steers = op.type in ('Switch', 'Merge', 'Exit')
        if op in plan.writes or steers or graphs.loop_around(op) is not None:
            return _no_value(tensor)  # it would take running the writes
        if op not in made:
            inputs = [self._without_update(plan.resolve(t), made) for t in op.inputs]
            controls = [c for c in plan.controls(op) if c not in plan.held]
            made[op] = ops.create_like(op, inputs, controls)
        return made[op].outputs[tensor.value_index]

    # Telling.

    def _announce(self, held: tf.Tensor, flags: tf.Tensor) -> tf.Tensor:
        """Where nobody watches, a bad step raises or prints. Returns `held`, afterwards."""
        plan = self._plan
        quiet, loud = branch(held, self.watched, 'watched')
        with tf.control_dependencies([loud]):
            if plan.raises:
                told = self._raise(flags)
            else:
                told = self._print(flags, loud)
        return merge([quiet, _after([told], loud, 'told')], 'announced')

    def _raise(self, flags: tf.Tensor) -> tf.Operation:
        bad = _those([str(label) for label in self.labels], flags)
        # The words users know, where it is the loss.
        first = tf.gather(['', self._plan.raises[0]], tf.cast(flags[0], tf.int32))
        data = [first, tf.constant(ERROR), tf.strings.reduce_join(bad, separator='|')]
        data += self._plan.losses[:1]
        return tf.raw_ops.Assert(condition=tf.constant(False), data=data, summarize=1)

    def _print(self, flags: tf.Tensor, loud: tf.Tensor) -> tf.Operation:
        bad = _those([label.name for label in self.labels], flags)
        bad = tf.strings.reduce_join(bad, separator=', ')
        step = self._read_global_step(loud)
        text = ['slimguard: this step wrote nothing']
        if step is not None:
            text += [' (global step ', tf.strings.as_string(step), ')']
        text += ['; bad: ', bad]
        if self._plan.losses:
            # On TensorFlow 1.15 there are no words for 16 bits.
            loss = tf.cast(self._plan.losses[0], tf.float64)
            text += ['; loss ', tf.strings.as_string(loss, shortest=True)]
        return tf.print(tf.strings.join(text), output_stream=sys.stderr)


def _those(words: Sequence[str], flags: tf.Tensor) -> tf.Tensor:
    """The words whose flag is true. `tf.boolean_mask` builds twenty ops for any shape."""
    return tf.gather(tf.constant(words, tf.string), tf.reshape(tf.where(flags), [-1]))


def _after(first, tensor: tf.Tensor, name: str) -> tf.Tensor:
    with tf.control_dependencies(list(first)):
        return tf.identity(tensor, name=name)


def _read(variable: tf.Operation) -> tf.Tensor:
    """The value of a variable; of a ref variable the buffer itself, which later writes change."""
    output = variable.outputs[0]
    if not graphs.is_resource(variable):
        with tf1.colocate_with(variable):
            return tf.identity(output)
    dtype = graphs.dtype_of(variable)
    value = tf.raw_ops.ReadVariableOp(resource=output, dtype=dtype)
    value.set_shape(variable.get_attr('shape'))
    return value


def _twin_of(source: tf.Tensor, twin, held) -> Optional[tf.Tensor]:
    if source.op in twin:
        return twin[source.op].outputs[source.value_index]
    return None if source.op in held else source


def _entries(writes: Sequence[tf.Operation], plan: Plan) -> List[tf.Operation]:
    """The ops to wait with so that `writes` wait: in a loop, what enters the loop."""
    entries = []
    for write in writes:
        loop = graphs.loop_around(write)
        if loop is None:
            entries.append(write)
            continue
        enters = [op for op in plan.order if op.type in _ENTERS]
        entries.extend(op for op in enters if graphs.flow_around(op) is loop)
    return entries


def _no_value(tensor: tf.Tensor) -> tf.Tensor:
    """What stands in for a value that there is none of: NaN, or zeros where there is no NaN."""
    shape = [size or 0 for size in tensor.shape.as_list()] if tensor.shape.rank else []
    if graphs.is_float(tensor):
        return tf.cast(tf.fill(shape, math.nan), tensor.dtype.base_dtype)
    return tf.zeros(shape, tensor.dtype.base_dtype)


def _require_unseen(plan: Plan) -> None:
    """Raises if a write that needs one more control input may be known to a session already."""
    if not plan.put_back:
        return
    for session in graphs.open_sessions(plan.graph):
        variable, writes = next(iter(plan.put_back.items()))
        raise ValueError(
            'cannot guard: %s %r writes %r in the forward pass, before the gradients are known, '
            'so it has to be put back after a bad step; but the session %r was opened on this '
            'graph before, and what a session has seen cannot be wired any more. Build the train '
            'op first and open the session then; or leave update ops in the UPDATE_OPS '
            'collection and use slimguard.create_train_op, which holds them back'
            % (writes[0].type, writes[0].name, variable.name, session)
        )

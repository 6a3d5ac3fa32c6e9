"""The plan of a gate: what a train op consists of, and what has to happen to each part.

:class:`Plan` reads the graph and decides; it builds nothing. :mod:`slimguard.gate` carries it out
and explains the words *forward*, *held*, *forward write* and *calm* that are used here.
"""

from typing import Callable, Dict, List, NamedTuple, Optional, Set, Tuple

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.graph import TrainOp, key, op_of
from slimguard.graph.clones import summands_by_clone

# A value that is read after a held write need not be looked at if it is made of variables and
# checked values by these ops alone: then it is finite if they are (an overflow by adding is what
# the second look is for). Moving averages of weights are made so, and Adam's sparse update.
_KEEP_FINITE = frozenset(
    'Identity ReadVariableOp Const Cast Sub Add AddV2 AddN Neg Minimum Maximum Sqrt Reshape '
    'ExpandDims Gather GatherV2 ResourceGather NoOp'.split()
)
_CHECKS = frozenset('CheckNumerics CheckNumericsV2'.split())
_ROLES = {'lr': 'learning rate', 'alpha': 'learning rate'}
_GRADIENTS = frozenset('grad delta gradient gradient_values'.split())


class Check(NamedTuple):
    """A float tensor to look at before anything is written."""

    tensor: tf.Tensor
    name: str
    # A learning rate or the like: it multiplies what is written.
    is_factor: bool = False


class Plan:
    """What a train op consists of.

    Attributes:
      train_op: the train op to guard.
      core: the Tensor whose value it returns, without the Identity and CheckNumerics ops around
        it; None if it is an Operation.
      raises: the messages of those CheckNumerics ops.
      order: every op the train op needs, each after what it needs.
      writing: those of them that write.
      held: the ops to run behind the switch.
      losses: floating scalars that have to be finite; the first is *the* loss.
      checks: the other values to look at, each once.
      squares: the checks that an optimizer squares.
      clones: by clone of the model, what it puts into gradients and losses; empty for one model.
      variables: the variables that held ops write.
      put_back: the forward writes to undo after a bad step, by variable.
      opaque_forward: the variables of `put_back` whose new value can only be read afterwards.
      late_loss: the loss, where it comes out of the update and cannot be looked at before.
      trial: whether the held writes can only be judged by what they wrote.
      barrier: ops that must have run before anything is written (asserts and the like).
    """

    def __init__(self, train_op: TrainOp, loss: Optional[tf.Tensor], stand_in: Callable):
        """`stand_in` maps an op to the one that stood in its place before it was guarded."""
        self.train_op = train_op
        self.graph = train_op.graph
        self.raises: List[str] = []
        self.barrier: List[tf.Operation] = []
        self._stand_in = stand_in
        self._peeled: Dict[tf.Operation, tf.Tensor] = {}
        self._needs: Dict[tf.Operation, List[tf.Operation]] = {}  # asked for several times
        self.core = self._peel(train_op) if isinstance(train_op, tf.Tensor) else None
        if self.core is None:
            self._peel_group(op_of(train_op))
        roots = [op_of(train_op)] + ([] if loss is None else [loss.op])
        self.order = graphs.ancestors(roots, self.needs)
        self.writes = graphs.Writes(self.graph)
        self.writing = [op for op in self.order if op in self.writes]
        if not self.writing:
            raise ValueError(
                'train op %r writes no variable, so there is nothing to guard; pass the op that '
                'applies the gradients' % train_op.name
            )
        self.held = self._find_held()
        self._require_no_fed_op_is_held()
        self.losses = self._find_losses(loss)
        self.late_loss = self._find_late_loss(loss)
        self.trial = self.late_loss is not None
        self.put_back: Dict[tf.Operation, List[tf.Operation]] = {}
        self.opaque_forward: List[tf.Operation] = []
        self._data: Optional[Set[tf.Operation]] = None
        self._variables: Dict[tf.Operation, None] = {}
        self._checks: Dict[Tuple[tf.Operation, int], Check] = {}
        self._squares: Dict[Tuple[tf.Operation, int], Check] = {}
        self._is_small: Dict[tf.Operation, bool] = {}  # of constants, which many writes share
        self._written_ahead = {
            variable
            for write in self.writing
            if write not in self.held
            for variable in self.writes.variables(write)
        }
        for write in self.writing:
            if write in self.held:
                self._plan_held(write)
            else:
                self._plan_forward(write)
        self.variables = list(self._variables)
        self.checks = list(self._checks.values())
        self.squares = list(self._squares.values())
        self.clones = self._find_clones()
        self._find_barrier()
        if self.trial:
            self._require_undo()

    # Reading through gates that are there already.

    def resolve(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensor that `tensor` stands for: without a gate, without its CheckNumerics."""
        if tensor.op in self._peeled:
            return self._peeled[tensor.op]
        stand_in = self._stand_in(tensor.op)
        return tensor if stand_in is tensor.op else stand_in.outputs[0]

    def needs(self, op) -> List[tf.Operation]:
        """What `op` needs, read through gates that are there already."""
        found = self._needs.get(op)
        if found is None:
            found = [self.resolve(t).op for t in op.inputs] + self.controls(op)
            self._needs[op] = found
        return found

    def controls(self, op) -> List[tf.Operation]:
        return [self._stand_in(control) for control in op.control_inputs]

    def _peel(self, core: tf.Tensor) -> tf.Tensor:
        while core.op.type in _CHECKS or (
            core.op.type == 'Identity' and not graphs.is_reference(core.op.inputs[0])
        ):
            inner = core.op.inputs[0]
            if core.op.type in _CHECKS:
                self.raises.append(tf.compat.as_str(core.op.get_attr('message')))
                self.barrier.extend(self.controls(core.op))
                self._peeled[core.op] = inner
            core = self.resolve(inner)
        return core

    def _peel_group(self, train_op: tf.Operation) -> None:
        """Peels the train ops that were put into a `tf.group`."""
        seen = set()
        waiting = [train_op]
        while waiting:
            op = waiting.pop()
            if op in seen:
                continue
            seen.add(op)
            if op.type == 'NoOp':
                waiting.extend(self.controls(op))
            elif op.type in _CHECKS or (op.type == 'Identity' and self.controls(op)):
                self._peel(op.outputs[0])

    # Which part an op belongs to.

    def _find_held(self) -> Set[tf.Operation]:
        """The writes to hold, and all that runs after one of them."""
        trainable = {variable.op.name for variable in _trainable_variables(self.graph)}
        training = {
            write
            for write in self.writing
            if graphs.is_apply(write)
            or any(variable.name in trainable for variable in self.writes.variables(write))
        }
        forward: Set[tf.Operation] = set()
        if self.core is not None and graphs.is_float(self.core):
            forward.update(graphs.ancestors([self.core.op], self.needs))
            if not training.isdisjoint(forward):
                forward = set()  # a loss computed after the update says nothing about the rest
        computed = set(forward)
        before_training = [needed for write in training for needed in self.needs(write)]
        forward.update(graphs.ancestors(before_training, self.needs))
        forward -= self._find_slot_writes(training, computed)
        if not forward:
            training = set(self.writing)
        held: Set[tf.Operation] = set()
        loops: Set[object] = set()
        for op in self.order:
            starts = op in training or (op in self.writes and op not in forward)
            if starts or any(needed in held for needed in self.needs(op)):
                held.add(op)
                loops.add(graphs.loop_around(op))
        return self._with_loops(held, loops - {None})

    def _require_no_fed_op_is_held(self) -> None:
        for op in self.order:
            if op in self.held and op.type.startswith('Placeholder'):
                raise ValueError(
                    'cannot guard: placeholder %r waits for a write (it was made under '
                    'tf.control_dependencies), so it would have to be fed twice. Make it ahead of '
                    'the train ops' % op.name
                )

    def _find_slot_writes(self, training: Set[tf.Operation], computed: Set[tf.Operation]):
        """Writes that a training write needs, but no gradient: they can be held as well.

        Adam's sparse update is made so: it decays and scatters into its moments, and subtracts
        what it then reads from them. Here we follow such arithmetic from the training writes
        back to where something else, a gradient, enters it.
        """
        slot_writes: Set[tf.Operation] = set()
        seen: Set[tf.Operation] = set()
        gradients: List[tf.Operation] = []
        waiting = [
            self.resolve(value.tensor).op
            for write in training
            if not graphs.is_apply(write) and not self.writes.is_opaque(write)
            for value in graphs.values_of(write)
        ]
        while waiting:
            op = waiting.pop()
            if op in seen:
                continue
            seen.add(op)
            if op in self.writes and not self.writes.is_opaque(op):
                slot_writes.add(op)
                waiting.extend(self.needs(op))
            elif graphs.is_variable_read(op):
                waiting.extend(self.needs(op))
            elif op.type in _KEEP_FINITE or _is_safe_product(op):
                waiting.extend(self.resolve(t).op for t in op.inputs)
            elif op.type not in graphs.VARIABLES:
                gradients.append(op)
        return slot_writes - training - computed - set(graphs.ancestors(gradients, self.needs))

    def _with_loops(self, held: Set[tf.Operation], loops: Set[object]) -> Set[tf.Operation]:
        """A loop runs as one: if one op in it is held, all are, and what comes after."""
        if not loops:
            return held
        for op in self.order:
            if graphs.loop_around(op) in loops or any(n in held for n in self.needs(op)):
                held.add(op)
        return held

    def _find_losses(self, loss: Optional[tf.Tensor]) -> List[tf.Tensor]:
        found = [] if loss is None else [self._peel_quietly(loss)]
        if self.core is not None and _is_scalar(self.core):
            sources = self._sources(self.core)
            found.extend(t for t in sources or () if _is_scalar(t))
        if not found:
            needed = set(self.order)
            candidates = self.graph.get_collection(tf1.GraphKeys.LOSSES)
            found = [t for t in candidates if t.op in needed and _is_scalar(t)]
        unique = {key(t): t for t in found if t.op not in self.held}
        return list(unique.values())

    def _peel_quietly(self, loss: tf.Tensor) -> tf.Tensor:
        """The tensor under a loss that create_train_op wrapped, so that it is checked once."""
        while loss.op.type == 'Identity' and not graphs.is_reference(loss.op.inputs[0]):
            loss = self.resolve(loss.op.inputs[0])
        return self.resolve(loss)

    def _find_late_loss(self, loss: Optional[tf.Tensor]) -> Optional[tf.Tensor]:
        """The loss, if it comes out of the update, as when two trainings follow each other."""
        if loss is not None and self._peel_quietly(loss).op in self.held:
            return self._peel_quietly(loss)
        is_late = (
            self.core is not None
            and graphs.is_float(self.core)
            and self.core.op in self.held
            and self.core.op not in self.writes
            and self._sources(self.core) is None
        )
        return self.core if is_late else None

    # What to check.

    def _plan_held(self, write) -> None:
        self._variables.update(dict.fromkeys(self.writes.variables(write)))
        if graphs.can_divide_by_zero(write):
            self.trial = True
        if self.writes.is_opaque(write) or graphs.loop_around(write) is not None:
            self.trial = True
            return
        for value in graphs.values_of(write):
            tensor = self.resolve(value.tensor)
            sources = self._sources(tensor)
            if sources is None:
                self.trial = True
                continue
            for source in sources:
                check = self._add_check(source, write, value.role)
                if check is not None and source is tensor and self._is_squared(write, value.role):
                    self._squares.setdefault(key(check.tensor), check)

    def _plan_forward(self, write) -> None:
        variables = self.writes.variables(write)
        if not variables:
            raise ValueError(
                'cannot guard: %s %r writes in the forward pass, before the gradients are known, '
                'and what it writes cannot be read back to be restored. Make it depend on the '
                'gradients, or leave it out of the train op' % (write.type, write.name)
            )
        floats = [v for v in variables if graphs.is_float_variable(v)]
        for variable in variables:
            if variable in floats or not self._is_input(write, variable):
                self.put_back.setdefault(variable, []).append(write)
        in_loop = graphs.loop_around(write) is not None
        if self.writes.is_opaque(write) or in_loop:
            self.opaque_forward.extend(v for v in floats if v not in self.opaque_forward)
            return
        for value in graphs.values_of(write) if floats else ():
            self._add_check(self.resolve(value.tensor), write, value.role)

    def _is_input(self, write, variable) -> bool:
        """Whether the loss or a gradient is computed from what `write` wrote, by data.

        So it is with a counter that picks the batch: restoring it would pick the bad one again.
        """
        if self._data is None:
            roots = [t.op for t in self.losses]
            roots += [t.op for op in self.held for t in op.inputs if t.op not in self.held]
            self._data = set(graphs.ancestors(roots, lambda op: [t.op for t in op.inputs]))
        if write in self._data and write.outputs:
            return True
        return any(
            op in self._data and write in graphs.ancestors([op], self.needs)
            for tensor in variable.outputs
            for op in tensor.consumers()
            if graphs.is_variable_read(op)
        )

    def _add_check(self, tensor: tf.Tensor, write, role: str) -> Optional[Check]:
        if self._is_small_constant(tensor):
            return None
        if any(key(tensor) == key(loss) for loss in self.losses):
            return None
        of = self._check_key(tensor)
        if of not in self._checks:
            is_factor = graphs.is_apply(write) and role not in _GRADIENTS
            name = '%s of %s' % (_role(write, role), self._written_name(write))
            self._checks[of] = Check(tensor, name, is_factor)
        return self._checks[of]

    def _is_small_constant(self, tensor: tf.Tensor) -> bool:
        if tensor.op not in self._is_small:
            constant = graphs.constant_scalar(tensor)
            self._is_small[tensor.op] = constant is not None and abs(constant) < 1e6
        return self._is_small[tensor.op]

    def _check_key(self, tensor: tf.Tensor) -> Tuple[tf.Operation, int]:
        """The same for tensors of the same value: an optimizer reads its powers for each apply."""
        op = tensor.op
        while op.type == 'Identity' and not graphs.is_reference(op.inputs[0]):
            op = self.resolve(op.inputs[0]).op
        if op.type == 'ReadVariableOp' and op not in self.held:
            variable = graphs.variable_behind(op.inputs[0])
            if variable is not None and variable not in self._written_ahead:
                return variable, 0
        return key(tensor)

    def _written_name(self, write) -> str:
        variables = self.writes.variables(write)
        if variables:
            return variables[0].name
        return _accumulated_name(write)

    def _is_squared(self, write, role: str) -> bool:
        if role not in _GRADIENTS:
            return False
        if graphs.is_accumulator(write):
            return graphs.feeds_square(write)
        return graphs.squares_gradient(write)

    def _sources(self, tensor: tf.Tensor) -> Optional[List[tf.Tensor]]:
        """The tensors to check so that `tensor` is finite, or None if that is not enough.

        For a tensor that does not depend on a held write, the tensor itself. For one that does,
        what it is made of, if it is made of `_KEEP_FINITE` ops.
        """
        if tensor.op not in self.held:
            return [tensor]
        found: List[tf.Tensor] = []
        seen: Set[tf.Operation] = set()
        waiting = [tensor]
        while waiting:
            current = waiting.pop()
            op = current.op
            if op not in self.held:
                if graphs.is_float(current) and not graphs.is_variable_read(op):
                    found.append(current)
                continue
            if op in seen:
                continue
            seen.add(op)
            if op in self.writes or graphs.is_variable_read(op):
                continue  # the variable itself, after a write that is checked for itself
            if graphs.loop_around(op) is not None:
                return None
            inputs = [self.resolve(t) for t in op.inputs]
            if op.type not in _KEEP_FINITE and not _is_safe_product(op):
                return None
            waiting.extend(inputs)
        return found

    def _find_clones(self) -> Dict[str, List[tf.Tensor]]:
        checked = [check.tensor for check in self.checks if not check.is_factor]
        clones = summands_by_clone(checked, self.resolve)
        losses = summands_by_clone(self.losses, self.resolve)
        for name, summands in clones.items():  # other sums of losses are none of clones
            summands.extend(losses.get(name, ()))
        return clones if len(clones) > 1 else {}

    def _find_barrier(self) -> None:
        controls = {c for op in self.held for c in self.controls(op)}
        self.barrier.extend(controls)
        for writes in self.put_back.values():
            self.barrier.extend(writes)
            self.barrier.extend(self._ways_out(writes))
        # An op inside a branch or a loop may never run, and nothing could wait for it.
        self.barrier = [
            op
            for op in dict.fromkeys(self.barrier)
            if op not in self.held and graphs.context_of(op) is None
        ]

    def _ways_out(self, writes: List[tf.Operation]) -> List[tf.Operation]:
        """The ops through which the branches and loops are left that `writes` are in.

        Who waits for these has waited for the writes: whatever leads from a write to the train op
        leaves through one of them.
        """
        around = {graphs.outermost_context(write) for write in writes} - {None}
        if not around:
            return []
        return [
            op
            for op in self.order
            if op.type in ('Exit', 'RefExit', 'Merge', 'RefMerge')
            and any(graphs.outermost_context(needed) in around for needed in self.needs(op))
        ]

    def _require_undo(self) -> None:
        for write in self.writing:
            if write in self.held and not self.writes.variables(write):
                raise ValueError(
                    'cannot guard: %s %r cannot be undone, and this train op has writes that can '
                    'only be judged afterwards (inside a loop or a function, or computed from '
                    'updated variables). Guard the two parts as train ops of their own'
                    % (write.type, write.name)
                )


def _trainable_variables(graph: tf.Graph) -> list:
    with graph.as_default():
        return tf1.trainable_variables()


def _is_scalar(tensor: tf.Tensor) -> bool:
    return tensor.dtype.base_dtype.is_floating and tensor.shape.is_compatible_with([])


def _role(write, role: str) -> str:
    if role in _GRADIENTS:
        return 'gradient'
    return _ROLES.get(role, role) if graphs.is_apply(write) else 'update'


def _accumulated_name(write) -> str:
    """The variable whose gradient an accumulator collects: SyncReplicasOptimizer names it so."""
    accumulator = write.inputs[0].op
    try:
        name = tf.compat.as_str(accumulator.get_attr('shared_name'))
    except ValueError:
        name = ''
    return name[: -len('/grad_accum')] if name.endswith('/grad_accum') else accumulator.name


def _is_safe_product(op) -> bool:
    """Whether `op` scales by a scalar, or divides by what is never zero."""
    if op.type == 'Mul':
        return any(t.shape.rank == 0 for t in op.inputs)
    return op.type == 'RealDiv' and _stays_away_from_zero(op.inputs[1])


def _stays_away_from_zero(tensor: tf.Tensor) -> bool:
    """Whether a divisor is `sqrt(x) + epsilon`, `epsilon + n` or `1 - c**n` for 0 <= c < 1."""
    op = tensor.op
    if op.type in ('Add', 'AddV2'):
        constants = [graphs.constant_scalar(t) for t in op.inputs]
        others = [t for t, c in zip(op.inputs, constants) if c is None]
        positive = any(c is not None and c > 0 for c in constants)
        return positive and all(_is_not_negative(t) for t in others)
    if op.type == 'Sub' and graphs.constant_scalar(op.inputs[0]) == 1.0:
        power = op.inputs[1].op
        base = graphs.constant_scalar(power.inputs[0]) if power.type == 'Pow' else None
        return base is not None and 0 <= base < 1
    return False


def _is_not_negative(tensor: tf.Tensor) -> bool:
    op = tensor.op
    return op.type == 'Sqrt' or (op.type == 'Cast' and op.inputs[0].dtype.base_dtype.is_integer)

"""Builds a gate: carries out the plan of one train op. :mod:`slimguard.gate` says how it works."""

import math
import sys
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.gate import regularizers
from slimguard.gate.finite_checks import SMALL_32, Look, Now
from slimguard.gate.plan import Check, Plan
from slimguard.gate.verdict import ERROR, Label
from slimguard.graph import TrainOp, key, op_of, ops
from slimguard.graph.devices import Home, processor_of, task_of
from slimguard.graph.ops import branch, for_arithmetic, merge

# A step is calm if every value's sum of squares (halved) is below this. With p bits of precision,
# adding what is smaller than x / 2**(p+1) leaves x as it is, so accumulated values and squares
# stay in range for ever if twice this limit times 2**(p+1) does.
_CALM = {tf.float64: 1e280, tf.float32: 1e28, tf.bfloat16: 1e28, tf.float16: 4.0}
# The same for a learning rate and the like, which multiply what was checked.
_CALM_FACTOR = 1e12

_ENTERS = frozenset(['Enter', 'RefEnter'])


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


# What the error of a gate with `raises` says, ahead of its labels.


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


class Build:
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

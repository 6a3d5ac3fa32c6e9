"""Measures a step: the range of each of its float tensors, and the pass that each op belongs to."""

from typing import Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.diagnosis.capture import gate_roots
from slimguard.diagnosis.diagnosis import Phase, Row
from slimguard.diagnosis.ranges import Range, measure
from slimguard.diagnosis.rerun_step import Step
from slimguard.graph import key
from slimguard.incidents import advice

# Ops that return the numbers of their first input, in the same shape or another.
_SAME_SHAPE = frozenset(
    'Identity StopGradient PreventGradient Snapshot CheckNumerics CheckNumericsV2'.split()
)
SAME_NUMBERS = _SAME_SHAPE | frozenset(['Reshape', 'Squeeze', 'ExpandDims'])

# By TensorArray op, the index of its flow output: a dummy float that makes reads of the array wait
# for earlier writes.
_FLOWS = {
    'TensorArrayV3': 1,
    'TensorArrayGradV3': 1,
    'TensorArrayGradWithShape': 1,
    'TensorArrayWriteV3': 0,
    'TensorArrayScatterV3': 0,
    'TensorArraySplitV3': 0,
}
# Stateful ops that take no input from outside and make no random numbers.
_NO_DRAWS = graphs.VARIABLES | graphs.READS | frozenset('CheckNumerics CheckNumericsV2'.split())
_ASSIGNS = frozenset('Assign AssignVariableOp'.split())
_COPIES = SAME_NUMBERS | graphs.VARIABLES | graphs.READS
_COPIES |= frozenset('Const DeepCopy ConcatV2 Split SplitV'.split())
_HAND_ON = SAME_NUMBERS | frozenset('Enter Exit Merge Switch NextIteration'.split())
# Weights grow this large only in a training that diverges.
LARGE_WEIGHT = 1e6


class MadeOf(NamedTuple):
    """What a tensor is computed from.

    Attributes:
      draws: whether it is computed from anything that the step drew.
      drawn: the names of the fed tensors that it is computed from, such as the arrays of the batch.
      floats: whether it is computed from a float variable: a weight, a moving average, a slot.
      is_own: whether it is computed only from constants and from variables that the step writes.
    """

    draws: bool
    drawn: Tuple[str, ...]
    floats: bool
    is_own: bool


class MeasuredStep:
    """A step and the ranges of its float tensors, measured by running it.

    Args:
      step: the `Step` to run.
      explosion: the sentence on an explosion in the steps before; '' if none.

    Attributes:
      step, explosion: the same.
      phases: for each op `Phase.FORWARD`, `BACKWARD` or `UPDATE`.
      fixed: the ops whose outputs are the same in every step.
    """

    def __init__(self, step: Step, explosion: str = ''):
        self.step = step
        self.explosion = explosion
        self.phases = _phases_of(step)
        self.fixed = _fixed_ops(step)
        self._order = {op: number for number, op in enumerate(step.ops)}
        self._ranges: Dict[Tuple[tf.Operation, int], Range] = {}
        self._measure_feed()
        for chunk in step.in_chunks(t for op in step.ops for t in self._to_fetch(op)):
            self._measure(chunk)
        self._hand_on()
        self._written = self._find_written()

    def range_of(self, tensor: tf.Tensor) -> Optional[Range]:
        """The range of a tensor; None if it is no float tensor, or could not be measured."""
        return self._ranges.get(key(tensor))

    @property
    def has_exploded(self) -> bool:
        """Whether the last steps or the weights show that the training had exploded before."""
        return bool(self.explosion or self.large_weights())

    def large_weights(self) -> str:
        """The largest weight, in words; '' if all are of normal size."""
        largest, name = 0.0, ''
        for op in self.step.ops:
            weights = self.range_of(op.outputs[0]) if graphs.is_variable_read(op) else None
            variable = None if weights is None else graphs.variable_read(op.outputs[0])
            if weights is None or variable is None:
                continue
            if self.is_trained(op, variable):
                largest, name = max((largest, name), (weights.largest, variable.name))
        if largest < LARGE_WEIGHT:
            return ''
        return '. %s %.3g (%s)' % (advice.LARGE_WEIGHTS, largest, name)

    def is_bad(self, tensor: tf.Tensor) -> bool:
        """Whether a tensor is known not to be finite."""
        its_range = self.range_of(tensor)
        return its_range is not None and not its_range.is_finite

    def phase_of(self, op: tf.Operation) -> str:
        return self.phases.get(op, Phase.FORWARD)

    def number_of(self, op: tf.Operation) -> int:
        """The position of an op in the order of the step."""
        return self._order.get(op, 0)

    def inputs_of(self, tensor: tf.Tensor) -> List[tf.Tensor]:
        """The inputs of a tensor's op; an unmeasured input is replaced by its own inputs."""
        inputs = []
        seen = set()
        is_fed = self.step.is_fed(tensor)
        waiting = self.step.givens_of(tensor) if is_fed else _taken_by(tensor.op)
        while waiting:
            given = waiting.pop(0)
            if key(given) in seen:
                continue
            seen.add(key(given))
            if self._is_end(given):
                inputs.append(given)
            elif given.op.type not in graphs.VARIABLES:
                waiting.extend(_taken_by(given.op))
        return inputs

    def chosen_by(self, tensor: tf.Tensor) -> List[tf.Tensor]:
        """The bad float tensors from which non-float inputs, such as a condition, were computed."""
        if self.step.is_fed(tensor):
            return []
        bad, seen = [], set()
        waiting = [t for t in tensor.op.inputs if not graphs.is_float(t)]
        while waiting:
            given = waiting.pop()
            if key(given) in seen or self.step.is_fed(given):
                continue
            seen.add(key(given))
            if self.is_bad(given):
                bad.append(given)
            elif not graphs.is_float(given):
                waiting.extend(given.op.inputs)
        return bad

    def made_of(self, tensor: tf.Tensor) -> MadeOf:
        """What a tensor is computed from."""
        step = self.step
        fed = [tensor] if step.is_fed(tensor) else []
        ops = [] if fed else graphs.ancestors([tensor.op], self._data_needs)
        fed += [t for op in ops for t in op.inputs if step.is_fed(t)]
        draws = bool(fed) or any(graphs.is_stateful(op) and op.type not in _NO_DRAWS for op in ops)
        variables = {op for op in ops if op.type in graphs.VARIABLES}
        return MadeOf(
            draws=draws,
            drawn=tuple(dict.fromkeys(map(step.name_of, fed))),
            floats=any(graphs.dtype_of(each).is_floating for each in variables),
            is_own=variables <= self._written and not draws,
        )

    def _find_written(self) -> Set[tf.Operation]:
        """The variables that the step writes, unless it only assigns copies to them."""
        writes, written = graphs.Writes(self.step.graph), set()
        for op in graphs.ancestors(gate_roots(self.step.gate)):
            values = [value.tensor for value in graphs.values_of(op)]
            if not (op.type in _ASSIGNS and all(map(_is_copy, values))):
                written.update(writes.variables(op))
        return written

    def is_trained(self, read: tf.Operation, variable: tf.Operation) -> bool:
        """Whether a variable read is a weight: not a counter, a moving average, or a data set."""
        return variable in self._written and self.phase_of(read) == Phase.FORWARD

    def _data_needs(self, op: tf.Operation) -> List[tf.Operation]:
        return [t.op for t in op.inputs if not self.step.is_fed(t)]

    def rows(self) -> Iterator[Row]:
        """Yields the table of ranges: fed tensors first, then the ops' outputs in their order."""
        step = self.step
        for tensor in step.feed:
            is_ours = tensor.op.name.startswith(graphs.OURS)  # a limit of the gate
            if not is_ours and self.range_of(tensor) is not None:
                yield self._row(tensor, Phase.INPUT)
        for op in step.ops:
            if op.type in SAME_NUMBERS or op in self.fixed:
                continue
            for tensor in op.outputs:
                if self.range_of(tensor) is not None and not step.is_fed(tensor):
                    yield self._row(tensor, self.phases[op])

    def _measure_feed(self) -> None:
        for tensor, value in self.step.feed.items():
            if graphs.is_float(tensor):
                self._ranges[key(tensor)] = measure(value, tensor.dtype.base_dtype.name)

    def _measure(self, tensors: List[tf.Tensor]) -> None:
        for tensor, value in zip(tensors, self.step.fetch(tensors)):
            if value is not None:
                self._ranges[key(tensor)] = measure(value, tensor.dtype.base_dtype.name)

    def _hand_on(self) -> None:
        """Copies an input's range to an unmeasured output that has the same numbers."""
        for op in self.step.ops:
            if op.type in SAME_NUMBERS and key(op.outputs[0]) not in self._ranges:
                its_range = self.range_of(op.inputs[0])
                if its_range is not None and graphs.is_float(op.outputs[0]):
                    self._ranges[op, 0] = its_range

    def _to_fetch(self, op) -> List[tf.Tensor]:
        if op.type in ('Switch', 'RefSwitch'):
            return []
        if op.type in _SAME_SHAPE and not graphs.is_reference(op.inputs[0]):
            return []
        return [
            t
            for t in op.outputs
            if graphs.is_float(t)
            and not _is_flow(t)
            and not self.step.is_fed(t)
            and self.step.can_fetch(t)
            and (t.consumers() or len(op.outputs) == 1)
        ]

    def _is_end(self, tensor) -> bool:
        """Whether `inputs_of` stops at `tensor`: it was measured, or holds no floats."""
        if self.range_of(tensor) is not None or self.step.is_fed(tensor):
            return True
        hides_floats = tensor.dtype.base_dtype in (tf.resource, tf.variant)
        return not (graphs.is_float(tensor) or hides_floats)  # a flow is a float, but not an end

    def _row(self, tensor, phase: str) -> Row:
        name = self.step.name_of(tensor)
        op = name.rpartition(':')[0]
        return Row(op, self.step.type_of(tensor.op), name, phase, self._ranges[key(tensor)])


def _taken_by(op: tf.Operation) -> List[tf.Tensor]:
    """The inputs of an op; for a pop from a loop's stack, the values pushed onto it."""
    if op.type != 'StackPopV2':
        return list(op.inputs)
    stack = op.inputs[0].op
    while stack.type == 'Enter':
        stack = stack.inputs[0].op
    pushed, handles = [], [stack]
    while handles:
        for user in handles.pop().outputs[0].consumers():
            if user.type == 'Enter':
                handles.append(user)
            elif user.type == 'StackPushV2':
                pushed.append(user.inputs[1])
    return pushed


def _is_copy(tensor: tf.Tensor) -> bool:
    return all(op.type in _COPIES for op in graphs.ancestors([tensor.op], graphs.makers_of))


def _is_flow(tensor: tf.Tensor) -> bool:
    while tensor.op.type in _HAND_ON:
        tensor = tensor.op.inputs[0]
    return _FLOWS.get(tensor.op.type) == tensor.value_index


def _phases_of(step: Step) -> Dict[tf.Operation, str]:
    loss = step.gate.loss
    forward = set() if loss is None else set(graphs.ancestors([loss.op], step.needs))
    phases: Dict[tf.Operation, str] = {}
    for op in step.ops:
        if op in forward:
            phases[op] = Phase.FORWARD
        elif step.origins(op.name).forward is not None or any(
            phases.get(t.op) == Phase.BACKWARD for t in op.inputs
        ):
            phases[op] = Phase.BACKWARD
        else:
            phases[op] = Phase.UPDATE if loss is not None else Phase.FORWARD
    return phases


def _fixed_ops(step: Step) -> Set[tf.Operation]:
    """The ops whose outputs never change, since they need no variable and draw nothing."""
    fixed: Set[tf.Operation] = set()
    for op in step.ops:
        if op.type in graphs.VARIABLES or any(step.is_fed(t) for t in op.outputs):
            continue
        if graphs.is_stateful(op):
            continue
        if all(t.op in fixed and not step.is_fed(t) for t in op.inputs):
            fixed.add(op)
    return fixed

"""Which variables that a step advances are its input: a loss or a gradient is computed from them.

A counter that picks the batch is input. Putting it back would pick the same bad batch again.

A counter that only says when something is written, or how much, is no input, and is put back with
the rest. Examples count micro-batches, whose gradients are accumulated, or steps, which a learning
rate, the weight of a loss or a correction of Adam's follows. Such a counter reaches the update as a
condition or as a factor. So values are followed back here with these two left out:

* A condition decides whether the ops of its branches run, and changes no value in them. Only the
  output of a branch (a Merge) depends on it.
* A factor that is computed from a count alone does not change which batch was picked.
"""

from typing import Dict, Iterable, List, Optional, Sequence, Set

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.gate.step_graph import StepGraph
from slimguard.graph.control_flow import Flow

_SWITCHES = frozenset(['Switch', 'RefSwitch'])
_MERGES = frozenset(['Merge', 'RefMerge'])
_BRANCHES = frozenset(['If', 'StatelessIf', 'Case', 'StatelessCase'])
_SCALES = frozenset('Mul MulNoNan RealDiv Div DivNoNan'.split())
_CHOOSES = frozenset(['Select', 'SelectV2'])
# Ops whose result is a count if all inputs are: arithmetic, as in a schedule, and no choice.
_COUNTS = frozenset(
    'Identity Cast Add AddV2 Sub Mul FloorMod FloorDiv Maximum Minimum Equal NotEqual Less '
    'LessEqual Greater GreaterEqual LogicalNot LogicalAnd LogicalOr RealDiv Div DivNoNan Pow Exp '
    'Log Neg Square Sqrt Rsqrt Reciprocal Inv Floor Ceil Cos Tanh Sigmoid'.split()
)


class StepInputs:
    """Answers which of the variables that the forward pass writes are input.

    Args:
      step: the ops of the step.
      gated: the gated ops among them.
      losses: the losses.
    """

    def __init__(self, step: StepGraph, gated: Set[tf.Operation], losses: Sequence[tf.Tensor]):
        self._step = step
        self._counts = _find_counts(step)
        self._values_written = _values_written_ahead(step, gated)
        self._flow: Optional[Flow] = None
        updates = _values_of_update(step, gated, self._counts)
        values = [*(loss.op for loss in losses), *updates]
        self._data = set(graphs.ancestors(values, self._values_of))
        self._reads = _reads_by_variable(self._data)

    def include(self, write: tf.Operation, variable: tf.Operation) -> bool:
        """Whether a loss or a gradient is computed from what `write` wrote to `variable`."""
        if write in self._data and write.outputs:
            return True
        reads = self._reads.get(variable, [])
        return write in graphs.ancestors(reads, self._step.needs)

    def _values_of(self, op: tf.Operation) -> List[tf.Operation]:
        """The ops that a value is computed from, without counts that scale it."""
        found = self._made_of(op)
        if op.type in _SCALES or (op.type in _CHOOSES and self._is_of_written(op)):
            values = [each for each in found if each not in self._counts]
            return values or found
        return found

    def _made_of(self, op: tf.Operation) -> List[tf.Operation]:
        """The ops that a value is computed from; for a variable, the values written to it ahead."""
        if op.type in _SWITCHES:
            return [self._step.resolve(op.inputs[0]).op]
        found = [self._step.resolve(t).op for t in op.inputs]
        if op.type in _MERGES:
            return found + self._conditions(op)
        return found + self._values_written.get(op, [])

    def _conditions(self, merge: tf.Operation) -> List[tf.Operation]:
        """The conditions that decide which input a Merge returns."""
        if self._flow is None:
            self._flow = Flow(self._step.order)
        known = [self._flow.conditions(t) for t in merge.inputs]
        deciding = frozenset.union(*known) - frozenset.intersection(*known)
        return [condition.pred[0] for condition in deciding]

    def _is_of_written(self, select: tf.Operation) -> bool:
        """Whether one of the values to select from is that of an accumulator."""
        reads = [graphs.ancestors([t.op], _summands) for t in select.inputs[1:]]
        return any(_variable_of(op) in self._values_written for ops in reads for op in ops)


def _summands(op: tf.Operation) -> List[tf.Operation]:
    return [t.op for t in op.inputs] if op.type in ('Add', 'AddV2', 'Identity', 'Switch') else []


def _find_counts(step: StepGraph) -> Set[tf.Operation]:
    """The ops that return a count: an integer variable, or what simple arithmetic makes of one."""
    counts: Set[tf.Operation] = set()
    for op in step.order:
        variable = _variable_of(op)
        if variable is not None:
            is_count = graphs.dtype_of(variable).is_integer
        elif op.type in _SWITCHES:
            is_count = op.inputs[0].op in counts
        elif op.type == 'Const':
            is_count = op.outputs[0].shape.rank == 0
        else:
            is_count = op.type in _COUNTS and all(t.op in counts for t in op.inputs)
        if is_count:
            counts.add(op)
    return counts


def _variable_of(op: tf.Operation) -> Optional[tf.Operation]:
    """The variable that `op` returns, or returns the value of; None if it does neither."""
    if not op.outputs:
        return None
    if graphs.is_reference(op.outputs[0]) or op.type in graphs.VARIABLES:
        return graphs.variable_behind(op.outputs[0])
    if graphs.is_variable_read(op):
        return graphs.variable_behind(op.inputs[0])
    return None


def _values_written_ahead(
    step: StepGraph, gated: Set[tf.Operation]
) -> Dict[tf.Operation, List[tf.Operation]]:
    """The values that the forward pass writes, by variable."""
    found: Dict[tf.Operation, List[tf.Operation]] = {}
    for write in step.writing:
        if write not in gated:
            for variable in step.writes.variables(write):
                values = [step.resolve(t).op for t in write.inputs]
                found.setdefault(variable, []).extend(v for v in values if v is not variable)
    return found


def _values_of_update(
    step: StepGraph, gated: Set[tf.Operation], counts: Set[tf.Operation]
) -> Iterable[tf.Operation]:
    """The values that gated writes take, without counts."""
    for write in step.writing:
        if write not in gated:
            continue
        if step.writes.is_opaque(write):
            yield from _values_of_call(step, write, counts)
        else:
            values = [step.resolve(value.tensor).op for value in graphs.values_of(write)]
            yield from (value for value in values if value not in counts)


def _values_of_call(
    step: StepGraph, call: tf.Operation, counts: Set[tf.Operation]
) -> Iterable[tf.Operation]:
    """The values that a call takes for its writes, without counts that only scale others."""
    offset = 1 if call.type in _BRANCHES else 0
    functions = [step.writes.function(name) for name in step.writes.calls(call)]
    for index, tensor in enumerate(list(call.inputs)[offset:]):
        value = step.resolve(tensor).op
        is_count = value in counts and bool(functions)
        if not (is_count and all(_only_scales(each, index) for each in functions)):
            yield value


def _only_scales(function, index: int) -> bool:
    """Whether a library function uses an argument only to scale other values."""
    if function is None or index >= len(function.signature.input_arg):
        return False
    counts = {function.signature.input_arg[index].name}
    constants = {node.name for node in function.node_def if node.op == 'Const'}
    for node in function.node_def:  # each after what it takes
        taken = {name.split(':')[0] for name in node.input if not name.startswith('^')}
        if counts.isdisjoint(taken):
            continue
        others = taken - counts - constants
        if node.op in _COUNTS and not others:
            counts.add(node.name)
        elif node.op not in _SCALES or not others:
            return False
    return True


def _reads_by_variable(data: Iterable[tf.Operation]) -> Dict[tf.Operation, List[tf.Operation]]:
    found: Dict[tf.Operation, List[tf.Operation]] = {}
    for op in data:
        if graphs.is_variable_read(op):
            variable = _variable_of(op)
            if variable is not None:
                found.setdefault(variable, []).append(op)
    return found

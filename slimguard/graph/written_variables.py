"""What the ops of a graph write, and with which values.

A *write* is an op that changes a variable or an accumulator. There is no list of write ops to
maintain: an op writes if it takes a variable (by reference or by resource handle) and is not one of
the few ops known only to read. So a brand-new optimizer kernel counts as a write.
"""

import re
from typing import Dict, FrozenSet, List, NamedTuple, Optional, Sequence, Set

import tensorflow as tf

from slimguard.compat import tf_private
from slimguard.graph.variables import PASS_ON, READS, VARIABLES, variable_behind
from slimguard.graph.walk import (
    REFERENCES,
    arguments_of,
    is_float,
    is_reference,
    takes_reference,
)

_NO_WRITES = PASS_ON | READS | VARIABLES
# Writes to state that is no variable and cannot be read, but ends up in checkpoints or gradients.
_OTHER_WRITES = re.compile(
    r'(Resource|Sparse)?AccumulatorApplyGradient$|LookupTable(Insert|Remove|Import)'
)
# Optimizer kernels that square the gradient: `ApplyAdam`, `ResourceSparseApplyAdagradV2`, ...
_SQUARES = re.compile(
    r'(Resource)?(Sparse)?Apply(Adam(WithAmsgrad)?|(Centered)?RMSProp|(Proximal)?Adagrad(V2|DA)?'
    r'|Adadelta|Ftrl(V2)?)$'
)
_APPLIES = re.compile(r'(Resource)?(Sparse)?(Accumulator)?Apply[A-Z]')
# Writes that add to the old value, or subtract from it.
_ADDS = re.compile(r'Assign(Add|Sub)(VariableOp)?$|(Resource)?Scatter(Nd)?(Add|Sub)$')
# Writes whose result can be non-finite although variable and value are finite and small.
_MULTIPLIES = re.compile(r'(Resource)?Scatter(Nd)?(Mul|Div)$')
_RESOURCE = tf.resource.as_datatype_enum


class Writes:
    """Answers, for one graph, which ops write and what.

    It caches its answers, and the graph may grow: make a new instance for each question.
    """

    def __init__(self, graph: tf.Graph):
        self._graph = graph
        self._library: Optional[dict] = None
        self._written: Dict[tf.Operation, List[tf.Operation]] = {}
        self._writing: Dict[tf.Operation, bool] = {}

    def variables(self, op) -> List[tf.Operation]:
        """The variable ops that `op` may write, empty if it writes none."""
        if op not in self._written:
            self._written[op] = self._find(op)
        return self._written[op]

    def __contains__(self, op) -> bool:
        if op not in self._writing:
            self._writing[op] = bool(self.variables(op) or _OTHER_WRITES.match(op.type))
        return self._writing[op]

    def is_opaque(self, op) -> bool:
        """Whether the value that `op` writes can only be known after the write."""
        return bool(_MULTIPLIES.match(op.type)) or (op in self and bool(self.calls(op)))

    def inputs(self, op) -> List[int]:
        """The indices of the inputs that `op` may write if variables are behind them."""
        if op.type in _NO_WRITES:
            return []
        candidates = []
        for index, tensor in enumerate(op.inputs):
            dtype = tensor.dtype.as_datatype_enum
            if dtype == _RESOURCE or (dtype > REFERENCES and takes_reference(op, index)):
                candidates.append(index)
        bodies = self.calls(op) if candidates else []
        if bodies:
            inside = self._written_inputs_of(op.type, bodies, frozenset())
            candidates = [index for index in candidates if index in inside]
        return candidates

    def _find(self, op) -> List[tf.Operation]:
        found = []
        for index in self.inputs(op):
            variable = variable_behind(op.inputs[index])
            if variable is not None and variable not in found:
                found.append(variable)
        return found

    def calls(self, op) -> List[str]:
        """Names of the library functions that `op` calls."""
        if op.type not in CALLS:
            if op.type in self._functions():
                return [op.type]  # a legacy Defun is an op type of its own
            return []
        return self.called_by(op.node_def)

    def called_by(self, node) -> List[str]:
        """Names of the library functions that a NodeDef calls, such as one in a function body."""
        names = []
        for value in node.attr.values():
            names.extend(f.name for f in [value.func] + list(value.list.func) if f.name)
        if node.op in self._functions():
            names.append(node.op)
        return names

    def function(self, name: str):
        """The FunctionDef of that name in the graph's library, or None."""
        return self._functions().get(name)

    def _functions(self) -> dict:
        if self._library is None:
            self._library = tf_private.function_library(self._graph)
        return self._library

    def _written_inputs_of(
        self, op_type: str, bodies: Sequence[str], seen: FrozenSet[str]
    ) -> Set[int]:
        """Which inputs an op of type `op_type` may write if it calls the functions `bodies`."""
        # The first input of `If`, `Case` and similar ops chooses the branch.
        offset = 1 if op_type in ('If', 'StatelessIf', 'Case', 'StatelessCase') else 0
        return {
            index + offset for body in bodies for index in self._written_arguments_of(body, seen)
        }

    def _written_arguments_of(self, name: str, seen: FrozenSet[str]) -> Set[int]:
        """Which of its arguments a library function may write."""
        function = self.function(name)
        if function is None or name in seen:
            return set()
        arguments = function.signature.input_arg
        origin = {argument.name: index for index, argument in enumerate(arguments)}
        written: Set[int] = set()
        for node in function.node_def:
            data = [i.split(':')[0] for i in node.input if not i.startswith('^')]
            if node.op in PASS_ON:
                if data and data[0] in origin:
                    origin[node.name] = origin[data[0]]
            elif node.op not in READS:
                handles = {i: origin[n] for i, n in enumerate(data) if n in origin}
                inner = self.called_by(node)
                if inner:
                    inside = self._written_inputs_of(node.op, inner, seen | {name})
                    handles = {i: a for i, a in handles.items() if i in inside}
                written.update(a for a in handles.values() if arguments[a].type == _RESOURCE)
        return written


CALLS = frozenset(
    'If StatelessIf Case StatelessCase While StatelessWhile For PartitionedCall '
    'StatefulPartitionedCall RemoteCall SymbolicGradient'.split()
)


def is_apply(op) -> bool:
    """Whether `op` is an optimizer's kernel, or puts a gradient into an accumulator for one."""
    return bool(_APPLIES.match(op.type))


def is_accumulator(op) -> bool:
    return 'AccumulatorApply' in op.type


def changes_value(op) -> bool:
    """Whether `op` computes the new value of a variable from the old one.

    If the old value is not finite, the new one is not either.
    """
    return is_apply(op) or bool(_ADDS.match(op.type))


def squares_gradient(op) -> bool:
    """Whether `op` is an optimizer's kernel that squares the gradient."""
    return bool(_SQUARES.match(op.type))


class Value(NamedTuple):
    """A float tensor that a write is about to use."""

    tensor: tf.Tensor
    role: str  # the argument of the write op: 'grad', 'lr', 'value', ...


def values_of(write) -> List[Value]:
    """The float inputs that `write` writes or computes from, without the variables themselves."""
    found = []
    for tensor, argument in zip(write.inputs, arguments_of(write)):
        if is_float(tensor) and not (argument.is_ref and is_reference(tensor)):
            found.append(Value(tensor, argument.name))
    return found

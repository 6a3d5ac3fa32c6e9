"""Reading a graph: what an op needs, what it writes, and with which values.

Everything here only looks. :mod:`slimguard.gate` builds on it.

A *write* is an op that changes a variable or an accumulator. There is no list of write ops to
keep up to date: an op writes if it takes a variable (by reference or by resource handle) and is
not one of the few ops known to read. An optimizer kernel that somebody wrote last week is a write.
"""

import gc
import re
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Set

import tensorflow as tf

tf1 = tf.compat.v1

# The scope of all that we add to a graph.
OURS = 'slimguard/'

# Hand a variable on, unchanged, to whoever takes their output.
_PASS_ON = frozenset(
    'Identity RefIdentity Switch RefSwitch Merge RefMerge Enter RefEnter Exit RefExit '
    'NextIteration RefNextIteration RefSelect LoopCond'.split()
)
# Take a variable and leave it as it is.
READS = frozenset(
    'ReadVariableOp _ReadVariablesOp VarIsInitializedOp IsVariableInitialized VariableShape '
    'ResourceGather ResourceGatherNd DisableCopyOnRead DeepCopy'.split()
)
VARIABLES = frozenset('VariableV2 Variable VarHandleOp'.split())
_NO_WRITES = _PASS_ON | READS | VARIABLES
# State that is neither a variable nor readable, but ends up in checkpoints or in gradients.
_OTHER_WRITES = re.compile(
    r'(Resource|Sparse)?AccumulatorApplyGradient$|LookupTable(Insert|Remove|Import)'
)
# Optimizer kernels that square the gradient: `ApplyAdam`, `ResourceSparseApplyAdagradV2`, ...
_SQUARES = re.compile(
    r'(Resource)?(Sparse)?Apply(Adam(WithAmsgrad)?|(Centered)?RMSProp|(Proximal)?Adagrad(V2|DA)?'
    r'|Adadelta|Ftrl(V2)?)$'
)
_APPLIES = re.compile(r'(Resource)?(Sparse)?(Accumulator)?Apply[A-Z]')
# Writes whose result can be non-finite although variable and value are finite and small.
_MULTIPLIES = re.compile(r'(Resource)?Scatter(Nd)?(Mul|Div)$')

# The enum of a reference's dtype is that of what it refers to, and 100 more (types.proto).
_REFERENCES = 100
_RESOURCE = tf.resource.as_datatype_enum

# What is asked for often is found out once, by the name of a type; not for a function, since each
# graph may mean another one by a name.
_op_defs: Dict[str, object] = {}
_arguments_of_type: Dict[str, List['_Argument']] = {}
_floats: Dict[int, bool] = {}


def op_def_of(op):
    """The OpDef of `op`; TensorFlow parses it anew at every access, so it is kept by type."""
    return op_def_of_type(op.graph, op.type)


def op_def_of_type(graph: tf.Graph, op_type: str):
    """The OpDef of a type of op, also of one that only function bodies have; None if unknown.

    The method has no public name on TensorFlow 1.15.
    """
    if op_type in _op_defs:
        return _op_defs[op_type]
    find = getattr(graph, 'op_def_for_type', None) or graph._get_op_def
    try:
        op_def = find(op_type)
    except (tf.errors.NotFoundError, KeyError):
        return None
    if not is_function(graph, op_type):
        _op_defs[op_type] = op_def
    return op_def


def is_function(graph: tf.Graph, op_type: str) -> bool:
    """Whether a type of op is a function of the graph's library, as those of a `Defun` are."""
    return graph._is_function(op_type)  # has no public name


def is_stateful(op) -> bool:
    """Whether two runs of `op` with the same inputs may differ: it reads, draws or writes."""
    return op_def_of(op).is_stateful


def needs(op) -> Iterator[tf.Operation]:
    """The ops that must run before `op`, through data and control edges."""
    for tensor in op.inputs:
        yield tensor.op
    yield from op.control_inputs


def ancestors(roots: Iterable[tf.Operation], needs=needs) -> List[tf.Operation]:
    """Every op that `roots` need, themselves included, each after what it needs.

    The back edges of `tf.while_loop` close cycles; there the loop's Merge comes first.
    """
    order: List[tf.Operation] = []
    seen: Set[tf.Operation] = set()
    waiting = list(roots)
    while waiting:
        root = waiting.pop()
        if root in seen:
            continue
        seen.add(root)
        stack = [(root, iter(needs(root)), _is_merge(root))]
        while stack:
            op, rest, is_merge = stack[-1]
            for needed in rest:
                if needed in seen:
                    continue
                if is_merge and needed.type in ('NextIteration', 'RefNextIteration'):
                    waiting.append(needed)
                    continue
                seen.add(needed)
                stack.append((needed, iter(needs(needed)), _is_merge(needed)))
                break
            else:
                order.append(op)
                stack.pop()
    return order


def _is_merge(op) -> bool:
    # To count the outputs is quicker than to ask for the type, and this is asked of every op.
    return len(op.outputs) == 2 and op.type in ('Merge', 'RefMerge')


def is_reference(tensor) -> bool:
    return tensor.dtype.as_datatype_enum > _REFERENCES


def is_float(tensor) -> bool:
    number = tensor.dtype.as_datatype_enum
    if number not in _floats:
        dtype = tensor.dtype.base_dtype
        _floats[number] = dtype.is_floating or dtype.is_complex
    return _floats[number]


def variable_behind(tensor) -> Optional[tf.Operation]:
    """The variable op that a reference or a resource handle leads back to, or None."""
    seen = set()
    op = tensor.op
    while op not in seen:
        seen.add(op)
        if op.type in VARIABLES:
            return op
        hands_on = op.type in _PASS_ON or any(is_reference(t) for t in op.outputs)
        if not hands_on or not op.inputs:
            return None
        op = op.inputs[0].op
    return None


class _Argument(NamedTuple):
    name: str
    is_ref: bool  # whether it is declared as a reference


def _arguments(op) -> List[_Argument]:
    """The argument of the op that each of its inputs belongs to."""
    found = _arguments_of_type.get(op.type)
    if found is not None:
        return found
    found = []
    arguments = op_def_of(op).input_arg
    lists = [a for a in arguments if a.number_attr or a.type_list_attr]
    for argument in arguments:
        count = 1
        if argument in lists:
            # One list takes what the single arguments leave; with several, ask the op.
            count = (
                len(op.inputs) - len(arguments) + 1 if len(lists) == 1 else _length(op, argument)
            )
        found.extend([_Argument(argument.name, argument.is_ref)] * count)
    if not lists and not is_function(op.graph, op.type):
        _arguments_of_type[op.type] = found
    return found


def _length(op, argument) -> int:
    if argument.number_attr:
        return op.get_attr(argument.number_attr)
    return len(op.get_attr(argument.type_list_attr))


def takes_reference(op, index: int) -> bool:
    """Whether input `index` is declared as a reference, not merely fed with one."""
    return _arguments(op)[index].is_ref


class Writes:
    """Answers, for one graph, which ops write and what.

    It keeps what it found out about function bodies, so use one instance for one question and
    let it go: the graph may grow.
    """

    def __init__(self, graph: tf.Graph):
        self._graph = graph
        self._library = None  # type: Optional[dict]
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
        """Whether what `op` will have written can only be known afterwards."""
        return bool(_MULTIPLIES.match(op.type)) or (op in self and bool(self.calls(op)))

    def _find(self, op) -> List[tf.Operation]:
        if op.type in _NO_WRITES:
            return []
        candidates = []
        for index, tensor in enumerate(op.inputs):
            dtype = tensor.dtype.as_datatype_enum
            if dtype == _RESOURCE or (dtype > _REFERENCES and takes_reference(op, index)):
                candidates.append(index)
        if not candidates:
            return []
        bodies = self.calls(op)
        if bodies:
            # `If`, `Case` and the like spend their first input on the choice.
            offset = 1 if op.type in ('If', 'StatelessIf', 'Case', 'StatelessCase') else 0
            inside = set()  # type: Set[int]
            for body in bodies:
                inside |= self._written_arguments(body)
            candidates = [index for index in candidates if index - offset in inside]
        found = []
        for index in candidates:
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
        """The same of a NodeDef, as function bodies are made of."""
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
            graph_def = tf.compat.v1.GraphDef()
            # No public name: `as_graph_def` would copy every constant of the model as well.
            self._graph._copy_functions_to_graph_def(graph_def, 0)
            self._library = {f.signature.name: f for f in graph_def.library.function}
        return self._library

    def _written_arguments(self, name: str, seen=frozenset()) -> Set[int]:
        """Which arguments of a library function the function may write."""
        function = self._functions().get(name)
        if function is None or name in seen:
            return set()
        origin = {arg.name: i for i, arg in enumerate(function.signature.input_arg)}
        written = set()  # type: Set[int]
        for node in function.node_def:
            data = [i.split(':')[0] for i in node.input if not i.startswith('^')]
            if node.op in _PASS_ON:
                if data and data[0] in origin:
                    origin[node.name] = origin[data[0]]
            elif node.op in READS:
                continue
            else:
                handles = {i: origin[n] for i, n in enumerate(data) if n in origin}
                inner = self.called_by(node)
                if inner:
                    offset = 1 if node.op in ('If', 'StatelessIf', 'Case', 'StatelessCase') else 0
                    inside = set()  # type: Set[int]
                    for body in inner:
                        inside |= self._written_arguments(body, seen | {name})
                    handles = {i: a for i, a in handles.items() if i - offset in inside}
                written |= {
                    a
                    for a in handles.values()
                    if function.signature.input_arg[a].type == tf.resource.as_datatype_enum
                }
        return written


CALLS = frozenset(
    'If StatelessIf Case StatelessCase While StatelessWhile For PartitionedCall '
    'StatefulPartitionedCall RemoteCall SymbolicGradient'.split()
)


def is_apply(op) -> bool:
    """Whether `op` is an optimizer's kernel (or hands a gradient to one, by an accumulator)."""
    return bool(_APPLIES.match(op.type))


def is_accumulator(op) -> bool:
    return 'AccumulatorApply' in op.type


def squares_gradient(op) -> bool:
    return bool(_SQUARES.match(op.type))


def can_divide_by_zero(op) -> bool:
    """Whether an optimizer's kernel can make a NaN of numbers that are finite and small.

    Centered RMSProp takes the root of a difference that rounding can make negative; others divide
    zero by zero if their `epsilon` is zero, as 1e-8 is in float16.
    """
    if not is_apply(op):
        return False
    if 'CenteredRMSProp' in op.type:
        return True
    return any(
        argument.name == 'epsilon' and constant_scalar(tensor) == 0
        for tensor, argument in zip(op.inputs, _arguments(op))
    )


def feeds_square(write) -> bool:
    """Whether what an accumulator collects reaches an optimizer that squares it."""
    accumulator = write.inputs[0].op
    seen = set(t for t in accumulator.outputs[0].consumers() if 'TakeGradient' in t.type)
    waiting = list(seen)
    while waiting:
        for output in waiting.pop().outputs:
            for consumer in output.consumers():
                if squares_gradient(consumer):
                    return True
                if consumer not in seen:
                    seen.add(consumer)
                    waiting.append(consumer)
    return False


def dtype_of(variable: tf.Operation) -> tf.DType:
    if is_resource(variable):
        return tf.as_dtype(variable.get_attr('dtype')).base_dtype
    return variable.outputs[0].dtype.base_dtype  # attributes are slow to ask for


def device_of(op) -> str:
    """The device of `op`; if it names none and takes a variable, that of the variable."""
    if not op.device:
        for tensor in op.inputs:
            if tensor.dtype == tf.resource or is_reference(tensor):
                variable = variable_behind(tensor)
                return '' if variable is None else variable.device
    return op.device


def is_float_variable(variable: tf.Operation) -> bool:
    dtype = dtype_of(variable)
    return dtype.is_floating or dtype.is_complex


def is_resource(variable: tf.Operation) -> bool:
    return variable.type == 'VarHandleOp'


def is_variable_read(op) -> bool:
    """Whether the output of `op` is the value of a variable (or the variable, by reference)."""
    if op.type in ('ReadVariableOp', 'VariableV2', 'Variable', 'ResourceGather'):
        return True
    return op.type == 'Identity' and is_reference(op.inputs[0])


class Value(NamedTuple):
    """A float tensor that a write is about to use."""

    tensor: tf.Tensor
    role: str  # the argument of the write op: 'grad', 'lr', 'value', ...


def values_of(write) -> List[Value]:
    """The float inputs that `write` writes or computes from; the variables themselves left out."""
    found = []
    for tensor, argument in zip(write.inputs, _arguments(write)):
        if is_float(tensor) and not (argument.is_ref and is_reference(tensor)):
            found.append(Value(tensor, argument.name))
    return found


def constant_scalar(tensor) -> Optional[float]:
    """The value of a scalar constant, also behind Identity and Cast; None for anything else."""
    op = tensor.op
    while op.type in ('Identity', 'Cast') and not is_reference(op.inputs[0]):
        op = op.inputs[0].op
    value = tf.get_static_value(op.outputs[0]) if op.type == 'Const' else None
    if value is None or value.size != 1:
        return None
    return float(value.astype(tensor.dtype.base_dtype.as_numpy_dtype))  # as a Cast rounds it


def flow_around(op):
    """The branch or loop (of v1 control flow) that `op` runs in, or None.

    There is no public name for an op's control flow context.
    """
    return op._get_control_flow_context()


def context_of(op):
    """The branch or loop (of v1 control flow) that what `op` puts out belongs to, or None."""
    context = flow_around(op)
    if context is not None and op.type in ('Exit', 'RefExit'):
        return context.outer_context
    return context


def outermost_context(op):
    """The outermost branch or loop (of v1 control flow) that `op` runs in, or None."""
    found = context = flow_around(op)
    while context is not None:
        found, context = context, context.outer_context
    return found


def loop_around(op):
    """The outermost `tf.while_loop` (of v1 control flow) that `op` runs in, or None."""
    found = None
    context = flow_around(op)
    while context is not None:
        if context.IsWhileContext():
            found = context
        context = context.outer_context
    return found


def open_sessions(graph: tf.Graph) -> List[tf1.Session]:
    """The sessions on a graph that are not closed; what they may have seen cannot be wired."""
    found = []
    # What refers to a session's graph is the session, or the dict of its attributes.
    for holder in gc.get_referrers(graph):
        if type(holder) is not dict:
            things = [holder]
        else:
            things = gc.get_referrers(holder) if '_closed' in holder else []
        found.extend(
            thing
            for thing in things
            if isinstance(thing, (tf1.Session, tf1.InteractiveSession))
            and thing.graph is graph
            and not thing._closed
        )
    return found

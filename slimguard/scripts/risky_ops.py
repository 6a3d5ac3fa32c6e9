"""Ops that make a NaN or an Inf of some finite numbers: `may_be_no_number`.

An update by these alone may ruin a variable, with no batch and no training.
"""

import re
from typing import Iterable

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.gate.finite_arithmetic import stays_away_from_zero
from slimguard.gate.written_beside import is_drawn

DEPTH = 8  # of what is plain to see: values are looked at along so many ops


def may_be_no_number(op: tf.Operation) -> bool:
    """Whether an op may make a NaN or an Inf of numbers that are finite, and not large.

    It does if it divides by what is not plainly other than zero, takes the root or the logarithm of
    what is not plainly above it, or is not known to be finite everywhere. Whether sums, products
    and exponentials overflow is not asked here.
    """
    if not any(map(graphs.is_float, op.outputs)) or _is_source(op):
        return False
    return _is_risky(op) and not all(map(is_constant, op.inputs))


def _is_risky(op: tf.Operation) -> bool:
    if op.type == 'Pow':
        return _is_risky_power(op)
    if op.type == 'Cast':
        return op.outputs[0].dtype.base_dtype == tf.float16 != op.inputs[0].dtype.base_dtype
    if _OF_SOME.match(op.type):  # of no element it is a NaN, or an Inf
        return not op.inputs[0].shape.is_fully_defined()
    if _DIVIDES_BY_LAST.match(op.type):
        return _divides(op)
    return not _FINITE.match(op.type)


def divides(write: tf.Operation) -> bool:
    """Whether an op that writes divides the variable by what may be zero, as `scatter_div` does."""
    return 'ScatterDiv' in write.type and not any(
        is_constant(each) or _is_above_zero(each) for each in list(write.inputs)[2:]
    )


def data_of(op: tf.Operation) -> Iterable[tf.Operation]:
    """The ops that give the inputs of an op."""
    return [tensor.op for tensor in op.inputs]


def numbers_of(op: tf.Operation) -> Iterable[tf.Operation]:
    """As `data_of`, but for what knows the shape of a variable, and none of its values."""
    return [] if _KNOWS_A_SHAPE.match(op.type) else data_of(op)


def _is_source(op: tf.Operation) -> bool:
    return op.type in graphs.VARIABLES or graphs.is_random(op) or is_drawn(op)


def is_constant(tensor: tf.Tensor) -> bool:
    """Whether a tensor is made of constants alone."""
    return all(
        op.type not in graphs.VARIABLES and not is_drawn(op)
        for op in graphs.ancestors([tensor.op], needs=numbers_of)
    )


def _is_risky_power(op: tf.Operation) -> bool:
    """Whether a power may be a root, or a division."""
    base, exponent = op.inputs
    if is_constant(base) or _is_above_zero(base):
        return False
    power = graphs.constant_scalar(exponent)
    if power is None:
        return not _is_not_negative(base)
    return power < 0 or (power != int(power) and not _is_not_negative(base))


def _divides(op: tf.Operation) -> bool:
    divisor = op.inputs[-1]
    if op.type == 'Sqrt':
        return not _is_not_negative(divisor)
    if is_constant(divisor) or _is_above_zero(divisor):
        return False
    if op.type == 'RealDiv' and stays_away_from_zero(divisor):
        return False
    is_clipped = _is_not_negative(divisor) and _ends_in_minimum(op.outputs[0])
    is_inverse = op.type in ('Reciprocal', 'Inv', 'Rsqrt') or (
        op.type == 'RealDiv' and is_constant(op.inputs[0])
    )
    return not (is_clipped and is_inverse)  # as clip_by_global_norm divides by a norm


def _is_above_zero(tensor: tf.Tensor, depth: int = DEPTH) -> bool:
    """Whether a tensor is above zero, or the script counts on that: a constant was added to it.

    Of what is made by more than `depth` ops in a row, that is not known.
    """
    if (graphs.lowest_constant(tensor) or 0) > 0:
        return True
    op = tensor.op
    if op.type in _ABOVE_ZERO:
        return True
    if depth == 0:
        return False

    def is_so(given: tf.Tensor) -> bool:
        return _is_above_zero(given, depth - 1)

    if op.type in _AT_LEAST:
        # As a variance that is a difference, such as E[x^2] - E[x]^2, is rounded, it is not.
        is_difference = op.type != 'Maximum' and any(map(_is_difference, op.inputs))
        return not is_difference and any(map(is_so, op.inputs))
    if op.type in _IF_ALL_ARE:
        return all(map(is_so, op.inputs))
    if op.type in _IF_THE_FIRST_IS:
        return is_so(op.inputs[0])
    return _is_one_minus_a_power(op)


def _is_not_negative(tensor: tf.Tensor, depth: int = DEPTH) -> bool:
    lowest = graphs.lowest_constant(tensor)
    if lowest is not None:
        return lowest >= 0
    op = tensor.op
    if _OF_SQUARES.match(op.type) or _is_above_zero(tensor, depth):
        return True
    if depth == 0:
        return False

    def is_so(given: tf.Tensor) -> bool:
        return _is_not_negative(given, depth - 1)

    if op.type == 'ClipByValue':
        return is_so(op.inputs[1])
    if op.type == 'Maximum':
        return any(map(is_so, op.inputs))
    return op.type in ('Minimum', 'Add', 'AddV2', 'AddN') and all(map(is_so, op.inputs))


def _is_difference(tensor: tf.Tensor) -> bool:
    op = tensor.op
    return op.type == 'Sub' and not (is_constant(op.inputs[0]) or is_constant(op.inputs[1]))


def _is_one_minus_a_power(op: tf.Operation) -> bool:
    """Whether an op makes ``1 - 0.9**n``, which debiases an average."""
    if op.type != 'Sub' or not is_constant(op.inputs[0]):
        return False
    power = op.inputs[1].op
    return power.type == 'Pow' and is_constant(power.inputs[0])


def _ends_in_minimum(tensor: tf.Tensor, depth: int = DEPTH) -> bool:
    """Whether a tensor is used for nothing but a minimum with a constant."""
    users = tensor.consumers() if depth else []
    return bool(users) and all(
        any(graphs.lowest_constant(each) is not None or is_constant(each) for each in user.inputs)
        if user.type == 'Minimum'
        else user.type in ('Mul', 'Identity', 'Reshape')
        and _ends_in_minimum(user.outputs[0], depth - 1)
        for user in users
    )


_KNOWS_A_SHAPE = re.compile(r'(Variable)?Shape(N)?$|Size$|Rank$')
_DIVIDES_BY_LAST = re.compile(
    r'(Real|Truncate|Floor)?Div$|(Floor|Truncate)?Mod$|Reciprocal$|Inv$|Rsqrt$|Log(1p)?$|Sqrt$'
)
_OF_SQUARES = re.compile(r'Sum$|Mean$|Square$|SquaredDifference$|Mul$|Select(V2)?$|Abs$|Sqrt$')
# With a constant above zero, what these return is above zero, or the script counts on that.
_AT_LEAST = frozenset('Maximum Add AddV2 AddN AssignAdd'.split())
_ABOVE_ZERO = frozenset('Exp Softplus Sigmoid Softmax Cosh'.split())
_IF_ALL_ARE = frozenset('Mul RealDiv Minimum'.split())
_IF_THE_FIRST_IS = frozenset(
    'Identity Cast Reshape ExpandDims Squeeze Tile Sum Mean Max Min Sqrt Rsqrt Pow'.split()
)
_OF_SOME = re.compile(r'(Mean|Max|Min)$')
_FINITE = re.compile(
    # what moves, picks and shapes
    r'((Ref)?(Identity|Enter|Exit|Switch|Merge|NextIteration)|IdentityN|Snapshot|StopGradient|'
    r'PreventGradient|CheckNumerics(V2)?|Const|Fill|Zeros(Like)|OnesLike|Range|LinSpace|OneHot|Eye|'
    r'Reshape|Squeeze|ExpandDims|Transpose|ConjugateTranspose|Tile|Broadcast\w*|Concat(V2)?|Pack|'
    r'Unpack|ParallelConcat|(Strided)?Slice|Split(V)?|(Mirror)?Pad(V2)?|Reverse(V2|Sequence)?|'
    r'Roll|\w*Gather\w*|\w*Scatter\w*|Dynamic(Partition|Stitch)|ParallelDynamicStitch|Where|'
    r'Select(V2)?|TopK(V2)?|Unique\w*|Matrix\w*(Diag|BandPart)\w*|BatchMatrix\w*(Diag|BandPart)\w*|'
    r'Diag(Part)?|TensorArray\w*|TensorList\w*|Stack\w*|Space\w+|Depth\w+|Batch(To)\w+|'
    r'Read\w*|Destroy\w*|Lookup\w*|Extract\w+|HashTable\w*|Real|Imag|Conj|Complex|Cast|DeepCopy|'
    # sums, products, and what is bounded
    r'Add(N|V2)?|AccumulateNV2|Sub|Mul|MulNoNan|DivNoNan|Neg|Abs|Sign|Minimum|Maximum|Square|'
    r'SquaredDifference|Sum|Prod|Cumsum|Cumprod|L2Loss|EuclideanNorm|'
    r'\w*Segment(Sum|Prod|Max|Min|Mean|Sqrt)\w*|'
    r'(Batch|Sparse)?MatMul(V2|V3)?|SparseTensorDense\w*|Einsum|Cross|BiasAdd\w*|Conv\w*|'
    r'DepthwiseConv\w*|(Max|Avg)Pool\w*|Resize\w*|Floor|Ceil|Round|Rint|ClipByValue|Exp|Expm1|Sinh|'
    r'Cosh|Sigmoid|Tanh|Softmax|LogSoftmax|Softplus|Softsign|Relu6?|Elu|Selu|LeakyRelu|Sin|Cos|'
    r'Atan2?|Angle|Asinh|Erfc?|FakeQuant\w*|\w*(FFT|Fft)\w*|Qr|Svd|SelfAdjointEig\w*|'
    r'Mat\w*Exponential|StatelessRandom\w*|RandomShuffle|Assign\w*|ResourceAssign\w*|Stage|Unstage|'
    r'(Stateful|Stateless)?(PartitionedCall|If|While|Case))$'
)

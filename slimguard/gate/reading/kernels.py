"""When an optimizer's kernel turns small finite numbers into finite ones.

On the fast path no variable is checked after the update, so only a kernel that is known to do this
may run there. It depends on the kernel's arguments: Adam divides by `1 - beta1_power`, FTRL by the
learning rate, Adagrad by the root of what it has accumulated. Arguments that are constants are
judged here; each step compares the others with their ranges (fast_path.py).
"""

import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.gate.reading.step_graph import StepGraph
from slimguard.graph import key

_NEARLY_ONE = 1 - 2.0**-53  # the largest float64 below one; numbers are compared in float64
_ANY = (-1e12, 1e12)
# The ranges of arguments (both ends included) in which kernels turn small numbers into finite ones.
# They keep divisors large: on the fast path, a gradient or learning rate divided by one does not
# overflow.
_RANGES: Dict[str, Tuple[float, float]] = {
    'beta': (0, 1),
    'beta1': (0, _NEARLY_ONE),
    'beta1_power': (0, _NEARLY_ONE),
    'beta2': (0, _NEARLY_ONE),
    'beta2_power': (0, _NEARLY_ONE),
    'epsilon': (1e-16, 1e12),
    'l1': (0, 1e12),
    'l2': (0, 1e12),
    'l2_shrinkage': (0, 1e12),
    'logbase': (-10, 10),
    'lr_power': (-1, 0),
    'momentum': (-1, 1),
    'rho': (0, 1),
    'sign_decay': (-1, 1),
}
# If the decay on the right is a constant below one, its power on the left is below one, too.
_POWERS = {'beta1_power': 'beta1', 'beta2_power': 'beta2'}
# The names of a kernel's learning rate. The first name that the kernel has counts: the `alpha` of
# AddSign is something else.
RATES: Tuple[str, ...] = ('lr', 'alpha')
_GRADIENTS_AND_RATES = frozenset(('grad', 'delta', 'gradient', *RATES))
_RATE_OF_FTRL = (1e-12, 1e12)
# Kernels that divide by one plus the rate times l2.
_DIVIDES_BY_RATE = re.compile('Proximal|AdagradDA')
_RATE_THAT_IS_ADDED = (0, 1e12)
# Arguments that hold an initial value plus accumulated squares, and the kernels that divide by them
# without an epsilon.
_ACCUMULATED = frozenset('accum gradient_squared_accumulator'.split())
_DIVIDES_BY_ACCUMULATED = re.compile('Adagrad|Ftrl')
_SMALLEST_BEGINNING = 1e-30


class Range(NamedTuple):
    """A float scalar, and the range that it may lie in, the ends included."""

    tensor: tf.Tensor
    low: float
    high: float


class Beginnings:
    """Knows the initial values of the variables of a graph.

    Args:
      graph: the graph. Its variables are listed on first use.
    """

    def __init__(self, graph: tf.Graph):
        self._graph = graph
        self._initializers: Optional[Dict[tf.Operation, Optional[tf.Operation]]] = None

    def lowest_of(self, variable: Optional[tf.Operation]) -> Optional[float]:
        """The least of a variable's initial values; None if that is not known."""
        if self._initializers is None:
            with self._graph.as_default():
                known = tf1.global_variables() + tf1.local_variables()
            found = graphs.on_each_device(known)
            self._initializers = {each.op: each.initializer for each in found}
        initializer = None if variable is None else self._initializers.get(variable)
        return None if initializer is None else graphs.lowest_constant(initializer.inputs[-1])


class Kernels:
    """Judges the kernels of one step, which share most of their arguments."""

    def __init__(self, step: StepGraph):
        self._step = step
        self._constants: Dict[Any, Optional[float]] = {}
        self._beginnings = Beginnings(step.graph)

    def ranges_of(self, kernel: tf.Operation) -> Optional[List[Range]]:
        """The ranges of arguments in which a kernel turns small numbers into finite ones.

        Constants are left out. None if a constant is out of its range, or no range is known.
        """
        if 'CenteredRMSProp' in kernel.type:
            return None  # it takes a root of a difference that rounding can make negative
        if not self._begins_above_zero(kernel):
            return None
        given = {each.role: self._step.resolve(each.tensor) for each in graphs.values_of(kernel)}
        proven = {name for name, tensor in given.items() if self._is_proven(kernel, name, tensor)}
        found = []
        for name, tensor in given.items():
            if name in proven or _POWERS.get(name) in proven:
                continue
            allowed = _allowed(kernel, name)
            if allowed is None or self._constant(tensor) is not None:
                return None
            found.append(Range(tensor, *allowed))
        return found

    def _is_proven(self, kernel: tf.Operation, name: str, tensor: tf.Tensor) -> bool:
        allowed = _allowed(kernel, name)
        if allowed is _ANY:
            return True  # each step checks that gradients and learning rates are small
        value = self._constant(tensor)
        return allowed is not None and value is not None and allowed[0] <= value <= allowed[1]

    def _constant(self, tensor: tf.Tensor) -> Optional[float]:
        of = key(tensor)
        if of not in self._constants:
            self._constants[of] = graphs.constant_scalar(tensor)
        return self._constants[of]

    def _begins_above_zero(self, kernel: tf.Operation) -> bool:
        """Whether the accumulators that `kernel` divides by begin above zero; they only grow."""
        if not _DIVIDES_BY_ACCUMULATED.search(kernel.type):
            return True
        arguments = graphs.arguments_of(kernel)
        if any(argument.name == 'epsilon' for argument in arguments):
            return True
        for tensor, argument in zip(kernel.inputs, arguments):
            if argument.name in _ACCUMULATED:
                lowest = self._beginnings.lowest_of(graphs.variable_behind(tensor))
                if lowest is None or not lowest >= _SMALLEST_BEGINNING:
                    return False
        return True


def _allowed(kernel: tf.Operation, name: str) -> Optional[Tuple[float, float]]:
    """The range in which an argument does no harm; None if no range is known."""
    if name in ('lr', 'alpha') and 'Ftrl' in kernel.type:
        return _RATE_OF_FTRL
    if name in ('lr', 'alpha') and _DIVIDES_BY_RATE.search(kernel.type):
        return _RATE_THAT_IS_ADDED
    return _ANY if name in _GRADIENTS_AND_RATES else _RANGES.get(name)

"""The values to check before anything is written: each once, with its name in messages."""

from typing import Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.gate.reading.kernels import RATES, Kernels, Range
from slimguard.gate.reading.late_writes import LateValues
from slimguard.gate.reading.step_graph import StepGraph
from slimguard.graph import key

_GRADIENT = 'gradient'
_ROLES: Dict[str, str] = dict.fromkeys(RATES, 'learning rate')
_GRADIENTS = frozenset('grad delta gradient gradient_values'.split())


class Check(NamedTuple):
    """A float tensor to check before anything is written."""

    tensor: tf.Tensor
    name: str
    # Whether it multiplies what is written, as a learning rate does.
    is_factor: bool = False
    # For a gradient that an optimizer takes, the name of its variable; else ''.
    gradient_of: str = ''


class CheckedValues:
    """Collects checks of the values that writes take, one check for each value.

    Args:
      losses: the losses, which are checked in any case.
    """

    def __init__(self, step: StepGraph, gated: Set[tf.Operation], losses: Sequence[tf.Tensor]):
        self._step = step
        self._gated = gated
        self._losses = {key(loss) for loss in losses}
        self._checks: Dict[Tuple[tf.Operation, int], Check] = {}
        self._is_small: Dict[tf.Operation, bool] = {}  # caches answers for constants
        self._written_ahead = {
            variable
            for write in step.writing
            if write not in gated
            for variable in step.writes.variables(write)
        }

    @property
    def checks(self) -> List[Check]:
        """All checks, in the order they were added."""
        return list(self._checks.values())

    def add_gated(
        self, write: tf.Operation, late: LateValues, kernels: Kernels
    ) -> Optional[List[Range]]:
        """Adds checks of the values that a gated write takes.

        Returns:
          The ranges in which arguments of the write must lie for these checks to suffice; None if
          only the variable, once written, shows whether it is finite.
        """
        if self._step.writes.is_opaque(write) or graphs.loop_around(write) is not None:
            return None
        is_kernel = graphs.is_apply(write) and not graphs.is_accumulator(write)
        ranges = kernels.ranges_of(write) if is_kernel else []
        for value in graphs.values_of(write):
            sources = late.sources_of(self._step.resolve(value.tensor))
            if sources is None:
                ranges = None
            for source in sources or ():
                self._add(source, write, value.role)
        is_late = any(each.tensor in late for each in ranges or ())
        return None if is_late else ranges

    def add_forward(self, write: tf.Operation) -> None:
        """Adds checks of the values that a forward write takes."""
        for value in graphs.values_of(write):
            self._add(self._step.resolve(value.tensor), write, value.role)

    def _add(self, tensor: tf.Tensor, write: tf.Operation, role: str) -> None:
        if self._is_small_constant(tensor) or key(tensor) in self._losses:
            return
        of = self._key_of(tensor)
        if of not in self._checks:
            is_factor = graphs.is_apply(write) and role not in _GRADIENTS
            role_name, written = _role_name(write, role), self._written_name(write)
            name = '%s of %s' % (role_name, written)
            gradient_of = written if role_name == _GRADIENT else ''
            self._checks[of] = Check(tensor, name, is_factor, gradient_of)

    def _is_small_constant(self, tensor: tf.Tensor) -> bool:
        if tensor.op not in self._is_small:
            constant = graphs.constant_scalar(tensor)
            most = 2.0 if tensor.dtype.base_dtype == tf.float16 else 1e6
            self._is_small[tensor.op] = constant is not None and abs(constant) < most
        return self._is_small[tensor.op]

    def _key_of(self, tensor: tf.Tensor) -> Tuple[tf.Operation, int]:
        """A key shared by all reads of one value: Adam reads `beta1_power` for each kernel."""
        op = tensor.op
        while op.type == 'Identity' and not graphs.is_reference(op.inputs[0]):
            op = self._step.resolve(op.inputs[0]).op
        if op.type == 'ReadVariableOp' and op not in self._gated:
            variable = graphs.variable_behind(op.inputs[0])
            if variable is not None and variable not in self._written_ahead:
                return variable, 0
        return key(tensor)

    def _written_name(self, write: tf.Operation) -> str:
        variables = self._step.writes.variables(write)
        return variables[0].name if variables else _accumulated_name(write)


def _role_name(write: tf.Operation, role: str) -> str:
    if role in _GRADIENTS:
        return _GRADIENT
    return _ROLES.get(role, role) if graphs.is_apply(write) else 'update'


def _accumulated_name(write: tf.Operation) -> str:
    """The variable in the name of SyncReplicasOptimizer's accumulator; else the op's own name."""
    accumulator = write.inputs[0].op
    try:
        name = tf.compat.as_str(accumulator.get_attr('shared_name'))
    except ValueError:
        name = ''
    if not name.endswith('/grad_accum'):
        return accumulator.name
    return name[: -len('/grad_accum')].partition(':')[0]  # the name has w:0 for the variable w

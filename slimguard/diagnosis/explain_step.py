"""Explains a bad step, one function for each way in which it can be bad.

The ways are: a tensor is not finite; the loss or the gradient norm is above its limit; a variable
turns non-finite when it is updated; the square of a gradient overflows in the optimizer.
"""

import re
from typing import List, Optional, Sequence

import numpy as np
import tensorflow as tf

from slimguard import graph as graphs
from slimguard.diagnosis import op_rules
from slimguard.diagnosis.bad_rows import (
    find_non_finite,
    outlier,
    rows_in_words,
    with_rows,
)
from slimguard.diagnosis.diagnosis import Diagnosis, Input, Phase
from slimguard.diagnosis.draws import is_from_outside, is_written_value
from slimguard.diagnosis.measured_step import SAME_NUMBERS, MeasuredStep
from slimguard.diagnosis.op_rules import Cause
from slimguard.diagnosis.ranges import NonFinite, Range, measure
from slimguard.diagnosis.rerun_step import Step
from slimguard.gate import ABOVE_MAX_LOSS
from slimguard.graph import key
from slimguard.graph.collectives import is_collective
from slimguard.graph.source_lines import Origins
from slimguard.incidents import policies
from slimguard.incidents.incident import Incident
from slimguard.system import texts

_NO_VALUE = np.array(np.nan, np.float32)  # stands for a tensor in a branch that did not run


def explain_non_finite(measured: MeasuredStep, tensors: Sequence[tf.Tensor]) -> Diagnosis:
    """Explains why the first of `tensors` is not finite, although its inputs are finite.

    Args:
      measured: the step.
      tensors: the tensors where non-finite numbers began, as `where_it_began` returns them.
    """
    tensor, *others = tensors
    step, op = measured.step, tensor.op
    given = measured.inputs_of(tensor)
    inputs = list(op.inputs) if not step.is_fed(tensor) else []
    to_fetch = [t for t in inputs if _is_plain(t) and step.can_fetch(t)]
    values = dict(zip(map(key, [tensor, *to_fetch]), step.fetch([tensor, *to_fetch])))
    output = values[key(tensor)]
    output = _NO_VALUE if output is None else output
    diagnosis = _describe(measured, tensor)._replace(non_finite=find_non_finite(output))
    if step.is_fed(tensor):
        if given and not is_written_value(step.type_of(op)):
            return _explain_computed(measured, diagnosis, tensor, given)
        outside = [t for t in others if step.is_fed(t) and is_from_outside(step.type_of(t.op))]
        return _explain_source(diagnosis, list(map(step.name_of, outside)), bool(given))
    if graphs.is_variable_read(op) or op.type in graphs.VARIABLES:
        trouble = '%s was already not finite before this step' % _name_of(step, tensor)
        return diagnosis._replace(phase=Phase.VARIABLE, trouble=trouble)
    if op.type == 'Const':
        trouble = _what(measure(output, tensor.dtype.base_dtype.name))
        return diagnosis._replace(phase=Phase.CONSTANT, trouble=trouble)
    diagnosis = diagnosis._replace(
        inputs=tuple(Input(step.name_of(t), measured.range_of(t)) for t in given)
    )
    inside = _inside(step, op)
    if inside:
        return diagnosis._replace(trouble=inside, kind=_kind(measured, tensor, op_rules.UNKNOWN))
    forward = _op_named(step, diagnosis.forward_op)
    cause = op_rules.cause_of(
        op_rules.Culprit(
            op_type=step.type_of(op),
            forward_type='' if forward is None else _type_of(step, forward),
            inputs=[values.get(key(t)) for t in inputs],
            output=output,
            dtype=tensor.dtype.base_dtype.name,
        )
    )
    at_fault = map(key, inputs if cause.at is None else [inputs[cause.at]])
    places = {each: op_rules.where(cause.broken, values.get(each)) for each in at_fault}
    pairs = zip(diagnosis.inputs, given)
    diagnosis = diagnosis._replace(
        inputs=tuple(i._replace(where=places.get(key(t), '')) for i, t in pairs)
    )
    diagnosis, more = with_rows(measured, diagnosis, tensor)
    more = '' if more.replace(', in ', '') in cause.sentence else more
    is_explained = cause.is_known and not cause.is_overflow
    far = '' if is_explained or measured.has_exploded else outlier(measured, tensor)
    guilty = tensor if cause.at is None else inputs[cause.at]
    kind = _kind(measured, guilty, cause, far)
    if kind != policies.EXPLOSION:
        diagnosis = diagnosis._replace(drawn=measured.made_of(guilty).drawn)
    more += far or (measured.large_weights() if cause.is_overflow else '')
    more += _of_probabilities(measured, op if op.type == 'Log' else forward)
    if kind == policies.COMES_AGAIN:
        more += '; it depends neither on the batch nor on the weights'
    elif kind == policies.STATE:
        more += '; it depends on variables alone, and not on the batch'
    is_division = cause.at is not None and cause.sentence.startswith('division')
    which = ', where %s is 0' % _name_of(step, guilty) if is_division else ''
    return diagnosis._replace(trouble=cause.sentence + which + more, kind=kind)


def _name_of(step: Step, tensor: tf.Tensor) -> str:
    """The name of the variable that a tensor reads; else the tensor's name."""
    variable = graphs.variable_read(tensor)
    return step.name_of(tensor) if variable is None else variable.name


def _inside(step: Step, op: tf.Operation) -> str:
    """The sentence about an op that ends a loop or calls a function; '' if it does neither."""
    if op.type.startswith(('TensorArray', 'TensorList')) and op.inputs:
        # A loop filled the array that this op reads.
        array = op.inputs[0] if op.type.startswith('TensorList') else op.inputs[-1]  # its flow
        while array.op.type == 'Identity':
            array = array.op.inputs[0]
        op = array.op
    loop = step.flow.loop_left_by(op)
    if not loop and not graphs.Writes(step.graph).calls(op):
        return ''
    where = 'the loop %s' % loop if loop else 'a function of %s' % step.type_of(op)
    return 'somewhere in %s, which cannot be looked into' % where


# Ops that select some of the numbers of a tensor: a Mul with one-hot labels and a Sum, a GatherV2.
_PICKS = SAME_NUMBERS | frozenset('Mul Sum GatherV2 GatherNd StridedSlice BatchGather'.split())


def _of_probabilities(measured: MeasuredStep, log: Optional[tf.Operation]) -> str:
    """Tells whether a Softmax or Sigmoid made the 0 of `log`: p = 0, or p = 1 in log(1 - p)."""
    is_log = log is not None and log.type == 'Log'
    waiting = [(tensor, 0) for tensor in log.inputs] if log is not None and is_log else []
    while waiting:
        tensor, bad = waiting.pop()
        op, its_range = tensor.op, measured.range_of(tensor)
        if measured.step.is_fed(tensor):
            continue
        if op.type in ('Softmax', 'Sigmoid'):
            # If it never returned that number, another factor made the 0, such as a label.
            if its_range is not None and bad in (its_range.min, its_range.max):
                return '; its input comes from a %s' % op.type
        elif op.type == 'Sub':
            waiting += [(op.inputs[0], bad), (op.inputs[1], 1 - bad)]
        elif op.type in _PICKS:
            waiting += [(given, bad) for given in op.inputs]
    return ''


def _kind(measured: MeasuredStep, tensor: tf.Tensor, cause: Cause, far: str = '') -> str:
    """The kind of a cause, for policies: what `tensor` is computed from decides.

    Where both the batch and the weights take part, neither is blamed: only the next batches show
    whether the weights still work.

    Args:
      measured: the step.
      tensor: the input at fault if the cause names one; else the tensor that an op made non-finite
        from finite inputs.
      cause: the cause.
      far: the sentence of `outlier`; '' if it found no rows.
    """
    made_of = measured.made_of(tensor)
    if not made_of.floats and not made_of.draws:
        # If another run writes the variable, as it may write a counter, the next step may be good.
        return policies.COMES_AGAIN if made_of.is_own else ''
    if far or not made_of.floats:
        return policies.BATCH
    if measured.has_exploded or cause.is_overflow:
        return policies.EXPLOSION
    return policies.STATE if made_of.is_own and cause.is_known else ''


def explain_sources(
    tensors: Sequence[tf.Tensor], value: np.ndarray, is_computed: bool
) -> Diagnosis:
    """Explains a step by its non-finite sources alone, if nothing else was examined.

    Args:
      tensors: the sources that are not finite.
      value: the value of the first source.
      is_computed: whether Python or another process computed that value from other floats.
    """
    tensor, *others = tensors
    diagnosis = Diagnosis(
        phase=Phase.INPUT,
        trouble='',
        op=tensor.op.name,
        op_type=tensor.op.type,
        tensor=tensor.name,
        line=Origins(tensor.graph)(tensor.op.name).line,
        output=measure(value, tensor.dtype.base_dtype.name),
        non_finite=find_non_finite(value),
    )
    if is_computed and not is_written_value(tensor.op.type):
        assert diagnosis.output is not None
        trouble = '%s returned %s; what it was given was not looked at'
        return diagnosis._replace(
            phase=Phase.FORWARD, trouble=trouble % (diagnosis.op_type, _what(diagnosis.output))
        )
    outside = [other.name for other in others if is_from_outside(other.op.type)]
    return _explain_source(diagnosis, outside)


def _explain_square(measured: MeasuredStep) -> Optional[Diagnosis]:
    """Explains a bad step in which gradients are finite, but their squares are not; else None."""

    def squared(tensor) -> float:
        size = measured.range_of(tensor)
        # Compared with the dtype's range: 1e20 is large for float32, and 1e3 for float16.
        return 0.0 if size is None else size.largest / op_rules.largest_of(size.dtype) ** 0.5

    floats = [t for t in measured.step.checked if squared(t) > 1]
    if not floats:
        return None
    first = min(floats, key=lambda t: measured.number_of(t.op))
    name = _gradient_name(measured.step, first) or 'gradient'
    trouble = 'the %s is finite, but its square is not, and the optimizer squares it' % name
    while first.op.type in SAME_NUMBERS and not measured.step.is_fed(first):
        first = first.op.inputs[0]
    return _too_large(measured, first, trouble)


_ABOVE = 'the %s is above its limit'
_MAX_LOSS = ABOVE_MAX_LOSS + r'=[^\s:]+'
_TIMES = r'(loss|gradient norm)( \S+ is \S+ times the median \S+)'  # in the reason of a spike


def with_limit(diagnosis: Diagnosis, incident: Incident) -> Diagnosis:
    """Adds the limit that the reason names: `max_loss`, or the multiple of the median."""
    trouble = diagnosis.trouble
    limit = re.search(_MAX_LOSS, incident.reason)
    if limit is not None and incident.loss is not None:
        above = 'the loss %.4g is %s' % (incident.loss, limit.group())
        trouble = trouble.replace(_ABOVE % 'loss', above)
    for name, excess in re.findall(_TIMES, incident.reason):
        trouble = trouble.replace(_ABOVE % name, 'the ' + name + excess)
    return diagnosis._replace(trouble=trouble)


def explain_limit(measured: MeasuredStep, name: str) -> Diagnosis:
    """Explains a loss above its limit; `name` is not used."""
    gate = measured.step.gate
    assert gate.loss is not None  # a gate with this label has a loss
    trouble = _ABOVE % 'loss' + ', and everything is finite'
    return _too_large(measured, gate.loss, trouble)


def explain_norm(measured: MeasuredStep, name: str) -> Diagnosis:
    """Explains a norm of all gradients, called `name`, that is above its limit."""
    gate = measured.step.gate
    trouble = _ABOVE % name + ', and everything is finite'

    def largest(tensor: tf.Tensor) -> float:
        its_range = measured.range_of(tensor)
        return 0.0 if its_range is None else its_range.largest

    floats = [t for t in measured.step.checked if gate.loss is None or key(t) != key(gate.loss)]
    if not floats:
        return Diagnosis(Phase.UPDATE, trouble)
    return _too_large(measured, max(floats, key=largest), trouble)


def _too_large(measured: MeasuredStep, tensor: tf.Tensor, trouble: str) -> Diagnosis:
    """Explains a finite `tensor` that is too large: by large weights, else by rows of the batch."""
    far = '' if measured.has_exploded else outlier(measured, tensor)
    kind = policies.BATCH if far else policies.EXPLOSION
    trouble += measured.large_weights() + far
    return _describe(measured, tensor)._replace(trouble=trouble, kind=kind)


def _describe(measured: MeasuredStep, tensor: tf.Tensor) -> Diagnosis:
    """The diagnosis without the trouble: the op, the line that made it, the range of its output."""
    step, op = measured.step, tensor.op
    origin = step.origins(op.name)
    name = step.name_of(tensor)
    return Diagnosis(
        phase=measured.phase_of(op),
        trouble='',
        op=name.rpartition(':')[0],
        op_type=step.type_of(op),
        tensor=name,
        line=origin.line,
        forward_op=origin.forward,
        output=measured.range_of(tensor),
    )


def _explain_source(
    diagnosis: Diagnosis, others: Sequence[str], is_given_finite: bool = False
) -> Diagnosis:
    assert diagnosis.output is not None and diagnosis.non_finite is not None
    if is_written_value(diagnosis.op_type or ''):
        return diagnosis._replace(phase=Phase.VARIABLE, trouble=_written(is_given_finite))
    trouble = _bad_data(diagnosis.output, diagnosis.non_finite) + _of_function(diagnosis)
    if others:
        trouble += '; not finite as well: %s' % texts.listed(others, 3)
    return diagnosis._replace(phase=Phase.INPUT, trouble=trouble, kind=policies.BATCH)


def _explain_computed(
    measured: MeasuredStep, diagnosis: Diagnosis, tensor: tf.Tensor, given: Sequence[tf.Tensor]
) -> Diagnosis:
    """Explains a bad value that Python or another process made from finite inputs (`given`)."""
    assert diagnosis.output is not None and diagnosis.non_finite is not None
    inputs = tuple(Input(measured.step.name_of(t), measured.range_of(t)) for t in given)
    trouble = '%s returned %s from finite inputs' % (diagnosis.op_type, _what(diagnosis.output))
    if is_collective(diagnosis.op_type or ''):
        trouble += ': those of another process are not, or the sum of all overflowed'
    trouble += _of_function(diagnosis)
    phase = measured.phase_of(given[0].op) if given else Phase.FORWARD
    diagnosis, rows = with_rows(measured, diagnosis, tensor)
    return diagnosis._replace(phase=phase, trouble=trouble + rows, inputs=inputs)


def _of_function(diagnosis: Diagnosis) -> str:
    is_call = diagnosis.op_type in graphs.CALLS
    return '; it comes out of a function, which cannot be looked into' if is_call else ''


def _written(is_given_finite: bool) -> str:
    """The sentence about a value that the step wrote and reads again."""
    wrote = 'the step wrote it, and reads it again'
    if not is_given_finite:
        return wrote + '; what it was given was not looked at'
    return wrote + ', and what it was given is finite: the variable was bad before, or overflowed'


def _bad_data(output: Range, non_finite: NonFinite) -> str:
    rows = rows_in_words(non_finite.rows, output.shape[0]) if non_finite.rows else ''
    return 'bad data: %s%s' % (_what(output), rows)


def _what(output: Range) -> str:
    values = int(np.prod(output.shape, dtype=np.int64))
    if values == 1:
        return 'NaN' if output.nan else 'Inf'
    return '%s among %d values' % (' and '.join(output.bad), values)


def _op_named(step: Step, name: Optional[str]) -> Optional[tf.Operation]:
    """The op of that name; None if there is none."""
    try:
        return None if name is None else step.graph.get_operation_by_name(name)
    except KeyError:
        return None


def _is_plain(tensor: tf.Tensor) -> bool:
    """Whether a tensor holds numbers."""
    dtype = tensor.dtype.base_dtype
    return graphs.is_float(tensor) or dtype.is_integer or dtype.is_bool


def _type_of(step: Step, op: tf.Operation) -> str:
    """The type of a forward op; `op_rules.NORM` for the square root of a sum."""
    given = op.inputs[0].op if op.type == 'Sqrt' else op
    while given.type in SAME_NUMBERS:
        given = given.inputs[0].op
    return op_rules.NORM if given.type == 'Sum' else step.type_of(op)


def _gradient_name(step: Step, tensor: tf.Tensor) -> str:
    """What the gate's messages call a gradient; '' if no optimizer takes this tensor itself."""
    writes = graphs.Writes(step.graph)
    for op in filter(graphs.is_apply, step.ours):
        if any(key(value.tensor) == key(tensor) for value in graphs.values_of(op)):
            variables = writes.variables(op)
            return 'gradient of %s' % variables[0].name if variables else ''
    return ''


# Updates that are not finite although all their inputs are.

# Arguments of optimizers, each with the number that a small dtype may round it to; the update then
# divides by 0.
_ROUNDED = {'epsilon': 0.0, 'beta1': 1.0}


def explain_written(measured: MeasuredStep, name: str) -> Diagnosis:
    """Explains a variable, called `name`, that turns non-finite when it is updated."""
    kernel = _kernel_of(measured.step, name)
    is_squared = kernel is not None and graphs.squares_gradient(kernel)
    squared = _explain_square(measured) if is_squared else None
    return squared or _explain_update(measured, name, kernel)


def _explain_update(measured: MeasuredStep, name: str, kernel: Optional[tf.Operation]) -> Diagnosis:
    if kernel is None:
        trouble = '%s would not be finite after the update' % name
        return Diagnosis(Phase.UPDATE, trouble, kind=policies.EXPLOSION)
    inputs, rounded = [], []
    for value in graphs.values_of(kernel):
        tensor = _without_factor(value.tensor)
        span = measured.range_of(tensor)
        inputs.append(Input('%s (%s)' % (tensor.name, value.role), span))
        number = _ROUNDED.get(value.role)
        if span is not None and number is not None and span.min == span.max == number:
            rounded.append('%s is %g in %s' % (value.role, number, span.dtype))
    original = _original_name(kernel.name)
    taken = 'the gradient and all other inputs' if graphs.is_apply(kernel) else 'all inputs'
    trouble = '%s would not be finite after the update, though %s of the update are' % (name, taken)
    return Diagnosis(
        phase=Phase.UPDATE,
        trouble=': '.join([trouble, *rounded]),
        op=original,
        op_type=kernel.type,
        line=measured.step.origins(original).line,
        inputs=tuple(inputs),
        kind=policies.COMES_AGAIN if rounded else policies.EXPLOSION,
    )


def _without_factor(tensor: tf.Tensor) -> tf.Tensor:
    """The script's learning rate, if `tensor` is its product with slimguard's factor."""
    is_scaled = tensor.op.name.startswith(graphs.OURS) and tensor.op.type == 'Mul'
    return tensor.op.inputs[0] if is_scaled else tensor


def is_unseen(step: Step, name: str) -> bool:
    """Whether a loop or function updates the variable `name`; no tensor in one can be fetched."""
    kernel = _kernel_of(step, name)
    return kernel is None or step.flow.is_in_loop(kernel)


def _kernel_of(step: Step, name: str) -> Optional[tf.Operation]:
    """The gate's clone of the op that updates the variable `name`; None if it is in a function."""
    writes = graphs.Writes(step.graph)
    kernels: List[tf.Operation] = [
        op
        for op in step.ours
        if any(v.name == name for v in writes.variables(op))
        and (graphs.values_of(op) or graphs.is_apply(op))
        # The op that undoes an update also writes the variable, but is no clone.
        and _original_name(op.name) in step.origins
    ]
    return next((op for op in kernels if graphs.is_apply(op)), kernels[0] if kernels else None)


def _original_name(name: str) -> str:
    """The name of the op that a gate cloned: the clone is called slimguard/gate/NAME."""
    parts = name.split('/', 2)
    return parts[2] if len(parts) == 3 else name

"""Finds the op that made a step bad, by running the step again with what it drew.

    diagnosis = diagnose(BadStep(session, capture, capture.take(session), labels))
    print(diagnosis)         # a few lines

How it works
------------
:mod:`measured_step` fetches all float tensors of the forward and the backward pass, part by part,
and notes their ranges. :func:`where_it_began` walks back from the values that the gate checks,
along non-finite tensors, to where these began. The first non-finite tensor of the step need not be
the cause: a mask of minus infinity is intended and harmless. :mod:`explain_step` puts the cause
into a sentence, even if all tensors of the bad step are finite.
"""

import functools
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
import tensorflow as tf

from slimguard import graph as graphs
from slimguard.compat import tf_private
from slimguard.diagnosis import explain_step
from slimguard.diagnosis.bad_rows import bad_shares
from slimguard.diagnosis.capture import BadStep, Capture
from slimguard.diagnosis.diagnosis import Diagnosis, Phase
from slimguard.diagnosis.draws import is_written_value
from slimguard.diagnosis.exported_step import export
from slimguard.diagnosis.measured_step import MeasuredStep
from slimguard.diagnosis.op_rules import COPE_WITH_MINUS_INF
from slimguard.diagnosis.ranges import numbers
from slimguard.diagnosis.rerun_step import Step
from slimguard.gate import Label
from slimguard.graph import key
from slimguard.incidents import policies

# By kind of label, explains a step whose tensors are all finite; the most specific kind is first.
_BY_KIND = (
    (Label.LIMIT, explain_step.explain_limit),
    (Label.NORM, explain_step.explain_norm),
    (Label.STATE, explain_step.explain_written),
    (Label.WRITTEN, explain_step.explain_written),
)


def diagnose(bad_step: BadStep) -> Diagnosis:
    """Finds what made the last step bad. Writes nothing and draws nothing.

    Raises:
      tf.errors.OpError: if running the step again fails.
      slimguard.diagnosis.rerun_step.ReplayError: if no graph can be built of the step.
    """
    capture = bad_step.capture
    lost = 'not kept, for it was drawn inside a loop: ' + ', '.join(
        op.name for op in capture.missing[:5]
    )
    # A step whose batch is missing cannot be run again; one whose dropout mask is missing can.
    if not all(map(graphs.is_random, capture.missing)):
        return glance(bad_step, lost)
    variables = functools.partial(capture.variables_in, bad_step.session)
    gpu_options = tf_private.gpu_options_of(bad_step.session)
    with Step(export(capture), variables, bad_step.values, gpu_options) as step:
        diagnosis = diagnose_step(step, bad_step.labels, bad_step.explosion)
    if not capture.missing:
        return diagnosis
    return diagnosis._replace(not_seen=(lost,), kind=diagnosis.kind if diagnosis.is_known else '')


def glance(bad_step: BadStep, why: str) -> Diagnosis:
    """Checks only whether the values that the step drew were bad; runs nothing again.

    Args:
      bad_step: the step.
      why: the sentence that says why there was no search.
    """
    capture, values = bad_step.capture, bad_step.values
    bad = bad_sources(capture, values)
    if bad:
        is_computed = bad[0].name in capture.givens
        diagnosis = explain_step.explain_sources(bad, values[bad[0].name], is_computed)
    else:
        diagnosis = Diagnosis(
            Phase.UNKNOWN, 'all that the step drew is finite, and nothing was run again'
        )
    return diagnosis._replace(not_seen=(why,)).after(bad_step.explosion)


def bad_sources(capture: Capture, values: Dict[str, np.ndarray]) -> List[tf.Tensor]:
    """The non-finite sources: input, then computed ones, then written ones; the least bad first."""
    bad = []
    for tensor in capture.sources:
        value = values.get(tensor.name)
        is_limit = any(tensor is limit for limit in capture.gate.limits)
        if value is None or is_limit or not graphs.is_float(tensor):
            continue
        if not np.isfinite(numbers(value)).all():
            bad.append(tensor)

    def rank(tensor: tf.Tensor) -> Tuple[Any, ...]:
        is_written, is_computed = is_written_value(tensor.op.type), tensor.name in capture.givens
        return (is_written, is_computed, *bad_shares(values[tensor.name]))

    return sorted(bad, key=rank)


def diagnose_step(step: Step, labels: Sequence[Label], explosion: str) -> Diagnosis:
    """Finds what made a `Step` bad."""
    measured = MeasuredStep(step, explosion)
    diagnosis = _explain(measured, labels).after(explosion)
    return diagnosis._replace(ranges=tuple(measured.rows()))


def _explain(measured: MeasuredStep, labels: Sequence[Label]) -> Diagnosis:
    kinds = {label.kind for label in labels}
    bad = _bad_tensors(measured, not kinds.isdisjoint({Label.VALUE, Label.LATE}))
    if not bad and _is_written_unseen(measured.step, labels):
        drawn = [t for t in measured.step.feed if not t.name.startswith(graphs.OURS)]
        bad = list(filter(measured.is_bad, drawn))
    if bad:
        diagnosis = explain_step.explain_non_finite(measured, where_it_began(measured, bad))
        return _of_optimizer(diagnosis, labels)
    for kind, explain in _BY_KIND:
        if kind in kinds:
            return explain(measured, [label.name for label in labels if label.kind == kind][0])
    # The same weights and batch now give finite values, so rounding made the step bad: no older
    # state would help.
    kind = policies.BATCH if Label.VALUE in kinds and not measured.has_exploded else ''
    return Diagnosis(Phase.UNKNOWN, 'run again with what it drew, the step is finite', kind=kind)


def _of_optimizer(diagnosis: Diagnosis, labels: Sequence[Label]) -> Diagnosis:
    """Names the optimizer's scalar that is bad, unless batch or weights made it bad."""
    names = [label.name for label in labels if label.kind == Label.VALUE]
    others = ('gradient of ', 'update of ', 'loss ')
    scalars = [name for name in names if ' of ' in name and not name.startswith(others)]
    if not scalars:
        return diagnosis
    kind, is_alone = diagnosis.kind, len(scalars) == len(names)
    is_given = diagnosis.phase == Phase.INPUT and not diagnosis.bad_rows
    if is_alone and is_given and diagnosis.output is not None:
        # The script fed the scalar, or a `py_func` returned it. The scalar is not a part of the
        # data, and the next value may be finite.
        trouble = 'it was given as ' + ('NaN' if diagnosis.output.nan else 'Inf')
        diagnosis, kind = diagnosis._replace(phase=Phase.UPDATE, trouble=trouble), ''
    elif is_alone and diagnosis.phase == Phase.VARIABLE:  # a variable that the script sets
        kind = policies.COMES_AGAIN
    elif kind != policies.COMES_AGAIN and (kind or not is_alone):
        return diagnosis
    scalar = scalars[0].partition(' of ')[0]
    trouble = 'the %s itself is not finite: %s' % (scalar, diagnosis.trouble)
    return diagnosis._replace(trouble=trouble, kind=kind)


def _is_written_unseen(step: Step, labels: Sequence[Label]) -> bool:
    """Whether the variable that turned non-finite is updated inside a loop or a function."""
    written = [label.name for label in labels if label.kind in (Label.STATE, Label.WRITTEN)]
    return bool(written) and explain_step.is_unseen(step, written[0])


def _bad_tensors(measured: MeasuredStep, some_value_was: bool) -> List[tf.Tensor]:
    """The non-finite tensors among those that the gate checks; if none, but it saw one, all."""
    step = measured.step
    bad = [t for t in step.checked if measured.is_bad(t)]
    if not bad and some_value_was:
        # Leave out constants: TensorFlow itself makes NaN constants, which are harmless if no
        # checked tensor is bad.
        bad = [t for op in step.ops if op.type != 'Const' for t in op.outputs if measured.is_bad(t)]
    return bad


# Where in a step non-finite numbers began.
#
# The search walks back from bad tensors, along non-finite ones, to an op with a non-finite output
# and finite inputs; or to a source, a variable or a constant, which have no inputs.
#
# A constant was the same in all good steps. So if the walk ends at a constant, the cause is
# elsewhere: the condition that selected the constant, if it was computed from a bad tensor; or the
# op that made a NaN from the constant's Inf, such as a softmax of nothing but a mask.

_PHASES = (Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE)


def where_it_began(measured: MeasuredStep, bad: Sequence[tf.Tensor]) -> List[tf.Tensor]:
    """The tensors where the non-finite numbers in `bad` began, likely causes first."""
    beginnings = _walk_back(measured, bad, stops=False)
    stops = any(_may_be_meant(measured, tensor) for tensor in beginnings)
    if stops:
        beginnings = _walk_back(measured, bad, stops)
    losses = [t for t in [measured.step.gate.loss] if t is not None and measured.is_bad(t)]
    of_loss = set(map(key, _walk_back(measured, losses, stops)))

    def rank(tensor: tf.Tensor) -> Tuple[Any, ...]:
        # If the loss is bad, its gradients are bad too, and where they began says less.
        is_after = bool(losses) and key(tensor) not in of_loss and not measured.step.is_fed(tensor)
        return (is_after, *_rank(measured, tensor))

    return sorted(beginnings, key=rank)


def _walk_back(measured: MeasuredStep, bad: Sequence[tf.Tensor], stops: bool) -> List[tf.Tensor]:
    """Where the walks back end; with `stops`, also at an op that makes NaN from a mask's Inf."""
    beginnings = []
    seen = set()
    waiting = list(bad)
    while waiting:
        tensor = waiting.pop()
        if key(tensor) in seen:
            continue
        seen.add(key(tensor))
        before = [t for t in measured.inputs_of(tensor) if measured.is_bad(t)]
        if before and all(t.op in measured.fixed for t in before):
            before = measured.chosen_by(tensor) or before
        if stops and before and _makes_nan_of_mask(measured, tensor, before):
            before = []
        waiting.extend(before)
        if not before:
            beginnings.append(tensor)
    return beginnings


def _makes_nan_of_mask(
    measured: MeasuredStep, tensor: tf.Tensor, before: Sequence[tf.Tensor]
) -> bool:
    """Whether an op turned an intended Inf into NaN; or, if it copes with -Inf, into NaN or Inf."""
    ranges = [measured.range_of(t) for t in before]
    made = measured.range_of(tensor)
    if made is None or any(r is None or r.nan for r in ranges):
        return False
    copes = tensor.op.type in COPE_WITH_MINUS_INF
    behind = _walk_back(measured, before, stops=False)
    if all(t.op in measured.fixed for t in behind):
        return bool(made.nan) or copes
    return bool(made.nan) and copes and all(_may_be_meant(measured, t) for t in behind)


def _may_be_meant(measured: MeasuredStep, tensor: tf.Tensor) -> bool:
    return tensor.op in measured.fixed or tensor.op.type == 'Log'


def _rank(measured: MeasuredStep, tensor: tf.Tensor) -> Tuple[Any, ...]:
    if measured.step.is_fed(tensor):
        # By the names in the user's graph, so that the order is the same in each copy of the step.
        name, _, index = measured.step.name_of(tensor).rpartition(':')
        # Values from outside come before written ones.
        is_written = is_written_value(measured.step.type_of(tensor.op))
        shares = next(bad_shares(v) for t, v in measured.step.feed.items() if key(t) == key(tensor))
        return (False, -1, int(is_written), *shares, name, int(index))
    op, index = tensor.op, tensor.value_index
    phase = _PHASES.index(measured.phase_of(op))
    return op in measured.fixed, phase, measured.number_of(op), 0.0, 0.0, '', index

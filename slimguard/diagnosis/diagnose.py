"""Finds the op that made a step bad, by running the step again with what it drew.

    diagnosis = diagnose(session, capture, capture.take(session), labels)
    print(diagnosis)         # a few lines

How it works
------------
:mod:`measured_step` fetches all float tensors of the forward and the backward pass, part by part,
and notes their ranges. :mod:`first_op` walks back from the values that the gate checks, along
non-finite tensors, to where these began. The first non-finite tensor of the step need not be the
cause: a mask of minus infinity is intended and harmless. :mod:`explanations` puts the cause into a
sentence, also that of a bad step whose tensors are all finite.
"""

import functools
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
import tensorflow as tf

from slimguard import graph as graphs
from slimguard.diagnosis import explanations, updates
from slimguard.diagnosis.capture import Capture
from slimguard.diagnosis.diagnosis import Diagnosis
from slimguard.diagnosis.draws import is_written_value
from slimguard.diagnosis.exported_step import export
from slimguard.diagnosis.first_op import where_it_began
from slimguard.diagnosis.measured_step import MeasuredStep
from slimguard.diagnosis.ranges import bad_shares, numbers
from slimguard.diagnosis.step import Step, can_run_live, live_step, variables_in_chunks
from slimguard.diagnosis.step_copy import StepCopy
from slimguard.gate import Label
from slimguard.incidents import policies


def _explain_written(measured: MeasuredStep, name: str) -> Diagnosis:
    squared = updates.is_squared(measured.step, name) and explanations.explain_square(measured)
    return squared or updates.explain_update(measured, name)


# By the kind of the gate's label, explains a step whose tensors are all finite; most telling first.
_BY_KIND = (
    ('limit', explanations.explain_limit),
    ('norm', explanations.explain_norm),
    ('state', _explain_written),
    ('written', _explain_written),
)


def diagnose(
    session,
    capture: Capture,
    values: Dict[str, np.ndarray],
    labels: Sequence[Label] = (),
    explosion: str = '',
) -> Diagnosis:
    """Finds what made the last step bad. Writes nothing and draws nothing.

    Args:
      session: the session of the training, with the variables as the bad step left them.
      capture: the `Capture` of the train op.
      values: what the step drew, as `capture.take` returned it.
      labels: what the gate found to be bad: the labels of the true elements of `gate.bad`.
      explosion: what the steps before show of an explosion, as `explosion_in` says it.

    Raises:
      tf.errors.OpError: if running the step again fails.
      slimguard.diagnosis.step_copy.ReplayError: if the step can run only in a graph of its own, and
        that graph fails.
    """
    lost = 'not kept, for it was drawn inside a loop: ' + ', '.join(
        op.name for op in capture.missing[:5]
    )
    if not all(map(graphs.is_random, capture.missing)):  # another run would draw another batch
        return glance(capture, values, lost, explosion)
    if can_run_live(capture, values):
        found = diagnose_step(live_step(session, capture, values), labels, explosion)
    else:
        variables = functools.partial(variables_in_chunks, session, capture)
        with StepCopy(export(capture), variables) as copy:
            found = diagnose_step(copy.step(values), labels, explosion)
    if not capture.missing:
        return found
    return found._replace(not_seen=(lost,), kind=found.kind if found.found else '')


def glance(
    capture: Capture, values: Dict[str, np.ndarray], why: str, explosion: str = ''
) -> Diagnosis:
    """Checks, without running anything again, whether the values that the step drew were bad.

    Args:
      capture: the `Capture` of the train op.
      values: what the step drew.
      why: the sentence that says why there was no search.
      explosion: as for `diagnose`.
    """
    bad = bad_sources(capture, values)
    if bad:
        is_computed = bad[0].name in capture.givens
        found = explanations.explain_sources(bad, values[bad[0].name], is_computed)
    else:
        found = Diagnosis('unknown', 'all that the step drew is finite, and nothing was run again')
    return found._replace(not_seen=(why,)).after(explosion)


def bad_sources(capture: Capture, values: Dict[str, np.ndarray]) -> List[tf.Tensor]:
    """The non-finite sources: from outside, then computed, then written; the least bad first."""
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


def diagnose_step(step: Step, labels: Sequence[Label] = (), explosion: str = '') -> Diagnosis:
    """Finds what made a `Step` bad, in the training's session or in a copy."""
    measured = MeasuredStep(step, explosion)
    found = _explain(measured, labels).after(explosion)
    return found._replace(ranges=tuple(measured.rows()))


def _explain(measured: MeasuredStep, labels: Sequence[Label]) -> Diagnosis:
    kinds = {label.kind for label in labels}
    bad = _bad_tensors(measured, not kinds.isdisjoint({'value', 'late'}))
    if not bad and _is_written_unseen(measured.step, labels):
        drawn = [t for t in measured.step.feed if not t.name.startswith(graphs.OURS)]
        bad = list(filter(measured.is_bad, drawn))
    if bad:
        found = explanations.explain_non_finite(measured, where_it_began(measured, bad))
        return _of_optimizer(found, labels)
    for kind, explain in _BY_KIND:
        if kind in kinds:
            return explain(measured, [label.name for label in labels if label.kind == kind][0])
    # Finite with the same weights and the same batch: rounding decides. An older state is no help.
    kind = policies.BATCH if 'value' in kinds and not measured.has_exploded else ''
    return Diagnosis('unknown', 'run again with what it drew, the step is finite', kind=kind)


def _of_optimizer(found: Diagnosis, labels: Sequence[Label]) -> Diagnosis:
    """Names the optimizer's scalar that is bad, unless batch or weights made it bad."""
    names = [label.name for label in labels if label.kind == 'value']
    others = ('gradient of ', 'update of ', 'loss ')
    scalars = [name for name in names if ' of ' in name and not name.startswith(others)]
    if not scalars:
        return found
    kind, is_alone = found.kind, len(scalars) == len(names)
    if is_alone and found.phase == 'input' and not found.bad_rows and found.output is not None:
        # Fed, or returned by Python. It is no data, and the next one may be finite.
        what = 'NaN' if found.output.nan else 'Inf'
        found, kind = found._replace(phase='update', trouble='it was given as ' + what), ''
    elif is_alone and found.phase == 'variable':  # which the script sets
        kind = policies.COMES_AGAIN
    elif kind != policies.COMES_AGAIN and (kind or not is_alone):
        return found
    trouble = 'the %s itself is not finite: %s' % (scalars[0].partition(' of ')[0], found.trouble)
    return found._replace(trouble=trouble, kind=kind)


def _is_written_unseen(step: Step, labels: Sequence[Label]) -> bool:
    """Whether the variable that turned non-finite is updated inside a loop or function."""
    written = [label.name for label in labels if label.kind in ('state', 'written')]
    return bool(written) and updates.is_unseen(step, written[0])


def _bad_tensors(measured: MeasuredStep, some_value_was: bool) -> List[tf.Tensor]:
    """The non-finite tensors that the gate checks; else, if it saw a bad value, all bad tensors."""
    step = measured.step
    bad = [t for t in step.checked if measured.is_bad(t)]
    if not bad and some_value_was:
        # TensorFlow itself makes constants of NaN. One that reaches no checked tensor is harmless.
        bad = [t for op in step.ops if op.type != 'Const' for t in op.outputs if measured.is_bad(t)]
    return bad

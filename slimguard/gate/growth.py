"""What is written after the update: whether it may grow until it is Inf, and by which variables.

Such a value is computed of variables that were just written, so it cannot be checked before. Adding
what is small leaves a large number as it is, and an average is never above what it is of: so most
of them stay finite. But ``m.assign(m * 10)``, an average with a decay of 10, a loss scale that is
doubled or a sum of weights in float16 end in an Inf, and the root of a variable may be a NaN.
shares.py finds how often each variable enters such a value. Where that is more than once in all,
the fast path looks at these variables before the update (builder.py).
"""

from typing import Dict, List, NamedTuple, Optional, Sequence, Set

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.gate.shares import (
    NO_SHARE,
    ROUNDING,
    Shares,
    SharesOfVariables,
    UnknownGrowth,
    sizes_of,
    total_of,
)
from slimguard.gate.step_graph import StepGraph


class _Write(NamedTuple):
    """What one write makes of variables.

    Attributes:
      between: how often all variables together are in what is computed on the way, in float16.
    """

    write: tf.Operation
    variable: tf.Operation
    shares: Shares
    between: float


def find_growing(
    writes: Sequence[tf.Operation], gated: Set[tf.Operation], step: StepGraph
) -> Optional[List[tf.Operation]]:
    """The variables that have to be small before the update, or None if that is not enough.

    Those are what grows, and what is written only by others, such as a weight that another train op
    trains and this one averages.

    Args:
      writes: the gated writes, but for those that are judged afterwards.
      gated: the gated ops.
      step: the ops of the step.
    """
    shares = SharesOfVariables(writes, gated, step)
    try:
        found = [
            _Write(write, variable, shares.written_by(write, variable), shares.between())
            for write in writes
            for variable in step.writes.variables(write)
            if graphs.is_float_variable(variable)
        ]
    except UnknownGrowth:
        return None
    enters: Dict[tf.Operation, Set[tf.Operation]] = {}
    for each in found:
        for variable in filter(None, each.shares):
            enters.setdefault(variable, set()).add(each.variable)
    written = {variable for write in step.writing for variable in step.writes.variables(write)}
    growing: List[tf.Operation] = []
    growth = 1.0
    for write, variable, shares_of_write, between in found:
        sizes = sizes_of(graphs.dtype_of(variable))
        given = [(each, share) for each, share in shares_of_write.items() if each is not None]
        checked = shares_of_write.get(None, NO_SHARE)
        if checked.most * sizes.checked > sizes.added:
            return None
        reached = _reached(variable, enters)
        if any(share.divided and each in reached for each, share in given):
            return None
        total = total_of(shares_of_write)
        if total > 1 + ROUNDING:
            total = min(total, shares.total_at_ends(write, variable))
        total = max(total, between)
        # What the step itself leaves alone may hold anything that others put there.
        growing += [each for each, _ in given if each not in written]
        if total > 1 + ROUNDING:
            growth *= total
            growing += [each for each, share in given if share.most]
            if growth > sizes.largest / sizes.checked:
                return None
    return list(dict.fromkeys(growing + (list(shares.scalars) if growing else [])))


def _reached(
    variable: tf.Operation, enters: Dict[tf.Operation, Set[tf.Operation]]
) -> Set[tf.Operation]:
    """The variables that a variable enters, itself included, also by way of others."""
    reached, waiting = {variable}, [variable]
    while waiting:
        new = enters.get(waiting.pop(), set()) - reached
        reached |= new
        waiting.extend(new)
    return reached

"""Runs of a script's own updates, in one session: what their variables hold ahead of them."""

from typing import Any, Callable, Dict, FrozenSet, Iterable, Optional, Sequence

import numpy as np
import tensorflow as tf

from slimguard import graph as graphs
from slimguard.checkpoints.variables import all_variables, fetched
from slimguard.compat import tf_private
from slimguard.gate import Gate
from slimguard.gate.written_beside import MOST_NAMES
from slimguard.graph import ops
from slimguard.graph.single_runs import run_once
from slimguard.system import texts
from slimguard.unedited.own_updates import UnguardedUpdateError, written_by
from slimguard.unedited.patches import kept_already, kept_on
from slimguard.unedited.refusals import Refusals
from slimguard.unedited.train_steps import GuardedStep


class HeldBeforeError(UnguardedUpdateError):
    """Variables hold a NaN or Inf that the script has written, and no guarded run."""


def step_of(
    find: Callable[..., Optional[GuardedStep]], session, fetches: Any, fed: Sequence[tf.Tensor]
) -> Optional[GuardedStep]:
    """The step that a run is; None if it is none, or is left to the script.

    Args:
      find: returns the step, given the other arguments; given variables as well, the step without
        the parts that give these their first values.
      session: the session.
      fetches: the fetches of the run.
      fed: the computed tensors of the step that are fed.
    """
    step = find(session, fetches, fed)
    if step is None or not step.written:
        return step
    if step in (kept_already(session, 'left_alone') or ()):
        return None
    missing = _without_value(session, step.written)
    return find(session, fetches, fed, missing) if missing else step


def leave_alone(session, step: GuardedStep, error: HeldBeforeError, refusals: Refusals) -> None:
    """From now on runs a step as the script made it, in this session, and logs that."""
    refusals.refuse(error.name, error)
    kept_on(session, 'left_alone', set).add(step)


def require_finite_before(session, gate: Gate) -> None:
    """Call it after a bad run that wrote nothing.

    Raises:
      HeldBeforeError: if the variables that it would have written were not finite before it.
    """
    if gate.trains:
        return
    written = set(filter(graphs.is_float_variable, written_by(gate)))
    variables = all_variables(session.graph).items()
    reads = {name: fetched(each) for name, each in variables if each.op in written}
    values = run_once(session, reads)
    names = sorted(name for name, value in values.items() if not np.isfinite(value).all())
    if names:
        raise HeldBeforeError(_HELD_BEFORE, texts.listed(names, MOST_NAMES))


def _without_value(session, variables: Iterable[tf.Operation]) -> FrozenSet[tf.Operation]:
    """The variables that have no value in a session."""
    known = kept_on(session, 'with_value', set)
    unknown = [each for each in variables if each not in known]
    if not unknown:
        return frozenset()
    asked: Dict[tf.Operation, Any] = kept_on(session.graph, 'asked_for_value', dict)
    new = [each for each in unknown if each not in asked]
    if new:
        with tf_private.unfinalized(session.graph), ops.our_scope(session.graph, 'has_value'):
            asked.update((each, ops.is_initialized(each)) for each in new)
    found = run_once(session, [asked[each] for each in unknown])
    known.update(each for each, has_value in zip(unknown, found) if has_value)
    return frozenset(each for each in unknown if each not in known)


_HELD_BEFORE = (
    'it held what is not finite ahead of this run, which the script has put there. What the run '
    'writes is left to the script; a save that would hold it is refused'
)

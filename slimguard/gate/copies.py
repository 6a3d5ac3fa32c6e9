"""Makes copies of variables, and writes them back."""

from typing import Dict, List, NamedTuple, Optional, Sequence

import tensorflow as tf

from slimguard import graph as graphs
from slimguard.gate.finite_checks import Moment
from slimguard.graph import ops


class Copy(NamedTuple):
    """The values of variables at one moment; several are joined along their first axis."""

    variables: Sequence[tf.Operation]
    value: tf.Tensor


def copy(
    make: ops.Maker, variables: Sequence[tf.Operation], moment: Optional[Moment]
) -> List[Copy]:
    """Copies variables, at a moment or at once. Writes to them must wait for the copies."""
    copies = []
    with tf.control_dependencies([] if moment is None else [moment.token]):
        for group in make.alike([variable.outputs[0] for variable in variables]):
            chosen = [variables[number] for number in group]
            if len(chosen) == 1:
                value = make.copy(chosen[0])
            else:
                axis = make.constant(0, chosen[0]) if moment is None else moment.zero
                value = make.join([v.outputs[0] for v in chosen], axis, chosen[0])
            copies.append(Copy(chosen, value))
    return copies


def values_of(make: ops.Maker, copies: Sequence[Copy]) -> Dict[tf.Operation, tf.Tensor]:
    """The copied values, by variable."""
    values: Dict[tf.Operation, tf.Tensor] = {}
    for variables, value in copies:
        number = len(variables)
        values.update(
            zip(variables, make.split(value, number, variables[0]) if number > 1 else [value])
        )
    return values


def restore(make: ops.Maker, copies: Sequence[Copy], token: tf.Tensor, name: str) -> tf.Tensor:
    """Writes copies back once `token` is alive. Returns `token`, once that is done.

    Weights come last: otherwise an asynchronous peer could update a restored weight with a slot
    that has exploded and is not restored yet, and ruin the weight for good.
    """
    values = values_of(make, copies)
    trainable = graphs.trainable_in(token.graph) if values else set()
    weights = [variable for variable in values if variable in trainable]
    slots = [variable for variable in values if variable not in trainable]
    for variables in filter(None, (slots, weights)):
        with tf.control_dependencies([token]):
            assigns = [make.assign(variable, values[variable]) for variable in variables]
        token = ops.after(assigns, token, name)
    return token if values else ops.after([], token, name)

"""Copies of variables: made, and written back."""

from typing import List, NamedTuple, Optional, Sequence

import tensorflow as tf

from slimguard.gate.finite_checks import Moment
from slimguard.graph import ops


class Copy(NamedTuple):
    """The values of variables at one moment: if of several, joined along their first axis."""

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


def restore(make: ops.Maker, copies: Sequence[Copy], token: tf.Tensor, name: str) -> tf.Tensor:
    """Writes copies back once `token` is alive. Returns `token`, afterwards."""
    assigns: List[tf.Operation] = []
    with tf.control_dependencies([token]):
        for variables, value in copies:
            number = len(variables)
            values = make.split(value, number, variables[0]) if number > 1 else [value]
            assigns.extend(make.assign(*pair) for pair in zip(variables, values))
    return ops.after(assigns, token, name)

"""Reads the values of variables from a session, and puts them back into it."""

from typing import Any, Dict, Iterable, Iterator, Tuple

import numpy as np
import tensorflow as tf

from slimguard.checkpoints.unlisted import fetched


def read_variables(session, variables: Dict[str, Any]) -> Dict[str, np.ndarray]:
    """Copies of the values of the initialized variables, by name."""
    try:
        values = session.run({name: fetched(each) for name, each in variables.items()})
    except tf.errors.FailedPreconditionError:
        values = dict(_one_by_one(session, variables))
    # A fetched ref variable is the variable's own memory.
    return {name: np.array(value) for name, value in values.items()}


def _one_by_one(session, variables: Dict[str, Any]) -> Iterator[Tuple[str, np.ndarray]]:
    for name, variable in variables.items():
        try:
            value = session.run(fetched(variable))
        except tf.errors.FailedPreconditionError:
            continue
        yield name, np.asarray(value)


def assign(session, values: Iterable[Tuple[Any, np.ndarray]]) -> None:
    """Puts values into variables, by their initializers: a graph may be finalized."""
    for variable, value in values:  # one by one, as two initializers may take the same tensor
        session.run(variable.initializer, {variable.initializer.inputs[1]: value})


def size_of(session, variables: Dict[str, Any]) -> int:
    """The bytes of some variables, without reading those whose shapes are known."""
    size, unknown = 0, {}
    for name, variable in variables.items():
        count = variable.shape.num_elements()
        if count is None:
            unknown[name] = variable
        else:
            size += count * variable.dtype.base_dtype.size
    return size + sum(value.nbytes for _, value in _one_by_one(session, unknown))
